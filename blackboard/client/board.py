"""The Board: what people and agents use, the same in this process and over a WebSocket.

    async with blackboard.open("data") as client:
        board = client.board("expansion")
        await board.put("public/valuation", {"usd_bn": 2900})

A Board reads, writes, watches and explains. It keeps nothing but its writers' identities (see
`client/writer.py`); every answer comes from the service behind its link.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from blackboard.client import merge_patch as merge
from blackboard.client.administration import Administration
from blackboard.client.documents.document import Document
from blackboard.client.export import import_board
from blackboard.client.history import Timeline
from blackboard.client.leases import attempts
from blackboard.client.leases.attempts import Claimed
from blackboard.client.leases.claim import Claim, Terms
from blackboard.client.leases.lock import Lock, wait_free
from blackboard.client.leases.presence import Attachment, IfTaken, Presence, present
from blackboard.client.link import Link, WatchRequest
from blackboard.client.step import Step
from blackboard.client.views import Cause, Receipt, Revised
from blackboard.client.watch import Watch
from blackboard.client.writer import Deliver, Wish
from blackboard.core.commit import (
    Append,
    Condition,
    Delete,
    DeletePrefix,
    Epoch,
    Head,
    HeldFence,
    Increment,
    KeyAt,
    Lease,
    Op,
    Put,
)
from blackboard.core.watch import Position
from blackboard.errors import Conflict, Corrupt, InvalidRequest
from blackboard.types import (
    CLAIM_TRIES_MAX,
    LEASE_TTL_MS,
    LIST_ENTRIES_MAX,
    LOG_ENTRIES_MAX,
    MERGE_ATTEMPTS_MAX,
    STEP_ATTEMPTS_MAX,
    Key,
    Milliseconds,
    Prefix,
    Revision,
)
from blackboard.wire.codec import decode_value, encode_value

T = TypeVar("T")
DEFAULT_BOARD = "main"


class Client(Administration):
    """A way to the boards of one service, as one principal."""

    def __init__(self, link: Link, *, board: str = DEFAULT_BOARD) -> None:
        super().__init__(link)
        self._board = board

    def board(self, name: str | None = None) -> "Board":
        """The board `name` (None = the one meant by default). Reading begins none."""
        return Board(self.link, name or self._board)

    async def boards(self) -> Sequence[str]:
        """Names of the boards that exist and that you may use."""
        return await self.link.boards()

    async def import_board(self, file: str | Path, board: str, *, note: str = "") -> "Board":
        """Make a new board of what `Board.export` wrote into `file`, on any engine.

        Errors: InvalidRequest when there is a board of that name; Corrupt when the file is not what
        was exported. The board exists whole, or not at all.
        """
        await import_board(self.link, Path(file), board, note)
        return Board(self.link, board)

    async def aclose(self) -> None:
        """Close the way and every watch on it."""
        await self.link.aclose()


class Board(Timeline):
    """One board, seen and changed by one agent. Its past is in `client/history.py`."""

    def __init__(self, link: Link, name: str) -> None:
        super().__init__(link, name)
        self._agents: dict[str, Board] = {}
        self._acting: dict[str, Board] = {}
        """Boards on which this one acts in the name of others. Unlike those of `as_agent` nobody
        else has them, so they go on in a new epoch when this one does."""

    @property
    def agent(self) -> str:
        """The name under which this board is changed."""
        return self._link.agent

    def as_agent(self, agent: str) -> "Board":
        """The same board with the name and the rights of `agent`; it is refreshed by itself only.

        Errors (on use): AccessDenied unless you are `agent`, or an operator.
        """
        if agent == self.agent:
            return self
        if agent not in self._agents:
            self._agents[agent] = Board(self._link.acting_as(agent), self.name)
        return self._agents[agent]

    # --- reading ----------------------------------------------------------------------------------

    async def head(self) -> Head:
        """Where the board stands: revision, epoch, and the oldest revision that its log holds."""
        head = await self._link.head(self.name)
        self._writer.saw(head.revision, head.epoch.id)
        return head

    async def log(
        self, *, after: Revision = 0, limit: int = LOG_ENTRIES_MAX
    ) -> tuple[Revised, ...]:
        """Revisions after `after`, oldest first, with what you may see of each.

        What the log no longer has comes from the archive; of a branch, also what was before it.
        Errors: Compacted when neither reaches back to `after`.
        """
        found: list[Revised] = []
        while len(found) < limit:
            page = await self._link.log(self.name, after, limit=limit - len(found))
            found += [Revised.of(entry) for entry in page.entries]
            self._writer.saw(page.through, page.head.epoch.id)
            if page.through <= after or page.through >= page.head.revision:
                break
            after = page.through
        return tuple(found)

    async def why(self, key: Key) -> Sequence[Cause]:
        """The commits that led to what `key` holds, nearest first."""
        return await self._link.why(self.name, key)

    # --- writing ----------------------------------------------------------------------------------

    async def put(
        self,
        key: Key,
        value: Any,
        *,
        expected: Revision | None = None,
        ttl_ms: Milliseconds | None = None,
        note: str = "",
    ) -> Receipt:
        """Set `key` to `value` (JSON types and bytes).

        With `expected` only if the key's mod_revision is that (0 = only if absent), else Conflict.
        With `ttl_ms` the entry is removed about a second after that time at the latest.
        """
        op = Put(key, encode_value(value), ttl_ms)
        return await self._send([op], _expect(key, expected), note=note)

    async def delete(self, key: Key, *, expected: Revision | None = None) -> bool:
        """Remove `key`; False when it was absent. `expected` as in `put`."""
        receipt = await self._send([Delete(key)], _expect(key, expected))
        return bool(receipt.results[0])

    async def delete_prefix(self, prefix: Prefix) -> tuple[Key, ...]:
        """Remove every key below `prefix`, at most OPERATIONS_MAX, at once; returns them."""
        result = (await self._send([DeletePrefix(prefix)])).results[0]
        assert isinstance(result, tuple)
        return tuple(str(key) for key in result)

    async def append(
        self, prefix: Prefix, value: Any, *, ttl_ms: Milliseconds | None = None
    ) -> Key:
        """Add `value` as the next item below `prefix`; returns the item's key."""
        receipt = await self._send([Append(prefix, encode_value(value), ttl_ms)])
        return str(receipt.results[0])

    async def increment(self, key: Key, by: int = 1) -> int:
        """Add `by` to the integer at `key` (absent = 0) and return the sum."""
        result = (await self._send([Increment(key, by)])).results[0]
        assert isinstance(result, int)
        return result

    async def merge(self, key: Key, patch: Any) -> Any:
        """Apply a JSON merge patch (RFC 7396) to `key`; returns the new value.

        The patch is computed here and committed only if the key did not change meanwhile, else
        computed anew, up to MERGE_ATTEMPTS_MAX times; then the last Conflict is raised.
        """
        encode_value(patch)  # refuses what nests too deep to be applied
        entry = await self.entry(key)
        revision, value = (entry.mod_revision, entry.value) if entry else (0, None)
        for attempt in range(MERGE_ATTEMPTS_MAX):
            merged = merge.apply(value, patch)
            try:
                await self.put(key, merged, expected=revision)
                return merged
            except Conflict as conflict:
                if attempt == MERGE_ATTEMPTS_MAX - 1:
                    raise
                revision, value = conflict.actual, conflict.current
                if value is None and revision:
                    entry = await self.entry(key)
                    revision, value = (entry.mod_revision, entry.value) if entry else (0, None)
        raise AssertionError("the last attempt returns or raises")

    async def commit(
        self,
        ops: Sequence[Op],
        *,
        conditions: Sequence[Condition] = (),
        fences: Sequence[HeldFence] = (),
        based_on: Sequence[tuple[Key, Revision]] = (),
        note: str = "",
    ) -> Receipt:
        """Carry out all of `ops` as one revision, exactly once, if every condition holds.

        Errors: Conflict, Fenced and the other kinds of Rejected: nothing changed. Unavailable: not
        applied. OutcomeUnknown: sent, and nobody could be asked within REQUEST_TIMEOUT_MS.

        The values of `ops` are encoded ones (`wire.codec.encode_value`).
        """
        for op in ops:
            if isinstance(op, Put | Append):
                _check_value(op.value)
        return await self._send(ops, conditions, fences, based_on, note)

    async def _send(
        self,
        ops: Sequence[Op],
        conditions: Sequence[Condition] = (),
        fences: Sequence[HeldFence] = (),
        based_on: Sequence[tuple[Key, Revision]] = (),
        note: str = "",
    ) -> Receipt:
        wish = Wish(tuple(ops), tuple(conditions), tuple(fences), tuple(based_on), note)
        return await self._writer.commit(wish)

    def step(self, agent: str | None = None, *, validate: bool = True, note: str = "") -> Step:
        """One step of an agent: tracked reads, gathered writes, one commit at the end.

            async with board.step("architect") as step:
                valuation = await step.get("public/valuation")
                step.put("public/plan", plan_from(valuation))

        With `validate` the commit is refused (Conflict) if anything that was read has changed.
        """
        board = self._as(agent)
        check = board._writer.standing()
        return Step(board, validate=validate, note=note, check=check)

    async def run_step(
        self,
        agent: str,
        body: Callable[[Step], Awaitable[T]],
        *,
        attempts: int = STEP_ATTEMPTS_MAX,
    ) -> T:
        """Run `body(step)` and commit; on a Conflict run it again on fresh state.

        Errors: the last Conflict after `attempts` runs; whatever `body` raises, nothing committed.
        """
        for attempt in range(attempts):
            try:
                async with self.step(agent) as step:
                    return await body(step)
            except Conflict:
                if attempt == attempts - 1:
                    raise
        raise ValueError("attempts must be at least 1")

    async def refresh(self) -> None:
        """Accept the board as it is now, after a StaleEpoch: go on in its present epoch.

        So do the steps and attachments that begin on this board afterwards, of whatever agent. A
        step that is under way is refused. What `as_agent` gave is refreshed by itself: whoever has
        it may rely on what was read before.
        """
        head = await self._link.head(self.name)
        self._take(head.epoch, head.revision)

    def _take(self, epoch: Epoch, revision: Revision) -> None:
        super()._take(epoch, revision)
        for board in self._acting.values():
            board._take(epoch, revision)

    def _as(self, agent: str | None) -> "Board":
        """The board on which this one acts in the name of `agent` (None: in its own)."""
        if agent is None or agent == self.agent:
            return self
        if agent not in self._acting:
            self._acting[agent] = Board(self._link.acting_as(agent), self.name)
        return self._acting[agent]

    # --- leases -----------------------------------------------------------------------------------

    async def leases(self, pattern: str = "**") -> tuple[Lease, ...]:
        """The leases whose keys match `pattern` and may be read, with their queues."""
        found: list[Lease] = []
        after: Key | None = None
        while True:
            page = await self._link.leases(self.name, pattern, after=after, limit=LIST_ENTRIES_MAX)
            self._writer.saw(page.revision, page.epoch)
            found += page.leases
            after = page.next_key
            if after is None:
                return tuple(found)

    def lock(
        self,
        *keys: Key,
        ttl_ms: Milliseconds = LEASE_TTL_MS,
        timeout_ms: Milliseconds | None = None,
    ) -> Lock:
        """Hold the leases of `keys`, all or none, for a block; wait in turn while others do.

            async with board.lock("public/plan") as lock:
                plan = await board.get("public/plan")
                await board.put("public/plan", better(plan))

        Every commit on this board that this task makes in the block, or a task started in it,
        relies on the lock, and is Fenced if it was lost. It is renewed while the block runs; if
        this process dies, it is free when `ttl_ms` is over, which is also how long a pause may be.

        Errors: LeaseHeld after `timeout_ms` (0: at once; None: waits for ever). LeaseLost when it
        was lost in the middle; the block was cancelled then. LocalProtocolError when this task
        holds one of `keys` already. See client/leases/lock.py.
        """
        return Lock(self._writer, keys, ttl_ms=ttl_ms, timeout_ms=timeout_ms)

    async def wait_free(self, key: Key, *, timeout_ms: Milliseconds | None = None) -> Revision:
        """Wait until nobody holds `key`; returns a revision at which that was so.

        What is read from then on has everything that the holder wrote. It keeps nobody from taking
        the lease right after: to read several times undisturbed, take the lock.
        Errors: LeaseHeld after `timeout_ms` (None: waits for ever); AccessDenied.
        """
        return await wait_free(self._writer, key, timeout_ms)

    def attach(
        self,
        agent: str | None = None,
        *,
        if_taken: IfTaken = "wait",
        ttl_ms: Milliseconds = LEASE_TTL_MS,
        timeout_ms: Milliseconds | None = None,
        deliver: Deliver | None = None,
    ) -> "Attachment[Board]":
        """Be `agent` (by default, yourself) for a block; no other process is it at the same time.

            async with board.attach("researcher") as me:
                await me.report("reading", "annual reports")
                await me.board.put("public/valuation", {"usd_bn": 2900})

        While another process has the identity: "wait" in turn, at most `timeout_ms`; "take_over"
        it, and the other one is Fenced at its next commit and gets LeaseLost at its next renewal;
        or "refuse" to start (LeaseHeld). In the block every commit of that agent relies on it, and
        `Board.agents` shows it.

        `deliver`: when a checkpoint with a barrier asks for the agent's state, this is called, and
        the operations that it returns are committed, before any other commit of the block. Without
        it, whoever commits next is told SnapshotFirst.

        Errors: as of `lock`; AccessDenied unless you may act as `agent`.
        """
        board = self._as(agent)
        return Attachment(
            board,
            board._writer,
            if_taken=if_taken,
            ttl_ms=ttl_ms,
            timeout_ms=timeout_ms,
            deliver=deliver,
        )

    async def agents(self) -> tuple[Presence, ...]:
        """The agents that are attached, with what they report, by name."""
        return await present(self)

    def claim(
        self,
        pattern: str,
        *,
        ttl_ms: Milliseconds = LEASE_TTL_MS,
        timeout_ms: Milliseconds | None = None,
        tries_max: int = CLAIM_TRIES_MAX,
    ) -> Claim:
        """Take one entry that matches `pattern` and work on it, alone.

            async with board.claim("public/tasks/*") as task:
                task.append("public/results", await work_on(task.value))

        It is the first one, in key order, that nobody has; the claim waits for one, at most
        `timeout_ms` (0: looks once; None: for ever). Leaving the block is the commit in which the
        entry is removed, and everything happens that was asked of `task`. If the block raises, or
        is cancelled, the entry is returned, `task.delay_ms` later; after `tries_max` attempts it is
        moved to `<namespace>/~dead/<rest of its key>`. If this process dies, the entry is back when
        `ttl_ms` is over, which is renewed while the block runs.

        Errors: NothingToClaim after `timeout_ms`. LeaseLost: somebody else may have the entry; the
        block was cancelled, and nothing that was asked of `task` happens.
        """
        return Claim(self, self._writer, pattern, Terms(ttl_ms, timeout_ms, tries_max))

    async def claims(self, pattern: str = "public/**") -> Sequence[Claimed]:
        """Entries that match, were claimed, and are not done; those that died of it at the end."""
        return await attempts.claims(self, pattern)

    # --- documents --------------------------------------------------------------------------------

    def document(self, key: Key) -> Document:
        """The document at `key`, which several agents edit at once; it begins empty.

            doc = await board.document("public/memo")
            doc.text().append("Buy.")
            await doc.synced()

        With `async with`, it is closed at the end of the block, after everything was sent.
        Errors: AccessDenied unless you may read everything below `<key>/~doc`; Unavailable.
        """
        return Document(self._link, self.name, key)

    # --- watching ---------------------------------------------------------------------------------

    def watch(
        self,
        *patterns: str,
        after: Revision | str | None = None,
        snapshot: bool = False,
        coalesce: bool = False,
    ) -> Watch:
        """Watch the changes of keys that match one of `patterns`.

            async with board.watch("public/**") as watch:
                async for revised in watch:
                    for change in revised.changes: ...

        `after`: a revision or a resume token (`watch.position`); None = from now on. `snapshot`:
        first the state (`watch.state`), then exactly what follows it. `coalesce`: when behind,
        several revisions may come as one with the newest change of each key.
        """
        if not isinstance(after, int | str | None):
            raise InvalidRequest(field="after", reason=f"a {type(after).__name__} is no position")
        position = Position.parse(after) if isinstance(after, str) else None
        request = WatchRequest(tuple(patterns), position, coalesce)
        revision = after if isinstance(after, int) else None
        return Watch(
            self._link,
            self.name,
            request,
            revision=revision,
            snapshot=snapshot,
            saw=self._writer.saw,
        )

    def __repr__(self) -> str:
        return f"<Board {self.name!r} as {self.agent!r}>"


def _expect(key: Key, expected: Revision | None) -> Sequence[Condition]:
    return () if expected is None else (KeyAt(key, expected),)


def _check_value(encoded: bytes) -> None:
    try:
        decode_value(encoded)
    except Corrupt as error:
        raise InvalidRequest(field="value", reason=error.reason) from error
