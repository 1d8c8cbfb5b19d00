"""At the edges of what documents may take; and what a restore makes of any history."""

import gc
import hashlib
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from pycrdt import Array, Doc, Map, Text

from blackboard.archive.sql import archive_beside
from blackboard.client.client import Client
from blackboard.client.documents.inverse import digest_of, inverse
from blackboard.client.documents.replica import Replica
from blackboard.core import access
from blackboard.core.documents import update as crdt
from blackboard.core.path import base_key, parts_prefix
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Corrupt, DocumentRefused, LimitExceeded, RateLimited
from blackboard.limits import VALUE_BYTES_MAX, Limits
from blackboard.server.documents import staging
from blackboard.server.documents.room import Room
from blackboard.server.service import Service
from blackboard.wire import ysync
from tests.conformance.peers import Peer
from tests.lowered import lowered

BOARD, KEY = "board", "public/memo"


@pytest.fixture
async def service(tmp_path: Path, limits: Limits) -> AsyncIterator[Service]:
    """A service over an empty directory."""
    async with Service(await SqliteStore.at(tmp_path, "memory"), limits=limits) as running:
        yield running


async def test_a_document_has_so_many_bytes(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What would make it larger is refused; what is there stays, and may shrink."""
    monkeypatch.setattr(staging, "DOCUMENT_BYTES_MAX", 1_000)
    link = service.link(access.operator())
    async with Peer().connected(link, BOARD, KEY) as peer:
        await peer.sync()
        await peer.push(peer.edit("x" * 900))
        await peer.sync_again()
        await peer.push(peer.edit("y" * 200))
        assert (await peer.refusal()).cause == "too_large"
    async with Peer().connected(link, BOARD, KEY) as peer:
        await peer.sync()
        assert str(peer.text) == "x" * 900
        await peer.push(peer.edit("z"))
        await peer.sync_again()


async def test_a_base_that_is_none_is_reported(service: Service) -> None:
    """It is not waited for until the time is over: it does not become one."""
    board = Client(service.link(access.operator())).board(BOARD)
    await board.put(base_key(KEY), {"parts": ["g", 1], "owners": {}, "mark": None})
    await board.put(f"{parts_prefix(KEY, 'g')}/0000", b"no update")
    with pytest.raises(Corrupt, match=KEY):
        await board.document(KEY)


@pytest.mark.parametrize("limits", [lowered(document_tail_updates=n) for n in (1, 100)])
async def test_an_edit_that_cuts_a_character_is_refused(service: Service) -> None:
    """Whether it was compacted or not, the library would take it, and could not load the document
    any more."""
    link = service.link(access.operator())
    writer = Peer()
    async with writer.connected(link, BOARD, KEY) as peer:
        await peer.sync()
        peer.text.insert(0, "é😀")
        peer.doc.get("more", type=Map)["k"] = Map({"n": Text("hi")})
        await peer.push(peer.doc.get_update())
        await peer.sync_again()
    for _ in range(2):
        async with Peer().connected(link, BOARD, KEY) as vandal:
            await vandal.sync()
            half = crdt.write_state({writer.doc.client_id: 2})[1:] + b"\x01"
            await vandal.push(b"\x00\x01" + half[:-2] + b"\x01" + half[-2:])
            refused = await vandal.refusal()
            assert (refused.cause, refused.reason) == ("malformed", "it cuts a character in two")
    async with Peer().connected(link, BOARD, KEY) as peer:
        await peer.sync()
        assert str(peer.text) == "é😀"
        await peer.push(peer.edit("so: "))
        await peer.sync_again()
        assert str(peer.text) == "so: é😀"


@pytest.mark.limits(document_sessions_max=2)
async def test_a_document_has_so_many_sessions(service: Service) -> None:
    """DOCUMENT_SESSIONS_MAX of one process."""
    link = service.link(access.operator())
    async with link.document(BOARD, KEY), link.document(BOARD, KEY):
        with pytest.raises(LimitExceeded, match="DOCUMENT_SESSIONS_MAX"):
            async with link.document(BOARD, KEY):
                pass
    async with link.document(BOARD, KEY):
        pass


@pytest.mark.limits(documents_max=1)
async def test_a_process_has_so_many_documents(service: Service) -> None:
    """DOCUMENTS_MAX open ones; one that is closed makes room."""
    link = service.link(access.operator())
    async with link.document(BOARD, KEY):
        with pytest.raises(LimitExceeded, match="DOCUMENTS_MAX"):
            async with link.document(BOARD, "public/other"):
                pass
    async with link.document(BOARD, "public/other"):
        pass


async def test_an_edit_that_waits_while_its_board_is_restored_is_not_committed(
    tmp_path: Path,
) -> None:
    """The first edit of an author here, whose account may not write yet."""
    owes = False

    def pay(size: int) -> RateLimited | None:
        return RateLimited("log", "too much", 10) if owes else None

    store = await SqliteStore.at(tmp_path, "memory")
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        link, seed, late = service.link(access.operator()), Peer(), Peer()
        board = Client(link).board(BOARD)
        async with seed.connected(link, BOARD, KEY):
            seed.edit("agreed")
            await seed.sync()
            await board.checkpoint("then")
            await seed.push(seed.edit("regretted "))
            await seed.sync_again()
        documents = service.host.documents
        assert documents is not None
        async with documents.join(BOARD, KEY, access.operator("late"), pay=pay) as session:
            late.pipe = session
            await late.sync()
            owes = True
            await late.push(late.edit("really "))
            await board.restore("then")
            assert (await late.refusal()).cause == "closed"
            owes = False
        async with board.document(KEY) as doc:
            assert str(doc.text()) == "agreed"


async def test_who_edits_goes_on_after_epochs_that_lost_nothing(tmp_path: Path) -> None:
    """Of which it wrote in none."""
    store = await SqliteStore.at(tmp_path, "memory")
    async with Service(store) as service:
        link, peer = service.link(access.operator()), Peer()
        async with peer.connected(link, BOARD, KEY):
            await peer.sync()
            await peer.push(peer.edit("one "))
            await peer.sync_again()
            for _ in range(2):
                head = await store.open(BOARD)
                await store.begin_epoch(BOARD, head, above=head.revision)
            assert (await peer.refusal()).cause == "closed"
        peer.edit("two ")
        async with peer.connected(link, BOARD, KEY):
            await peer.sync()
            await peer.sync_again()
        async with Client(link).board(BOARD).document(KEY) as doc:
            assert str(doc.text()) == "two one "


async def test_two_services_exchange_edits_through_the_log(redis_url: str) -> None:
    """Neither knows of the other."""
    from blackboard.engines.redis.store import RedisStore

    async with (
        Service(RedisStore.connect(redis_url)) as one,
        Service(RedisStore.connect(redis_url)) as two,
    ):
        first, second = (s.link(access.operator()) for s in (one, two))
        async with (
            Peer().connected(first, BOARD, KEY) as ann,
            Peer().connected(second, BOARD, KEY) as ben,
        ):
            await ann.sync()
            await ben.sync()
            for _ in range(20):
                await ann.push(ann.edit("a"))
                await ben.push(ben.edit("b"))
            for peer in (ann, ben, ann, ben):
                await peer.sync_again()
            assert str(ann.text) == str(ben.text)
            assert sorted(str(ann.text)) == ["a"] * 20 + ["b"] * 20


async def test_a_fault_of_ours_is_reported_to_the_peer(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes back and asks again, instead of waiting for who does not answer any more."""

    def fails(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    link = service.link(access.operator())
    async with Peer().connected(link, BOARD, KEY) as peer:
        with monkeypatch.context() as patch:
            patch.setattr(Room, "tell", fails)
            await peer.send(ysync.write_step1(peer.doc.get_state()))
            assert (await peer.refusal()).cause == "closed"
    async with Peer().connected(link, BOARD, KEY) as peer:
        await peer.sync()


async def test_a_refused_edit_is_reported_with_its_document(service: Service) -> None:
    link = service.link(access.operator())
    async with Peer().connected(link, BOARD, KEY) as peer:
        await peer.sync()
        await peer.push(b"nonsense")
        refused = await peer.refusal()
        assert (refused.key, refused.cause) == (KEY, "malformed")
        with pytest.raises(DocumentRefused):
            await peer.send(b"\x03")


def edit(doc: Doc[Any], rng: random.Random, count: int) -> None:
    """So many random edits of every kind."""
    text, array = doc.get("t", type=Text), doc.get("a", type=Array)
    mapping = doc.get("m", type=Map)
    for _ in range(count):
        match rng.randrange(7):
            case 0 | 1:
                text.insert(rng.randrange(len(text) + 1), rng.choice(["ab", "c", "defg"]))
            case 2 if len(text) > 3:
                start = rng.randrange(len(text) - 2)
                del text[start : start + 2]
            case 3:
                mapping[f"k{rng.randrange(4)}"] = rng.randrange(100)
            case 4:
                array.append(Map({"x": Text("n")}))
            case 5 if len(array):
                del array[rng.randrange(len(array))]
            case _ if len(array):
                array[rng.randrange(len(array))]["y"] = rng.randrange(9)


def content(doc: Doc[Any]) -> object:
    """All of it, as plain values."""
    kinds = {"t": Text, "a": Array, "m": Map}
    return [doc.get(name, type=kind).to_py() for name, kind in kinds.items()]


def test_equal_content_has_equal_digests(seed: int) -> None:
    """Whatever its history; anybody can compute it, with the tools of any language."""
    rng = random.Random(seed)
    one: Doc[Any] = Doc()
    edit(one, rng, 30)
    one.get("m", type=Map)["data"] = b"\x01\xff"
    two: Doc[Any] = Doc()
    two.apply_update(one.get_update())
    one.get("t", type=Text).insert(0, "x")
    assert digest_of(one.get_update()) != digest_of(two.get_update())
    del one.get("t", type=Text)[0:1]
    assert one.get_update() != two.get_update()
    assert digest_of(one.get_update()) == digest_of(two.get_update())
    three: Doc[Any] = Doc()
    three.get("t", type=Text).insert(0, "né" * VALUE_BYTES_MAX)
    three.get("m", type=Map)["b"] = {"z": 3, "a": b"\xff"}
    three.get("m", type=Map)["a"] = [1.5, None]
    written = '{"m":{"a":[1.5,null],"b":{"a":{"$bytes":"ff"},"z":3}},"t":"%s"}'
    expected = hashlib.sha256((written % ("né" * VALUE_BYTES_MAX)).encode()).hexdigest()
    assert digest_of(three.get_update()) == expected


def test_an_inverse_update_takes_any_history_back(seed: int) -> None:
    """On the document itself, and on a replica that edits at the same time; again and again."""
    rng = random.Random(seed)
    for _ in range(60):
        one: Doc[Any] = Doc()
        two: Doc[Any] = Doc()
        edit(one, rng, rng.randrange(20))
        two.apply_update(one.get_update())
        then, wanted = one.get_update(), content(one)
        for _ in range(2):
            edit(one, rng, rng.randrange(20))
            edit(two, rng, rng.randrange(20))
            one.apply_update(two.get_update())
            two.apply_update(one.get_update(two.get_state()))
            update, mark = inverse([then], [one.get_update()])
            if mark is None:
                assert content(one) == wanted
                continue
            one.apply_update(update)
            two.apply_update(update)
            assert content(one) == content(two) == wanted
            assert mark in crdt.read_state(two.get_state())
            assert inverse([one.get_update()], [one.get_update()]) == (b"", None)


async def test_a_document_that_nobody_has_open_does_not_wait_for_the_collector(
    service: Service,
) -> None:
    """Which comes to what is old once in days: a document may take hundreds of megabytes."""
    link = service.link(access.operator())
    gc.collect()
    gc.disable()
    try:
        async with Peer().connected(link, BOARD, KEY) as peer, Peer().connected(link, BOARD, KEY):
            await peer.sync()
            await peer.push(peer.edit("x" * 900))
            await peer.sync_again()
            assert any(replica.clocks for replica in _replicas())
        assert not any(replica.clocks for replica in _replicas())
    finally:
        gc.enable()


def _replicas() -> list[Replica]:
    return [found for found in gc.get_objects() if type(found) is Replica]
