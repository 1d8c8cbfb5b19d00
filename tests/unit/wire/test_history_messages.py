"""The nouns of the past survive their way over the wire, in both encodings."""

from typing import Any

import pytest
from msgspec import structs

from blackboard.core.checkpoints import (
    BarrierReport,
    Checkpoint,
    CheckpointInfo,
    Difference,
    Differences,
    ExportPage,
    Instant,
    Pruned,
    Restored,
    Verified,
    Version,
)
from blackboard.core.commit import Entry, Epoch
from blackboard.errors import InvalidRequest, LimitExceeded, RemoteProtocolError
from blackboard.wire import answers, methods, requests
from blackboard.wire.answers import (
    DifferencesMessage,
    ExportMessage,
    ManifestMessage,
    VersionMessage,
)
from blackboard.wire.codec import encode_value
from blackboard.wire.frames import JSON, MSGPACK, Encoding, exported_in

both = pytest.mark.parametrize("encoding", [JSON, MSGPACK], ids=["json", "msgpack"])
EPOCH = Epoch(2, "e", "restore", 3, 9)
ONE = Entry("public/a", encode_value({"x": [1, b"\x00"]}), 3, 1, "ada", 1_000, 2_000)
TWO = Entry("public/a", encode_value("text"), 4, 1, "bob", 1_001)
PLAIN = Checkpoint("b", "plan", 7, 1_000)
ASKED = Checkpoint(
    "b",
    "p",
    7,
    1_000,
    "automatic",
    "ada",
    "why",
    BarrierReport(5, ("a",), ("b",), ("c", "d")),
    True,
)


def over(encoding: Encoding, message: Any) -> Any:
    """What arrives of `message`."""
    (received,) = encoding.split(encoding.join([encoding.pack(message)]))
    return received


def survives(kind: Any, found: Any, encoding: Encoding) -> bool:
    """Whether a result arrives as it was sent."""
    message = over(encoding, answers.write(kind, found, encoding))
    return bool(answers.read(kind, message, encoding) == found)


@both
@pytest.mark.parametrize("checkpoint", [PLAIN, ASKED])
def test_checkpoints(encoding: Encoding, checkpoint: Checkpoint) -> None:
    assert survives(Checkpoint, checkpoint, encoding)


@both
def test_what_is_shown_pruned_restored_and_verified(encoding: Encoding) -> None:
    shown = CheckpointInfo(
        ASKED, EPOCH, "aa", "", {"public": "bb"}, {"ada": 4}, {"ada": {"v": 1}}, "cc"
    )
    assert survives(ManifestMessage, shown, encoding)
    for pruned in (Pruned(("a", "b"), (), 3), Pruned((), ("a",), 3, 4_096)):
        assert survives(Pruned, pruned, encoding)
    restored = Restored(9, 1_000, EPOCH, 3, 4, 5, "before")
    assert survives(Restored, restored, encoding)
    erased = Verified(3, erased=("private/ada",))
    for verified in (Verified(3), erased, Verified(3, ("chain",), more=True)):
        assert survives(Verified, verified, encoding)


@both
def test_differences_versions_and_pages(encoding: Encoding) -> None:
    sides = [(None, ONE), (ONE, TWO), (TWO, None)]
    found = tuple(Difference("public/a", before, after) for before, after in sides)
    for next_key in (None, "public/a"):
        page = Differences(1, 2, found, next_key)
        assert survives(DifferencesMessage, page, encoding)
    versions = [Version("public/a", 3, 1_000, "ada", ONE), Version("public/a", 2, 999, "bob", None)]
    assert survives(list[VersionMessage], versions, encoding)
    first = ExportPage(7, (ONE,), "public/a", b"{}", b"\x01\x02", (("public/list", 4),))
    for exported in (first, ExportPage(7, (TWO,))):
        assert survives(ExportMessage, exported, encoding)


@both
@pytest.mark.parametrize("moment", [0, 4711, "plan", "now", Instant(1_000)])
def test_moments(encoding: Encoding, moment: Any) -> None:
    params = requests.write_request(methods.VerifyParams("b", moment), encoding)
    parsed = requests.parse("verify", over(encoding, params), encoding)
    assert isinstance(parsed, methods.VerifyParams)
    assert parsed.at == moment


@both
def test_an_entry_of_an_import(encoding: Encoding) -> None:
    sealed = structs.replace(TWO, key="public/z", value=b"\xc1\x01 ciphertext")
    narrowed = structs.replace(TWO, author="buyer@me")
    entries = (ONE, TWO, sealed, narrowed)
    sent = tuple([methods.ImportedEntry.of(entry) for entry in entries])
    params = methods.ImportPageParams("b", "ab" * 8, 0, sent)
    message = over(encoding, requests.write_request(params, encoding))
    parsed = requests.parse("import_page", message, encoding)
    assert isinstance(parsed, methods.ImportPageParams)
    assert tuple(entry.to_core() for entry in parsed.entries) == entries


@pytest.mark.parametrize("value", [{"$sealed": "-"}, {"$sealed": 1}, b"\xc1" * (2**20 + 1025)])
def test_what_is_no_sealed_value_is_refused(value: Any) -> None:
    encoding = MSGPACK if isinstance(value, bytes) else JSON
    with pytest.raises((InvalidRequest, LimitExceeded)):
        exported_in(value, encoding)
    plain = {"$sealed": "wQ==", "more": 1}
    assert exported_in(plain, JSON) == encode_value(plain)


@pytest.mark.parametrize("message", [None, 1, [], {}, {"revision": "x"}, [1], {"entries": 3}])
def test_what_is_none_of_them_is_the_peers_fault(message: Any) -> None:
    kinds = (Checkpoint, ManifestMessage, Pruned, Restored, Verified, DifferencesMessage)
    for kind in (*kinds, ExportMessage, list[VersionMessage]):
        if message != [] or kind != list[VersionMessage]:
            with pytest.raises(RemoteProtocolError):
                answers.read(kind, message)
