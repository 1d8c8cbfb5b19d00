"""The journal of a step: each call is recorded before the agent continues, and never made again.

The result of a call is recorded in a small commit, `private/<agent>/~journal/<slot>`. After a crash
the step runs from its beginning, and its earlier calls are answered from the journal.

Invariants
- A call is answered with a recorded result only if name, arguments and version are the same. So a
  step that takes another path gets no wrong answer, whatever the order of its calls.
- A record is written only while the agent's state is the one that the step began with. So the
  results of a process that was overtaken are never used.
- The commit of the step removes all records: the journal belongs to one step.

Sources: the step outputs of DBOS and Restate's journal; idempotency keys as in Stripe's interface.

`StepPoint`s are reported to an observer: for telemetry, and for tests that crash a process there.

A team can share the results of calls. A shared result is stored at `public/~cache/<digest of the
call>` until its time to live has passed; a large one in parts below that. Every agent that may
write in public may write here, so sharing results means trusting the team. An invalid or incomplete
result is ignored.
"""

import asyncio
import hashlib
import logging
import random
import re
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum
from time import monotonic
from typing import Any, Final, TypeGuard

from pydantic import ValidationError

from blackboard import telemetry
from blackboard.client.views import Change, Entry, Receipt
from blackboard.core.commit import Condition, Delete, DeletePrefix, KeyAt, Op, Put
from blackboard.errors import (
    AccessDenied,
    CallFailed,
    CallInterrupted,
    Corrupt,
    Diverged,
    InvalidRequest,
    LimitExceeded,
)
from blackboard.limits import (
    CALL_INLINE_BYTES,
    LARGE_BYTES_MAX,
    OPERATIONS_MAX,
    STEP_CALLS_MAX,
    STEP_PARTS_MAX,
    VALUE_BYTES_MAX,
)
from blackboard.runtime import chunks as large
from blackboard.runtime.board_port import BoardPort
from blackboard.runtime.calls import (
    Call,
    CallOptions,
    CallRecord,
    Failure,
    Retry,
    canonical,
    reason_of,
)
from blackboard.runtime.models import Reply
from blackboard.runtime.state import error_line, journal_prefix
from blackboard.units import Key, Milliseconds, Prefix
from blackboard.wire.codec import decode_value, encode_large, encode_value

CACHE: Final = "public/~cache"
_INLINE_BYTES_MAX: Final = VALUE_BYTES_MAX - 4_096
"""Bytes of a result: the record around it must fit into the value as well."""


def answer(digest: str, name: str, encoded: bytes, ttl_ms: Milliseconds) -> list[Put]:
    """The operations that share the encoded result of the call `name` with that digest.

    The last one makes it visible, so it must be committed last.
    """
    key = f"{CACHE}/{digest}"
    if len(encoded) <= _INLINE_BYTES_MAX:
        shared: dict[str, Any] = {"name": name, "result": decode_value(encoded)}
        return [Put(key, encode_value(shared), ttl_ms)]
    found = large.digest_of(encoded)
    shared = {"name": name, "result_digest": found, "result_bytes": len(encoded)}
    parts = [Put(part.key, part.value, ttl_ms) for part in large.cut(f"{key}/{found}", encoded)]
    return [*parts, Put(key, encode_value(shared), ttl_ms)]


async def find(port: BoardPort, digest: str) -> bytes | None:
    """The shared encoded result for the call with that digest; None if there is none."""
    key = f"{CACHE}/{digest}"
    try:
        entry = await port.entry(key)
    except AccessDenied:  # a token with narrow grants: nothing is shared with it
        return None
    shared = None if entry is None else entry.value
    if not isinstance(shared, dict):
        return None
    if "result" in shared:
        return encode_value(shared["result"])
    # Others write this entry: what it says decides how many keys are read below.
    found, size = shared.get("result_digest"), shared.get("result_bytes")
    if type(size) is not int or not 0 < size <= LARGE_BYTES_MAX or not _is_digest(found):
        return None
    parts = []
    for part_key in large.keys_of_cut(f"{key}/{found}", size):
        part = await port.entry(part_key)
        if part is None:
            return None
        parts.append(part.value)
    try:
        return large.joined_bytes(key, parts, found)
    except Corrupt:
        return None


def _is_digest(found: Any) -> TypeGuard[str]:
    """Whether it is a digest as `large.digest_of` writes it, and so a segment of a key."""
    return isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found) is not None


class StepPoint(StrEnum):
    """Points in a step. Each ...ING point is followed by a commit, if there is one to make."""

    HYDRATED = "hydrated"
    STEP_BEGUN = "step begun"
    CALL_BEGUN = "call begun"
    CALL_RETURNED = "call returned"
    RECORDING = "recording"
    RECORDED = "recorded"
    COMMITTING = "committing"
    COMMITTED = "committed"
    SUSPENDING = "suspending"
    SUSPENDED = "suspended"


Observer = Callable[[StepPoint, str], None]
"""Called with a point and what it is about: the name of a call, the number of a step.

It is called in the middle of a step: it must return at once, and must not raise.
"""


def unobserved(point: StepPoint, about: str) -> None:
    """The observer that is used if none is given."""


RESULT, TIMER, AHEAD = "result", "timer", "~kept"
_NAME_CHARACTERS_MAX = 200
_KEY_DIGITS = 32
_PARTS_MAX: Final = large.parts_of(LARGE_BYTES_MAX)
"""Parts of one large value."""
_REMOVED_MAX: Final = OPERATIONS_MAX // 2
"""Removals in one commit, which may have to answer a checkpoint as well."""
_LEFT: Final = "left by earlier runs of the step"
Work = Callable[[str], Awaitable[bytes]]
"""Makes a call with an idempotency key; returns the encoded result."""
log = logging.getLogger(__name__)


@dataclass(slots=True)
class StoredJournal:
    """The stored journal: records by slot, results beside them (whole, or in parts), running
    timers, and digests of large values that were put ahead."""

    records: dict[str, CallRecord] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    parts: dict[str, dict[str, Any]] = field(default_factory=dict)
    timers: set[str] = field(default_factory=set)
    ahead: set[str] = field(default_factory=set)
    size: int = 0
    """The number of its entries, or more."""

    def add(self, entry: Entry | Change, prefix: str) -> None:
        """Add an entry below `prefix`. Errors: Corrupt."""
        self.size += 1
        slot, _, part = entry.key[len(prefix) + 1 :].partition("/")
        if slot == AHEAD:
            self.ahead.add(part)
        elif part == RESULT:
            self.results[slot] = entry.value
        elif part.startswith(f"{RESULT}/"):
            self.parts.setdefault(slot, {})[part] = entry.value
        elif part == TIMER:
            self.timers.add(slot)
        else:
            try:
                self.records[slot] = CallRecord.model_validate(entry.value)
            except ValidationError as error:
                raise Corrupt(what=entry.key, reason=error_line(error)) from error

    def result_of(self, slot: str) -> Any:
        """The result of the record in `slot`. Errors: Corrupt, if it is missing."""
        record = self.records[slot]
        if not record.apart:
            return record.result
        if slot not in self.results:
            keys = large.part_keys(RESULT, record.result_bytes)
            found = self.parts.get(slot, {})
            parts = (found.get(key) for key in keys)
            self.results[slot] = large.joined(record.name, parts, record.result_digest)
        return self.results[slot]


async def load(port: BoardPort) -> StoredJournal:
    """The journal of the agent at `port`."""
    prefix, kept, after = journal_prefix(port.agent), StoredJournal(), None
    while True:
        # Pages may be of different revisions: the guard refuses whatever comes of a mixture.
        page = await port.list(f"{prefix}/**", after=after)
        for entry in page.entries:
            kept.add(entry, prefix)
        after = page.next_key
        if after is None:
            return kept


@dataclass(frozen=True, slots=True)
class CallPlace:
    """The place of a call in its step, and the record there."""

    number: int
    slot: str
    record: CallRecord | None


@dataclass(frozen=True, slots=True)
class JournalOrigin:
    """The step that the journal belongs to: its number will be `step`, from `guard`'s revision."""

    step: int
    guard: KeyAt
    strict: bool = False
    """Whether a call without a record is an error, as in a replay."""
    refused: bool = False
    """Whether the previous run was refused: its reads have changed, so another path is expected."""


class Journal:
    """The journal during one run of a step."""

    def __init__(
        self, port: BoardPort, origin: JournalOrigin, kept: StoredJournal, observe: Observer
    ) -> None:
        self.diverged: Diverged | None = None
        """The first call that differs from the one recorded in its place."""
        self._port = port
        self._origin = origin
        self._kept = kept
        self._observe = observe
        self._slots = {record.number: slot for slot, record in kept.records.items()}
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._met: set[str] = set()
        self._number = 0
        self._parts = 0
        self._under_way = 0
        self._at_rest = asyncio.Event()

    @property
    def records(self) -> Mapping[str, CallRecord]:
        """All that is recorded, by slot, also by earlier runs of the step."""
        return self._kept.records

    @property
    def ahead(self) -> Set[str]:
        """Digests of large values that were stored ahead of the commit, also by earlier runs."""
        return self._kept.ahead

    @property
    def made(self) -> tuple[CallRecord, ...]:
        """The calls that this run of the step made or was answered, in their order."""
        found = [self._kept.records[slot] for slot in self._met if slot in self._kept.records]
        return tuple(sorted(found, key=lambda record: record.number))

    def key_of(self, slot: str, part: str = "") -> Key:
        """The key of the record of `slot`, or of a part of it."""
        return "/".join(filter(None, (journal_prefix(self._port.agent), slot, part)))

    def timer_runs(self, slot: str) -> bool:
        """Whether the timer of `slot` was set and is not over."""
        return slot in self._kept.timers

    def has_result(self, call: Call) -> bool:
        """Whether the next such call of the step is answered by its own record."""
        record = self._kept.records.get(call.slot(self._counts[call.digest]))
        return record is not None and record.outcome == "done"

    def place(self, call: Call) -> CallPlace:
        """The place of the next call of the step. Errors: LimitExceeded; Diverged in a replay."""
        number, self._number = self._number, self._number + 1
        if number >= STEP_CALLS_MAX:
            raise LimitExceeded("STEP_CALLS_MAX", number + 1, STEP_CALLS_MAX, call.name)
        digest = call.digest
        # By content, not by number: concurrent calls come in any order, and a step that runs again
        # may take another path.
        slot = call.slot(self._counts[digest])
        self._counts[digest] += 1
        self._met.add(slot)
        record = self._kept.records.get(slot)
        if record is None:
            self._compare(number, slot, call)
        elif record.outcome == "done":
            # Without a refusal: they are there. They count, as in the run that recorded them.
            self._parts += large.parts_of(record.result_bytes)
        return CallPlace(number, slot, record)

    def _compare(self, number: int, slot: str, call: Call) -> None:
        """Detect that another call was the `number`-th one of the step before."""
        was = self._slots.get(number)
        record = self._kept.records[was] if was else None
        expected = _described(record.name, record.arguments) if record else "no call"
        if was in (None, slot) and not self._origin.strict:
            return
        found = _described(call.name, call.arguments)
        diverged = Diverged(self._port.agent, number, expected, found)
        if self._origin.strict:
            raise diverged
        if self.diverged is None:
            self.diverged = diverged
            level = logging.INFO if self._origin.refused else logging.WARNING
            log.log(level, "the step runs again and takes another path: %s", diverged)

    # --- calls ------------------------------------------------------------------------------------

    async def call(
        self,
        call: Call,
        work: Work,
        terms: CallOptions,
        *,
        read: Callable[[Any], object] = lambda result: result,
    ) -> Any:
        """The result of `call`: from the journal, from the team, or by making and recording it. It
        belongs to the caller.

        A result of the team that `read` raises for is no result of this call; one that was made is
        a failed attempt. Errors: CallFailed, CallInterrupted, LimitExceeded. Conflict when another
        process took a step as this agent. Cancellation: nothing is recorded; the call may have been
        made.
        """
        place = self.place(call)
        found = place.record
        if found is not None and found.outcome == "done":
            return self.result_at(place)
        if found is not None and found.outcome == "failed":
            # As in the earlier run, so that a step which catches it takes the same path again.
            raise CallFailed(call.name, len(found.failures), found.failures[-1].reason)
        with self._working():
            record = found or self.begin(place, call)
            encoded = await self._kept_by_restore(place.slot)
            if encoded is not None:
                self.make_room(len(encoded))
                return await self._done(place.slot, record, encoded, is_shared=True)
            if terms.shared_ms is not None and not record.failures:
                encoded = await find(self._port, call.digest)
                if encoded is not None and _is_read(encoded, read):
                    self.make_room(len(encoded))
                    return await self._done(place.slot, record, encoded, is_shared=True)

            async def read_work(key: str) -> bytes:
                made = await work(key)
                # A result that the call does not return must not be recorded as its result.
                read(decode_value(made))
                return made

            return await self._make(place.slot, record, read_work, terms)

    def begin(self, place: CallPlace, call: Call) -> CallRecord:
        """The first record of a call, before any attempt."""
        # For people only: the digest identifies the call.
        kept = call.arguments if len(canonical(call.arguments)) <= CALL_INLINE_BYTES else None
        return CallRecord(
            number=place.number,
            kind=call.kind,
            name=call.name,
            digest=call.digest,
            version=call.version,
            arguments=kept,
            outcome="begun",
            step=self._origin.step,
        )

    async def _kept_by_restore(self, slot: str) -> bytes | None:
        """The encoded result of this call in the revisions that a restore abandoned, if it kept
        calls."""
        found = await self._port.kept_call(self.key_of(slot), self._origin.step)
        if not found:
            return None
        kept = StoredJournal()
        for entry in found:
            kept.add(entry, journal_prefix(self._port.agent))
        return encode_large(kept.result_of(slot))

    async def _make(self, slot: str, record: CallRecord, work: Work, terms: CallOptions) -> Any:
        """Make attempts until one succeeds or none are left."""
        key = self.idempotency_key(slot)
        # An attempt has begun that neither failed nor returned: nobody knows what became of it.
        if terms.at_most_once and record.begun > len(record.failures):
            raise CallInterrupted(record.name, key)
        while True:
            if terms.at_most_once:
                record = record.model_copy(update={"begun": len(record.failures) + 1})
                await self.write(slot, record)
            self._observe(StepPoint.CALL_BEGUN, record.name)
            begun_s = monotonic()
            try:
                with telemetry.call(record.kind, record.name) as span:
                    encoded = await work(key)
                    if span is not None:
                        _tell(span, record.kind, encoded)
                # Inside of the `try`: a result that cannot be stored is a failure of the call.
                self.make_room(len(encoded))
            except Exception as error:  # noqa: BLE001 - a tool may raise what it likes
                record = await self._failed(slot, record, error, terms, _since_ms(begun_s))
            else:
                # Not inside of the `try`: a call whose result cannot be recorded has not failed.
                self._observe(StepPoint.CALL_RETURNED, record.name)
                record = record.model_copy(update={"duration_ms": _since_ms(begun_s)})
                return await self._done(slot, record, encoded, share_ms=terms.shared_ms)

    async def _failed(
        self,
        slot: str,
        record: CallRecord,
        error: Exception,
        terms: CallOptions,
        took_ms: Milliseconds,
    ) -> CallRecord:
        """Record the failure, and pause if there is another attempt. Errors: CallFailed."""
        failure = Failure(reason=reason_of(error), duration_ms=took_ms)
        failures = (*record.failures, failure)
        again = len(failures) < terms.retry.attempts and _may_pass(error, terms.retry)
        outcome = "begun" if again else "failed"
        record = record.model_copy(update={"failures": failures, "outcome": outcome})
        await self.write(slot, record)
        if not again:
            raise CallFailed(record.name, len(failures), failure.reason) from error
        await asyncio.sleep(_pause_s(terms.retry, len(failures)))
        return record

    async def _done(
        self,
        slot: str,
        record: CallRecord,
        encoded: bytes,
        *,
        share_ms: Milliseconds | None = None,
        is_shared: bool = False,
    ) -> Any:
        """Record the result, and share it if requested; returns it in the form in which it will be
        read."""
        done = _with_result(record, encoded, is_shared=is_shared)
        ops = await self._put_beside(slot, done, encoded)
        if share_ms is None or not await self._write_shared(slot, done, ops, encoded, share_ms):
            await self.write(slot, done, ops)
        if done.apart:
            self._kept.results[slot] = decode_value(encoded)
        return decode_value(encoded)  # another one: the step may change what it gets

    async def _write_shared(
        self,
        slot: str,
        done: CallRecord,
        ops: Sequence[Op],
        encoded: bytes,
        share_ms: Milliseconds,
    ) -> bool:
        """Record the result as `write` does, and share it. False if the board refuses to share it:
        then it is not recorded yet."""
        # `whole` makes the result visible to the team, and goes with the record.
        *parts, whole = answer(done.digest, done.name, encoded, share_ms)
        try:
            await self._put_before(large.batches(parts), done.name)
            await self.write(slot, done, [*ops, whole])
        except (AccessDenied, LimitExceeded) as error:
            # The call was made: without its record it would be made again.
            log.warning("the result of %s is not shared: %s", done.name, error)
            return False
        return True

    async def decided(
        self, place: CallPlace, call: Call, encoded: bytes, conditions: Sequence[Condition]
    ) -> None:
        """Record the result of a call that is a decision, if `conditions` hold."""
        done = _with_result(self.begin(place, call), encoded)
        ops = await self._put_beside(place.slot, done, encoded)
        await self.write(place.slot, done, ops, conditions)

    def result_at(self, place: CallPlace) -> Any:
        """The recorded result of a call that is done. It belongs to the caller. Errors: Corrupt."""
        # The step may change what it gets; the record must stay what the tool returned.
        return deepcopy(self._kept.result_of(place.slot))

    def make_room(self, size_bytes: int) -> None:
        """Count the parts of a value of that size. Errors: LimitExceeded (STEP_PARTS_MAX)."""
        wanted = self._parts + large.parts_of(size_bytes)
        if wanted > STEP_PARTS_MAX:
            raise LimitExceeded("STEP_PARTS_MAX", wanted, STEP_PARTS_MAX)
        self._parts = wanted

    async def _put_beside(self, slot: str, done: CallRecord, encoded: bytes) -> Sequence[Put]:
        """Put the result beside its record, if it is not in there, except the parts that fit into
        the record's own commit, which are returned."""
        if not done.apart:
            return ()
        *earlier, last = large.batches(large.puts(self.key_of(slot, RESULT), encoded))
        await self._put_before(earlier, done.name)
        return last

    async def _put_before(self, batches: Sequence[Sequence[Put]], name: str) -> None:
        """Put the parts that do not fit into one commit, ahead of the commit that refers to
        them."""
        for ops in batches:
            self._kept.size += len(ops)
            await self._port.commit(
                ops,
                conditions=[self._origin.guard],
                note=f"result of {name[:_NAME_CHARACTERS_MAX]}",
            )

    async def put_ahead(self, kept: Mapping[str, bytes]) -> None:
        """Store large values, by digest, ahead of the step's commit.

        The journal lists them first: if the step no longer needs them, its commit removes them.
        """
        for digest, encoded in kept.items():
            prefix = f"{large.kept_prefix(self._port.agent)}/{digest}"
            # The last part is committed last, so the others are there as well.
            if await self._port.entry(large.part_keys(prefix, len(encoded))[-1]) is not None:
                continue
            note: list[Op] = [Put(self.key_of(AHEAD, digest), encode_value(True))]
            for ops in large.batches(large.puts(prefix, encoded)):
                await self._port.commit(
                    [*note, *ops], conditions=[self._origin.guard], note="to be kept"
                )
                note = []
            self._kept.ahead.add(digest)
            self._kept.size += 1

    async def write(
        self,
        slot: str,
        record: CallRecord,
        ops: Sequence[Op] = (),
        conditions: Sequence[Condition] = (),
    ) -> Receipt:
        """Record, in a separate commit on condition that the step can still be committed."""
        name = record.name[:_NAME_CHARACTERS_MAX]
        self._observe(StepPoint.RECORDING, name)
        self._kept.size += 1 + len(ops)
        receipt = await self._port.commit(
            [Put(self.key_of(slot), encode_value(record.plain())), *ops],
            conditions=[self._origin.guard, *conditions],
            note=f"{record.kind} {name}: {record.outcome}",
        )
        # Not earlier: `made` and the step's commit go by what is on the board.
        self._kept.records[slot] = record
        self._observe(StepPoint.RECORDED, name)
        return receipt

    def idempotency_key(self, slot: str) -> str:
        """The idempotency key of a call: the same for every attempt in every process, and different
        for every other call.

        It depends on the board, the agent and the step. So on a branch it differs; after a restore,
        the same call in the same step has the same key.
        """
        text = canonical([self._port.name, self._port.agent, self._origin.step, slot])
        return hashlib.sha256(text.encode()).hexdigest()[:_KEY_DIGITS]

    # --- the end ----------------------------------------------------------------------------------

    @contextmanager
    def _working(self) -> Iterator[None]:
        self._under_way += 1
        self._at_rest.clear()
        try:
            yield
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._at_rest.set()

    async def settle(self) -> None:
        """Wait for all calls in flight, so that calls concurrent with a failed one are recorded,
        too."""
        if self._under_way:
            await self._at_rest.wait()

    async def forget_failures(self) -> None:
        """The step failed: forget its failed calls, so that they can be retried. Results stay."""
        failed = [slot for slot, record in self.records.items() if record.outcome == "failed"]
        await self._remove([Delete(self.key_of(slot)) for slot in failed], "to be tried again")
        for slot in failed:
            del self._kept.records[slot]

    async def make_way(self, asked: Sequence[Prefix], kept: Set[str]) -> None:
        """Remove what earlier runs of the step left, if the step's commit would remove more than
        OPERATIONS_MAX entries.

        That is all below the prefixes `asked`; the large values ahead that are not `kept`; and the
        records that this run did not meet. If the commit is refused after that, another run that
        takes an earlier path makes its calls again, with the same idempotency keys.
        """
        doomed = [key for prefix in asked for key in await self._keys_below(prefix)]
        orphans = sorted(self.ahead - kept)
        most = len(doomed) + len(orphans) * _PARTS_MAX
        if most + self._kept.size <= OPERATIONS_MAX:
            return
        own = await self._keys_below(journal_prefix(self._port.agent))
        if most + len(own) <= OPERATIONS_MAX:
            return
        # The notes of the orphans stay until these are gone. A record goes before its result, as
        # its key sorts before: without a record, the result is not looked for.
        prefix = large.kept_prefix(self._port.agent)
        orphaned = [DeletePrefix(f"{prefix}/{digest}") for digest in orphans]
        await self._remove(orphaned, _LEFT, OPERATIONS_MAX // _PARTS_MAX)
        doomed += [key for key in own if not self._is_needed(key, kept)]
        await self._remove([Delete(key) for key in doomed], _LEFT)

    async def _keys_below(self, prefix: Prefix) -> list[Key]:
        """The keys of the entries below `prefix`, in their order."""
        found: list[Key] = []
        after: Key | None = None
        while True:
            page = await self._port.list(f"{prefix}/**", after=after)
            found += [entry.key for entry in page.entries]
            after = page.next_key
            if after is None:
                return found

    def _is_needed(self, key: Key, kept: Set[str]) -> bool:
        """Whether the journal entry at `key` is of this run."""
        slot, _, part = key[len(journal_prefix(self._port.agent)) + 1 :].partition("/")
        return part in kept if slot == AHEAD else slot in self._met

    async def _remove(self, ops: Sequence[Op], note: str, at_once: int = _REMOVED_MAX) -> None:
        """Carry out operations that remove, `at_once` in each commit."""
        for start in range(0, len(ops), at_once):
            some = ops[start : start + at_once]
            await self._port.commit(some, conditions=[self._origin.guard], note=note)


def _with_result(record: CallRecord, encoded: bytes, *, is_shared: bool = False) -> CallRecord:
    """The record of a call that is done; a large result is stored beside it."""
    apart = len(encoded) > CALL_INLINE_BYTES
    done = {
        "outcome": "done",
        "result": None if apart else decode_value(encoded),
        "apart": apart,
        "result_digest": large.digest_of(encoded),
        "result_bytes": len(encoded),
        "shared": is_shared,
    }
    return record.model_copy(update=done)


def _is_read(encoded: bytes, read: Callable[[Any], object]) -> bool:
    """Whether `read` takes the result that somebody shared."""
    try:
        read(decode_value(encoded))
    except Exception as error:  # noqa: BLE001 - validators are the agent's own code
        log.warning("a shared result is not what its call returns, and is ignored: %s", error)
        return False
    return True


def _tell(span: telemetry.OpenSpan, kind: str, encoded: bytes) -> None:
    """Tell telemetry of an answer: its size, and what a model used; never what it says."""
    span.count("result_bytes", len(encoded))
    if kind == "model":
        reply = Reply.model_validate(decode_value(encoded))
        used = reply.usage
        span.used_model(reply.version, reply.finish, (used.prompt_tokens, used.completion_tokens))


def _described(name: str, arguments: Any) -> str:
    """A call as one short text."""
    return f"{name} {canonical(arguments)}"[:_NAME_CHARACTERS_MAX]


def _may_pass(error: Exception, retry: Retry) -> bool:
    """Whether a retry can succeed; it cannot if the result cannot be stored."""
    return isinstance(error, retry.on) and not isinstance(error, InvalidRequest | LimitExceeded)


def _pause_s(retry: Retry, failures: int) -> float:
    pause_ms = min(retry.pause_ms_max, retry.first_pause_ms * 2.0 ** (failures - 1))
    return random.uniform(0.5, 1.0) * pause_ms / 1000


def _since_ms(begun_s: float) -> Milliseconds:
    return round((monotonic() - begun_s) * 1000)
