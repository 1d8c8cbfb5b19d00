"""Files that nobody exported, with a right seal and right sums: each is refused with an error of
ours that names the file or the field, and nothing is imported."""

import hashlib
import json
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgpack
import pytest

import blackboard
from blackboard.client.client import Client
from blackboard.client.export import seal
from blackboard.errors import Corrupt, InvalidRequest, LimitExceeded, Rejected
from blackboard.integrity.signing import Seal
from blackboard.limits import REVISION_MAX, VALUE_BYTES_MAX

Members = dict[str, bytes]
STRANGER = Seal(b"s" * 32)
DEEP = b"[" * 100_000


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    """A client of a service with board "main", which has a checkpoint."""
    async with blackboard.open(tmp_path / "data", level="memory") as client:
        board = client.board("main")
        await board.put("public/a", 1)
        await board.append("public/list", "x")
        await board.checkpoint("one")
        yield client


@pytest.fixture
async def members(client: Client, tmp_path: Path) -> Members:
    """What is in an export."""
    file = tmp_path / "good.zip"
    await client.board("main").export("one", file)
    with zipfile.ZipFile(file) as source:
        return {name: source.read(name) for name in source.namelist()}


def written(file: Path, members: Members, header: Callable[[dict[str, Any]], object]) -> None:
    """Write members as an export, with sums that are right, unless `header` changes them."""
    said = json.loads(members["export.json"])
    for name in said["sha256"]:
        said["sha256"][name] = hashlib.sha256(members[name]).hexdigest()
    header(said)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        for name, data in members.items():
            target.writestr(name, json.dumps(said) if name == "export.json" else data)
        target.comment = b"0" * 64
    seal(file)


def signed(members: Members, **fields: object) -> Members:
    """With other fields in the manifest, signed with a stranger's key."""
    manifest, signature = STRANGER.sign({**json.loads(members["manifest"]), **fields})
    return {**members, "manifest": manifest, "signature": signature}


def entries(members: Members) -> list[list[Any]]:
    unpacker = msgpack.Unpacker()
    unpacker.feed(members["entries.msgpack"])
    return list(unpacker)


def with_entries(members: Members, found: list[Any]) -> Members:
    return {**members, "entries.msgpack": b"".join(map(msgpack.packb, found))}


def with_first(members: Members, place: int, content: object) -> Members:
    first, *others = entries(members)
    return with_entries(members, [[*first[:place], content, *first[place + 1 :]], *others])


def epoch_of(members: Members, number: float, from_revision: int, revision: int) -> list[Any]:
    _, name, cause, *_ = json.loads(members["manifest"])["epoch"]
    return [number, name, cause, from_revision, revision]


HOSTILE: dict[str, Callable[[Members], Members]] = {
    "a manifest of arrays": lambda m: {**m, "manifest": DEEP},
    "a manifest of objects": lambda m: {**m, "manifest": b'{"a":' * 50_000},
    "a revision without end": lambda m: signed(m, revision=float("inf")),
    "a revision beyond all": lambda m: signed(m, revision=10**30),
    "no revision to come": lambda m: signed(m, revision=REVISION_MAX - 1),
    "the last revision": lambda m: signed(m, revision=REVISION_MAX),
    "a revision below 0": lambda m: signed(m, revision=-1),
    "a time beyond all": lambda m: signed(m, time_ms=2**70),
    "a time below 0": lambda m: signed(m, time_ms=-(2**70)),
    "an epoch beyond all": lambda m: signed(m, epoch=epoch_of(m, 2**70, 0, 0)),
    "an epoch without end": lambda m: signed(m, epoch=epoch_of(m, float("inf"), 0, 0)),
    "steps that are none": lambda m: signed(m, agents={"a": 1}),
    "digests that are none": lambda m: signed(m, digests={"public": 1}),
    "digests of another board": lambda m: signed(m, digests={"public": "00" * 32}),
    "a signature of another board": lambda m: {**m, "signature": b"\0" * 64},
    "a key without normal form": lambda m: with_first(m, 0, "public/e\u0301"),
    "a key that leads out": lambda m: with_first(m, 0, "public/../../etc"),
    "an absolute key": lambda m: with_first(m, 0, "/public/a"),
    "half a surrogate": lambda m: with_entries(m, [[b"\xed\xa0\x80", b"", 1, 1, "a", 1, None]]),
    "a value above the limit": lambda m: with_first(m, 1, b"\xc6" + b"v" * VALUE_BYTES_MAX),
    "a revision of a key beyond all": lambda m: with_first(m, 2, 2**63),
    "a time of a key beyond all": lambda m: with_first(m, 5, 2**63),
    "a key twice": lambda m: with_entries(m, [entries(m)[0], *entries(m)]),
    "keys out of order": lambda m: with_entries(m, entries(m)[::-1]),
    "a key too few": lambda m: with_entries(m, entries(m)[:-1]),
    "no entries": lambda m: with_entries(m, []),
    "entries that end early": lambda m: {**m, "entries.msgpack": m["entries.msgpack"][:-3]},
    "entries of arrays": lambda m: {**m, "entries.msgpack": b"\x91" * 100_000},
    "an entry of a gigabyte": lambda m: {
        **m,
        "entries.msgpack": b"\xc6\x3f\xff\xff\xff" + b"0" * 64,
    },
    "an index beyond all": lambda m: {**m, "items.msgpack": msgpack.packb(["public/l", 2**63])},
    "an index below 0": lambda m: {**m, "items.msgpack": msgpack.packb(["public/l", -1])},
    "a list that leads out": lambda m: {**m, "items.msgpack": msgpack.packb(["public/../x", 1])},
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_a_file_that_nobody_exported(
    client: Client, members: Members, tmp_path: Path, what: str
) -> None:
    bad = tmp_path / "bad.zip"
    written(bad, HOSTILE[what](members), lambda said: None)
    with pytest.raises((Corrupt, InvalidRequest, LimitExceeded)):
        await client.import_board(bad, "made")
    assert await client.boards() == ["main"]
    assert await client.board("main").get("public/a") == 1


HEADERS: dict[str, Callable[[dict[str, Any]], object]] = {
    "sums as a list": lambda said: said.update(sha256=list(said["sha256"])),
    "sums of other types": lambda said: said.update(sha256=dict.fromkeys(said["sha256"], 1)),
    "a member outside": lambda said: said["sha256"].update({"../outside": "00"}),
    "an older version": lambda said: said.update(version=0),
    "a version of objects": lambda said: said.update(version={"a": [1]}),
}


@pytest.mark.parametrize("what", HEADERS)
async def test_a_header_that_nobody_wrote(
    client: Client, members: Members, tmp_path: Path, what: str
) -> None:
    bad = tmp_path / "bad.zip"
    written(bad, members, HEADERS[what])
    with pytest.raises(Corrupt, match=r"file bad\.zip"):
        await client.import_board(bad, "made")
    assert await client.boards() == ["main"]


async def test_a_header_that_nests_too_deeply(
    client: Client, members: Members, tmp_path: Path
) -> None:
    bad = tmp_path / "bad.zip"
    with zipfile.ZipFile(bad, "w") as target:
        for name, data in members.items():
            target.writestr(name, DEEP if name == "export.json" else data)
        target.comment = b"0" * 64
    seal(bad)
    with pytest.raises(Corrupt, match=r"file bad\.zip"):
        await client.import_board(bad, "made")


@pytest.mark.parametrize("name", ["export.json", "manifest", "items.msgpack", "entries.msgpack"])
async def test_a_member_that_unpacks_to_far_more(
    client: Client, members: Members, tmp_path: Path, name: str
) -> None:
    """A hundred megabytes of zeros, in a hundred kilobytes: as much is read as the limits allow."""
    bad = tmp_path / "bad.zip"
    written(bad, members, lambda said: None)
    said = json.loads(members["export.json"])
    with zipfile.ZipFile(bad, "w", zipfile.ZIP_DEFLATED) as target:
        for other, data in members.items():
            if other != name:
                target.writestr(other, json.dumps(said) if other == "export.json" else data)
        with target.open(name, "w") as member:
            for _ in range(100):
                member.write(bytes(1_000_000))
        target.comment = b"0" * 64
    seal(bad)
    with pytest.raises((Corrupt, Rejected)):
        await client.import_board(bad, "made")
    assert await client.boards() == ["main"]


async def test_members_of_odd_names_are_not_touched(
    client: Client, members: Members, tmp_path: Path
) -> None:
    """Members are read by name, and none is unpacked into a directory."""
    odd = {"../outside": b"x", "/etc/outside": b"x", "C:\\outside": b"x"}
    written(tmp_path / "odd.zip", {**members, **odd}, lambda said: None)
    await client.import_board(tmp_path / "odd.zip", "made")
    assert await client.board("made").get("public/a") == 1
    assert not list(tmp_path.parent.glob("outside"))
