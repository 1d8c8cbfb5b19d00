"""The audit: a tamper-evident record of security-relevant requests.

For principals with a token it records refusals (access_denied, unauthenticated, fenced), actions
that change or copy a whole board (restore, branch, export, import, prune ...), changes of tokens
and keys, and each read of another agent's private namespace. For rejected clients it records how
they connected, and why they were rejected; for the service itself, which master key it uses, and
each data key that it makes. Names of keys and patterns are recorded, values never.

The records are on a board of the service's own, `~audit`. Each process writes a chain: a record has
its number and the hash of the one before, so a changed, removed or inserted record is detected.
Each is signed with a key derived from the secret of the service, so an attacker who can write to
the engine cannot rewrite the chain.

Records removed from the end are detected in three ways: the process that wrote them checks the last
one before it writes the next; an earlier export can be compared (`missing`); and an attacker who
cut the end of a chain cannot continue it without the process's numbers.

Invariants
- No request waits for its record to be written, or fails because it cannot be written. At most
  AUDIT_QUEUE_MAX records are queued; the number of those dropped above that is itself recorded.
- Refusals, which any client can cause, are recorded up to a number per minute, and counted above
  that (`Repeats`).

`with Audited(...)` around a request records its outcome.

A refused client may retry as often as it likes. So that the records cannot fill the disk, similar
refusals (principal, token, verb, board, outcome) are recorded at most AUDIT_ALIKE_MAX times in a
window of AUDIT_WINDOW_MS, and AUDIT_REFUSALS_MAX refusals in all; the others become one record for
each kind, with their count, when the window is over. There are at most AUDIT_KINDS_MAX kinds in a
window, and one for the rest of them.

Time is an argument, taken from the records.
"""

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import islice
from types import TracebackType
from typing import Any, Final, cast

from msgspec import Struct
from msgspec.structs import replace as with_fields

from blackboard import telemetry
from blackboard.client.audit_record import (
    FORGED,
    REFUSED,
    UNKNOWN_KEY,
    AuditKeys,
    AuditRecord,
)
from blackboard.client.link import WatchRequest
from blackboard.core.access import AUDIT_BOARD, Principal, Right, allows
from blackboard.core.commit import Append, Commit, CommitId, signature
from blackboard.engines.base import Store
from blackboard.errors import (
    AccessDenied,
    BlackboardError,
    Corrupt,
    Fenced,
    OutcomeUnknown,
    Unauthenticated,
)
from blackboard.limits import AUDIT_KEPT_MS, DEFAULT, LANES_MAX, LIST_ENTRIES_MAX, Limits
from blackboard.units import Key, Milliseconds, Revision
from blackboard.wire.codec import SYSTEM_AGENT, decode_value, encode_value, prepare
from blackboard.wire.methods import AUDITED, METHODS, Charge

OTHERS: Final = "(several)"
"""The verb of refusals of further kinds, which are counted together."""


@dataclass(slots=True)
class _Alike:
    """Refusals of one kind: how many were recorded, how many only counted, and the last counted
    one."""

    recorded: int = 0
    counted: int = 0
    last: AuditRecord | None = None


class Repeats:
    """The refusals of the current window."""

    def __init__(self, limits: Limits = DEFAULT) -> None:
        self._limits = limits.security
        self._window = 0
        self._recorded = 0
        self._kinds: dict[tuple[str, ...], _Alike] = {}

    def take(self, record: AuditRecord) -> Sequence[AuditRecord]:
        """The records to write now: those counted before, `record` itself, or none."""
        found = self.ended(record.time_ms)
        kind: tuple[str, ...] = (
            record.principal,
            record.token,
            record.verb,
            record.board,
            record.outcome,
        )
        if kind not in self._kinds and len(self._kinds) >= self._limits.audit_kinds_max:
            record = replace(record, principal="", token="", verb=OTHERS, board="", what="")
            kind = _kind_of(record)
        alike = self._kinds.setdefault(kind, _Alike())
        if (
            alike.recorded < self._limits.audit_alike_max
            and self._recorded < self._limits.audit_refusals_max
            and record.verb != OTHERS
        ):
            alike.recorded += 1
            self._recorded += 1
            return [*found, record]
        alike.counted += 1
        alike.last = record
        return found

    def ended(self, now_ms: Milliseconds) -> Sequence[AuditRecord]:
        """The counts of a window that is over at `now_ms`."""
        window = now_ms // max(1, self._limits.audit_window_ms)
        if window == self._window:
            return []
        found = self.counted()
        self._window, self._recorded = window, 0
        self._kinds.clear()
        return found

    def counted(self) -> Sequence[AuditRecord]:
        """The counts until now, one record for each kind; they are reset."""
        found = []
        for alike in self._kinds.values():
            if alike.last is not None:
                found.append(replace(alike.last, count=alike.counted))
                alike.counted, alike.last = 0, None
        return found


def _kind_of(record: AuditRecord) -> tuple[str, ...]:
    return (record.principal, record.token, record.verb, record.board, record.outcome)


@dataclass(slots=True)
class _Sent:
    """The first queued records, in flight to the engine as `records`.

    The board was at revision `since` before.
    """

    commit: Commit
    since: Revision
    records: Sequence[AuditRecord]


log = logging.getLogger(__name__)

_LIST: Final = "system/audit"
_WHAT_CHARACTERS_MAX: Final = 512
_WRITTEN_IN_S: Final = 0.05
"""Records wait so long for others that share their commit."""


class Audit:
    """Writes and reads the records of one process's requests."""

    def __init__(self, store: Store, limits: Limits = DEFAULT) -> None:
        self._store = store
        self._limits = limits.security
        self._patience_s = limits.engine.engine_timeout_ms / 1000
        self._keys = AuditKeys([])
        self._writer = secrets.token_hex(8)
        self._lane = int(self._writer, 16) % LANES_MAX  # other processes write, too
        self._waiting: deque[AuditRecord] = deque()
        self._left_out = 0
        self._number, self._previous, self._step = 0, "", 0
        self._last: tuple[Key, Milliseconds] | None = None
        self._sent: _Sent | None = None
        self._repeats = Repeats(limits)
        self._window_over: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None
        self._is_failing = False
        """Whether the last attempt to write records failed."""
        self.written: Callable[[], None] = lambda: None
        """Called after records were written."""

    def seal_with(self, secrets: Sequence[str]) -> None:
        """From here on sign records with a key from the first of `secrets`, and verify with all."""
        self._keys = AuditKeys(list(secrets))

    def note(self, principal: Principal, verb: str, board: str, what: str, outcome: str) -> None:
        """Record a request. A principal without a token is not recorded: it opened the service in
        this process."""
        if principal.credential is None:
            return
        # The token in use; the ids before it are those of the tokens that it was narrowed from.
        token = principal.credential.ids[-1]
        who = signature(principal.name, principal.account)
        self._take(AuditRecord(_now_ms(), who, token, verb, board, what, outcome))

    def note_stranger(self, verb: str, why: str, outcome: str) -> None:
        """Record that an unknown client was refused."""
        self._take(AuditRecord(_now_ms(), "", "", verb, "", why, outcome))

    def note_service(self, verb: str, board: str, what: str) -> None:
        """Record what the service did by itself."""
        self._take(AuditRecord(_now_ms(), SYSTEM_AGENT, "", verb, board, what, "ok"))

    def _take(self, record: AuditRecord) -> None:
        if len(record.what) > _WHAT_CHARACTERS_MAX:
            record = replace(record, what=record.what[:_WHAT_CHARACTERS_MAX] + "...")
        if record.outcome not in REFUSED:
            return self._put([record])
        # Without a timer, the counts of a flood would wait for the next refusal, if there is one.
        if self._window_over is None:
            loop = asyncio.get_running_loop()
            self._window_over = loop.call_later(
                self._limits.audit_window_ms / 1000, self._tell_counts
            )
        return self._put(self._repeats.take(record))

    def _tell_counts(self) -> None:
        if self._window_over is not None:
            self._window_over.cancel()
            self._window_over = None
        self._put(self._repeats.counted())

    def _put(self, records: Sequence[AuditRecord]) -> None:
        for record in records:
            if len(self._waiting) >= self._limits.audit_queue_max:
                self._left_out += 1
            else:
                self._waiting.append(record)
        if records and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._write(), name="audit")

    async def read(self, after: Key | None, limit: int) -> Sequence[tuple[Key, AuditRecord]]:
        """Stored records after the one with key `after`, the oldest first. Errors: Unavailable.

        It waits for queued records, at most ENGINE_TIMEOUT_MS, and not while they cannot be
        written, as on a full disk.
        """
        if after is None:
            self._tell_counts()
        if self._task is not None and not self._is_failing:
            await asyncio.wait([self._task], timeout=self._patience_s)
        await self._store.open(AUDIT_BOARD)
        page = await self._store.list(
            AUDIT_BOARD, _LIST, after=after, limit=min(limit, LIST_ENTRIES_MAX)
        )
        found = ((entry.key, _record(entry.key, entry.value)) for entry in page.entries)
        return [(key, self._keys.checked(record)) for key, record in found]

    async def settle(self) -> None:
        """Wait until all records until now are written."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def aclose(self) -> None:
        """Write the queued records, once; those that cannot be written are logged as lost."""
        self._tell_counts()
        if self._task is not None:
            # It may be pausing. What it was writing is sent again below, under the same id.
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            while self._waiting:
                await self._write_some()
        except BlackboardError as error:
            log.warning("%d audit records are lost: %s", len(self._waiting), error)

    async def _write(self) -> None:
        await asyncio.sleep(_WRITTEN_IN_S)
        reason = ""
        while self._waiting:
            try:
                await self._write_some()
                self._is_failing = False
            except BlackboardError as error:
                self._is_failing = True
                if str(error) != reason:  # said once, however long it lasts: the disk may be full
                    reason = str(error)
                    log.warning("audit records wait, and are tried again: %s", reason)
                await asyncio.sleep(self._limits.audit_retry_ms / 1000)
        if reason:
            log.warning("audit records are written again")

    async def _write_some(self) -> None:
        """Errors: Unavailable and others; the records stay queued.

        Cancellation: they may have been written. The next call sends them again with the same
        commit id, so that none is written twice.
        """
        if self._sent is None:
            await self._miss_the_last()
            self._sent = await self._next()
        sent = self._sent
        prepared = prepare(sent.commit)
        # From now on it may have been applied, so the next attempt is a retry.
        sent.commit = with_fields(sent.commit, retry_since=sent.since)
        (outcome,) = await self._store.commit(AUDIT_BOARD, [prepared])
        if isinstance(outcome, OutcomeUnknown) and not outcome.final:
            raise outcome
        # No other attempt can answer: what was refused is chained again, in another commit.
        self._sent = None
        if isinstance(outcome, BlackboardError):
            raise outcome
        self.written()
        last = sent.records[-1]
        # Only now: the chain must not go on from a record that was not written.
        self._number, self._previous = last.number, last.hash()
        self._last = (str(outcome.results[-1]), last.time_ms)
        written = [self._waiting.popleft() for _ in sent.records]
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            self._waiting.append(replace(written[-1], verb="audit", what=f"{left_out} left out"))

    async def _next(self) -> _Sent:
        """The records to write next."""
        chained = list(self._chained(islice(self._waiting, self._limits.audit_batch_max)))
        head = await self._store.open(AUDIT_BOARD)
        self._step += 1
        name = CommitId(SYSTEM_AGENT, self._lane, self._writer, self._step)
        ops = tuple(Append(_LIST, encode_value(r.stored()), AUDIT_KEPT_MS) for r in chained)
        return _Sent(Commit(name, head.epoch.id, ops), head.revision, chained)

    async def _miss_the_last(self) -> None:
        """Check that the last written record still exists; record it if it does not."""
        if self._last is None:
            return
        key, time_ms = self._last
        reading = await self._store.read(AUDIT_BOARD, [key])
        # It may have expired: the sweeper removes it then.
        if reading.entries or time_ms + AUDIT_KEPT_MS <= _now_ms():
            return
        self._last = None
        log.error("audit: records up to number %d of this process were removed", self._number)
        what = f"records up to {self._writer} {self._number} were removed"
        self._waiting.appendleft(
            AuditRecord(_now_ms(), SYSTEM_AGENT, "", "audit", "", what, "corrupt")
        )

    def _chained(self, records: Iterable[AuditRecord]) -> Iterable[AuditRecord]:
        number, previous = self._number, self._previous
        for record in records:
            number += 1
            placed = replace(record, writer=self._writer, number=number, previous=previous)
            made = self._keys.sealed(placed)
            previous = made.hash()
            yield made


def findings(records: Iterable[AuditRecord]) -> Sequence[str]:
    """Problems of consecutive records: changed, removed or inserted ones. Empty if there are none.

    The oldest record of each writer is accepted: earlier ones may have expired. An unsigned record
    of a request, after a signed one, was not written by a service.
    """
    found: list[str] = []
    last: dict[str, AuditRecord] = {}
    is_sealed = False
    for record in records:
        is_sealed |= bool(record.sealed_with)
        if record.checked == FORGED:
            found.append(f"{record.writer}: the signature of {record.number} is forged")
        elif is_sealed and not record.sealed_with and record.principal != SYSTEM_AGENT:
            found.append(f"{record.writer}: {record.number} has no signature")
        before = last.get(record.writer)
        if before is not None:
            if record.number != before.number + 1:
                found.append(f"{record.writer}: {record.number} follows {before.number}")
            elif record.sealed_with != before.sealed_with:
                found.append(
                    f"{record.writer}: {record.number} is not signed with the key of its chain"
                )
            elif record.previous != before.hash():
                found.append(f"{record.writer}: {before.number} is not what was written")
        last[record.writer] = record
    return found


def unproved(records: Iterable[AuditRecord]) -> int:
    """The number of records without a signature, or signed with a key that the service no longer
    has: anyone who can write to the engine could have written them."""
    return sum(1 for record in records if record.checked in ("", UNKNOWN_KEY))


def missing(
    records: Iterable[AuditRecord], before: Iterable[AuditRecord], now_ms: Milliseconds
) -> Sequence[str]:
    """The records of an earlier export that are missing in `records`, although they are not too
    old."""
    there = {(record.writer, record.number): record.hash() for record in records}
    found: list[str] = []
    for record in before:
        place = (record.writer, record.number)
        if there.get(place) != record.hash() and record.time_ms + AUDIT_KEPT_MS > now_ms:
            how = "is not what was exported" if place in there else "is gone"
            found.append(f"{record.writer}: {record.number} {how}")
    return found


def looks_into_others(principal: Principal, patterns: Iterable[str]) -> bool:
    """Whether a read of `patterns` shows `principal` private data of another agent."""
    # No agent has this name, so only a grant on all private namespaces matches.
    if not allows(principal.grants, Right.READ, "private/~/x"):
        return False  # a narrower grant was given for that purpose
    own = {f"private/{principal.name}", f"inbox/{principal.name}"}
    for pattern in patterns:
        first, _, rest = pattern.partition("/")
        if first not in ("public", "system") and f"{first}/{rest.partition('/')[0]}" not in own:
            return True
    return False


def _now_ms() -> Milliseconds:
    return time.time_ns() // 1_000_000


def _record(key: Key, value: bytes) -> AuditRecord:
    try:
        fields: dict[str, Any] = decode_value(value)
        return AuditRecord(**fields)
    except TypeError as error:
        raise Corrupt(what=key, reason="it is no record of the audit") from error


_REFUSALS: Final = (AccessDenied, Unauthenticated, Fenced)
_LOOKS: Final = frozenset(
    {"read", "list", "leases", "log", "watch", "why", "history", "differences", "document"}
)
_AT_ALL: Final = frozenset({"log", "differences"})
"""Reads that name no key and no pattern."""
_NOTHING: Final[tuple[object, ...]] = (None, (), "", False)
"""Values of arguments that were not given; they are not recorded."""


_WORK: Final = frozenset(name for name, m in METHODS.items() if m.charge is Charge.WORK)
UNRECORDED: Final = nullcontext()
"""The block of a request that is not recorded."""


def audited(
    audit: Audit, principal: Principal, verb: str, board: str, about: Sequence[object]
) -> AbstractContextManager[None, None]:
    """A block that audits a request by the rules above; with telemetry a span, too, if the method
    changes something or takes long."""
    is_known = principal.credential is not None
    recorded = Audited(audit, principal, verb, board, about) if is_known else UNRECORDED
    if telemetry.is_on() and verb in _WORK:
        traced = _traced(recorded, telemetry.serving(verb, board, principal.name))
        return cast("AbstractContextManager[None, None]", traced)  # it swallows no error
    return recorded


@contextmanager
def _traced(
    recorded: AbstractContextManager[None, None],
    span: AbstractContextManager[telemetry.OpenSpan | None],
) -> Iterator[None]:
    """A block inside a span."""
    with span, recorded:
        yield


class Audited:
    """Records a request at the end of its block, by the rules above.

    `verb` is a method of the table; `about` has its arguments: for a read, first the keys or
    patterns. Errors pass through.
    """

    __slots__ = ("_about", "_audit", "_board", "_principal", "_verb")

    def __init__(
        self, audit: Audit, principal: Principal, verb: str, board: str, about: Sequence[object]
    ) -> None:
        self._audit = audit
        self._principal = principal
        self._verb = verb
        self._board = board
        self._about = about

    def __enter__(self) -> None:
        """Records nothing: the outcome is not known yet."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Record a refusal, or a success of an audited method."""
        if error is None and self._principal.credential is not None:
            self._note_success()
        self.note_error(error)

    def note_error(self, error: BaseException | None) -> None:
        """Record the refusal `error`; nothing for any other error."""
        if isinstance(error, _REFUSALS):
            self._note(str(error.fields().get("key", "")), error.code)

    def _note_success(self) -> None:
        if self._verb in AUDITED:
            self._note(self._text(), "ok")
        elif self._verb in _LOOKS and looks_into_others(self._principal, self._patterns()):
            self._note(self._text(), "private")

    def _note(self, what: str, outcome: str) -> None:
        self._audit.note(self._principal, self._verb, self._board, what, outcome)

    def _patterns(self) -> Sequence[str]:
        """The keys or patterns of a read; everything, if it names none."""
        if self._verb in _AT_ALL or not self._about:
            return ["**"]
        subject = self._about[0]
        if isinstance(subject, WatchRequest):
            return subject.patterns
        if isinstance(subject, list | tuple):
            return [str(key) for key in subject]
        return [str(subject)]

    def _text(self) -> str:
        return " ".join(_words(part) for part in self._about if part not in _NOTHING)


def _words(part: object) -> str:
    """An argument for people: what a wish says by name, but for what it left out and for bytes."""
    if isinstance(part, list | tuple):
        return ",".join(map(str, part))
    if isinstance(part, Struct):
        names: Sequence[str] = part.__struct_fields__
    elif is_dataclass(part) and not isinstance(part, type):
        names = [field.name for field in fields(part)]
    else:
        return str(part)
    said = ((name, getattr(part, name)) for name in names)
    return " ".join(
        f"{name}={_words(value)}"
        for name, value in said
        if value not in _NOTHING and not isinstance(value, bytes)
    )
