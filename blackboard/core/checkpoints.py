"""The types of a board's history: moments, checkpoints, and the answers of restores and
comparisons.

    await board.checkpoint("before-plan")
    await board.restore("before-plan")

A moment is a revision, the name of a checkpoint, "now", or an instant of time. All of these are
plain and frozen. Their values are encoded bytes, except in the results of `client/board.py`.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from blackboard.core.commit import Entry, Epoch
from blackboard.core.fields import InstantMs
from blackboard.core.path import SYSTEM, check_name
from blackboard.errors import InvalidRequest, LimitExceeded
from blackboard.limits import BARRIER_MS_MAX, REQUEST_CHARACTERS_MAX, REVISION_MAX
from blackboard.tables import moment, table
from blackboard.units import Key, Milliseconds, Prefix, Revision


@dataclass(frozen=True, slots=True)
class Point:
    """A board at a revision."""

    board: str
    revision: Revision


@dataclass(frozen=True, slots=True)
class Mark:
    """How far the archive of a board reaches: `oldest`..`revision`, sealed by `chain`.

    `chain` is the hash chain over all commits up to `revision`; `epoch` the one at `revision`.
    """

    oldest: Revision
    revision: Revision
    epoch: Epoch
    chain: bytes
    origin: Point | None = None
    """Where the board branched off; None if it did not."""
    called: str = ""
    """The name under which it was archived, if it has another one now; see `Archive.join`."""


@dataclass(frozen=True, slots=True)
class Lost:
    """Revisions that a board's engine lost and its archive has: after `survived`, up to `through`.

    The board continued at revision `went_on`, with its content at `survived`.
    """

    survived: Revision
    through: Revision
    went_on: Revision


@dataclass(frozen=True, slots=True)
class LostBoard:
    """A board whose archive has revisions after `survived`, up to `through`, that its engine lost;
    with `survived` 0 the engine has nothing of it.

    `apart_from` is the name that the board had before it was set apart (`main` for `main~1`).
    """

    board: str
    survived: Revision
    through: Revision
    apart_from: str = ""


@dataclass(frozen=True, slots=True)
class Version:
    """A version of a key as of `revision`: `entry`, or None when `author` (a signature) removed
    it."""

    key: Key
    revision: Revision
    time_ms: Milliseconds
    author: str
    entry: Entry | None


@dataclass(frozen=True, slots=True)
class Difference:
    """A key that differs between two points; None = absent there."""

    key: Key
    before: Entry | None
    after: Entry | None


@dataclass(frozen=True, slots=True)
class StoredCheckpoint:
    """A checkpoint as it is kept: its manifest's exact bytes, and their signature."""

    board: str
    name: str
    revision: Revision
    time_ms: Milliseconds
    kind: str
    manifest: bytes
    signature: bytes
    pinned: bool = False
    lost: bool = False
    """Whether the board's engine lost its revision; the archive has it."""


Step = tuple[Revision, str, int, int]
"""An agent's last commit: its revision, incarnation, lane and step."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The digest of each namespace (32 bytes; an empty one has none), and the last commit of each
    agent."""

    digests: Mapping[str, bytes]
    steps: Mapping[str, Step]


@dataclass(frozen=True, slots=True)
class Cut:
    """The content of a manifest; see `integrity/signing.py`.

    `record` is the encoded value of the checkpoint's entry, `declared` the encoded values of
    `public/~declared/<agent>` by agent. `previous` is the hash of the board's manifest before this
    one, empty for the first.
    """

    board: str
    name: str
    revision: Revision
    time_ms: Milliseconds
    author: str
    epoch: Epoch
    chain: bytes
    facts: Facts
    record: bytes
    declared: Mapping[str, bytes]
    previous: bytes = b""


NOW: Final = "now"
"""The moment that is the board's head; no checkpoint has that name."""

CHECKPOINTS: Final = f"{SYSTEM}/checkpoints"
RESTORES: Final = f"{SYSTEM}/restores"
KEPT_CALLS: Final = f"{SYSTEM}/kept_calls"
"""Written by a restore that keeps calls: they were made after revision `after`, up to `through`.
Another restore replaces or removes it."""
ORIGIN_KEY: Final = f"{SYSTEM}/origin"
"""The record in a branch, or an imported board, of where it came from."""

NAMED: Final = "named"
AUTOMATIC: Final = "automatic"
BEFORE_RESTORE: Final = "before-restore"
SHUTDOWN: Final = "shutdown"
_REQUEST = re.compile("[^\0\ud800-\udfff]+")
_DRAWN = re.compile("[0-9a-f]{16,64}")


class Instant(Struct, frozen=True, forbid_unknown_fields=True):
    """A point in time; as a moment, the newest revision that was committed then or before."""

    time_ms: InstantMs


Moment = Revision | str | Instant
"""A revision, the name of a checkpoint or "now", or a point in time."""


When = Moment | datetime
"""A revision, the name of a checkpoint, "now", or a `datetime` with a time zone."""


def optional_moment(when: When | None) -> Moment | None:
    """As `moment_of`; None = the present. Errors: InvalidRequest."""
    return None if when is None else moment_of(when)


def moment_of(when: When) -> Moment:
    """Convert a moment to the service's form. Errors: InvalidRequest."""
    if isinstance(when, datetime):
        if when.tzinfo is None:
            raise InvalidRequest(field="at", reason=f"{when} has no time zone")
        time_ms = int(when.timestamp() * 1000)
        if time_ms < 0:
            raise InvalidRequest(field="at", reason=f"{when} is before 1970")
        return Instant(time_ms)
    # True is an int in Python, and would be revision 1.
    if type(when) is bool or not isinstance(when, int | str | Instant):
        raise InvalidRequest(field="at", reason=f"a {type(when).__name__} is no moment")
    if isinstance(when, str):
        return when if when == NOW else check_checkpoint(when)
    if isinstance(when, int) and not 0 <= when <= REVISION_MAX:
        raise InvalidRequest(field="at", reason=f"no revision: it is not in 0..{REVISION_MAX}")
    return when


def rewound_to(to: Revision | None, at: datetime | None, before: Revision | None) -> When:
    """The moment that one of the three names. Errors: InvalidRequest."""
    given: list[When] = [when for when in (to, at) if when is not None]
    if before is not None:
        if before < 1:
            raise InvalidRequest(field="before", reason=f"nothing was before revision {before}")
        given.append(before - 1)
    if len(given) != 1:
        raise InvalidRequest(field="rewind", reason="one of to, at, before is needed")
    return given[0]


def checkpoint_key(name: str) -> Key:
    """The entry that is checkpoint `name`."""
    return f"{CHECKPOINTS}/{name}"


def declared_key(agent: str) -> Key:
    """Where an agent declares what its checkpoints record about it: versions, parameters of a
    model."""
    return f"public/~declared/{agent}"


def check_checkpoint(name: str) -> str:
    """Return `name` if a checkpoint may have it: a segment that cannot be mistaken for a revision
    or for "now". Errors: InvalidRequest."""
    if check_name(name, "checkpoint") == NOW or name.isdecimal():
        reason = f"{name!r} reads as a revision, or as the present"
        raise InvalidRequest(field="checkpoint", reason=reason)
    return name


def named_by_time(instant: datetime, request: str) -> str:
    """A name for a checkpoint that nobody named."""
    # Dots within the time: a name may not contain colons.
    return f"{instant:%Y-%m-%dT%H.%M.%SZ}-{request[:4]}"


def check_request(request: str) -> str:
    """Return `request` if it can be a request id: any text but NUL, which the caller gives to no
    other request. Errors: InvalidRequest; LimitExceeded above REQUEST_CHARACTERS_MAX."""
    if len(request) > REQUEST_CHARACTERS_MAX:
        raise LimitExceeded("REQUEST_CHARACTERS_MAX", len(request), REQUEST_CHARACTERS_MAX)
    if not _REQUEST.fullmatch(request):
        raise InvalidRequest(field="request", reason=f"{request!r:.80} is not a text")
    return request


def request_segment(request: str) -> str:
    """A request id as part of a key or of a name: what our clients draw is written as it is, any
    other text as 32 hexadecimal digits of its SHA-256."""
    if _DRAWN.fullmatch(request):
        return request
    return hashlib.sha256(request.encode()).hexdigest()[:32]


# --- checkpoints ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CheckpointRequest:
    """A request for a checkpoint; `request` is its random id, by which a retry is recognised.

    With `barrier_ms`, the checkpoint first waits up to that long for every attached agent to
    deliver its state. With `stale_ok` it is taken even if some did not, and names them.
    """

    name: str
    request: str
    note: str = ""
    barrier_ms: Milliseconds | None = None
    stale_ok: bool = False
    kind: str = NAMED

    def check(self) -> None:
        """Errors: InvalidRequest, LimitExceeded."""
        check_checkpoint(self.name)
        check_request(self.request)
        wait_ms = self.barrier_ms
        if wait_ms is not None and wait_ms < 1:
            raise InvalidRequest(field="barrier_ms", reason=f"{wait_ms} is no time to wait")
        if wait_ms is not None and wait_ms > BARRIER_MS_MAX:
            raise LimitExceeded("BARRIER_MS_MAX", wait_ms, BARRIER_MS_MAX, "barrier_ms")


@dataclass(frozen=True, slots=True)
class BarrierReport:
    """How the attached agents answered a checkpoint that asked for their state at `asked`.

    Each of them delivered it (`delivered`), left in the meantime (`left`), or did neither
    (`not_fresh`).
    """

    asked: Revision
    delivered: tuple[str, ...] = ()
    not_fresh: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A named revision of a board: when it was taken, by whom and why; `kind` says for what."""

    board: str
    name: str
    revision: Revision
    time_ms: Milliseconds
    kind: str = NAMED
    by: str = ""
    note: str = ""
    barrier: BarrierReport | None = None
    pinned: bool = False

    def _repr_html_(self) -> str:
        return table(f"board {self.board}", CHECKPOINT_COLUMNS, [checkpoint_row(self)])


class CheckpointList(tuple[Checkpoint, ...]):
    """Checkpoints, the oldest first; a table in a notebook."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return table("checkpoints", CHECKPOINT_COLUMNS, map(checkpoint_row, self))


CHECKPOINT_COLUMNS: Final = ("checkpoint", "revision", "time (UTC)", "kind", "by", "note")


def checkpoint_row(taken: Checkpoint) -> tuple[Any, ...]:
    """What a table in a notebook shows of a checkpoint, by CHECKPOINT_COLUMNS."""
    at = moment(taken.time_ms)
    return (taken.name, taken.revision, at, taken.kind, taken.by, taken.note)


@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """A checkpoint with its signed manifest, as far as the caller may see it.

    `digests` has the namespaces that the caller may read as a whole, `steps` the revision of each
    agent's last commit, `declared` the agents' declarations (as JSON; an encrypted one is
    `{"$sealed": base64}`). `chain` covers the whole history up to the checkpoint, `previous` is the
    hash of the manifest before this one; `signed_by` names the key. If there was a barrier,
    `memory` has each agent that delivered, with the revision of its memory in the checkpoint.
    """

    checkpoint: Checkpoint
    epoch: Epoch
    chain: str
    previous: str
    digests: Mapping[str, str]
    steps: Mapping[str, Revision]
    declared: Mapping[str, Any] = field(default_factory=dict)
    signed_by: str = ""
    memory: Mapping[str, Revision] = field(default_factory=dict)

    def _repr_html_(self) -> str:
        return self.checkpoint._repr_html_() + table(
            "agents", ("agent", "last step at revision"), sorted(self.steps.items())
        )


# --- restore, branch ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A request to restore a board to a moment, with a note that says why. With `keep_calls`, calls
    that agents made since are answered from the journal instead of being made again."""

    to: Moment
    request: str
    note: str = ""
    keep_calls: bool = False


@dataclass(frozen=True, slots=True)
class Restored:
    """The result of a restore: since `revision`, which begins `epoch`, the board has the content of
    `from_revision`.

    `put_back` and `removed` count the keys that changed. The abandoned revisions end just before
    `revision` and stay readable; `before` is a checkpoint of them, at their end or, if others
    committed until the switch, shortly before.
    """

    revision: Revision
    time_ms: Milliseconds
    epoch: Epoch
    from_revision: Revision
    put_back: int
    removed: int
    before: str


@dataclass(frozen=True, slots=True)
class AuthorActivity:
    """The commits of one author in each part of a span."""

    author: str
    commits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Activity:
    """The commits that may be seen after revision `after`, up to `until`, counted in parts of
    `step` revisions.

    `times_ms` are the times of the newest commit of each part (0 = it has none). `authors` are the
    most active ones, by name; `more_authors` says whether there are others. `epochs` began in the
    span.
    """

    after: Revision
    until: Revision
    step: int
    times_ms: tuple[Milliseconds, ...]
    authors: tuple[AuthorActivity, ...]
    more_authors: bool
    epochs: tuple[Epoch, ...]


@dataclass(frozen=True, slots=True)
class RefusedCommit:
    """A commit of `author` that was refused: `code` and `message` of the error, the `key` that it
    speaks of and who was in the way (`by`), if any, and the commit's note.

    `number` counts the refusals of a board in one process.
    """

    number: int
    time_ms: Milliseconds
    author: str
    code: str
    message: str
    key: str
    by: str
    note: str


@dataclass(frozen=True, slots=True)
class RecoverRequest:
    """A request to recover a board to an archived moment (None: the newest one that was lost), with
    a note that says why."""

    at: Moment | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Recovered:
    """The result of a recovery: since `revision`, which begins `epoch`, the engine holds what the
    archive has of `from_revision`.

    Until it is `done`, `revision` and `epoch` are the planned ones, or 0 and "" while they are
    unknown; `entries` counts what was put into the engine so far.
    """

    done: bool
    entries: int
    from_revision: Revision
    revision: Revision
    epoch: str


@dataclass(frozen=True, slots=True)
class RedactedRows:
    """What a redaction removed from an archive: the number of values, and of revisions whose
    digests are over unsalted hashes, from which a short value can be guessed."""

    versions: int
    guessable: int


@dataclass(frozen=True, slots=True)
class PrunedRows:
    """What pruning removed from an archive, or would remove: the number of versions, and the bytes
    of their values as they were stored, compressed. A value that others still need counts none."""

    versions: int = 0
    value_bytes: int = 0

    def __add__(self, other: "PrunedRows") -> "PrunedRows":
        return PrunedRows(self.versions + other.versions, self.value_bytes + other.value_bytes)


@dataclass(frozen=True, slots=True)
class RedactRequest:
    """A request to redact a key, with a note that says why.

    `known` is the board's revision when it was made: if another redaction of the key began later,
    that one did what this one is for, and a late copy of it removes nothing new.
    """

    key: Key
    why: str
    request: str
    known: Revision | None = None


@dataclass(frozen=True, slots=True)
class Redaction:
    """A redaction and its progress: the `step` it has reached, until it is `done`.

    `boards` has the named boards that hold or held the key; `versions` and `guessable` are as in
    `RedactedRows`; `left` says what remains to be done by hand, if anything.
    """

    done: bool
    step: str
    boards: tuple[str, ...] = ()
    versions: int = 0
    guessable: int = 0
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BranchRequest:
    """A request for a branch: the name of the new board, the moment it begins from, and the
    assumption behind it."""

    new: str
    at: Moment
    request: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a board began: with the content of `board` at `revision`; `note` says why."""

    board: str
    revision: Revision
    by: str
    note: str
    request: str

    @staticmethod
    def of(record: Mapping[str, Any]) -> "Origin":
        """Read what the entry at ORIGIN_KEY holds."""
        fields = ("board", "revision", "by", "note", "request")
        return Origin(*(record[field] for field in fields))


# --- looking back ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DiffRequest:
    """A request for a page of the differences between two moments. `b` may be a moment of another
    board, `other`."""

    a: Moment
    b: Moment
    other: str | None = None
    pattern: str = "**"
    after: Key | None = None
    limit: int = 256


@dataclass(frozen=True, slots=True)
class Differences:
    """Keys that differ between two revisions, sorted; `next_key` continues the listing."""

    a: Revision
    b: Revision
    differences: tuple[Difference, ...]
    next_key: Key | None = None


@dataclass(frozen=True, slots=True)
class Verified:
    """The result of checking a board up to `revision`; nothing is damaged if `findings` is empty.

    `more` says that there were more findings than listed. `erased` names the namespaces whose data
    key was destroyed: their values from that time are stored, but can no longer be decrypted.
    """

    revision: Revision
    findings: tuple[str, ...] = ()
    more: bool = False
    erased: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing is damaged."""
        return not self.findings


# --- retention ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What pruning keeps: the newest `last` checkpoints, the last one of each of the past `days`
    days (UTC), and, with `named`, every checkpoint that a person named.

    Pinned ones, and those that a board branched off at, are always kept. The full history (every
    revision, not only checkpoints) is kept for `history_ms`, and as far back as its commits have
    `history_bytes` together, before compression; None = without end. The smaller bound counts.
    """

    last: int = 10
    days: int = 7
    named: bool = True
    history_ms: Milliseconds | None = None
    history_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Pruned:
    """What pruning removed, or would remove: checkpoints by name, and versions of keys with the
    bytes of their values, as they were stored; None if the policy bounds no history."""

    removed: tuple[str, ...]
    kept: tuple[str, ...]
    versions: int = 0
    value_bytes: int | None = None


# --- export, import -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExportPage:
    """A page of an exported checkpoint; the first one has the signed manifest and the counters of
    `append`."""

    revision: Revision
    entries: tuple[Entry, ...]
    next_key: Key | None = None
    manifest: bytes = b""
    signature: bytes = b""
    items: tuple[tuple[Prefix, int], ...] = ()


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """A request for an import: `board` begins with what the signed manifest describes."""

    request: str
    manifest: bytes
    signature: bytes
    items: tuple[tuple[Prefix, int], ...] = ()
    note: str = ""
