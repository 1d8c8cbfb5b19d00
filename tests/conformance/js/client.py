"""The Python interface of clients and boards, over the JavaScript client in another process.

Each method has the name and the arguments of the Python one, so that the rules of the board need
not know which client they are tried on. What JavaScript has no counterpart for is not here.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from blackboard.client.diff import Diff, KeyChange
from blackboard.client.leases.claim import Claimed
from blackboard.client.views import Change, Entry, Listing, Receipt, RevisionEvent, Version
from blackboard.core.checkpoints import Checkpoint, Pruned, Restored, RetentionPolicy, Verified
from blackboard.core.commit import Cause, Directory, Epoch, Head, HeldFence, Lease
from blackboard.core.freeze import Freeze
from blackboard.errors import Corrupt
from blackboard.limits import LEASE_TTL_MS
from blackboard.wire.codec import decode_value
from tests.conformance.js.process import BODY, SIGNAL, Node, read, result, written

T = TypeVar("T")


def options(**members: Any) -> dict[str, Any]:
    """Options of a call: those that are set, and its signal."""
    return {**{name: m for name, m in members.items() if m is not None}, "signal": SIGNAL}


def made(kind: type[T], found: Any) -> T:
    """A record of what JavaScript has under the same names."""
    return msgspec.convert(found, kind)


def entry_of(found: Any) -> Entry | None:
    """An entry, or None."""
    return None if found is None else Entry(**found)


def lease_of(found: Any) -> Lease | None:
    """A lease, or None."""
    return None if found is None else made(Lease, found)


def revision_of(found: Any) -> RevisionEvent:
    """A revision."""
    changes = [Change(**{**each, "lease": lease_of(each["lease"])}) for each in found["changes"]]
    based_on = tuple(tuple(pair) for pair in found["based_on"])
    epoch = None if found["epoch"] is None else made(Epoch, found["epoch"])
    rest = {"changes": tuple(changes), "based_on": based_on, "epoch": epoch}
    return RevisionEvent(**{**found, **rest})


def receipt_of(found: Any) -> Receipt:
    """A receipt."""
    results = tuple(tuple(one) if isinstance(one, list) else one for one in found["results"])
    return Receipt(**{**found, "results": results})


def plain(record: Any) -> Any:
    """An operation, a condition or a fence as JavaScript takes it: with its value decoded."""
    found = msgspec.to_builtins(record, builtin_types=(bytes,))
    if "value" not in found:
        return found
    try:
        return {**found, "value": decode_value(found["value"])}
    except Corrupt:
        return {
            **found,
            "value": object(),
        }  # bytes that are no value are none of JavaScript's either


class JsClient:
    """A client."""

    def __init__(self, node: Node, handle: int, agent: str) -> None:
        self.node = node
        self.handle = handle
        self.agent = agent

    @classmethod
    async def connect(cls, node: Node, url: str, **given: Any) -> "JsClient":
        """Connect. Errors: as `blackboard.connect`."""
        found = await node.call(0, "connect", url, options(**given))
        return cls(node, found["$handle"], found["agent"])

    def board(self, name: str) -> "JsBoard":
        """A board."""
        return JsBoard(self.node, self.handle, name, self.agent)

    async def boards(self) -> Sequence[str]:
        """As `Client.boards`."""
        found: Sequence[str] = await self.node.call(self.handle, "boards")
        return found

    async def freeze(self, board: str, *, note: str = "") -> Freeze:
        """As `Client.freeze`."""
        given = options(board=board, note=note)
        return made(Freeze, await self.node.call(self.handle, "freeze", given))

    async def thaw(self, board: str, *, note: str = "") -> Freeze | None:
        """As `Client.thaw`."""
        given = options(board=board, note=note)
        found = await self.node.call(self.handle, "thaw", given)
        return None if found is None else made(Freeze, found)

    async def aclose(self) -> None:
        """As `Client.aclose`."""
        await self.node.call(self.handle, "close")


class JsBoard:
    """A board. Its counterpart is made when it is first used."""

    def __init__(
        self, node: Node, client: int, name: str, agent: str, handle: int | None = None
    ) -> None:
        self.name = name
        self.agent = agent
        self.node = node
        self._client = client
        self._handle = handle
        self._of: JsBoard | None = None

    async def handle(self) -> int:
        """That of its counterpart."""
        if self._handle is None:
            if self._of is None:
                found = await self.node.call(self._client, "board", self.name)
            else:
                found = await self.node.call(await self._of.handle(), "asAgent", self.agent)
            self._handle = found["$handle"]
        assert self._handle is not None
        return self._handle

    async def _call(self, method: str, *arguments: Any) -> Any:
        return await self.node.call(await self.handle(), method, *arguments)

    def as_agent(self, agent: str) -> "JsBoard":
        """As `Board.as_agent`."""
        if agent == self.agent:
            return self
        board = JsBoard(self.node, self._client, self.name, agent)
        board._of = self
        return board

    # --- reading ----------------------------------------------------------------------------------

    async def get(self, key: str, default: Any = None, *, at: Any = None) -> Any:
        """As `Board.get`."""
        return await self._call("get", key, options(at=at, fallback=default))

    async def entry(self, key: str, *, at: Any = None) -> Entry | None:
        """As `Board.entry`."""
        return entry_of(await self._call("entry", key, options(at=at)))

    async def entries(self, keys: Sequence[str], *, at: Any = None) -> dict[str, Entry]:
        """As `Board.entries`."""
        found = await self._call("entries", list(keys), options(at=at))
        return {key: Entry(**each) for key, each in found.items()}

    async def list(self, pattern: str, **page: Any) -> Listing:
        """As `Board.list`."""
        return listing_of(await self._call("list", pattern, options(**page)))

    async def scan(self, pattern: str, **how: Any) -> AsyncIterator[Entry]:
        """As `Board.scan`."""
        for found in await self.node.all(await self.handle(), "scan", pattern, options(**how)):
            yield Entry(**found)

    async def head(self) -> Head:
        """As `Board.head`."""
        return made(Head, await self._call("head"))

    async def log(
        self,
        *,
        after: int = 0,
        limit: int | None = None,
        pattern: str | None = None,
        author: str | None = None,
        since: Any = None,
    ) -> tuple[RevisionEvent, ...]:
        """As `Board.log`."""
        given = options(after=after, limit=limit, pattern=pattern, author=author, since=since)
        return tuple(map(revision_of, await self._call("log", given)))

    async def why(self, key: str) -> Sequence[Cause]:
        """As `Board.why`."""
        return [made(Cause, found) for found in await self._call("why", key)]

    async def history(
        self,
        key: str,
        *,
        before: int | None = None,
        limit: int | None = None,
        author: str | None = None,
        since: Any = None,
    ) -> tuple[Version, ...]:
        """As `Board.history`."""
        given = options(before=before, limit=limit, author=author, since=since)
        found = await self._call("history", key, given)
        return tuple(Version(**{**each, "entry": entry_of(each["entry"])}) for each in found)

    # --- writing ----------------------------------------------------------------------------------

    async def put(
        self,
        key: str,
        value: Any,
        *,
        expected: int | None = None,
        ttl_ms: int | None = None,
        note: str = "",
    ) -> Receipt:
        """As `Board.put`."""
        given = options(expected=expected, ttl_ms=ttl_ms, note=note)
        return receipt_of(await self._call("put", key, value, given))

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        """As `Board.delete`."""
        found: bool = await self._call("delete", key, options(expected=expected))
        return found

    async def delete_prefix(self, prefix: str) -> tuple[str, ...]:
        """As `Board.delete_prefix`."""
        return tuple(await self._call("deletePrefix", prefix, options()))

    async def append(self, prefix: str, value: Any, *, ttl_ms: int | None = None) -> str:
        """As `Board.append`."""
        found: str = await self._call("append", prefix, value, options(ttl_ms=ttl_ms))
        return found

    async def increment(self, key: str, by: int = 1) -> int:
        """As `Board.increment`."""
        found: int = await self._call("increment", key, by, options())
        return found

    async def touch(self, key: str, *, ttl_ms: int | None) -> Receipt:
        """As `Board.touch`."""
        return receipt_of(await self._call("touch", key, {"ttl_ms": ttl_ms}))

    async def merge(self, key: str, patch: Any) -> Any:
        """As `Board.merge`."""
        return await self._call("merge", key, patch, options())

    async def commit(
        self,
        ops: Sequence[Any],
        *,
        conditions: Sequence[Any] = (),
        fences: Sequence[HeldFence] = (),
        based_on: Sequence[Any] = (),
        note: str = "",
    ) -> Receipt:
        """As `Board.commit`."""
        given = options(
            conditions=[plain(one) for one in conditions],
            fences=[plain(one) for one in fences],
            based_on=list(based_on),
            note=note,
        )
        return receipt_of(await self._call("commit", [plain(op) for op in ops], given))

    def step(self, agent: str | None = None, *, validate: bool = True, note: str = "") -> "JsStep":
        """As `Board.step`."""
        board = self if agent is None else self.as_agent(agent)
        return JsStep(board, options(validate=validate, note=note))

    async def run_step(
        self,
        agent: str,
        body: Callable[[Any], Awaitable[T]],
        *,
        attempts: int | None = None,
    ) -> T:
        """As `Board.run_step`: the body runs here, again whenever JavaScript runs it again."""
        board = self.as_agent(agent)
        block = Block(board, "runStep", BODY, options(attempts=attempts))
        await block.begin()
        while True:
            try:
                step = JsStep(board, {}, block.handle)
                value = await body(step)
                await step.flush()
            except BaseException as error:
                await block.leave(broken=error)
                raise
            if not await block.leave():
                return value

    async def refresh(self) -> None:
        """As `Board.refresh`."""
        await self._call("refresh")

    # --- the rest ---------------------------------------------------------------------------------

    async def leases(self, pattern: str = "**") -> tuple[Lease, ...]:
        """As `Board.leases`."""
        return tuple(made(Lease, found) for found in await self._call("leases", pattern))

    def lock(
        self, *keys: str, ttl_ms: int = LEASE_TTL_MS, timeout_ms: int | None = None
    ) -> "JsLock":
        """As `Board.lock`."""
        return JsLock(self, list(keys), options(ttl_ms=ttl_ms, timeout_ms=timeout_ms))

    def claim(
        self,
        pattern: str,
        *,
        ttl_ms: int = LEASE_TTL_MS,
        timeout_ms: int | None = None,
        tries_max: int | None = None,
    ) -> "JsClaim":
        """As `Board.claim`."""
        return JsClaim(
            self, pattern, options(ttl_ms=ttl_ms, timeout_ms=timeout_ms, tries_max=tries_max)
        )

    async def claims(self, pattern: str = "public/**") -> Sequence[Claimed]:
        """As `Board.claims`."""
        return [Claimed(**found) for found in await self._call("claims", pattern, options())]

    def watch(
        self,
        *patterns: str,
        after: int | str | None = None,
        snapshot: bool = False,
        coalesce: bool = False,
    ) -> "JsWatch":
        """As `Board.watch`."""
        given = options(after=after, snapshot=snapshot, coalesce=coalesce)
        given.pop("signal")
        return JsWatch(self, list(patterns), given)

    async def checkpoint(
        self,
        name: str,
        *,
        note: str = "",
        barrier_ms: int | None = None,
        stale_ok: bool = False,
    ) -> Checkpoint:
        """As `Board.checkpoint`."""
        given = options(note=note, barrier_ms=barrier_ms, stale_ok=stale_ok)
        return made(Checkpoint, await self._call("checkpoint", name, given))

    async def checkpoints(self) -> tuple[Checkpoint, ...]:
        """As `Board.checkpoints`."""
        return tuple(made(Checkpoint, found) for found in await self._call("checkpoints"))

    async def pin(self, name: str) -> None:
        """As `Board.pin`."""
        await self._call("pin", name)

    async def unpin(self, name: str) -> None:
        """As `Board.unpin`."""
        await self._call("pin", name, {"pinned": False})

    async def prune(
        self, policy: RetentionPolicy | None = None, *, dry_run: bool = False
    ) -> Pruned:
        """As `Board.prune`."""
        kept = policy or RetentionPolicy()
        given = options(last=kept.last, days=kept.days, named=kept.named, dry_run=dry_run)
        bounds = {"history_ms": kept.history_ms, "history_bytes": kept.history_bytes}
        given |= {name: bound for name, bound in bounds.items() if bound is not None}
        return made(Pruned, await self._call("prune", given))

    async def restore(self, to: Any, *, note: str = "", keep_calls: bool = False) -> Restored:
        """As `Board.restore`."""
        given = options(note=note, keep_calls=keep_calls)
        return made(Restored, await self._call("restore", to, given))

    async def rewind(
        self, *, to: Any = None, at: Any = None, before: int | None = None, note: str = ""
    ) -> Restored:
        """As `Board.rewind`."""
        given = options(to=to, at=at, before=before, note=note)
        return made(Restored, await self._call("rewind", given))

    async def branch(self, new: str, at: Any = "now", *, note: str = "") -> "JsBoard":
        """As `Board.branch`."""
        found = await self._call("branch", new, options(at=at, note=note))
        return JsBoard(self.node, self._client, new, self.agent, found["$handle"])

    async def diff(
        self,
        a: Any,
        b: Any = "now",
        *,
        other: str | None = None,
        pattern: str = "**",
        limit: int | None = None,
    ) -> Diff:
        """As `Board.diff`."""
        given = options(other=other, pattern=pattern, limit=limit)
        found = await self._call("diff", a, b, given)
        changes = [
            KeyChange(each["key"], entry_of(each["before"]), entry_of(each["after"]))
            for each in found["changes"]
        ]
        return Diff(found["a"], found["b"], tuple(changes), found["more"])

    async def verify(self, at: Any = "now") -> Verified:
        """As `Board.verify`."""
        return made(Verified, await self._call("verify", at))


def listing_of(found: Any) -> Listing:
    """A listing."""
    entries = tuple(Entry(**each) for each in found["entries"])
    directories = tuple(Directory(**each) for each in found["directories"])
    return Listing(found["revision"], entries, found["next_key"], directories)


class Block:
    """A call of JavaScript whose body runs here."""

    def __init__(self, board: JsBoard, method: str, *arguments: Any) -> None:
        self._board = board
        self._method = method
        self._arguments = arguments
        self._number = 0
        self.handle = 0
        self.facts: Any = {}

    async def begin(self) -> None:
        """Return when the body has begun. Errors: those of the call."""
        board = self._board
        command = {"do": "block", "on": await board.handle(), "method": self._method}
        answer = await board.node.do({**command, "args": written(self._arguments)})
        self._number = answer["number"]
        if not self._entered(answer):
            result(answer)

    async def leave(self, *, broken: BaseException | None = None) -> bool:
        """End the body, or let it throw; whether it has begun again. Errors: those of the call."""
        told = None if broken is None else {"name": type(broken).__name__, "message": str(broken)}
        command = {"do": "leave", "block": self._number, "broken": told, "value": None}
        answer = await self._board.node.do(command)
        if self._entered(answer):
            return True
        if broken is not None and "raised" in answer:
            return False
        result(answer)
        return False

    def _entered(self, answer: Any) -> bool:
        entered = answer.get("entered")
        if entered is not None:
            self.handle, self.facts = entered["$handle"], read(entered["facts"])
        return entered is not None


class JsStep:
    """A step."""

    def __init__(self, board: JsBoard, given: dict[str, Any], handle: int | None = None) -> None:
        self.receipt: Receipt | None = None
        self.agent = board.agent
        self._board = board
        self._block = Block(board, "step", BODY, given)
        self._handle = handle
        self._calls: list[tuple[str, Any]] = []

    async def __aenter__(self) -> "JsStep":
        await self._block.begin()
        self._handle = self._block.handle
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            await self.flush()
        await self._block.leave(broken=error)
        found = await self._board.node.do({"do": "read", "on": self._handle, "name": "receipt"})
        receipt = result(found)
        self.receipt = None if receipt is None else receipt_of(receipt)

    async def _call(self, method: str, *arguments: Any) -> Any:
        await self.flush()
        assert self._handle is not None
        return await self._board.node.call(self._handle, method, *arguments)

    async def flush(self) -> None:
        """Make the calls that JavaScript answers at once, and Python therefore does not await."""
        calls, self._calls = self._calls, []
        assert self._handle is not None
        for method, arguments in calls:
            await self._board.node.call(self._handle, method, *arguments)

    async def get(self, key: str, default: Any = None) -> Any:
        """As `Step.get`."""
        return await self._call("get", key, default)

    async def entry(self, key: str) -> Entry | None:
        """As `Step.entry`."""
        return entry_of(await self._call("entry", key))

    async def list(self, pattern: str) -> Listing:
        """As `Step.list`."""
        return listing_of(await self._call("list", pattern))

    async def merge(self, key: str, patch: Any) -> Any:
        """As `Step.merge`."""
        return await self._call("merge", key, patch)

    def saw(self, entry: Entry) -> None:
        """As `Step.saw`."""
        self._calls.append(("saw", (msgspec.structs.asdict(entry),)))

    def put(self, key: str, value: Any) -> None:
        """As `Step.put`."""
        self._calls.append(("put", (key, value)))

    def delete(self, key: str) -> None:
        """As `Step.delete`."""
        self._calls.append(("delete", (key,)))

    def delete_prefix(self, prefix: str) -> None:
        """As `Step.delete_prefix`."""
        self._calls.append(("deletePrefix", (prefix,)))

    def append(self, prefix: str, value: Any) -> None:
        """As `Step.append`."""
        self._calls.append(("append", (prefix, value)))

    def increment(self, key: str, by: int = 1) -> None:
        """As `Step.increment`."""
        self._calls.append(("increment", (key, by)))

    def send(self, agent: str, message: Any) -> None:
        """As `Step.send`."""
        self._calls.append(("send", (agent, message)))

    def expect(self, *conditions: Any) -> None:
        """As `Step.expect`."""
        self._calls.append(("expect", tuple(map(plain, conditions))))

    def rest_on(self, *grounds: Any) -> None:
        """As `Step.rest_on`."""
        self._calls.append(("restOn", grounds))

    def rely_on(self, *fences: HeldFence) -> None:
        """As `Step.rely_on`."""
        self._calls.append(("relyOn", tuple(map(plain, fences))))


class JsWatch:
    """A watch."""

    def __init__(self, board: JsBoard, patterns: Sequence[str], given: dict[str, Any]) -> None:
        self.state: dict[str, Entry] = {}
        self._board = board
        self._given = (patterns, given)
        self._handle = 0
        self._facts: Any = {}

    @property
    def position(self) -> str:
        """As `Watch.position`."""
        found: str = self._facts["position"]
        return found

    @property
    def revision(self) -> int:
        """As `Watch.revision`."""
        found: int = self._facts["revision"]
        return found

    async def __aenter__(self) -> "JsWatch":
        found = await self._board._call("watch", *self._given)
        self._handle = found["$handle"]
        await self._look()
        return self

    async def _look(self) -> None:
        """Read what Python has as attributes."""
        for name in ("state", "revision", "position"):
            command = {"do": "read", "on": self._handle, "name": name}
            self._facts[name] = result(await self._board.node.do(command))
        self.state = {key: Entry(**each) for key, each in self._facts["state"].items()}

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._board.node.call(self._handle, "close")

    def __aiter__(self) -> "JsWatch":
        return self

    async def __anext__(self) -> RevisionEvent:
        return revision_of(await self._ask("next", options()))

    async def wait_for(self, revision: int) -> Sequence[RevisionEvent]:
        """As `Watch.wait_for`."""
        return [revision_of(found) for found in await self._ask("waitFor", revision, options())]

    async def _ask(self, method: str, *arguments: Any) -> Any:
        answer = await self._board.node.answer(self._handle, method, *arguments)
        before = self.revision
        if "facts" in answer:
            self._facts |= read(answer["facts"])
        if self.revision != before:
            await self._look()  # the state was read again
        return result(answer)


class JsLock:
    """A lock: a block of JavaScript, whose body ends when this one does, or when it is lost."""

    def __init__(self, board: JsBoard, keys: Sequence[str], given: dict[str, Any]) -> None:
        self._board = board
        self._block = Block(board, "withLock", keys, BODY, given)

    @property
    def holder(self) -> str:
        """As `Lock.holder`."""
        found: str = self._block.facts["holder"]
        return found

    @property
    def keys(self) -> tuple[str, ...]:
        """As `Lock.keys`."""
        return tuple(self._block.facts["keys"])

    @property
    def until_ms(self) -> int:
        """As `Lock.until_ms`, when the block began."""
        found: int = self._block.facts["until_ms"]
        return found

    @property
    def fences(self) -> tuple[HeldFence, ...]:
        """As `Lock.fences`."""
        return tuple(made(HeldFence, found) for found in self._block.facts["fences"])

    async def board(self) -> JsBoard:
        """The board whose commits rely on the lock."""
        node, of = self._board.node, self._board
        found = result(await node.do({"do": "read", "on": self._block.handle, "name": "board"}))
        return JsBoard(node, of._client, of.name, of.agent, found["$handle"])

    async def __aenter__(self) -> "JsLock":
        await self._block.begin()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._block.leave(broken=error)


class JsClaim:
    """A claim: a block of JavaScript with one task."""

    def __init__(self, board: JsBoard, pattern: str, given: dict[str, Any]) -> None:
        self._block = Block(board, "withClaim", pattern, BODY, given)
        self._task = JsTask(board, self._block)

    async def __aenter__(self) -> "JsTask":
        await self._block.begin()
        return self._task

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._task.flush()
        await self._block.leave(broken=error)


class JsTask:
    """A task. What is requested through it is told when its block ends."""

    def __init__(self, board: JsBoard, block: Block) -> None:
        self.delay_ms = 0
        self._board = board
        self._block = block
        self._calls: list[tuple[str, Any]] = []

    @property
    def key(self) -> str:
        """As `Task.key`."""
        found: str = self._block.facts["key"]
        return found

    @property
    def value(self) -> Any:
        """As `Task.value`."""
        return self._block.facts["value"]

    @property
    def attempt(self) -> int:
        """As `Task.attempt`."""
        found: int = self._block.facts["attempt"]
        return found

    @property
    def last_error(self) -> str:
        """As `Task.last_error`."""
        found: str = self._block.facts["last_error"]
        return found

    @property
    def fence(self) -> HeldFence:
        """As `Task.fence`."""
        return made(HeldFence, self._block.facts["fence"])

    async def board(self) -> JsBoard:
        """The board whose commits rely on the claim."""
        node, of = self._board.node, self._board
        found = result(await node.do({"do": "read", "on": self._block.handle, "name": "board"}))
        return JsBoard(node, of._client, of.name, of.agent, found["$handle"])

    def put(self, key: str, value: Any) -> None:
        """As `Task.put`."""
        self._calls.append(("put", (key, value)))

    def append(self, prefix: str, value: Any) -> None:
        """As `Task.append`."""
        self._calls.append(("append", (prefix, value)))

    def move_to(self, prefix: str) -> None:
        """As `Task.move_to`."""
        self._calls.append(("moveTo", (prefix,)))

    async def flush(self) -> None:
        """Tell JavaScript what was requested."""
        node, handle = self._board.node, self._block.handle
        for method, arguments in self._calls:
            await node.call(handle, method, *arguments)
        told = written(self.delay_ms)
        await node.do({"do": "set", "on": handle, "name": "delay_ms", "value": told})
