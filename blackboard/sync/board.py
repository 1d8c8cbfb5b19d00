"""The Board without async.

Written by `python -m tools.sync_client`: do not edit.
"""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar, overload

from blackboard.client.comparison import RestorePreview
from blackboard.client.diff import Diff, KeyChange
from blackboard.client.export import Exported
from blackboard.client.leases.claim import Claimed
from blackboard.client.leases.presence import IfTaken, Presence
from blackboard.client.views import (
    ENTRY_COLUMNS,
    Cause,
    Entry,
    History,
    Listing,
    Receipt,
    RevisionEvent,
    entry_row,
)
from blackboard.core.checkpoints import (
    NOW,
    Checkpoint,
    CheckpointInfo,
    CheckpointList,
    Origin,
    Pruned,
    Recovered,
    Restored,
    RetentionPolicy,
    Verified,
    When,
)
from blackboard.core.commit import Condition, Head, HeldFence, Lease, Op
from blackboard.errors import BlackboardError, Conflict, InvalidRequest
from blackboard.limits import (
    CLAIM_TRIES_MAX,
    DIFF_KEYS_MAX,
    HISTORY_VERSIONS_MAX,
    LEASE_TTL_MS,
    LIST_ENTRIES_MAX,
    LOG_ENTRIES_MAX,
    STEP_ATTEMPTS_MAX,
    TABLE_ROWS_MAX,
    Limits,
)
from blackboard.sync import asynchronous
from blackboard.sync.blocks import Attachment, Claim, Lock, Step, Watch
from blackboard.sync.files import Files
from blackboard.sync.memory import Memory
from blackboard.sync.portal import Mirror, threaded
from blackboard.tables import table
from blackboard.units import Key, Milliseconds, Prefix, Revision

if TYPE_CHECKING:
    from blackboard.sync.documents import Document
    from blackboard.sync.workspace import Workspace

T = TypeVar("T")


class Board(Mirror[asynchronous.Board]):
    """One board, seen and changed by one agent.

    Reads of earlier revisions raise NoSuchCheckpoint for an unknown name, FutureRevision above the
    head, Compacted for a pruned one, AccessDenied, and Unavailable while the archive is behind.
    Changes raise OutcomeUnknown when they may have been made.
    """

    @property
    def name(self) -> str:
        """As of the asynchronous Board."""
        return self._inner.name

    @property
    def agent(self) -> str:
        """The name under which this board is changed."""
        return self._inner.agent

    @property
    def account(self) -> str:
        """The account on which it is changed: `agent`, or what that name was narrowed from."""
        return self._inner.account

    @property
    def limits(self) -> Limits:
        """How long this process waits, how often it tries, and how much it keeps."""
        return self._inner.limits

    @property
    def is_closed(self) -> bool:
        """Whether its client was closed: every further call raises Unavailable."""
        return self._inner.is_closed

    @property
    def url(self) -> str:
        """The URL of its service; "" if that is in this process."""
        return self._inner.url

    def as_agent(self, agent: str) -> "Board":
        """The same board with the name and the rights of `agent`; it needs its own `refresh`.
        Errors (on use): AccessDenied unless you are `agent`, or an operator.
        """
        return Board(self._portal, self._inner.as_agent(agent))

    def waiting_for_thaw(self, wait_ms: Milliseconds) -> "Board":
        """The same board, on which commits wait up to `wait_ms` (at most FROZEN_WAIT_MS_MAX) while
        it is frozen, before they are refused (BoardFrozen). Renewals do not wait.
        """
        return Board(self._portal, self._inner.waiting_for_thaw(wait_ms))

    @overload
    def get(self, key: Key, default: Any = None, *, at: When | None = None) -> Any: ...

    @overload
    def get(self, key: Key, default: T, *, at: When | None = None, as_type: type[T]) -> T: ...

    @overload
    def get(
        self, key: Key, default: None = None, *, at: When | None = None, as_type: type[T]
    ) -> T | None: ...

    def get(
        self, key: Key, default: Any = None, *, at: When | None = None, as_type: Any = None
    ) -> Any:
        """The value at `key`, or `default` when it is absent. Errors: AccessDenied.

        With `at` (a revision, the name of a checkpoint, a `datetime`), as it was then. With
        `as_type` (a dataclass, a msgspec struct, a pydantic model, `list[Model]`) as one of these;
        errors: TypeMismatch with the path of what does not fit. `put` takes such objects.
        """
        return self._portal.run(lambda: self._inner.get(key, default, at=at, as_type=as_type))

    def entry(self, key: Key, *, at: When | None = None) -> Entry | None:
        """The entry at `key` with its revisions and author, or None when it is absent."""
        return self._portal.run(lambda: self._inner.entry(key, at=at))

    def document_entry(self, key: Key, *, at: When | None = None) -> Entry | None:
        """The document at `key` as an entry: its value is the content by root; None without one.
        This reads the whole document, for display and reports; use `document` to edit it. Errors:
        AccessDenied; Corrupt; Unavailable when it changes faster than it can be read.
        """
        return self._portal.run(lambda: self._inner.document_entry(key, at=at))

    def entries(self, keys: Sequence[Key], *, at: When | None = None) -> dict[Key, Entry]:
        """Up to READ_KEYS_MAX entries, all as of one revision; absent keys are left out."""
        return self._portal.run(lambda: self._inner.entries(keys, at=at))

    def list(
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
        return self._portal.run(
            lambda: self._inner.list(
                pattern,
                after=after,
                limit=limit,
                at=at,
                reverse=reverse,
                keys_only=keys_only,
                delimiter=delimiter,
            )
        )

    def scan(
        self,
        pattern: str,
        *,
        at: When | None = None,
        reverse: bool = False,
        keys_only: bool = False,
    ) -> Iterator[Entry]:
        """All entries that match, as of `at`; without it pages may be of different revisions."""
        return self._portal.iterate(
            self._inner.scan(pattern, at=at, reverse=reverse, keys_only=keys_only)
        )

    def head(self) -> Head:
        """The head of the board: its revision, its epoch, and the oldest revision in its log."""
        return self._portal.run(self._inner.head)

    def log(
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
        return self._portal.run(
            lambda: self._inner.log(
                after=after, limit=limit, pattern=pattern, author=author, since=since, verify=verify
            )
        )

    def why(self, key: Key) -> Sequence[Cause]:
        """The commits that led to what `key` holds, nearest first."""
        return self._portal.run(lambda: self._inner.why(key))

    def put(
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
        return self._portal.run(
            lambda: self._inner.put(key, value, expected=expected, ttl_ms=ttl_ms, note=note)
        )

    def delete(self, key: Key, *, expected: Revision | None = None) -> bool:
        """Remove `key`; False when it was absent. `expected` as in `put`."""
        return self._portal.run(lambda: self._inner.delete(key, expected=expected))

    def delete_prefix(
        self, prefix: Prefix, *, progress: Callable[[int], None] | None = None
    ) -> tuple[Key, ...]:
        """Remove every key below `prefix`; returns them. Up to OPERATIONS_MAX go at once; more go
        in several commits, and `progress` is called with the number of those that are gone. After
        an error or a cancellation, the next call continues.
        """
        return self._portal.run(lambda: self._inner.delete_prefix(prefix, progress=progress))

    def touch(self, key: Key, *, ttl_ms: Milliseconds | None) -> Receipt:
        """Let the entry at `key` expire after `ttl_ms` from now on (None: never); its value stays.

        A revision of its own. Errors: Conflict when the key is absent, or changes all the time.
        """
        return self._portal.run(lambda: self._inner.touch(key, ttl_ms=ttl_ms))

    def append(self, prefix: Prefix, value: Any, *, ttl_ms: Milliseconds | None = None) -> Key:
        """Add `value` as the next item below `prefix`; returns the item's key."""
        return self._portal.run(lambda: self._inner.append(prefix, value, ttl_ms=ttl_ms))

    def increment(self, key: Key, by: int = 1) -> int:
        """Add `by` to the integer at `key` (absent = 0) and return the sum."""
        return self._portal.run(lambda: self._inner.increment(key, by))

    def merge(self, key: Key, patch: Any) -> Any:
        """Apply a JSON merge patch (RFC 7396) to `key`; returns the new value.

        The patch is applied here and committed if the key did not change in between; else it is
        applied again, up to MERGE_ATTEMPTS_MAX times. Then the last Conflict is raised.
        """
        return self._portal.run(lambda: self._inner.merge(key, patch))

    def commit(
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
        return self._portal.run(
            lambda: self._inner.commit(
                ops, conditions=conditions, fences=fences, based_on=based_on, note=note
            )
        )

    def step(self, agent: str | None = None, *, validate: bool = True, note: str = "") -> Step:
        """One step of an agent: tracked reads, gathered writes, one commit at the end.

            with board.step("architect") as step:
                valuation = step.get("public/valuation")
                step.put("public/plan", plan_from(valuation))

        With `validate` the commit is refused (Conflict) if anything that was read has changed.
        """
        return Step(self._portal, self._inner.step(agent, validate=validate, note=note))

    def run_step(
        self, agent: str, body: Callable[[Step], T], *, attempts: int = STEP_ATTEMPTS_MAX
    ) -> T:
        """Run `body(step)` and commit; on a Conflict run it again on fresh state.

        Errors: the last Conflict after `attempts` runs; whatever `body` raises, nothing committed.
        """
        if attempts < 1:
            raise InvalidRequest("attempts", f"{attempts} is below 1: write how often to run it")
        for attempt in range(attempts):
            try:
                with self.step(agent) as step:
                    return body(step)
            except Conflict:
                if attempt == attempts - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")

    def refresh(self) -> None:
        """Accept the board as it is now, after a StaleEpoch: continue in its present epoch.

        This covers later steps and attachments on this board, for any agent, but not boards from
        `as_agent`, whose users may rely on earlier reads. A step in progress is refused.
        """
        self._portal.run(self._inner.refresh)

    def leases(self, pattern: str = "**") -> tuple[Lease, ...]:
        """The leases whose keys match `pattern` and may be read, with their queues."""
        return self._portal.run(lambda: self._inner.leases(pattern))

    def lock(
        self,
        *keys: Key,
        ttl_ms: Milliseconds = LEASE_TTL_MS,
        timeout_ms: Milliseconds | None = None,
    ) -> Lock:
        """Hold the leases of `keys`, all or none, for a block; wait in a queue if they are held.

            with board.lock("public/plan") as lock:
                plan = board.get("public/plan")
                board.put("public/plan", better(plan))

        Every commit that this task, or one started in the block, makes on this board relies on the
        lock, and is Fenced if it was lost. It is renewed while the block runs; if this process
        dies, it is free after `ttl_ms`, which is also the longest pause that it survives.

        Errors: LeaseHeld after `timeout_ms` (0: at once; None: waits for ever). LeaseLost when it
        was lost in the middle; the block was cancelled then. LocalProtocolError when this task
        holds one of `keys` already. See client/leases/lock.py.
        """
        return Lock(self._portal, self._inner.lock(*keys, ttl_ms=ttl_ms, timeout_ms=timeout_ms))

    def wait_free(self, key: Key, *, timeout_ms: Milliseconds | None = None) -> Revision:
        """Wait until the lease `key` is free; returns a revision at which it was.

        Later reads show everything that the holder wrote. Another holder may take the lease right
        afterwards: to read several times without interference, take the lock. Errors: LeaseHeld
        after `timeout_ms` (None: waits for ever); AccessDenied.
        """
        return self._portal.run(lambda: self._inner.wait_free(key, timeout_ms=timeout_ms))

    def attach(
        self,
        agent: str | None = None,
        *,
        if_taken: IfTaken = "wait",
        ttl_ms: Milliseconds = LEASE_TTL_MS,
        timeout_ms: Milliseconds | None = None,
        deliver: Callable[[], Sequence[Op]] | None = None,
    ) -> "Attachment[Board]":
        """Run as `agent` (by default, yourself) for a block, in at most one process at a time.

            with board.attach("researcher") as me:
                me.report("reading", "annual reports")
                me.board.put("public/valuation", {"usd_bn": 2900})

        If another process has the identity: "wait" in a queue, at most `timeout_ms`; "take_over",
        so that the other process is Fenced at its next commit and gets LeaseLost at its next
        renewal; or "refuse" to start (LeaseHeld). In the block every commit of that agent relies on
        the identity, and `Board.agents` lists the agent.

        `deliver`: when a checkpoint with a barrier asks for the agent's state, this is called, and
        the operations that it returns are committed, before any other commit of the block. Without
        it, the next commit gets SnapshotFirst.

        Errors: as of `lock`; AccessDenied unless you may act as `agent`.
        """
        inner = self._inner.attach(
            agent,
            if_taken=if_taken,
            ttl_ms=ttl_ms,
            timeout_ms=timeout_ms,
            deliver=None if deliver is None else threaded(deliver),
        )
        return Attachment(self._portal, inner, Board(self._portal, inner.board))

    def agents(self) -> tuple[Presence, ...]:
        """The agents that are attached, with what they report, by name."""
        return self._portal.run(self._inner.agents)

    def claim(
        self,
        pattern: str,
        *,
        ttl_ms: Milliseconds = LEASE_TTL_MS,
        timeout_ms: Milliseconds | None = None,
        tries_max: int = CLAIM_TRIES_MAX,
    ) -> Claim:
        """Take one entry that matches `pattern` and work on it, alone.

            with board.claim("public/tasks/*") as task:
                task.append("public/results", work_on(task.value))

        It takes the first free one, in key order, and waits for one at most `timeout_ms` (0: do not
        wait; None: for ever). Leaving the block commits, in one commit, the removal of the entry
        and everything that was requested through `task`. If the block raises, or is cancelled, the
        entry is returned, `task.delay_ms` later; after `tries_max` attempts it is moved to
        `<namespace>/~dead/<rest of its key>`. If this process dies, the entry is free again after
        `ttl_ms`, which is renewed while the block runs.

        Errors: NothingToClaim after `timeout_ms`. LeaseLost: another agent may have the entry; the
        block was cancelled, and nothing that was requested through `task` happens.
        """
        return Claim(
            self._portal,
            self._inner.claim(pattern, ttl_ms=ttl_ms, timeout_ms=timeout_ms, tries_max=tries_max),
        )

    def claims(self, pattern: str = "public/**") -> Sequence[Claimed]:
        """Entries that match, were claimed, and are not done; dead letters come last."""
        return self._portal.run(lambda: self._inner.claims(pattern))

    def document(self, key: Key) -> "Document":
        """The document at `key`, which several agents edit at once; it begins empty.

            doc = board.document("public/memo")
            doc.text().append("Buy.")
            doc.synced()

        With `with`, it is closed at the end of the block, after everything was sent.
        Errors: AccessDenied unless you may read everything below `<key>/~doc`; Unavailable.
        """
        from blackboard.sync.documents import Document

        return Document(self._portal, self._portal.enter(self._inner.document(key)))

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
        return Memory(
            self._portal, self._inner.memory(store, namespace=namespace, embed=embed, model=model)
        )

    @property
    def files(self) -> Files:
        """Values that are too large for one entry, streamed in and out."""
        return Files(self._portal, self._inner.files)

    def workspace(self, path: str | Path, key: Key | None = None) -> "Workspace":
        """The directory `path` as part of the board; its key is `private/<agent>/workspace`."""
        from blackboard.sync.workspace import Workspace

        return Workspace(self._portal, self._inner.workspace(path, key))

    def watch(
        self,
        *patterns: str,
        after: Revision | str | None = None,
        snapshot: bool = False,
        coalesce: bool = False,
    ) -> Watch:
        """Watch the changes of keys that match one of `patterns`.

            with board.watch("public/**") as watch:
                for revised in watch:
                    for change in revised.changes: ...

        `after`: a revision or a resume token (`watch.position`); None = from now on. `snapshot`:
        first the state (`watch.state`), then exactly what follows it. `coalesce`: when behind,
        several revisions may come as one with the newest change of each key.
        """
        return Watch(
            self._portal,
            self._inner.watch(*patterns, after=after, snapshot=snapshot, coalesce=coalesce),
        )

    def checkpoint(
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
        return self._portal.run(
            lambda: self._inner.checkpoint(
                name, note=note, barrier_ms=barrier_ms, stale_ok=stale_ok
            )
        )

    def checkpoints(self) -> CheckpointList:
        """All checkpoints of the board, the oldest first."""
        return self._portal.run(self._inner.checkpoints)

    def show(self, name: str) -> CheckpointInfo:
        """A checkpoint with its manifest, as far as you may see it; waits until it is signed."""
        return self._portal.run(lambda: self._inner.show(name))

    def pin(self, name: str) -> None:
        """Protect a checkpoint from pruning."""
        self._portal.run(lambda: self._inner.pin(name))

    def unpin(self, name: str) -> None:
        """Let a checkpoint be pruned again."""
        self._portal.run(lambda: self._inner.unpin(name))

    def prune(self, policy: RetentionPolicy | None = None, *, dry_run: bool = False) -> Pruned:
        """Remove the checkpoints, and the history, that `policy` does not keep.

        Checkpoints that are pinned or needed by a branch always stay. With `dry_run`, nothing is
        removed.
        """
        return self._portal.run(lambda: self._inner.prune(policy, dry_run=dry_run))

    def preview_restore(self, to: When, *, keys_max: int = DIFF_KEYS_MAX) -> RestorePreview:
        """What `restore(to)` would change (at most `keys_max` keys), which agents it would
        interrupt, and which calls of models and tools were made since: agents may make them again
        afterwards.

        Cost: reads the log from that moment on. Errors: as of `diff` and `log`.
        """
        return self._portal.run(lambda: self._inner.preview_restore(to, keys_max=keys_max))

    def restore(self, to: When, *, note: str = "", keep_calls: bool = False) -> Restored:
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
        return self._portal.run(lambda: self._inner.restore(to, note=note, keep_calls=keep_calls))

    def recover(
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
        return self._portal.run(lambda: self._inner.recover(at, note=note, progress=progress))

    def rewind(
        self,
        *,
        to: Revision | None = None,
        at: datetime | None = None,
        before: Revision | None = None,
        note: str = "",
    ) -> Restored:
        """As `restore`: to a revision, to a point in time, or to just before a revision."""
        return self._portal.run(lambda: self._inner.rewind(to=to, at=at, before=before, note=note))

    def branch(self, new: str, at: When = NOW, *, note: str = "") -> Self:
        """Make a new board with the content of this one at `at`; `note` says what it is for.

        The two are independent afterwards. The earlier history of this board is readable through
        the new one. Errors: InvalidRequest when there is a board of that name; Corrupt when the
        archive does not match the signed digests. A branch exists completely or not at all.
        """
        return type(self)(
            self._portal, self._portal.run(lambda: self._inner.branch(new, at, note=note))
        )

    def origin(self) -> Origin | None:
        """Where this board branched off, or was exported; None if it began empty."""
        return self._portal.run(self._inner.origin)

    def diff(
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
        return self._portal.run(
            lambda: self._inner.diff(a, b, other=other, pattern=pattern, limit=limit)
        )

    def differences(
        self, a: When, b: When = NOW, *, other: str | None = None, pattern: str = "**"
    ) -> Iterator[KeyChange]:
        """As `diff`, one by one in key order, without a limit; documents as stored entries."""
        return self._portal.iterate(self._inner.differences(a, b, other=other, pattern=pattern))

    def history(
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
        return self._portal.run(
            lambda: self._inner.history(key, before=before, limit=limit, author=author, since=since)
        )

    def verify(self, at: When = NOW) -> Verified:
        """Check everything that is stored up to `at`: hash chain, digests, signatures.

        Errors: none for damage; `Verified.findings` names it.
        """
        return self._portal.run(lambda: self._inner.verify(at))

    def export(self, name: str, file: str | Path, *, overwrite: bool = False) -> Exported:
        """Write checkpoint `name` to `file`: every namespace, and its signed manifest.

        The file appears when it is complete and on the disk; an export that fails or is cancelled
        leaves no file. `Client.import_board` reads it.
        Errors: InvalidRequest when `file` cannot be written, or exists, unless with `overwrite`:
        then a regular file is replaced atomically, but no link and no device. Corrupt when the
        archive does not match the signed manifest.
        """
        return self._portal.run(lambda: self._inner.export(name, file, overwrite=overwrite))

    def _repr_html_(self) -> str:
        # Waits as `list` does; what cannot be read is shown as its error.
        caption = f"board {self.name}, as {self.agent}"
        try:
            found = self.list("**", limit=TABLE_ROWS_MAX)
        except BlackboardError as error:
            return table(caption, ("error",), [(str(error),)])
        caption = f"{caption}: revision {found.revision}"
        return table(
            caption, ENTRY_COLUMNS, map(entry_row, found.entries), more=found.next_key is not None
        )
