"""A thin layer over redis-py: one command, one attempt, and whether it may have been executed.

The driver's own retries are off (by default it repeats a script whose reply was lost ten times).
`RetryBudget` does the retries, and records whether the command may have been executed.

Invariants
- A driver's exception never escapes from this module: it becomes `NotNowError` (try again), or an
  error of blackboard/errors (trying again would not help).
- A connection whose reply was not read to its end is closed, never used again.
- `RetryBudget.maybe_executed` is False only if the server certainly executed nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

import anyio
from redis.asyncio import ConnectionPool, RedisCluster
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    MasterDownError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from blackboard.errors import Corrupt, InvalidRequest, Unavailable
from blackboard.limits import DEFAULT, EngineLimits

Argument = str | bytes | int
Answer = TypeVar("Answer")

_CONNECTIONS_MAX: Final = 16_384
_NO_URL: Final = "it is none; are all odd characters of the password percent-encoded?"
"""Python's own message shows parts of the URL, which may be parts of the password."""
_NO_SCHEME: Final = (
    "it begins with none of redis://, rediss://, unix://, redis+cluster://, rediss+cluster://"
)
_NOT_TRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
"""OpenSSL's errors about a certificate: the next attempt would fail as well."""
_PAUSE_FIRST_S, _PAUSE_LAST_S = 0.01, 0.5
_FAILURES = (RedisError, OSError, RuntimeError, TypeError)
"""The exceptions of a driver. When a socket was closed just before a write, uvloop raises
RuntimeError, and asyncio in Python 3.12 TypeError ("'NoneType' object is not callable")."""
_DENIED = (AuthenticationError, AuthorizationError, NoPermissionError)
_NOT_NOW = (
    BusyLoadingError,
    ClusterDownError,
    ClusterError,
    MasterDownError,
    ReadOnlyError,
    RedisClusterException,
    TryAgainError,
)
"""Errors of the server, or of the driver before it sent anything, that mean: not executed, try
again later or elsewhere."""
# The disk fails or is full, too few replicas, a script that does not end, no memory. None of it is
# over in a moment.
_CANNOT = ("MISCONF", "NOREPLICAS", "BUSY", "OOM")

_UNBLOCKED: Final = "UNBLOCKED"
"""A server that becomes a replica ends each command that waits there with this error."""


class Driver(Protocol):
    """What the engine needs of a driver. `OneServer` and `Cluster` implement it."""

    limits: EngineLimits

    async def send(self, budget: "RetryBudget", key: str, *command: Argument) -> Any:
        """Send one command, once, and return its reply; `key` is one that the command names."""

    def listening(self, key: str) -> contextlib.AbstractAsyncContextManager["Listening"]:
        """A dedicated connection to the server of `key`."""

    async def ask_all(self, *command: Argument) -> list[Any]:
        """Send a command to every server; one reply each."""

    async def aclose(self) -> None:
        """Close all connections."""


class NotNowError(Exception):
    """An attempt that got no answer, or has to be repeated."""


class ScriptMissingError(Exception):
    """The server does not have the script that EVALSHA named; nothing was executed."""


class RetryBudget:
    """The attempts at one command, for at most ENGINE_RETRY_MS in all.

    With `replicas`, the sender asks the server after the reply how many replicas have it; `reached`
    then says whether so many confirmed it within REPLICA_WAIT_MS.
    """

    def __init__(self, limits: EngineLimits = DEFAULT.engine, replicas: int = 0) -> None:
        self.maybe_executed = False
        self.replicas = replicas
        self.reached = False
        self._until = anyio.current_time() + limits.engine_retry_ms / 1000
        self._pause_s = _PAUSE_FIRST_S

    def left_s(self) -> float:
        """Seconds that are left, never below 0."""
        return max(0.0, self._until - anyio.current_time())

    async def pause(self, reason: NotNowError) -> None:
        """Wait before the next attempt, longer each time. Errors: Unavailable when no time is
        left."""
        if self.left_s() <= self._pause_s:
            raise Unavailable(what="engine", reason=str(reason)) from reason
        await anyio.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_LAST_S)


def _translated(error: Exception) -> Exception:
    """The error to raise in place of the driver's; the same for a server and a cluster."""
    if isinstance(error, NoScriptError):
        return ScriptMissingError()
    reason = f"{type(error).__name__}: {error}"
    if isinstance(error, (OutOfMemoryError, *_DENIED)) or _NOT_TRUSTED in reason:
        return Unavailable(what="engine", reason=reason)
    if isinstance(error, _NOT_NOW) or not isinstance(error, ResponseError):
        return NotNowError(reason)
    if str(error).startswith(_UNBLOCKED):
        return NotNowError(reason)
    if str(error).startswith(_CANNOT):
        return Unavailable(what="engine", reason=reason)
    return Corrupt(what="engine", reason=reason)


def _options(limits: EngineLimits) -> dict[str, Any]:
    timeout_s = limits.engine_timeout_ms / 1000
    return {
        "socket_timeout": timeout_s,
        "socket_connect_timeout": timeout_s,
        "retry": Retry(NoBackoff(), 0),
        "max_connections": _CONNECTIONS_MAX,
        "protocol": 2,
    }


def _executed(error: Exception) -> bool:
    """Whether the command that ended with `error` may have been executed."""
    is_answer = isinstance(error, (ResponseError, *_NOT_NOW, *_DENIED))
    return not is_answer or isinstance(_translated(error), Corrupt)


class _Pool(ConnectionPool):
    """A pool that tracks every connection it made.

    redis-py loses a connection whose release is cancelled while it is being closed; its socket
    would stay open until the garbage collector finds it.
    """

    made: list[AbstractConnection]
    """Set by the creator of the pool, before it is used."""

    def make_connection(self) -> Any:
        """A new connection, as redis-py makes it."""
        connection = super().make_connection()  # type: ignore[no-untyped-call]
        self.made.append(connection)
        return connection

    async def close_all(self) -> None:
        """Close every connection that was ever made."""
        await self.disconnect()
        for connection in self.made:
            await connection.disconnect(nowait=True)
        self.made.clear()


class Listening:
    """A connection on which the server pushes messages. Errors: NotNowError, Unavailable."""

    def __init__(self, connection: AbstractConnection) -> None:
        self._connection = connection

    async def tell(self, *command: Argument) -> None:
        """Send a command; `hear` returns its reply."""
        try:
            await self._connection.send_command(*command)
        except _FAILURES as error:
            raise _translated(error) from error

    async def hear(self) -> Any:
        """The next message of the server, within ENGINE_TIMEOUT_MS."""
        try:
            return await self._connection.read_response()
        except _FAILURES as error:
            raise _translated(error) from error


class OneServer:
    """A server by URL (`redis://`, `rediss://`, `unix://`), over a pool of connections."""

    def __init__(self, url: str, limits: EngineLimits = DEFAULT.engine) -> None:
        self.limits = limits
        self._pool = _Pool.from_url(url, **_options(limits))
        self._pool.made = []
        self._closed = False

    async def send(self, budget: RetryBudget, key: str, *command: Argument) -> Any:
        """Send one command and return its reply; `key` is one that the command names.

        Errors: NotNowError, ScriptMissingError, Unavailable, Corrupt.
        Cancellation: the connection is closed if its reply was not read.
        """
        before = budget.maybe_executed
        try:
            async with self._connection() as connection:
                # Before the first byte: from here on, a connection that breaks tells nothing.
                budget.maybe_executed = True
                cancels = _cancels()
                await connection.send_command(*command)
                reply = await connection.read_response()
                if _cancels() > cancels:
                    # redis-py sends within asyncio.wait_for, which before Python 3.12 loses a
                    # cancellation that arrives just as it finishes.
                    raise asyncio.CancelledError
                budget.reached = await self._reached(connection, budget)
                # This attempt was answered; an earlier one may still arrive. Not before the wait:
                # if the budget ends in it, the caller gets no answer.
                budget.maybe_executed = before
                return reply
        except _FAILURES as error:
            # Without a connection nothing was sent. Most errors that a server answers mean that it
            # executed nothing.
            budget.maybe_executed = budget.maybe_executed and (before or _executed(error))
            if isinstance(error, ReadOnlyError):
                # The primary became a replica: the host name may lead to another server now.
                await self._pool.disconnect(inuse_connections=False)
            raise _translated(error) from error

    @contextlib.asynccontextmanager
    async def listening(self, key: str) -> AsyncIterator["Listening"]:
        """A connection that serves nothing else, to the server of `key`; closed afterwards.

        Errors: NotNowError, Unavailable.
        """
        del key  # there is only one server
        try:
            async with self._connection() as connection:
                try:
                    yield Listening(connection)
                finally:
                    await connection.disconnect(nowait=True)
        except _FAILURES as error:
            raise _translated(error) from error

    async def ask_all(self, *command: Argument) -> list[Any]:
        """Send a command to every server; one reply each."""
        return [await self.send(RetryBudget(self.limits), "", *command)]

    async def aclose(self) -> None:
        """Close all connections. None is opened again, not even by calls in flight."""
        self._closed = True
        await self._pool.close_all()

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[AbstractConnection]:
        if self._closed:
            raise Unavailable(what="engine", reason="it was closed")
        pool: Any = self._pool  # whose methods have no types in redis-py
        connection: AbstractConnection = await pool.get_connection()
        try:
            yield connection
        finally:
            # A cancelled release would lose the connection: see `_Pool`.
            with anyio.CancelScope(shield=True):
                await self._pool.release(connection)
                if self._closed:  # meanwhile
                    await connection.disconnect(nowait=True)

    async def _reached(self, connection: AbstractConnection, budget: RetryBudget) -> bool:
        """Whether `budget.replicas` replicas have the last write of this connection; False on a
        failure.

        WAIT counts the writes of its own connection (redis.io/commands/wait).
        """
        replicas = budget.replicas
        # Half of what is left, because the answer of the command is lost if the budget ends first.
        wait_ms = min(self.limits.replica_wait_ms, int(budget.left_s() * 1000 / 2))
        if not replicas or wait_ms < 1:  # WAIT would take 0 for no limit
            return False
        try:
            await connection.send_command("WAIT", replicas, wait_ms)
            return int(await connection.read_response()) >= replicas
        except _FAILURES:
            return False  # the driver has closed the connection


class Cluster:
    """A Redis Cluster, by the address of one of its nodes.

    redis-py follows MOVED and ASK. It does not report whether a connection broke before or after
    the command was sent, so such an attempt counts as executed.
    """

    def __init__(self, url: str, limits: EngineLimits = DEFAULT.engine) -> None:
        self.limits = limits
        # Without full coverage: a slot that nobody owns stops its own boards, not all of them.
        self._client = RedisCluster.from_url(url, require_full_coverage=False, **_options(limits))

    async def send(self, budget: RetryBudget, key: str, *command: Argument) -> Any:
        """As `OneServer.send`, to the node that owns the slot of `key`."""
        target: dict[str, Any] = {}
        before, budget.maybe_executed = budget.maybe_executed, True
        try:
            if command[0] not in (
                "EVAL",
                "EVALSHA",
            ):  # redis-py queries the server for the keys of other commands
                await self._client.initialize()
                target["target_nodes"] = self._client.get_node_from_key(key)
            reply = await self._client.execute_command(*command, **target)
            budget.maybe_executed = before
            return reply
        except _FAILURES as error:
            budget.maybe_executed = before or _executed(error)
            raise _translated(error) from error
        except (AttributeError, KeyError, IndexError) as error:
            # redis-py raises this while its map of the cluster is incomplete (a failover).
            raise NotNowError(repr(error)) from error

    @contextlib.asynccontextmanager
    async def listening(self, key: str) -> AsyncIterator["Listening"]:
        """As `OneServer.listening`, to the node that owns the slot of `key`."""
        try:
            await self._client.initialize()
            node = self._client.get_node_from_key(key)
            if node is None:
                raise NotNowError("nobody owns the slot")
            connection = node.connection_class(**node.connection_kwargs)
            try:
                await connection.connect()
                yield Listening(connection)
            finally:
                await connection.disconnect(nowait=True)
        except _FAILURES as error:
            raise _translated(error) from error
        except (AttributeError, KeyError, IndexError) as error:
            raise NotNowError(repr(error)) from error

    async def ask_all(self, *command: Argument) -> list[Any]:
        """Send a command to every primary: one reply each."""
        try:
            await self._client.initialize()
            nodes = self._client.get_primaries()
            return [await self._client.execute_command(*command, target_nodes=n) for n in nodes]
        except _FAILURES as error:
            raise _translated(error) from error

    async def aclose(self) -> None:
        """Close all connections."""
        await self._client.aclose()
        # After a failure, redis-py is about to read the map of the nodes again, and closes nothing.
        for nodes in ("nodes_cache", "startup_nodes"):
            await self._client.nodes_manager.aclose(nodes)


def _cancels() -> int:
    """How many cancellations of the running task are pending."""
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def connect(url: str, limits: EngineLimits = DEFAULT.engine) -> tuple[Driver, str]:
    """A driver for `url`, and its address for display (without user and password).

    Schemes: `redis`, `rediss`, `unix`, and `redis+cluster`, `rediss+cluster`.
    Errors: InvalidRequest. Nothing is sent yet.
    """
    try:
        parts = urlsplit(url)
        scheme, _, kind = parts.scheme.partition("+")
        shown = f"{parts.hostname or ''}:{parts.port or 6379}{parts.path}"
        if kind == "cluster" and scheme in ("redis", "rediss"):
            return Cluster(url.replace("+cluster", "", 1), limits), shown
        if not kind and scheme in ("redis", "rediss", "unix"):
            return OneServer(url, limits), parts.path if scheme == "unix" else shown
    except (ValueError, RedisError) as error:
        raise InvalidRequest(field="url", reason=_NO_URL) from error
    raise InvalidRequest(field="url", reason=_NO_SCHEME)


def _heed_cancellation() -> None:
    """Errors: CancelledError, if this task was cancelled and the driver swallowed it.

    When a connection breaks while the task is cancelled, the driver reports only the former.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


async def repeated(attempt: Callable[[], Awaitable[Answer]], budget: RetryBudget) -> Answer:
    """Run `attempt()` until it answers. Errors: Unavailable when the budget has no time left."""
    while True:
        try:
            # The attempt itself, too: connecting, and each of its reads, may take a whole timeout.
            with anyio.fail_after(budget.left_s()):
                return await attempt()
        except TimeoutError as error:
            raise Unavailable(what="engine", reason="no answer in time") from error
        except NotNowError as error:
            _heed_cancellation()
            await budget.pause(error)


async def ask(driver: Driver, key: str, *command: Argument) -> Any:
    """Send an idempotent command until it is answered. Errors: Unavailable, Corrupt."""
    budget = RetryBudget(driver.limits)
    return await repeated(lambda: driver.send(budget, key, *command), budget)


async def ask_all(driver: Driver, *command: Argument) -> list[Any]:
    """As `ask`, to every server; one reply each."""
    return await repeated(lambda: driver.ask_all(*command), RetryBudget(driver.limits))
