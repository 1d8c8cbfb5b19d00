"""Inputs that are almost right, by the thousand: each is taken or refused, nothing else happens.

Every decoder that reads what others made gets valid inputs in which bytes or members were changed,
left out, doubled or exchanged. What it raises must be an error of ours, so that its sender
learns why and the process goes on; and no input may take long.

BLACKBOARD_TEST_FUZZ is how many inputs each target gets (300). The run's seed repeats them; a
failure shows the input.
"""

import contextlib
import copy
import hashlib
import json
import os
import random
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import httpx
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pycrdt import Array, Doc, Map, Text

import blackboard
from blackboard.archive import rows as archive_rows
from blackboard.archive.tables import ABSENT, BLOB, DEFLATED, LOGGED, PLAIN
from blackboard.client import export as transfer
from blackboard.core.commit import CommitId, Put
from blackboard.core.documents import update as crdt
from blackboard.engines.redis import layout as keys
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import BlackboardError
from blackboard.integrity import envelope as sealing
from blackboard.server.service import Service
from blackboard.wire import answers, requests, ysync
from blackboard.wire.codec import decode_results, decode_value, encode_results, encode_value
from blackboard.wire.frames import JSON, MSGPACK, Encoding
from blackboard.wire.session import ClientSession, ServerSession
from tests.proof import Layer
from tests.serving import serving
from tests.unit.archive.test_rows import ENTRY

INPUTS = int(os.environ.get("BLACKBOARD_TEST_FUZZ") or 300)
SECONDS_MAX = 10.0
"""For one input: they take far less than a millisecond, and this machine may be busy."""
ODD: Sequence[Any] = (
    0,
    1,
    -1,
    2**31,
    2**53,
    2**63,
    2**64,
    1.5,
    "",
    "~",
    "a/b",
    "**",
    "\0",
    None,
    True,
    [],
    {},
)
KEY = "public/plan/budget"


# --- how inputs are changed -----------------------------------------------------------------------


def changed_bytes(rng: random.Random, corpus: Sequence[bytes]) -> bytes:
    """One of `corpus`, with a few bytes changed, left out, doubled or taken from another."""
    data = bytearray(rng.choice(corpus))
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        at = rng.randrange(len(data) + 1)
        end = min(len(data), at + rng.choice((1, 1, 2, 4, 16)))
        match rng.randrange(6):
            case 0 if data:
                data[at % len(data)] ^= 1 << rng.randrange(8)
            case 1:
                data[at:end] = rng.choice((b"\xff", b"\x00", b"\x7f", b"\xc1", b"\x80")) * (
                    end - at
                )
            case 2:
                del data[at:end]
            case 3:
                data[at:at] = data[at:end] * rng.choice((1, 2, 64))
            case 4:
                other = rng.choice(corpus)
                begin = rng.randrange(len(other) + 1)
                data[at:end] = other[begin : begin + rng.randrange(24)]
            case _:
                del data[at:]
    return bytes(data)


def changed_tree(rng: random.Random, tree: Any) -> Any:
    """A copy of `tree` with one thing in it changed, left out, doubled or made deep."""
    whole = [copy.deepcopy(tree)]
    place: Any = whole
    while True:
        at = rng.choice(list(place)) if isinstance(place, dict) else rng.randrange(len(place))
        below = place[at]
        if not isinstance(below, dict | list) or not below or rng.random() < 0.3:
            break
        place = below
    match rng.randrange(5):
        case 0 if place is not whole:
            del place[at]
        case 1 if isinstance(place, dict):
            place[rng.choice(("", "key", "~", "value", "\ud800"))] = rng.choice(ODD)
        case 2:
            deep: Any = rng.choice(ODD)
            for _ in range(rng.choice((3, 70))):
                deep = rng.choice(([deep], {"a": deep}))
            place[at] = deep
        case 3 if isinstance(place, list) and place is not whole:
            place[at:at] = [place[at]] * rng.choice((1, 40))
        case _:
            place[at] = rng.choice(ODD)
    return whole[0]


# --- what they are changed from -------------------------------------------------------------------

COMMIT = {
    "board": "b",
    "id": {"lane": 1, "incarnation": "i", "step": 3},
    "epoch": "e",
    "ops": [
        {"kind": "put", "key": KEY, "value": {"a": [1, "x"]}, "ttl_ms": 1000},
        {"kind": "append", "prefix": "public/log", "value": [1.5]},
        {"kind": "increment", "key": "public/n", "by": -3},
        {"kind": "delete", "key": KEY},
        {"kind": "delete_prefix", "prefix": "public/old"},
        {"kind": "grant", "key": "public/l", "holder": "ada", "ttl_ms": 5000},
    ],
    "conditions": [{"kind": "key_at", "key": KEY, "revision": 7}],
    "fences": [{"key": "public/l", "holder": "ada", "fence": 9}],
    "note": "why",
}
REQUESTS: Sequence[tuple[str, Any]] = (
    ("commit", COMMIT),
    ("hello", {"token": "a.b.c", "agent": "ada", "client": "x"}),
    ("read", {"board": "b", "keys": [KEY], "at": 3}),
    ("list", {"board": "b", "pattern": "public/*/x", "after": KEY, "limit": 10, "reverse": True}),
    ("log", {"board": "b", "after": 0, "limit": 5}),
    ("watch", {"board": "b", "watch": 1, "patterns": ["public/**"], "after": "e.7.00ff"}),
    ("checkpoint", {"board": "b", "name": "one", "request": "ab" * 8, "note": "n"}),
    ("restore", {"board": "b", "to": "one", "request": "ab" * 8}),
    ("audit", {"after": None, "limit": 3}),
    ("issue", {"name": "kim", "grants": [{"pattern": "**", "rights": ["read"]}], "ttl_ms": 9}),
    ("revoke", {"tokens": ["x"], "principal": "ada", "until_ms": 5}),
    ("import_begin", {"board": "b", "request": "ab" * 8, "manifest": "{}", "signature": "00"}),
)


def frames(encoding: Encoding) -> Sequence[bytes]:
    """A frame for each request, and one with all of them."""
    packed = []
    for number, (method, params) in enumerate(REQUESTS):
        told = params
        if encoding is MSGPACK and method == "commit":
            told = copy.deepcopy(params)
            for op in told["ops"]:
                if "value" in op:
                    op["value"] = encode_value(op["value"])
        packed.append(encoding.pack({"id": number, "method": method, "params": told}))
    return [encoding.join(packed), *(encoding.join([one]) for one in packed)]


def updates(rng: random.Random) -> Sequence[bytes]:
    """Updates and states of a document with text, a list and a map in it."""
    doc: Doc[Any] = Doc(client_id=7)
    text, array, things = (
        doc.get(name, type=kind) for name, kind in (("t", Text), ("a", Array), ("m", Map))
    )
    found = []
    for number in range(12):
        before = doc.get_state()
        text.insert(rng.randrange(len(str(text)) + 1), rng.choice(("word ", "x", "number ")))
        array.append({"n": number, "of": [None, True, 2.5, "s"]})
        things[f"k{number % 3}"] = number
        if number % 4 == 3:
            del array[0]
        found.append(doc.get_update(before))
    return [*found, doc.get_update(), doc.get_state()]


# --- the targets ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Target:
    """`make` draws an input; `read` takes it, or raises an error of ours."""

    make: Callable[[random.Random], Any]
    read: Callable[[Any], object]


def of_bytes(corpus: Sequence[bytes], read: Callable[[bytes], object]) -> Target:
    """A target that reads bytes."""
    return Target(lambda rng: changed_bytes(rng, corpus), read)


def session_of(encoding: Encoding, frame: bytes) -> object:
    """What a service's session makes of a frame, before and after it was greeted."""
    for session in (ServerSession(encoding, now_ms=0), ServerSession.greeted(encoding)):
        try:
            session.receive(frame)
            session.bytes_to_send()
        except BlackboardError:
            continue
    return ClientSession(encoding).receive(frame)


def request(rng: random.Random) -> tuple[str, Any]:
    """A method with params that are almost right."""
    method, params = rng.choice(REQUESTS)
    for _ in range(rng.choice((1, 1, 2, 3))):
        params = changed_tree(rng, params)
    return method, params


def archived(changed: tuple[bytes, int, bytes, bytes]) -> object:
    """What becomes of rows of the archive, as somebody may have written them."""
    details, form, content, manifest = changed
    commit = SimpleNamespace(
        details=details,
        digest=b"d" * 32,
        revision=7,
        time_ms=1,
        agent="ada",
        lane=1,
        incarnation="i",
        step=4,
        note="",
    )
    row = SimpleNamespace(
        form=form, content=content, key=KEY, revision=7, position=0, expires_at_ms=None, item=None
    )
    with contextlib.suppress(ValueError):  # as it says
        archive_rows.unpack_manifest(manifest)
    archive_rows.referred(row)
    is_inline = form not in (ABSENT, BLOB, LOGGED)
    value = archive_rows.inline_value(row) if is_inline else None
    return archive_rows.entry_of(commit, [row], None, [value])


def archive_target() -> Target:
    """Rows of a commit, of a version, of a manifest."""
    details = [archive_rows.commit_row(1, ENTRY, b"c" * 32)["details"]]
    plain = [b"\x01", encode_value({"a": 1})]
    deflated = [archive_rows.content_of(b"a" * 4_000)[1]]
    manifests = [archive_rows.pack_manifest(b'{"format": 1, "board": "main"}' * 9)]

    def make(rng: random.Random) -> Any:
        form = rng.choice((PLAIN, DEFLATED, LOGGED, rng.randrange(256)))
        content = changed_bytes(rng, deflated if form == DEFLATED else plain)
        return changed_bytes(rng, details), form, content, changed_bytes(rng, manifests)

    return Target(make, archived)


def sealed_target() -> Target:
    """Sealed values: none that was changed opens."""
    cipher = AESGCM(b"k" * sealing.KEY_BYTES)
    header = sealing.Header(b"i" * sealing.KEY_ID_BYTES, sealing.PUT, CommitId("ada", 1, "i", 4))
    good = sealing.seal(cipher, header, "private/ada/a", encode_value("secret"))

    def read(value: bytes) -> object:
        found = sealing.header_of(value, "value")
        plain = sealing.open_sealed(cipher, found, "private/ada/a", value)
        assert value == good, "a value that was changed opened"
        return plain

    return of_bytes([good], read)


def redis_entry(changed: tuple[bytes, bytes, bytes]) -> object:
    """Fields that the engine gives back."""
    field, name, epoch = changed
    keys.read_epoch(epoch)
    return keys.read_entry(name, field, None)


TARGETS: dict[str, Callable[[random.Random], Target]] = {
    "frame msgpack": lambda _: of_bytes(frames(MSGPACK), MSGPACK.split),
    "frame json": lambda _: of_bytes(frames(JSON), JSON.split),
    "session msgpack": lambda _: of_bytes(frames(MSGPACK), lambda f: session_of(MSGPACK, f)),
    "session json": lambda _: of_bytes(frames(JSON), lambda f: session_of(JSON, f)),
    "request": lambda _: Target(request, lambda r: requests.parse(r[0], r[1], JSON)),
    "value": lambda _: of_bytes([encode_value(COMMIT), b"\x93\x01\xc0\xa1x"], decode_value),
    "value taken in": lambda _: of_bytes([encode_value(COMMIT)], MSGPACK.value_in),
    "results": lambda _: of_bytes(
        [encode_results(ENTRY.results)], lambda data: decode_results(data)
    ),
    "y frame": lambda rng: of_bytes(
        [
            *(ysync.write_update(update) for update in updates(rng)),
            ysync.write_step1(updates(rng)[-1]),
            ysync.write_step2(updates(rng)[-2]),
        ],
        ysync.read_frame,
    ),
    "y update": lambda rng: of_bytes(updates(rng), crdt.read_update),
    "y state": lambda rng: of_bytes(updates(rng)[-1:], crdt.read_state),
    "archive": lambda _: archive_target(),
    "sealed": lambda _: sealed_target(),
    "answer": lambda _: Target(
        lambda rng: changed_tree(
            rng, {"revision": 3, "epoch": [1, "e"], "entries": [{"key": KEY, "value": b"\x01"}]}
        ),
        lambda message: answers.read(answers.ReadingMessage, message, MSGPACK),
    ),
}


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_almost_right_is_taken_or_refused(name: str, seed: int) -> None:
    """Nothing else is raised, and nothing takes long."""
    rng = random.Random(f"{seed} {name}")
    target = TARGETS[name](rng)
    with Layer("hostile", seeds=[seed]) as layer:
        for _ in range(INPUTS):
            given = target.make(rng)
            begun = time.thread_time()  # what others do on this machine does not count
            layer.operations += 1
            try:
                target.read(given)
            except BlackboardError:
                layer.faults["refused"] += 1
            except Exception as error:
                raise AssertionError(f"{name}: {given!r:.2000}") from error
            else:
                layer.faults["taken"] += 1
            assert time.thread_time() - begun < SECONDS_MAX, f"{name}: {given!r:.2000}"
    assert layer.faults["refused"], "none of them was wrong"


async def test_posts_that_are_almost_right_are_answered(tmp_path: Path, seed: int) -> None:
    """By HTTP, as it is served: with one of the statuses of the protocol, and never with 500."""
    rng = random.Random(f"{seed} post")
    async with (
        Service(await SqliteStore.at(tmp_path, "memory")) as service,
        serving(service) as served,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        url = served.url.replace("ws:", "http:")
        headers = {"Authorization": f"Bearer {served.token()}"}
        with Layer("hostile", seeds=[seed]) as layer:
            for _ in range(max(100, INPUTS // 20)):
                method, params = request(rng)
                told = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                body = json.dumps(
                    rng.choice((told, [told, told], changed_tree(rng, told)))
                ).encode()
                if rng.random() < 0.3:
                    body = changed_bytes(rng, [body])
                answer = await http.post(f"{url}/v1/rpc", content=body, headers=headers)
                layer.operations += 1
                layer.faults["taken" if answer.status_code == 200 else "refused"] += 1
                assert answer.status_code in (200, 400, 413), body
                assert isinstance(answer.json(), dict | list), body
        assert (await http.get(f"{url}/healthz")).status_code == 200


async def test_a_file_that_was_changed_is_refused(tmp_path: Path, seed: int) -> None:
    """Also when the attacker computed all of its hashes again: then keys and values count, as
    they were signed. Authors, times and counters of lists are not."""
    rng = random.Random(f"{seed} file")
    async with blackboard.open(tmp_path / "data", level="memory") as client:
        board = client.board("main")
        await board.commit([Put(f"public/{n}", encode_value(["v", n])) for n in range(20)])
        await board.append("public/log", 1)
        await board.checkpoint("one")
        good = tmp_path / "one.bbx"
        await board.export("one", good)
        told = await _content(board)
        with Layer("hostile", seeds=[seed]) as layer:
            for number in range(max(20, INPUTS // 50)):
                bad = tmp_path / "bad.bbx"
                await anyio.to_thread.run_sync(_forge, rng, good, bad)
                layer.operations += 1
                try:
                    made = await client.import_board(bad, f"board-{number}")
                except BlackboardError:
                    layer.faults["refused"] += 1
                else:
                    layer.faults["taken"] += 1
                    assert await _content(made) == told
        assert layer.faults["refused"]
        assert len(await client.boards()) == 1 + layer.faults["taken"]


async def _content(board: blackboard.Board) -> dict[str, object]:
    return {entry.key: entry.value for entry in (await board.list("public/**")).entries}


def _forge(rng: random.Random, good: Path, bad: Path) -> None:
    """A file like `good` in which one member is another, with the right hashes; or any bytes."""
    if rng.random() < 0.2:
        data = good.read_bytes()
        bad.write_bytes(changed_bytes(rng, [data]) + b"x")
        return
    with zipfile.ZipFile(good) as source:
        found = {name: source.read(name) for name in source.namelist()}
    header = json.loads(found.pop("export.json"))
    name = rng.choice(("entries.msgpack", "items.msgpack", "manifest", "signature"))
    before = found[name]
    while found[name] == before:
        found[name] = changed_bytes(rng, [before])
    header["sha256"] = {each: hashlib.sha256(data).hexdigest() for each, data in found.items()}
    with zipfile.ZipFile(bad, "w") as target:
        for each, data in {**found, "export.json": json.dumps(header).encode()}.items():
            target.writestr(each, data)
        target.comment = b"0" * 64
    transfer.seal(bad)
