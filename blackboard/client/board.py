"""The Board: the interface of agents and programs, the same embedded and over a WebSocket.

    async with blackboard.open("data") as client:
        board = client.board("expansion")
        await board.put("public/valuation", {"usd_bn": 2900})
        await board.checkpoint("before-plan", note="all three agents agree")
        await board.restore("before-plan")                      # this board, for all agents
        other = await board.branch("cheaper", "before-plan")    # or a new one, beside it

A Board holds only its writers' identities (`client/writer.py`); the service behind its link
answers. A moment is a revision, a checkpoint's name, "now" or a `datetime`. Rights are today's.
"""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, cast, overload

from blackboard.arguments import checks_arguments
from blackboard.client import comparison, compound
from blackboard.client.comparison import RestorePreview
from blackboard.client.diff import Diff, KeyChange
from blackboard.client.export import Exported, export_board
from blackboard.client.files import Files
from blackboard.client.leases import claim as attempts
from blackboard.client.leases.claim import Claim, Claimed, ClaimOptions
from blackboard.client.leases.lock import Lock, all_leases, wait_free
from blackboard.client.leases.presence import Attachment, IfTaken, Presence, present
from blackboard.client.link import Transport, WatchRequest
from blackboard.client.step import Step, repeat_step
from blackboard.client.views import Cause, Entry, History, Listing, Receipt, RevisionEvent, Version
from blackboard.client.watch import Watch
from blackboard.client.writer import CommitRequest, Deliver, Writer
from blackboard.core.checkpoints import (
    NOW,
    ORIGIN_KEY,
    BranchRequest,
    Checkpoint,
    CheckpointInfo,
    CheckpointList,
    DiffRequest,
    Origin,
    Pruned,
    Recovered,
    RecoverRequest,
    Restored,
    RestoreRequest,
    RetentionPolicy,
    Verified,
    When,
    moment_of,
    optional_moment,
    rewound_to,
)
from blackboard.core.commit import (
    Append,
    Condition,
    Delete,
    Epoch,
    Head,
    HeldFence,
    Increment,
    Lease,
    ListOptions,
    Op,
    Put,
)
from blackboard.core.path import check_name
from blackboard.core.watch import Position
from blackboard.errors import InvalidRequest
from blackboard.limits import (
    CLAIM_TRIES_MAX,
    DIFF_KEYS_MAX,
    FROZEN_WAIT_MS_MAX,
    HISTORY_VERSIONS_MAX,
    LEASE_TTL_MS,
    LIST_ENTRIES_MAX,
    LOG_ENTRIES_MAX,
    STEP_ATTEMPTS_MAX,
    Limits,
)
from blackboard.tables import table
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import decode_value, encode_value
from blackboard.wire.frames import canonical

if TYPE_CHECKING:
    from blackboard.client.documents.document import Document
    from blackboard.client.memory.memory import Memory
    from blackboard.client.workspace.workspace import Workspace

T = TypeVar("T")


@checks_arguments
class Board:
    """One board, seen and changed by one agent.

    Reads of earlier revisions raise NoSuchCheckpoint for an unknown name, FutureRevision above the
    head, Compacted for a pruned one, AccessDenied, and Unavailable while the archive is behind.
    Changes raise OutcomeUnknown when they may have been made.
    """

    def __init__(self, link: Transport, name: str) -> None:
        self.name = name
        self._link = link
        self._writer = Writer(link, name)
        self._agents: dict[str, Board] = {}
        self._acting: dict[str, Board] = {}
        """Boards on which this one acts in the name of other agents. Unlike those of `as_agent`,
        they are private to this board, so `refresh` includes them."""

    @property
    def agent(self) -> str:
        """The name under which this board is changed."""
        return self._link.agent

    @property
    def account(self) -> str:
        """The account on which it is changed: `agent`, or what that name was narrowed from."""
        return self._link.account or self.agent

    @property
    def limits(self) -> Limits:
        """How long this process waits, how often it tries, and how much it keeps."""
        return self._link.limits

    @property
    def is_closed(self) -> bool:
        """Whether its client was closed: every further call raises Unavailable."""
        return self._link.is_closed

    @property
    def url(self) -> str:
        """The URL of its service; "" if that is in this process."""
        return self._link.origin if isinstance(self._link.origin, str) else ""

    def as_agent(self, agent: str) -> "Board":
        """The same board with the name and the rights of `agent`; it needs its own `refresh`.
        Errors (on use): AccessDenied unless you are `agent`, or an operator."""
        if agent == self.agent:
            return self
        if agent not in self._agents:
            self._agents[agent] = self._like(self._link.acting_as(agent))
        return self._agents[agent]

    def waiting_for_thaw(self, wait_ms: Milliseconds) -> "Board":
        """The same board, on which commits wait up to `wait_ms` (at most FROZEN_WAIT_MS_MAX) while
        it is frozen, before they are refused (BoardFrozen). Renewals do not wait."""
        if not 0 <= wait_ms <= FROZEN_WAIT_MS_MAX:
            raise InvalidRequest("wait_ms", f"{wait_ms} is not in 0..{FROZEN_WAIT_MS_MAX}")
        board = self._like(self._link)
        board._writer.wait_frozen_ms = wait_ms
        return board

    def _like(self, link: Transport) -> "Board":
        board = Board(link, self.name)
        board._writer.wait_frozen_ms = self._writer.wait_frozen_ms
        return board

    # --- reading ----------------------------------------------------------------------------------

    @overload
    async def get(self, key: Key, default: Any = None, *, at: When | None = None) -> Any: ...

    @overload
    async def get(self, key: Key, default: T, *, at: When | None = None, as_type: type[T]) -> T: ...

    @overload
    async def get(
        self, key: Key, default: None = None, *, at: When | None = None, as_type: type[T]
    ) -> T | None: ...

    async def get(
        self, key: Key, default: Any = None, *, at: When | None = None, as_type: Any = None
    ) -> Any:
        """The value at `key`, or `default` when it is absent. Errors: AccessDenied.

        With `at` (a revision, the name of a checkpoint, a `datetime`), as it was then. With
        `as_type` (a dataclass, a msgspec struct, a pydantic model, `list[Model]`) as one of these;
        errors: TypeMismatch with the path of what does not fit. `put` takes such objects.
        """
        entry = await self.entry(key, at=at)
        if entry is None:
            return default
        return entry.value if as_type is None else entry.value_as(as_type)

    async def entry(self, key: Key, *, at: When | None = None) -> Entry | None:
        """The entry at `key` with its revisions and author, or None when it is absent."""
        return (await self.entries([key], at=at)).get(key)

    async def document_entry(self, key: Key, *, at: When | None = None) -> Entry | None:
        """The document at `key` as an entry: its value is the content by root; None without one.
        This reads the whole document, for display and reports; use `document` to edit it. Errors:
        AccessDenied; Corrupt; Unavailable when it changes faster than it can be read."""
        return await comparison.document_at(self._link, self.name, key, optional_moment(at))

    async def entries(self, keys: Sequence[Key], *, at: When | None = None) -> dict[Key, Entry]:
        """Up to READ_KEYS_MAX entries, all as of one revision; absent keys are left out."""
        reading = await self._link.read(self.name, keys, at=optional_moment(at))
        self._writer.saw(reading.revision, "" if at is not None else reading.epoch)
        return {entry.key: Entry.of(entry) for entry in reading.entries}

    async def list(
        self,
        pattern: str,
        *,
        after: Key | None = None,
        limit: int = LIST_ENTRIES_MAX,
        at: When | None = None,
        reverse: bool = False,
        keys_only: bool = False,
        delimiter: Literal["/"] | None = None,
    ) -> Listing:
        """A page of the entries that match `pattern` (`public/plan/**`), in key order.

        With `reverse` from the last key on, before `after`. With `keys_only` without values. With
        `delimiter` "/" (and `PREFIX/**`) only what lies directly below the prefix: deeper keys are
        counted, in `directories`, not read, and `limit` counts both.
        """
        page = partial(self._link.list, self.name, pattern, after=after, limit=limit)
        options = ListOptions(reverse, keys_only, delimiter or "")
        reading = await page(at=optional_moment(at), options=options)
        self._writer.saw(reading.revision, "" if at is not None else reading.epoch)
        return Listing.of(reading)

    async def scan(
        self,
        pattern: str,
        *,
        at: When | None = None,
        reverse: bool = False,
        keys_only: bool = False,
    ) -> AsyncIterator[Entry]:
        """All entries that match, as of `at`; without it pages may be of different revisions."""
        look = partial(self.list, pattern, reverse=reverse, keys_only=keys_only)
        async for page in compound.list_pages(look, at):
            for entry in page.entries:
                yield entry

    async def head(self) -> Head:
        """The head of the board: its revision, its epoch, and the oldest revision in its log."""
        head = await self._link.head(self.name)
        self._writer.saw(head.revision, head.epoch.id)
        return head

    async def log(
        self,
        *,
        after: Revision = 0,
        limit: int = LOG_ENTRIES_MAX,
        pattern: str | None = None,
        author: str | None = None,
        since: When | None = None,
        verify: bool = False,
    ) -> tuple[RevisionEvent, ...]:
        """Revisions after `after` and the moment `since`, oldest first, as far as you may see them.

        `pattern` selects revisions that changed a matching key or lease (with these changes only)
        and those that began an epoch, `author` those of this agent. Those that have left the log
        come from the archive, for a branch also those of its origin. With `verify`, the digest of
        each is checked against the visible changes; those that pass are `verified`: all but markers
        of an epoch, commits from before digests had salts, and very large restores. Cost: one
        request per LOG_ENTRIES_MAX revisions scanned. Errors: Compacted when nothing reaches back
        to `after`; Corrupt when a digest does not match; InvalidRequest.
        """
        scanned = LOG_ENTRIES_MAX if pattern is not None or author is not None else 0
        look = partial(self._link.log, self.name, pattern=pattern, author=author, proofs=verify)
        found: list[RevisionEvent] = []
        after = max(after, await compound.revision_at(self._link, self.name, since) or 0)
        async for page in compound.log_pages(look, after, limit, scanned):
            self._writer.saw(page.through, page.head.epoch.id)
            found += RevisionEvent.verified_of(page) if verify else RevisionEvent.all_of(page)
        return tuple(found[:limit])

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
        return await self._send([op], compound.expect(key, expected), note=note)

    async def delete(self, key: Key, *, expected: Revision | None = None) -> bool:
        """Remove `key`; False when it was absent. `expected` as in `put`."""
        return bool((await self._send([Delete(key)], compound.expect(key, expected))).results[0])

    async def delete_prefix(
        self, prefix: Prefix, *, progress: Callable[[int], None] | None = None
    ) -> tuple[Key, ...]:
        """Remove every key below `prefix`; returns them. Up to OPERATIONS_MAX go at once; more go
        in several commits, and `progress` is called with the number of those that are gone. After
        an error or a cancellation, the next call continues."""
        return await compound.delete_below(self, prefix, progress)

    async def touch(self, key: Key, *, ttl_ms: Milliseconds | None) -> Receipt:
        """Let the entry at `key` expire after `ttl_ms` from now on (None: never); its value stays.

        A revision of its own. Errors: Conflict when the key is absent, or changes all the time.
        """
        return await compound.touch_at(self, key, ttl_ms, self.limits.client.merge_attempts_max)

    async def append(
        self, prefix: Prefix, value: Any, *, ttl_ms: Milliseconds | None = None
    ) -> Key:
        """Add `value` as the next item below `prefix`; returns the item's key."""
        receipt = await self._send([Append(prefix, encode_value(value), ttl_ms)])
        return str(receipt.results[0])

    async def increment(self, key: Key, by: int = 1) -> int:
        """Add `by` to the integer at `key` (absent = 0) and return the sum."""
        return int(cast("int", (await self._send([Increment(key, by)])).results[0]))

    async def merge(self, key: Key, patch: Any) -> Any:
        """Apply a JSON merge patch (RFC 7396) to `key`; returns the new value.

        The patch is applied here and committed if the key did not change in between; else it is
        applied again, up to MERGE_ATTEMPTS_MAX times. Then the last Conflict is raised.
        """
        return await compound.merge_at(self, key, patch, self.limits.client.merge_attempts_max)

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
        applied. OutcomeUnknown: sent, but no service could be reached within COMMIT_TIMEOUT_MS.
        The values of `ops` are encoded ones (`wire.codec.encode_value`).
        """
        return await self._send([*map(canonical, ops)], conditions, fences, based_on, note)

    async def _send(
        self,
        ops: Sequence[Op],
        conditions: Sequence[Condition] = (),
        fences: Sequence[HeldFence] = (),
        based_on: Sequence[tuple[Key, Revision]] = (),
        note: str = "",
    ) -> Receipt:
        spec = CommitRequest(tuple(ops), tuple(conditions), tuple(fences), tuple(based_on), note)
        return await self._writer.commit(spec)

    def step(self, agent: str | None = None, *, validate: bool = True, note: str = "") -> Step:
        """One step of an agent: tracked reads, gathered writes, one commit at the end.

            async with board.step("architect") as step:
                valuation = await step.get("public/valuation")
                step.put("public/plan", plan_from(valuation))

        With `validate` the commit is refused (Conflict) if anything that was read has changed.
        """
        board = self._as(agent)
        return Step(board, validate=validate, note=note, check=board._writer.standing())

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
        return await repeat_step(lambda: self.step(agent), body, attempts)

    async def refresh(self) -> None:
        """Accept the board as it is now, after a StaleEpoch: continue in its present epoch.

        This covers later steps and attachments on this board, for any agent, but not boards from
        `as_agent`, whose users may rely on earlier reads. A step in progress is refused.
        """
        head = await self._link.head(self.name)
        self._take(head.epoch, head.revision)

    def _take(self, epoch: Epoch, revision: Revision) -> None:
        self._writer.take(epoch, revision)
        for board in self._acting.values():
            board._take(epoch, revision)

    def _as(self, agent: str | None) -> "Board":
        """The board on which this one acts in the name of `agent` (None: in its own)."""
        if agent is None or agent == self.agent:
            return self
        if agent not in self._acting:
            self._acting[agent] = self._like(self._link.acting_as(agent))
        return self._acting[agent]

    # --- leases -----------------------------------------------------------------------------------

    async def leases(self, pattern: str = "**") -> tuple[Lease, ...]:
        """The leases whose keys match `pattern` and may be read, with their queues."""
        return await all_leases(self._writer, pattern)

    def lock(
        self,
        *keys: Key,
        ttl_ms: Milliseconds = LEASE_TTL_MS,
        timeout_ms: Milliseconds | None = None,
    ) -> Lock:
        """Hold the leases of `keys`, all or none, for a block; wait in a queue if they are held.

            async with board.lock("public/plan") as lock:
                plan = await board.get("public/plan")
                await board.put("public/plan", better(plan))

        Every commit that this task, or one started in the block, makes on this board relies on the
        lock, and is Fenced if it was lost. It is renewed while the block runs; if this process
        dies, it is free after `ttl_ms`, which is also the longest pause that it survives.

        Errors: LeaseHeld after `timeout_ms` (0: at once; None: waits for ever). LeaseLost when it
        was lost in the middle; the block was cancelled then. LocalProtocolError when this task
        holds one of `keys` already. See client/leases/lock.py.
        """
        return Lock(self._writer, keys, ttl_ms=ttl_ms, timeout_ms=timeout_ms)

    async def wait_free(self, key: Key, *, timeout_ms: Milliseconds | None = None) -> Revision:
        """Wait until the lease `key` is free; returns a revision at which it was.

        Later reads show everything that the holder wrote. Another holder may take the lease right
        afterwards: to read several times without interference, take the lock. Errors: LeaseHeld
        after `timeout_ms` (None: waits for ever); AccessDenied.
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
        """Run as `agent` (by default, yourself) for a block, in at most one process at a time.

            async with board.attach("researcher") as me:
                await me.report("reading", "annual reports")
                await me.board.put("public/valuation", {"usd_bn": 2900})

        If another process has the identity: "wait" in a queue, at most `timeout_ms`; "take_over",
        so that the other process is Fenced at its next commit and gets LeaseLost at its next
        renewal; or "refuse" to start (LeaseHeld). In the block every commit of that agent relies on
        the identity, and `Board.agents` lists the agent.

        `deliver`: when a checkpoint with a barrier asks for the agent's state, this is called, and
        the operations that it returns are committed, before any other commit of the block. Without
        it, the next commit gets SnapshotFirst.

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

        It takes the first free one, in key order, and waits for one at most `timeout_ms` (0: do not
        wait; None: for ever). Leaving the block commits, in one commit, the removal of the entry
        and everything that was requested through `task`. If the block raises, or is cancelled, the
        entry is returned, `task.delay_ms` later; after `tries_max` attempts it is moved to
        `<namespace>/~dead/<rest of its key>`. If this process dies, the entry is free again after
        `ttl_ms`, which is renewed while the block runs.

        Errors: NothingToClaim after `timeout_ms`. LeaseLost: another agent may have the entry; the
        block was cancelled, and nothing that was requested through `task` happens.
        """
        return Claim(self, self._writer, pattern, ClaimOptions(ttl_ms, timeout_ms, tries_max))

    async def claims(self, pattern: str = "public/**") -> Sequence[Claimed]:
        """Entries that match, were claimed, and are not done; dead letters come last."""
        return await attempts.claims(self, pattern)

    # --- documents --------------------------------------------------------------------------------

    def document(self, key: Key) -> "Document":
        """The document at `key`, which several agents edit at once; it begins empty.

            doc = await board.document("public/memo")
            doc.text().append("Buy.")
            await doc.synced()

        With `async with`, it is closed at the end of the block, after everything was sent.
        Errors: AccessDenied unless you may read everything below `<key>/~doc`; Unavailable.
        """
        from blackboard.client.documents.document import Document  # pycrdt is an extra

        return Document(self._link, self.name, key)

    def memory(
        self,
        store: str = "main",
        *,
        namespace: Prefix | None = None,
        embed: Callable[[Sequence[str]], Any] | None = None,
        model: str = "",
    ) -> "Memory":
        """Texts and facts in `namespace` (by default your own) that are found by meaning.

        `embed` makes one vector of each of a list of texts, at once or awaited; `model` names what
        makes them. Without both, a search is by words. Errors: InvalidRequest.
        """
        from blackboard.client.memory.memory import memory_of  # few programs need SQLite here

        own = f"private/{self.agent}"
        return memory_of(self, own if namespace is None else namespace, store, embed, model)

    @property
    def files(self) -> Files:
        """Values that are too large for one entry, streamed in and out."""
        return Files(self)

    def workspace(self, path: str | Path, key: Key | None = None) -> "Workspace":
        """The directory `path` as part of the board; its key is `private/<agent>/workspace`."""
        from blackboard.client.workspace.workspace import Workspace

        own = f"private/{self.agent}/workspace"
        return Workspace(self, own if key is None else key, Path(path))

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
        position = Position.parse(after) if isinstance(after, str) else None
        request = WatchRequest(tuple(patterns), position, coalesce)
        revision = after if isinstance(after, int) else None
        saw = self._writer.saw
        return Watch(self._link, self.name, request, revision=revision, snapshot=snapshot, saw=saw)

    # --- checkpoints ------------------------------------------------------------------------------

    async def checkpoint(
        self,
        name: str | None = None,
        *,
        note: str = "",
        barrier_ms: Milliseconds | None = None,
        stale_ok: bool = False,
    ) -> Checkpoint:
        """Name the present revision: one consistent cut of everything on the board.

        It blocks no writer and costs one log entry, whatever the size of the board. Without a
        `name` it is named by its time, and pruning treats it as an automatic one.

        With `barrier_ms`, every attached agent first delivers its state (see `attach`), within that
        time. Errors: BarrierMissed when one did not, unless `stale_ok`: then the checkpoint names
        it. Conflict when the name is taken: a checkpoint is never moved. Cancellation: it may have
        been taken.
        """
        spec = compound.checkpoint_request(name, note, barrier_ms, stale_ok=stale_ok)
        taken = await self._link.checkpoint(self.name, spec)
        self._writer.saw(taken.revision)
        return taken

    async def checkpoints(self) -> CheckpointList:
        """All checkpoints of the board, the oldest first."""
        return await compound.all_checkpoints(self._link, self.name)

    async def show(self, name: str) -> CheckpointInfo:
        """A checkpoint with its manifest, as far as you may see it; waits until it is signed."""
        return await self._link.manifest(self.name, name)

    async def pin(self, name: str) -> None:
        """Protect a checkpoint from pruning."""
        await self._link.pin(self.name, name, pinned=True)

    async def unpin(self, name: str) -> None:
        """Let a checkpoint be pruned again."""
        await self._link.pin(self.name, name, pinned=False)

    async def prune(
        self, policy: RetentionPolicy | None = None, *, dry_run: bool = False
    ) -> Pruned:
        """Remove the checkpoints, and the history, that `policy` does not keep.

        Checkpoints that are pinned or needed by a branch always stay. With `dry_run`, nothing is
        removed.
        """
        return await self._link.prune(self.name, policy or RetentionPolicy(), dry_run=dry_run)

    # --- restore, branch --------------------------------------------------------------------------

    async def preview_restore(self, to: When, *, keys_max: int = DIFF_KEYS_MAX) -> RestorePreview:
        """What `restore(to)` would change (at most `keys_max` keys), which agents it would
        interrupt, and which calls of models and tools were made since: agents may make them again
        afterwards.

        Cost: reads the log from that moment on. Errors: as of `diff` and `log`.
        """
        request = DiffRequest(moment_of(to), NOW, limit=1)
        span = await self._link.differences(self.name, request)
        calls = await comparison.calls_since(self.log, span.a, span.b)
        diff = await self.diff(NOW, to, limit=keys_max)
        return RestorePreview(diff, await self.agents(), await self.leases(), calls)

    async def restore(self, to: When, *, note: str = "", keep_calls: bool = False) -> Restored:
        """Restore the content of the board as of `to`: public, private and inboxes, atomically.

        It is one new revision under a new epoch. Every lease ends, and every writer gets StaleEpoch
        (cause "restore") until it refreshes; no commit based on the abandoned revisions is accepted
        any more. Those revisions stay readable, up to the checkpoint that the restore takes first.
        This Board object needs no refresh, but a step in progress on it is refused.

        The journals of agents are restored, too: calls made since may be made, and paid for, again
        (`preview_restore` lists them). With `keep_calls`, an agent that makes the same call in the
        same step gets the recorded answer, until the next restore or a prune of that history.

        Errors: LimitExceeded when more than RESTORE_CHANGES_MAX keys changed since (a branch has no
        such limit); Corrupt when the archive is damaged. After any error except OutcomeUnknown,
        nothing changed; after OutcomeUnknown, the entry `system/restores/<its request>` exists for
        a day if it was done. Cancellation: the board may have been restored.
        """
        spec = RestoreRequest(moment_of(to), secrets.token_hex(8), note, keep_calls)
        restored = await self._link.restore(self.name, spec)
        # The head is not read again: that could fail, although the restore took effect.
        self._take(restored.epoch, restored.revision)
        return restored

    async def recover(
        self,
        at: When | None = None,
        *,
        note: str = "",
        progress: Callable[[int], None] | None = None,
    ) -> Recovered:
        """Recover a board that its engine lost from the archive: at the newest lost revision, or at
        the archived moment `at` (a revision, a checkpoint, a time).

        All entries come back with their revisions, in a new epoch without leases. Commits since the
        loss are archived first, and stay readable. `progress` is called from time to time with the
        number of entries that the engine has. A repeated call, also after the first caller was
        killed, completes the recovery or returns the same answer.

        Errors: AccessDenied without the admin right on the whole board; NoSuchBoard when nothing is
        archived of it; InvalidRequest when its engine has all that is archived; Corrupt when the
        archive is damaged. Cancellation: it continues in the service.
        """
        spec = RecoverRequest(None if at is None else moment_of(at), note)
        return await compound.recover_all(self._link, self.name, spec, progress, self.refresh)

    async def rewind(
        self,
        *,
        to: Revision | None = None,
        at: datetime | None = None,
        before: Revision | None = None,
        note: str = "",
    ) -> Restored:
        """As `restore`: to a revision, to a point in time, or to just before a revision."""
        return await self.restore(rewound_to(to, at, before), note=note)

    async def branch(self, new: str, at: When = NOW, *, note: str = "") -> Self:
        """Make a new board with the content of this one at `at`; `note` says what it is for.

        The two are independent afterwards. The earlier history of this board is readable through
        the new one. Errors: InvalidRequest when there is a board of that name; Corrupt when the
        archive does not match the signed digests. A branch exists completely or not at all.
        """
        spec = BranchRequest(check_name(new, "board"), moment_of(at), secrets.token_hex(8), note)
        await self._link.branch(self.name, spec)
        return type(self)(self._link, new)

    async def origin(self) -> Origin | None:
        """Where this board branched off, or was exported; None if it began empty."""
        reading = await self._link.read(self.name, [ORIGIN_KEY])
        return Origin.of(decode_value(reading.entries[0].value)) if reading.entries else None

    # --- history ----------------------------------------------------------------------------------

    async def diff(
        self,
        a: When,
        b: When = NOW,
        *,
        other: str | None = None,
        pattern: str = "**",
        limit: int = DIFF_KEYS_MAX,
    ) -> Diff:
        """The differences between moments `a` and `b`, by key, as far as you may read them.

        With `other`, `b` is a moment of that board, which must be of the same family of branches.
        At most `limit` keys; `Diff.more` says whether there are others. A document is one change,
        at its key; its values are its content by root, and texts are compared as texts.
        """
        request = DiffRequest(moment_of(a), moment_of(b), other, pattern)
        return await comparison.differences_by_key(self._link, self.name, request, limit)

    async def differences(
        self, a: When, b: When = NOW, *, other: str | None = None, pattern: str = "**"
    ) -> AsyncIterator[KeyChange]:
        """As `diff`, one by one in key order, without a limit; documents as stored entries."""
        request = DiffRequest(moment_of(a), moment_of(b), other, pattern)
        async for page in comparison.difference_pages(self._link, self.name, request):
            for change in page.changes:
                yield change

    async def history(
        self,
        key: Key,
        *,
        before: Revision | None = None,
        limit: int = HISTORY_VERSIONS_MAX,
        author: str | None = None,
        since: When | None = None,
    ) -> History:
        """The versions of `key`, the newest first; at most `limit`, `before` continues.

        With `author` those that this agent wrote, with `since` those after that moment. A branch
        includes the history of its parent, and a restored board the abandoned revisions.
        """
        after = await compound.revision_at(self._link, self.name, since)
        look = partial(self._link.history, self.name, key, after=after, author=author)
        return History(map(Version.of, await compound.versions_before(look, before, limit)))

    async def verify(self, at: When = NOW) -> Verified:
        """Check everything that is stored up to `at`: hash chain, digests, signatures.

        Errors: none for damage; `Verified.findings` names it.
        """
        return await self._link.verify(self.name, moment_of(at))

    async def export(self, name: str, file: str | Path, *, overwrite: bool = False) -> Exported:
        """Write checkpoint `name` to `file`: every namespace, and its signed manifest.

        The file appears when it is complete and on the disk; an export that fails or is cancelled
        leaves no file. `Client.import_board` reads it.
        Errors: InvalidRequest when `file` cannot be written, or exists, unless with `overwrite`:
        then a regular file is replaced atomically, but no link and no device. Corrupt when the
        archive does not match the signed manifest.
        """
        return await export_board(self._link, self.name, name, Path(file), overwrite=overwrite)

    def __repr__(self) -> str:
        return f"<Board {self.name!r} as {self.agent!r}>"

    def _repr_html_(self) -> str:
        return table(f"board {self.name}", ("agent", "account"), [(self.agent, self.account)])
