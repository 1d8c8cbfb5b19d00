"""What the tools answer, in sizes that a model can read: records, cut values, and errors.

Every answer is a record of which any part may be missing, and `error` is one of its parts: so an
error, too, fits the output schema that its tool declares.
"""

import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from blackboard import errors
from blackboard.types import Change, Entry

VALUE_CHARACTERS: Final = 8_000
"""How much of one value an answer shows: about 2,000 tokens. `read` continues at `next_offset`."""
PREVIEW_CHARACTERS: Final = 400
"""How much of a value is shown where it is not what was asked for: in lists and waits."""
ANSWER_CHARACTERS: Final = 40_000
"""What one answer shows of values: about 10,000 tokens. Clients refuse or cut longer ones."""
ANSWER_ITEMS: Final = 200
"""Entries, changes or records in one answer; each says how to get the next ones."""
_BYTES_KEY: Final = "$bytes"


class ErrorAnswer(TypedDict, total=False):
    """A refusal or a failure. `fix` says what to do next; `retryable`, whether the same call may
    succeed later. The rest depends on `code`."""

    code: str
    message: str
    fix: str
    retryable: bool
    key: str
    keys: list[str]
    expected_revision: int
    current_revision: int
    current: Any
    by: str
    holder: str
    limit: str
    maximum: int


class ToolAnswer(TypedDict, total=False):
    """What every answer may have."""

    error: ErrorAnswer


class ShownEntry(TypedDict, total=False):
    """An entry. A value that is too long is not in `value`: `text` has its characters from
    `offset` on (JSON, unless it is a string), of `characters` in all."""

    key: str
    revision: int
    author: str
    time: str
    value: Any
    text: str
    offset: int
    next_offset: int
    characters: int


class ReadAnswer(ToolAnswer, total=False):
    """Entries, all as of `revision` at the earliest; `absent` are keys without one."""

    entries: list[ShownEntry]
    absent: list[str]
    not_shown: list[str]


class ListAnswer(ToolAnswer, total=False):
    """`directories` by name with the number of keys below; `entries` that lie directly there."""

    you: str
    board: str
    revision: int
    directories: dict[str, int]
    entries: list[ShownEntry]
    next: str


class WriteAnswer(ToolAnswer, total=False):
    """The revision of the change, which is what the next `expected_revision` is."""

    key: str
    revision: int
    removed: bool


class ClaimAnswer(ToolAnswer, total=False):
    """A claim that is yours until `seconds` are over."""

    key: str
    holder: str
    seconds: int
    waiting: int
    released: bool


class ClaimsAnswer(ToolAnswer, total=False):
    """The claims, with their holders."""

    claims: list[ClaimAnswer]
    more: bool


class ShownChange(ShownEntry, total=False):
    """A change: "put", "delete", or of a claim ("grant", "release", "expire")."""

    kind: str
    note: str


class WaitAnswer(ToolAnswer, total=False):
    """What changed; pass `next` as `after` to continue without a gap. `not_shown` counts changes
    for which there was no room: list or read their keys."""

    changes: list[ShownChange]
    not_shown: int
    timed_out: bool
    next: str


class HistoryAnswer(ToolAnswer, total=False):
    """Versions of a key, the newest first."""

    versions: list[ShownChange]
    next: int


class ShownCause(TypedDict, total=False):
    """A commit that a value rests on."""

    key: str
    revision: int
    depth: int
    author: str
    time: str
    note: str
    missing: str


class WhyAnswer(ToolAnswer, total=False):
    """The commits that led to a value, nearest first."""

    causes: list[ShownCause]
    more: bool


class ShownCheckpoint(TypedDict, total=False):
    """A named moment of the whole board."""

    name: str
    revision: int
    by: str
    time: str
    note: str


class CheckpointAnswer(ToolAnswer, ShownCheckpoint, total=False):
    """The checkpoint that was taken."""


class CheckpointsAnswer(ToolAnswer, total=False):
    """Checkpoints, the newest first."""

    checkpoints: list[ShownCheckpoint]
    more: bool


class ShownDifference(TypedDict, total=False):
    """A key that differs, and how."""

    key: str
    kind: str
    difference: str


class DiffAnswer(ToolAnswer, total=False):
    """What differs between two revisions."""

    since: int
    until: int
    changes: list[ShownDifference]
    more: bool


class RestoreAnswer(DiffAnswer, total=False):
    """A restore that was done (`revision`; `undo` is a checkpoint of what it took back), or, with
    `confirm`, what it would change."""

    done: bool
    revision: int
    put_back: int
    removed: int
    undo: str
    confirm: str
    interrupts: list[str]
    next_step: str


class ShownApproval(TypedDict, total=False):
    """A request to people, and its answer."""

    agent: str
    id: str
    revision: int
    time: str
    question: str
    details: Any
    facts: dict[str, Any]
    state: str
    by: str
    reason: str


class ApprovalAnswer(ToolAnswer, ShownApproval, total=False):
    """A request of yours; `wait_for` is the key that changes when it is answered."""

    wait_for: str


class ApprovalsAnswer(ToolAnswer, total=False):
    """Requests for approval."""

    approvals: list[ShownApproval]
    more: bool


def schema_of(answer: type) -> dict[str, Any]:
    """The JSON schema of an answer; an error fits it, too, as no member is required.

    The parts of an error are the same everywhere, and not repeated for each tool.
    """
    schema: dict[str, Any] = without_titles(TypeAdapter(answer).json_schema())
    schema.get("$defs", {}).pop(ErrorAnswer.__name__, None)
    schema["properties"]["error"] = {"type": "object", "description": _ERROR}
    return schema


_ERROR: Final = "code, message, fix (what to do next), retryable, and fields of the code"


def without_titles(schema: Any) -> Any:
    """A schema without the titles that pydantic makes of names: a model reads each word of it."""
    if isinstance(schema, list):
        return [without_titles(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: {key: without_titles(one) for key, one in part.items()}
        if name in ("properties", "$defs")
        else without_titles(part)
        for name, part in schema.items()
        if name != "title"
    }


# --- values ---------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
    """A value as JSON has it: bytes are `{"$bytes": "<base64>"}`, as in the protocol."""
    if isinstance(value, bytes):
        return {_BYTES_KEY: base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {name: plain(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def meant(value: Any) -> Any:
    """The inverse of `plain`. Errors: InvalidRequest for `$bytes` that are not base64."""
    if isinstance(value, dict):
        if set(value) == {_BYTES_KEY}:
            try:
                return base64.b64decode(value[_BYTES_KEY], validate=True)
            except (ValueError, TypeError) as error:
                raise errors.InvalidRequest("value", f"$bytes is not base64: {error}") from error
        return {name: meant(member) for name, member in value.items()}
    return [meant(item) for item in value] if isinstance(value, list) else value


def json_text(value: Any) -> str:
    """A plain value as compact JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def time_text(time_ms: int) -> str:
    """A time of the engine's clock for a model: UTC, to the second."""
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class AnswerRoom:
    """What is left of an answer's characters."""

    def __init__(self, characters: int = ANSWER_CHARACTERS, items: int = ANSWER_ITEMS) -> None:
        self.characters, self.items = characters, items

    @property
    def is_used_up(self) -> bool:
        """Whether nothing more goes in."""
        return self.characters <= 0 or self.items <= 0

    def show(self, value: Any, most: int = VALUE_CHARACTERS, offset: int = 0) -> ShownEntry:
        """`value`, or as much of it as there is room for, from `offset` on."""
        self.items -= 1
        value = plain(value)
        text = value if isinstance(value, str) else json_text(value)
        # At least one: with none, `next_offset` would lead to the same place again.
        most = max(1, min(most, self.characters))
        if not offset and len(text) <= most:
            self.characters -= len(text)
            return {"value": value}
        part = text[offset : offset + most]
        self.characters -= len(part)
        shown: ShownEntry = {"text": part, "offset": offset, "characters": len(text)}
        if offset + most < len(text):
            shown["next_offset"] = offset + most
        return shown


def entry_shown(entry: Entry, shown: ShownEntry) -> ShownEntry:
    """An entry with what is shown of its value."""
    return {
        "key": entry.key,
        "revision": entry.mod_revision,
        "author": entry.author,
        "time": time_text(entry.time_ms),
        **shown,
    }


def change_shown(change: Change, revised: Any, room: AnswerRoom) -> ShownChange:
    """A change of a revision, with as much of its value as a look needs."""
    found: ShownChange = {
        "key": change.key,
        "kind": change.kind,
        "revision": revised.revision,
        "author": revised.author,
    }
    if revised.note:
        found["note"] = revised.note
    if change.kind == "put":
        return {**found, **room.show(change.value, PREVIEW_CHARACTERS)}
    room.items -= 1
    return found


# --- errors ---------------------------------------------------------------------------------------


class ToolFailure(Exception):
    """A failure that is the answer of a tool."""

    def __init__(self, answer: ErrorAnswer) -> None:
        super().__init__(answer.get("message"))
        self.answer = answer


def refused(code: str, message: str, fix: str) -> ToolFailure:
    """A failure of this server's own."""
    return ToolFailure({"code": code, "message": message, "fix": fix, "retryable": False})


def explain(error: errors.BlackboardError) -> ErrorAnswer:
    """An error of the board as a model needs it: what happened, and what to do next."""
    message, fix = _of_a_change(error) or _of_a_look(error) or _of_the_service(error)
    found: ErrorAnswer = {
        "code": error.code,
        "message": message,
        "fix": fix,
        "retryable": error.retryable,
    }
    match error:
        case errors.Conflict():
            found.update(_conflict(error))
        case errors.LeaseHeld() | errors.Fenced():
            found["key"], found["holder"] = error.key, agent_in(error.holder or "")
        case errors.LimitExceeded():
            found["limit"], found["maximum"] = error.limit, error.maximum
        case errors.AccessDenied():
            found["key"] = error.key
    return found


def agent_in(holder: str) -> str:
    """The agent in the name of a holder (`coder~0123456789abcdef`)."""
    return holder.rpartition("~")[0].replace("@", ".").strip(".") or holder


def _conflict(error: errors.Conflict) -> ErrorAnswer:
    found: ErrorAnswer = {
        "key": error.key,
        "expected_revision": error.expected,
        "current_revision": error.actual,
    }
    if error.by:
        found["by"] = error.by
    if error.current is not None:
        # Whole: the board sends small values only, and a model decides again from it.
        found["current"] = plain(error.current)
    return found


def _of_a_change(error: errors.BlackboardError) -> tuple[str, str] | None:
    match error:
        case errors.Conflict(expected=0) if error.key.startswith("system/checkpoints/"):
            name = error.key.rpartition("/")[2]
            return f"there is a checkpoint {name} already, by {error.by}", "Give another name."
        case errors.Conflict():
            fix = f"then write again with expected_revision={error.actual}."
            what = str(error).removeprefix("conflict: ")
            if error.current is None and error.actual:
                return what, f"Nothing was changed. Read {error.key} and decide again, {fix}"
            if not error.actual:
                return what, f"Nothing was changed. It is gone: decide again, {fix}"
            return what, f"Nothing was changed. Decide again from `current`, {fix}"
        case errors.LeaseHeld():
            return f"{error.key} is claimed by {agent_in(error.holder)}", (
                "Work on something else, or call claim with wait_s, or wait for the key: its claim"
                " ends with a change of kind release."
            )
        case errors.Fenced():
            return f"your claim of {error.key} was lost: nothing was changed", (
                "Claim it again and read it before you change it: another agent may have."
            )
        case errors.StaleEpoch(cause="restore"):
            return f"the board was taken back at revision {error.head}: nothing was changed", (
                "All claims ended, and what you read may not be there any more. Read again, and"
                " decide again."
            )
        case errors.StaleEpoch():
            return f"the board began a new epoch ({error.cause}): nothing was changed", (
                "Read again what you rely on, and decide again."
            )
        case errors.BoardFrozen():
            return f"the board is frozen by {error.by}: {error.note or 'no reason is given'}", (
                "Reading is possible. Wait, or ask a person: blackboard thaw ends it."
            )
        case errors.OutcomeUnknown():
            return f"it is not known whether this was done: {error.reason}", (
                "Read the key (or list checkpoints) before you repeat it."
            )
        case errors.SnapshotFirst() | errors.HeadMoved() | errors.Overloaded():
            return str(error), "Nothing was changed. Try again in a few seconds."
    return None


def _of_a_look(error: errors.BlackboardError) -> tuple[str, str] | None:
    match error:
        case errors.InvalidRequest():
            field = error.field.split(".")[0]
            hints = {
                "key": _KEYS,
                "keys": _KEYS,
                "ops": _KEYS,
                "pattern": _PATTERNS,
                "patterns": _PATTERNS,
            }
            return f"{field}: {error.reason}", hints.get(field, "Correct the argument.")
        case errors.LimitExceeded():
            where = f" ({error.where})" if error.where else ""
            return (
                f"{error.value:,} is more than {error.limit}{where} allows: {error.maximum:,}",
                _SMALLER.get(error.limit, "Send less: split it over several keys."),
            )
        case errors.TypeMismatch():
            return str(error), "Read the key to see what it holds."
        case errors.NoSuchCheckpoint():
            return f"there is no checkpoint {error.name}", "Call checkpoints to see which exist."
        case errors.FutureRevision():
            return f"revision {error.revision} does not exist yet: the newest is {error.head}", (
                "Leave `at` out, or name an earlier revision."
            )
        case errors.Compacted():
            return f"what came after revision {error.revision} is no longer in the log", (
                "Read the keys as they are now, and wait without `after`."
            )
        case errors.RolledBack() | errors.Resync():
            return "the board was taken back since then", (
                "Read the keys as they are now, and wait without `after`."
            )
    return None


_KEYS: Final = (
    "Keys look like public/plan/budget, private/YOU/notes or inbox/AGENT/messages/1; a segment has"
    " letters, digits and . _ ~ - only."
)
_PATTERNS: Final = "Patterns look like public/plan/** (all below) or public/*/budget (one segment)."
_SMALLER: Final = {
    "VALUE_BYTES_MAX": "Store it in parts at several keys, or in a file whose path you write.",
    "READ_KEYS_MAX": "Read fewer keys at once.",
    "PATTERNS_MAX": "Name fewer patterns: public/a/** stands for all below it.",
    "NOTE_BYTES_MAX": "Shorten the note.",
    "RESTORE_CHANGES_MAX": "So much changed that a person must make a branch: blackboard branch.",
}


def _of_the_service(error: errors.BlackboardError) -> tuple[str, str]:
    match error:
        case errors.AccessDenied():
            return f"{error.principal} may not {error.right} {error.key}", (
                "You lack that right, and repeating will not help. Use your own private/ and"
                " public/, or ask a person for it."
            )
        case errors.Unauthenticated():
            return f"the token is not accepted: {error.reason}", (
                "Ask a person for a new one: blackboard token create NAME."
            )
        case errors.Unavailable():
            return f"the board cannot be reached: {error.what}: {error.reason}", (
                "Nothing was changed. Try again in a few seconds; if that fails, ask a person to"
                " start the service: blackboard serve."
            )
    return str(error), "Report this to a person."


def texts(values: Iterable[str], most: int = ANSWER_ITEMS) -> Sequence[str]:
    """At most `most` of them."""
    return [text for _, text in zip(range(most), values, strict=False)]
