"""The client: a `Transport` (client/link.py) over one WebSocket, which it reconnects.

    async with blackboard.connect("ws://127.0.0.1:7420", token=token) as client:
        board = client.board("expansion")

When the connection breaks, reads are repeated. A commit raises OutcomeUnknown if it was sent, else
Unavailable (a Board resolves both, with the commit's id). Other changes are repeated with the same
request id, and raise OutcomeUnknown if that fails. Watches resume, and their iteration continues
without a gap.

Requests for the history of a board are here, too.
"""

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

from msgspec import structs

from blackboard import telemetry
from blackboard.client.audit_record import AuditRecord
from blackboard.client.client import DEFAULT_BOARD, Client, Opening
from blackboard.client.contexts import Destination, config_directory, load, resolve
from blackboard.client.link import Pipe, Stream, Transport, WatchRequest
from blackboard.client.remote.channel import Channel, LostError
from blackboard.client.remote.connect import Address, TokenSource
from blackboard.client.remote.documents import open_document
from blackboard.client.remote.stream import RemoteStream
from blackboard.client.views import Receipt
from blackboard.core.access import TokenRequest
from blackboard.core.checkpoints import (
    AUTOMATIC,
    Checkpoint,
    CheckpointRequest,
    ImportRequest,
    Moment,
    Pruned,
    Restored,
    RetentionPolicy,
)
from blackboard.core.commit import FORWARD, Commit, Entry, ListOptions, Reading
from blackboard.errors import (
    InvalidRequest,
    OutcomeUnknown,
    Rejected,
    Unauthenticated,
    Unavailable,
)
from blackboard.limits import DEFAULT, Limits
from blackboard.units import Key, Milliseconds
from blackboard.wire import answers, methods
from blackboard.wire.answers import ReceiptMessage
from blackboard.wire.frames import MSGPACK
from blackboard.wire.methods import METHODS, Params
from blackboard.wire.requests import write_request

P = ParamSpec("P")
R = TypeVar("R")

DEFAULT_URL: Final = "http://127.0.0.1:7420"
_NO_TOKEN: Final = (
    "no token was given, and none is remembered for this address: pass token=, set"
    " BLACKBOARD_TOKEN, or make one with `blackboard token create NAME`"
)


def connect(
    url: str | None = None,
    *,
    token: str | TokenSource | None = None,
    agent: str | None = None,
    ca: str | Path | None = None,
    patience_ms: Milliseconds | None = None,
    limits: Limits = DEFAULT,
) -> Opening:
    """Connect to the service at `url` (ws, wss, http or https), as the principal of `token`.

    Await it, or use it as an async context manager: see `Opening`. Missing arguments come from the
    same places as for the command line: BLACKBOARD_URL, BLACKBOARD_TOKEN, BLACKBOARD_CA and
    BLACKBOARD_BOARD of the environment, else the current context (`blackboard context ls`; a
    service on this machine is remembered as `local`). A remembered token is sent only to the
    address with which it was remembered. The last default is port 7420 of this machine. `token` may
    be a function that returns one (or an awaitable): it is called whenever the client connects, and
    before the current token expires, and has `patience_ms` to answer. `agent` is the name to act
    as, if it is not the principal's own. `ca` is a PEM file with the only authorities to trust for
    TLS; without one, those of this machine are trusted. When the connection breaks, requests and
    watches wait up to `patience_ms` (at least 1) for a new one before they are Unavailable, and as
    long for an answer that is not about a whole board (None: REQUEST_TIMEOUT_MS). `limits` are what
    this client waits for and keeps. The first connection waits up to CONNECT_WAIT_MS, and no longer
    than `patience_ms`, for a service that is starting; the log says that it does.

    Errors: Unavailable when nothing answers at `url` by then, at once for an unknown host and for a
    certificate that is not accepted; Unauthenticated, also when no token is known; AccessDenied
    when the principal may not act as `agent`; InvalidRequest for an invalid URL or `patience_ms`,
    for a `ca` without a certificate, and for a `ca` with a URL without TLS; Corrupt when the file
    of contexts is damaged.
    """

    async def begin() -> Client:
        telemetry.start_if_asked(os.environ, "blackboard-client")
        address, board = _address(url, token, agent, ca)
        longest_ms = limits.connection.request_timeout_ms if patience_ms is None else patience_ms
        if longest_ms < 1:
            raise InvalidRequest("patience_ms", f"{longest_ms} is below 1: no answer is in time")
        channel = Channel(address, patience_ms=longest_ms, limits=limits)
        try:
            await channel.open(min(limits.client.connect_wait_ms, longest_ms))
        except Unauthenticated as error:
            if address.token is not None:
                raise
            raise Unauthenticated(reason=f"{error.reason}; {_NO_TOKEN}") from error
        return Client(RemoteTransport(channel), board=board)

    return Opening(begin)


def _address(
    url: str | None, token: str | TokenSource | None, agent: str | None, ca: str | Path | None
) -> tuple[Address, str]:
    """Where to connect and which board is meant, with what environment and contexts say."""
    text = token if isinstance(token, str) else None
    given = Destination(url, text, None if ca is None else str(ca))
    found = resolve(given, os.environ, load(config_directory()))
    address = Address(
        found.url or DEFAULT_URL,
        token or found.token,
        agent,
        None if found.ca is None else Path(found.ca),
    )
    if ca is not None and not address.is_encrypted:
        raise InvalidRequest(field="ca", reason=f"{address.url!r:.200} is not encrypted: use wss")
    address.tls()  # report an invalid file now, and not as an unreachable service
    return address, found.board or DEFAULT_BOARD


def _asking(
    params: Callable[P, Params[R]], *, changes: bool = False, is_long: bool = False
) -> Callable[Concatenate["RemoteTransport", P], Coroutine[Any, Any, R]]:
    """A method that makes its arguments a request of the table, which may be repeated unless it
    `changes` something: then it also raises OutcomeUnknown."""

    async def ask(self: "RemoteTransport", /, *args: P.args, **named: P.kwargs) -> R:
        carry_out = self._do if changes else self._ask
        return await carry_out(params(*args, **named), self._long_ms if is_long else None)

    return ask


class RemoteTransport:
    """A `Transport` over a `Channel`, as the agent of the connection or as `agent`.

    A repeated request carries the same id. The start and the pages of an import change nothing yet:
    the board appears only when the import ends.
    """

    def __init__(self, channel: Channel, agent: str | None = None) -> None:
        self._channel = channel
        self._agent = agent
        self._long_ms = channel.limits.client.long_request_timeout_ms

    @property
    def limits(self) -> Limits:
        """As `Transport.limits`."""
        return self._channel.limits

    @property
    def agent(self) -> str:
        """The name under which this link commits."""
        return self._agent or self._channel.agent

    @property
    def is_closed(self) -> bool:
        """As `Transport.is_closed`."""
        return self._channel.is_closed

    @property
    def account(self) -> str | None:
        """As `Transport.account`; the agent's own on a link that acts as another agent."""
        account = self._channel.account
        if account is None or self._agent in (None, self._channel.agent):
            return account
        return self._agent

    @property
    def origin(self) -> object:
        """The URL of the service."""
        return self._channel.url

    def acting_as(self, agent: str) -> Transport:
        """The same connection with the rights and name of `agent`; AccessDenied on use."""
        return RemoteTransport(self._channel, agent)

    # Made of the table of methods (wire/methods.py); `Transport` says what each does.

    head = _asking(methods.HeadParams)
    leases = _asking(methods.LeasesParams)
    log = _asking(methods.LogParams)
    activity = _asking(methods.ActivityParams)
    refusals = _asking(methods.RefusalsParams)
    why = _asking(methods.WhyParams)
    checkpoints = _asking(methods.CheckpointsParams)
    manifest = _asking(methods.ManifestParams)
    history = _asking(methods.HistoryParams)
    export = _asking(methods.ExportParams)
    boards = _asking(methods.BoardsParams)
    lost_boards = _asking(methods.LostBoardsParams)
    whoami = _asking(methods.WhoAmIParams)
    differences = _asking(methods.DifferencesParams.of)
    freeze = _asking(methods.FreezeParams, changes=True)
    thaw = _asking(methods.ThawParams, changes=True)
    verify = _asking(methods.VerifyParams, is_long=True)
    recover = _asking(methods.RecoverParams.of, is_long=True, changes=True)
    redact = _asking(methods.RedactParams.of, is_long=True, changes=True)
    pin = _asking(methods.PinParams, changes=True)
    rewrap = _asking(methods.RewrapParams, changes=True)
    remove = _asking(methods.RemoveParams, is_long=True, changes=True)
    import_end = _asking(methods.ImportEndParams, is_long=True, changes=True)
    restore = _asking(methods.RestoreParams.of, is_long=True, changes=True)
    branch = _asking(methods.BranchParams.of, is_long=True, changes=True)

    async def commit(self, board: str, commit: Commit) -> Receipt:
        """As `Transport.commit`."""
        params = self._written(methods.CommitParams.of(board, commit))
        try:
            # Not by `insist`: the writer repeats it, because a retry has to be marked as one.
            message = await self._channel.ask("commit", params, self._answer_ms)
        except LostError as lost:
            if not lost.written:
                raise Unavailable(what=self._channel.url, reason=lost.reason) from lost
            name = commit.id
            raise OutcomeUnknown(
                name.agent, name.lane, name.incarnation, name.step, lost.reason
            ) from lost
        # A frame of receipts alone has been decoded into records already (`read_quickly`).
        return message if type(message) is Receipt else answers.read(ReceiptMessage, message)

    async def read(self, board: str, keys: Sequence[Key], *, at: Moment | None = None) -> Reading:
        """As `Transport.read`. Errors: also LimitExceeded when the answer would not fit a frame."""
        params = methods.ReadParams(board, tuple(keys), at)
        return await self._ask(params)

    async def list(
        self,
        board: str,
        pattern: str,
        *,
        after: Key | None = None,
        limit: int,
        at: Moment | None = None,
        options: ListOptions = FORWARD,
    ) -> Reading:
        """As `Transport.list`."""
        params = methods.ListParams(
            board,
            pattern,
            after,
            limit,
            at,
            options.reverse,
            options.keys_only,
            options.delimiter or None,
        )
        return await self._ask(params)

    def watch(self, board: str, request: WatchRequest) -> AbstractAsyncContextManager[Stream]:
        """As `Transport.watch`."""
        return self._watch(RemoteStream(self._channel, board, request, agent=self._agent))

    @asynccontextmanager
    async def _watch(self, stream: RemoteStream) -> AsyncIterator[Stream]:
        await stream.open()
        try:
            yield stream
        finally:
            stream.close()

    def document(self, board: str, key: Key) -> AbstractAsyncContextManager[Pipe]:
        """As `Transport.document`, over a separate WebSocket."""
        limits = self.limits.connection
        return self._channel.until_closed(
            open_document(self._channel.address, board, key, self._agent, limits=limits)
        )

    async def checkpoint(self, board: str, spec: CheckpointRequest) -> Checkpoint:
        """As `Transport.checkpoint`."""
        params = methods.CheckpointParams(
            board,
            spec.name,
            spec.request,
            spec.note,
            spec.barrier_ms,
            spec.stale_ok,
            spec.kind == AUTOMATIC,
        )
        # The service answers after the barrier.
        patience_ms = self.limits.connection.request_timeout_ms + (spec.barrier_ms or 0)
        return await self._do(params, patience_ms)

    async def prune(self, board: str, policy: RetentionPolicy, *, dry_run: bool) -> Pruned:
        """As `Transport.prune`."""
        params = methods.PruneParams(
            board,
            policy.last,
            policy.days,
            policy.named,
            policy.history_ms,
            policy.history_bytes,
            dry_run,
        )
        # A dry run changes nothing, so there is nothing of which the outcome could be unknown.
        prune = self._ask if dry_run else self._do
        return await prune(params, self._long_ms)

    async def import_begin(self, board: str, spec: ImportRequest) -> None:
        """As `Transport.import_begin`."""
        manifest, signature = spec.manifest.decode(errors="replace"), spec.signature.hex()
        await self._ask(
            methods.ImportBeginParams(
                board, spec.request, manifest, signature, spec.items, spec.note
            )
        )

    async def import_page(
        self, board: str, request: str, number: int, entries: Sequence[Entry]
    ) -> None:
        """As `Transport.import_page`."""
        sent = tuple([methods.ImportedEntry.of(entry) for entry in entries])
        await self._ask(methods.ImportPageParams(board, request, number, sent))

    async def audit(self, *, after: Key | None, limit: int) -> Sequence[tuple[Key, AuditRecord]]:
        """As `Transport.audit`."""
        found = [
            structs.asdict(record) for record in await self._ask(methods.AuditParams(after, limit))
        ]
        return [(members.pop("key"), AuditRecord(**members)) for members in found]

    async def erase(self, agent: str, board: str | None = None, request: str | None = None) -> int:
        """As `Transport.erase`."""
        return await self._do(methods.EraseParams(agent, board, request))

    async def revoke(
        self,
        *,
        tokens: Sequence[str] = (),
        principal: str | None = None,
        until_ms: Milliseconds | None = None,
    ) -> int:
        """As `Transport.revoke`."""
        params = methods.RevokeParams(tuple(tokens), principal, until_ms)
        return await self._do(params)

    async def issue(self, request: TokenRequest) -> str:
        """As `Transport.issue`. A repeated request makes another token."""
        boards = tuple(sorted(request.boards))
        params = methods.IssueParams(request.name, request.grants, boards, request.ttl_ms)
        return await self._ask(params)

    async def aclose(self) -> None:
        """Close the connection and every watch on it, also of links made by `acting_as`."""
        await self._channel.aclose()

    def _written(self, params: Params[Any]) -> dict[str, Any]:
        """The message of a request, for the agent that this link acts as."""
        message = write_request(params, MSGPACK)
        if self._agent is not None:
            message["agent"] = self._agent
        return message

    async def _ask(self, params: Params[R], patience_ms: Milliseconds | None = None) -> R:
        """Carry out a request that may be repeated. Errors: RemoteProtocolError for an answer that
        is not one."""
        message, limit_ms = self._written(params), patience_ms or self._answer_ms
        answer = await self._channel.insist(
            lambda: self._channel.ask(params.method, message, limit_ms)
        )
        return _read(params, answer)

    async def _do(self, params: Params[R], patience_ms: Milliseconds | None = None) -> R:
        """As `_ask`, for requests that change something. Errors: OutcomeUnknown when it may have
        been done.

        Once an attempt may have reached the service, a later attempt that fails or is refused
        proves nothing: the first may have taken effect, or may still be on its way.
        """
        with telemetry.asking(params.method, getattr(params, "board", ""), self.agent):
            done = await self._done(params, patience_ms)
            if isinstance(done, Restored):
                telemetry.reached(done.revision, done.epoch.id)
            elif isinstance(done, Checkpoint):
                telemetry.reached(done.revision)
            return done

    async def _done(self, params: Params[R], patience_ms: Milliseconds | None) -> R:
        message, limit_ms = self._written(params), patience_ms or self._answer_ms
        doubts: list[str] = []

        async def attempt() -> Any:
            try:
                return await self._channel.ask(params.method, message, limit_ms)
            except LostError as lost:
                doubts.extend([lost.reason] if lost.written else [])
                raise
            except OutcomeUnknown as unknown:
                doubts.append(unknown.reason)
                # As Unavailable, so that `insist` repeats it: the same request may get its outcome.
                raise Unavailable(what=self._channel.url, reason=unknown.reason) from unknown

        try:
            answer = await self._channel.insist(attempt)
        except (Rejected, Unavailable) as error:
            if not doubts:
                raise
            reason = str(error) if isinstance(error, Rejected) else doubts[-1]
            request = message.get("request")
            raise OutcomeUnknown.of(params.method, self.agent, reason, request=request) from error
        return _read(params, answer)

    @property
    def _answer_ms(self) -> Milliseconds:
        """How long the answer may take to a request that does not process a whole board."""
        return min(self.limits.connection.request_timeout_ms, self._channel.patience_ms)


def _read(params: Params[R], message: Any) -> R:
    """The result of a request, as the table of methods says. Errors: RemoteProtocolError."""
    found: R = answers.read(METHODS[params.method].result, message)
    return found
