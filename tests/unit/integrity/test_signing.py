"""Manifests and the key that signs them."""

import stat
from dataclasses import replace
from pathlib import Path

import pytest

from blackboard.core.checkpoints import Cut, Facts, StoredCheckpoint
from blackboard.core.commit import Epoch
from blackboard.errors import Corrupt, InvalidRequest
from blackboard.integrity.manifest import is_signed, read_manifest
from blackboard.integrity.signing import (
    Seal,
    make_key,
    manifest_of,
    read_key,
)
from blackboard.wire.codec import encode_value

CUT = Cut(
    board="main",
    name="plan",
    revision=7,
    time_ms=1_000,
    author="ada",
    epoch=Epoch(2, "e", "restore", 3, 5),
    chain=bytes(32),
    facts=Facts({"public": b"\x01" * 32}, {"ada": (7, "i", 0, 3)}),
    record=encode_value({"kind": "named", "note": "für alle", "raw": b"\x00"}),
    declared={"ada": encode_value({"schema": 1})},
    previous=b"\x02" * 32,
)


def stored(seal: Seal, cut: Cut = CUT) -> StoredCheckpoint:
    """A checkpoint as it is kept."""
    manifest, signature = seal.seal(cut)
    return StoredCheckpoint(
        "main", cut.name, cut.revision, cut.time_ms, "named", manifest, signature
    )


def test_a_manifest_is_the_same_bytes_every_time() -> None:
    """Sorted keys, no white space, ASCII: anybody can make it again and compare."""
    seal = Seal(bytes(32))
    manifest, signature = seal.seal(CUT)
    assert seal.seal(CUT) == (manifest, signature)
    assert manifest.isascii()
    assert b" " not in manifest.replace("für alle".encode(), b"").replace(b"f\\u00fcr alle", b"")
    said = read_manifest(manifest)
    assert list(said) == sorted(said)
    assert said["record"]["raw"] == {"$bytes": "AA=="}
    assert is_signed(manifest, signature, seal.public)
    assert not is_signed(manifest + b" ", signature, seal.public)


def test_what_is_wrong_is_named() -> None:
    """Each field that differs, a signature that does not fit, a stranger's key."""
    seal, other = Seal(bytes(32)), Seal(b"\x01" * 32)
    assert seal.findings(stored(seal), CUT) == []
    assert seal.findings(stored(seal), replace(CUT, chain=b"\x09" * 32)) == [
        "the manifest's chain is not that of the board"
    ]
    [finding] = seal.findings(stored(other), CUT)
    assert other.public.hex() in finding
    assert Seal(bytes(32), trusted=[other.public]).findings(stored(other), CUT) == []
    forged = replace(stored(seal), signature=bytes(64))
    assert seal.findings(forged, None) == ["the manifest's signature does not fit"]
    junk = replace(stored(seal), manifest=b"[]")
    assert seal.findings(junk, CUT) == ["the manifest is damaged: it cannot be read"]
    spaced = manifest_of(CUT, seal.public).replace(b'{"agents"', b'{ "agents"', 1)
    signed = replace(stored(seal), manifest=spaced)
    assert "the manifest's signature does not fit" in seal.findings(signed, CUT)


def test_a_key_is_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    """The second who comes reads the first one's."""
    path = tmp_path / "new" / "signing_key"
    secret = make_key(path)
    assert len(secret) == 32
    assert make_key(path) == secret == read_key(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in path.parent.iterdir()] == ["signing_key"]


@pytest.mark.parametrize("text", ["", "abc", "zz" * 32, "ab" * 31, "ab" * 33])
def test_what_is_no_key_is_refused(tmp_path: Path, text: str) -> None:
    """With the setting's name."""
    path = tmp_path / "key"
    path.write_text(text)
    with pytest.raises(InvalidRequest) as refused:
        read_key(path)
    assert refused.value.field == "signing_key"
    with pytest.raises(InvalidRequest):
        make_key(tmp_path / "key" / "below a file")


def test_what_is_no_manifest_is_corrupt() -> None:
    """Bytes that are no JSON object."""
    for junk in (b"", b"{", b"1", b"\xff"):
        with pytest.raises(Corrupt):
            read_manifest(junk)
