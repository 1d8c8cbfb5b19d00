"""The nouns of the past as messages, both ways: what `core/checkpoints.py` has, in plain maps.

Invariants
- `read_x(write_x(x)) == x` in either encoding.
- a reader returns the right nouns or raises RemoteProtocolError, whatever it is given.
"""

from typing import Any, Final, NotRequired

from msgspec.structs import replace
from typing_extensions import TypedDict  # pydantic makes no schema of typing's before 3.12

from blackboard.core.checkpoints import (
    BarrierReport,
    Checkpoint,
    CheckpointInfo,
    Difference,
    Differences,
    ExportPage,
    Instant,
    Moment,
    Pruned,
    Recovered,
    Redaction,
    Restored,
    Verified,
    Version,
)
from blackboard.core.commit import Entry, name_of, narrowed_from
from blackboard.core.freeze import Freeze
from blackboard.wire import reading
from blackboard.wire.answers import EntryMessage, EpochMessage, write_entry, write_epoch
from blackboard.wire.codec import encode_value
from blackboard.wire.frames import Encoding, exported_in, exported_out
from blackboard.wire.reading import from_peer

# --- shapes ---------------------------------------------------------------------------------------


class BarrierMessage(TypedDict):
    """How the agents answered a checkpoint that asked for their state at revision `asked`."""

    asked: int
    delivered: list[str]
    not_fresh: list[str]
    left: list[str]


class CheckpointMessage(TypedDict):
    """Result of `checkpoint`: a named revision."""

    board: str
    name: str
    revision: int
    time_ms: int
    kind: str
    by: str
    note: str
    barrier: NotRequired[BarrierMessage]
    pinned: bool


class ManifestMessage(TypedDict):
    """Result of `manifest`; hashes in hexadecimal, `digests` by namespace, `steps` by agent, and
    likewise `memory`, if there was a barrier."""

    checkpoint: CheckpointMessage
    epoch: EpochMessage
    chain: str
    previous: str
    digests: dict[str, str]
    steps: dict[str, int]
    declared: dict[str, Any]
    signed_by: str
    memory: NotRequired[dict[str, int]]


class PrunedMessage(TypedDict):
    """Result of `prune`: checkpoints that went, that stayed, and how many versions went."""

    removed: list[str]
    kept: list[str]
    versions: int


class RestoredMessage(TypedDict):
    """Result of `restore`; checkpoint `before` ends the future that was abandoned."""

    revision: int
    time_ms: int
    epoch: EpochMessage
    from_revision: int
    put_back: int
    removed: int
    before: str


class RecoveredMessage(TypedDict):
    """Result of `recover`: how many entries the engine has by now; if it is not `done`, ask again.
    `epoch` is the id of the one that begins."""

    done: bool
    entries: int
    from_revision: int
    revision: int
    epoch: str


class RedactionMessage(TypedDict):
    """Result of `redact`: at which step it is; if it is not `done`, ask again.

    `versions` are values that went, `guessable` revisions from whose digests a short value can be
    guessed (docs/howto/redact.md), `left` what is to be done by hand.
    """

    done: bool
    step: str
    boards: list[str]
    versions: int
    guessable: int
    left: list[str]


class LostBoardMessage(TypedDict):
    """A board whose engine has nothing after revision `survived`, while the archive goes up to
    `through`; `apart_from` is the board whose name it had, if it was set apart, else ""."""

    board: str
    survived: int
    through: int
    apart_from: str


class FreezeMessage(TypedDict):
    """Result of `freeze`: who froze the board, why, since when; of `thaw`: the freeze that it
    ended, null if there was none."""

    by: str
    note: str
    since_ms: int
    revision: int


class DifferenceMessage(TypedDict):
    """A key that two moments do not hold alike; a side that is absent held nothing."""

    key: str
    before: NotRequired[EntryMessage]
    after: NotRequired[EntryMessage]


class DifferencesMessage(TypedDict):
    """Result of `differences`: the revisions compared; `next_key` continues."""

    a: int
    b: int
    differences: list[DifferenceMessage]
    next_key: NotRequired[str]


class VersionMessage(TypedDict):
    """One item of the result of `history`; without `entry` the key was removed then.

    `account` is there if the author's name was narrowed from it.
    """

    key: str
    revision: int
    time_ms: int
    author: str
    entry: NotRequired[EntryMessage]
    account: NotRequired[str]


_NOTHING: Final = encode_value(None)


class VerifiedMessage(TypedDict):
    """Result of `verify`; nothing is damaged if there are no findings."""

    revision: int
    findings: list[str]
    more: bool
    erased: list[str]


class ExportMessage(TypedDict):
    """Result of `export`; the first page has the manifest, its signature and the counters."""

    revision: int
    entries: list[EntryMessage]
    next_key: NotRequired[str]
    manifest: NotRequired[str]
    signature: NotRequired[str]
    items: NotRequired[list[list[str | int]]]


# --- moments --------------------------------------------------------------------------------------


def moment_out(moment: Moment) -> Any:
    """A moment as a message."""
    return {"time_ms": moment.time_ms} if isinstance(moment, Instant) else moment


# --- writing --------------------------------------------------------------------------------------


def write_checkpoint(checkpoint: Checkpoint) -> CheckpointMessage:
    """A checkpoint as a message."""
    message: CheckpointMessage = {
        "board": checkpoint.board,
        "name": checkpoint.name,
        "revision": checkpoint.revision,
        "time_ms": checkpoint.time_ms,
        "kind": checkpoint.kind,
        "by": checkpoint.by,
        "note": checkpoint.note,
        "pinned": checkpoint.pinned,
    }
    barrier = checkpoint.barrier
    if barrier is not None:
        message["barrier"] = {
            "asked": barrier.asked,
            "delivered": list(barrier.delivered),
            "not_fresh": list(barrier.not_fresh),
            "left": list(barrier.left),
        }
    return message


def write_manifest(shown: CheckpointInfo) -> ManifestMessage:
    """A checkpoint with its manifest as a message."""
    message: ManifestMessage = {
        "checkpoint": write_checkpoint(shown.checkpoint),
        "epoch": write_epoch(shown.epoch),
        "chain": shown.chain,
        "previous": shown.previous,
        "digests": dict(shown.digests),
        "steps": dict(shown.steps),
        "declared": dict(shown.declared),
        "signed_by": shown.signed_by,
    }
    if shown.memory:
        message["memory"] = dict(shown.memory)
    return message


def write_pruned(pruned: Pruned) -> PrunedMessage:
    """What pruning did as a message."""
    return {
        "removed": list(pruned.removed),
        "kept": list(pruned.kept),
        "versions": pruned.versions,
    }


def write_restored(restored: Restored) -> RestoredMessage:
    """A restore as a message."""
    return {
        "revision": restored.revision,
        "time_ms": restored.time_ms,
        "epoch": write_epoch(restored.epoch),
        "from_revision": restored.from_revision,
        "put_back": restored.put_back,
        "removed": restored.removed,
        "before": restored.before,
    }


def write_freeze(freeze: Freeze) -> FreezeMessage:
    """A freeze as a message."""
    return {
        "by": freeze.by,
        "note": freeze.note,
        "since_ms": freeze.since_ms,
        "revision": freeze.revision,
    }


def write_recovered(recovered: Recovered) -> RecoveredMessage:
    """A recovery as a message."""
    return {
        "done": recovered.done,
        "entries": recovered.entries,
        "from_revision": recovered.from_revision,
        "revision": recovered.revision,
        "epoch": recovered.epoch,
    }


def write_redaction(redaction: Redaction) -> RedactionMessage:
    """A redaction as a message."""
    return {
        "done": redaction.done,
        "step": redaction.step,
        "boards": list(redaction.boards),
        "versions": redaction.versions,
        "guessable": redaction.guessable,
        "left": list(redaction.left),
    }


def write_differences(page: Differences, encoding: Encoding) -> DifferencesMessage:
    """A page of a comparison as a message."""
    message: DifferencesMessage = {
        "a": page.a,
        "b": page.b,
        "differences": [_write_difference(each, encoding) for each in page.differences],
    }
    if page.next_key is not None:
        message["next_key"] = page.next_key
    return message


def _write_difference(difference: Difference, encoding: Encoding) -> DifferenceMessage:
    message: DifferenceMessage = {"key": difference.key}
    if difference.before is not None:
        message["before"] = write_entry(difference.before, encoding)
    if difference.after is not None:
        message["after"] = write_entry(difference.after, encoding)
    return message


def write_version(version: Version, encoding: Encoding) -> VersionMessage:
    """A version of a key as a message."""
    message: VersionMessage = {
        "key": version.key,
        "revision": version.revision,
        "time_ms": version.time_ms,
        "author": name_of(version.author),
    }
    if account := narrowed_from(version.author):
        message["account"] = account
    if version.entry is not None:
        message["entry"] = write_entry(version.entry, encoding)
    return message


def write_verified(verified: Verified) -> VerifiedMessage:
    """What a check found as a message."""
    return {
        "revision": verified.revision,
        "findings": list(verified.findings),
        "more": verified.more,
        "erased": list(verified.erased),
    }


def write_export(page: ExportPage, encoding: Encoding) -> ExportMessage:
    """A page of an export as a message."""
    message: ExportMessage = {
        "revision": page.revision,
        "entries": [write_exported(entry, encoding) for entry in page.entries],
    }
    if page.next_key is not None:
        message["next_key"] = page.next_key
    if page.manifest:
        message["manifest"] = page.manifest.decode()
        message["signature"] = page.signature.hex()
        message["items"] = [list(item) for item in page.items]
    return message


def write_exported(entry: Entry, encoding: Encoding) -> EntryMessage:
    """An entry of an export or an import as a message; what is sealed stays so."""
    message = write_entry(replace(entry, value=_NOTHING), encoding)
    message["value"] = exported_out(entry.value, encoding)
    return message


# --- reading --------------------------------------------------------------------------------------


def read_checkpoint(message: Any) -> Checkpoint:
    """Errors: RemoteProtocolError."""
    with from_peer("checkpoint"):
        barrier = message.get("barrier")
        return Checkpoint(
            reading.read_str(message, "board"),
            reading.read_str(message, "name"),
            reading.read_int(message, "revision"),
            reading.read_int(message, "time_ms"),
            reading.read_str(message, "kind"),
            reading.read_str(message, "by"),
            reading.read_str(message, "note"),
            None if barrier is None else _barrier(barrier),
            message["pinned"] is True,
        )


def _barrier(message: Any) -> BarrierReport:
    names = ("delivered", "not_fresh", "left")
    return BarrierReport(reading.read_int(message, "asked"), *(_names(message[n]) for n in names))


def _names(message: Any) -> tuple[str, ...]:
    if type(message) is not list or not all(type(name) is str for name in message):
        raise TypeError("not an array of strings")
    return tuple(message)


def read_manifest(message: Any) -> CheckpointInfo:
    """Errors: RemoteProtocolError."""
    with from_peer("manifest"):
        return CheckpointInfo(
            read_checkpoint(message["checkpoint"]),
            reading.read_epoch(message["epoch"]),
            reading.read_str(message, "chain"),
            reading.read_str(message, "previous"),
            {name: str(found) for name, found in message["digests"].items()},
            {name: int(found) for name, found in message["steps"].items()},
            dict(message["declared"]),
            reading.read_str(message, "signed_by"),
            {name: int(found) for name, found in message.get("memory", {}).items()},
        )


def read_pruned(message: Any) -> Pruned:
    """Errors: RemoteProtocolError."""
    with from_peer("prune"):
        names = (_names(message["removed"]), _names(message["kept"]))
        return Pruned(*names, reading.read_int(message, "versions"))


def read_restored(message: Any) -> Restored:
    """Errors: RemoteProtocolError."""
    with from_peer("restore"):
        return Restored(
            reading.read_int(message, "revision"),
            reading.read_int(message, "time_ms"),
            reading.read_epoch(message["epoch"]),
            reading.read_int(message, "from_revision"),
            reading.read_int(message, "put_back"),
            reading.read_int(message, "removed"),
            reading.read_str(message, "before"),
        )


def read_recovered(message: Any) -> Recovered:
    """Errors: RemoteProtocolError."""
    with from_peer("recover"):
        return Recovered(
            bool(message["done"]),
            reading.read_int(message, "entries"),
            reading.read_int(message, "from_revision"),
            reading.read_int(message, "revision"),
            reading.read_str(message, "epoch"),
        )


def read_redaction(message: Any) -> Redaction:
    """Errors: RemoteProtocolError."""
    with from_peer("redact"):
        return Redaction(
            bool(message["done"]),
            reading.read_str(message, "step"),
            tuple(_names(message["boards"])),
            reading.read_int(message, "versions"),
            reading.read_int(message, "guessable"),
            tuple(_names(message["left"])),
        )


def read_freeze(message: Any) -> Freeze:
    """Errors: RemoteProtocolError."""
    with from_peer("freeze"):
        return Freeze(
            reading.read_str(message, "by"),
            reading.read_str(message, "note"),
            reading.read_int(message, "since_ms"),
            reading.read_int(message, "revision"),
        )


def read_differences(message: Any, encoding: Encoding) -> Differences:
    """Errors: RemoteProtocolError."""
    with from_peer("differences"):
        return Differences(
            reading.read_int(message, "a"),
            reading.read_int(message, "b"),
            tuple(
                Difference(
                    reading.read_str(each, "key"),
                    _entry(each, "before", encoding),
                    _entry(each, "after", encoding),
                )
                for each in message["differences"]
            ),
            message.get("next_key"),
        )


def _entry(message: Any, name: str, encoding: Encoding) -> Entry | None:
    return reading.read_entry(message[name], encoding) if name in message else None


def read_history(message: Any, encoding: Encoding) -> list[Version]:
    """Errors: RemoteProtocolError."""
    with from_peer("history"):
        return [
            Version(
                reading.read_str(each, "key"),
                reading.read_int(each, "revision"),
                reading.read_int(each, "time_ms"),
                reading.read_author(each),
                _entry(each, "entry", encoding),
            )
            for each in message
        ]


def read_verified(message: Any) -> Verified:
    """Errors: RemoteProtocolError."""
    with from_peer("verify"):
        return Verified(
            reading.read_int(message, "revision"),
            _names(message["findings"]),
            message["more"] is True,
            _names(message["erased"]),
        )


def _read_exported(message: Any, encoding: Encoding) -> Entry:
    value = exported_in(message["value"], encoding)
    told = {**message, "value": encoding.value_out(_NOTHING)}
    return replace(reading.read_entry(told, encoding), value=value)


def read_export(message: Any, encoding: Encoding) -> ExportPage:
    """Errors: RemoteProtocolError."""
    with from_peer("export"):
        return ExportPage(
            reading.read_int(message, "revision"),
            tuple(_read_exported(entry, encoding) for entry in message["entries"]),
            message.get("next_key"),
            message.get("manifest", "").encode(),
            bytes.fromhex(message.get("signature", "")),
            tuple((str(prefix), int(item)) for prefix, item in message.get("items", ())),
        )
