"""The nouns of the past as messages, both ways: what `core/checkpoints.py` has, in plain maps.

Invariants
- `read_x(write_x(x)) == x` in either encoding.
- A reader returns the right types or raises RemoteProtocolError, for any input.
"""

from typing import Any, Final, NotRequired, TypedDict

from msgspec.structs import replace

from blackboard.core.checkpoints import (
    Checkpoint,
    CheckpointInfo,
    Difference,
    Differences,
    ExportPage,
    Version,
)
from blackboard.core.commit import Entry, Epoch, name_of, narrowed_from
from blackboard.wire import reading
from blackboard.wire.answers import EntryMessage, write_entry, write_noun
from blackboard.wire.codec import encode_value
from blackboard.wire.frames import Encoding, exported_in, exported_out
from blackboard.wire.reading import from_peer

# --- shapes ---------------------------------------------------------------------------------------


class ManifestMessage(TypedDict):
    """Result of `manifest`; hashes in hexadecimal, `digests` by namespace, `steps` by agent, and
    likewise `memory`, if there was a barrier."""

    checkpoint: Checkpoint
    epoch: Epoch
    chain: str
    previous: str
    digests: dict[str, str]
    steps: dict[str, int]
    declared: dict[str, Any]
    signed_by: str
    memory: NotRequired[dict[str, int]]


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


class ExportMessage(TypedDict):
    """Result of `export`; the first page has the manifest, its signature and the counters."""

    revision: int
    entries: list[EntryMessage]
    next_key: NotRequired[str]
    manifest: NotRequired[str]
    signature: NotRequired[str]
    items: NotRequired[list[list[str | int]]]


# --- writing --------------------------------------------------------------------------------------


def write_manifest(shown: CheckpointInfo) -> ManifestMessage:
    """A checkpoint with its manifest as a message."""
    message: ManifestMessage = {
        "checkpoint": write_noun(shown.checkpoint),
        "epoch": write_noun(shown.epoch),
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


def read_manifest(message: Any) -> CheckpointInfo:
    """Errors: RemoteProtocolError."""
    with from_peer("manifest"):
        return CheckpointInfo(
            reading.read_as(Checkpoint, message["checkpoint"]),
            reading.read_as(Epoch, message["epoch"]),
            reading.read_str(message, "chain"),
            reading.read_str(message, "previous"),
            {name: str(found) for name, found in message["digests"].items()},
            {name: int(found) for name, found in message["steps"].items()},
            dict(message["declared"]),
            reading.read_str(message, "signed_by"),
            {name: int(found) for name, found in message.get("memory", {}).items()},
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
