"""An edit is sent to peers when its commit is acknowledged: once, and in order."""

import asyncio
from pathlib import Path

import pytest

from blackboard.client.documents.layout import Item
from blackboard.client.documents.replica import DamagedError
from blackboard.core import access
from blackboard.core.documents import update as crdt
from blackboard.errors import DocumentRefused, Unauthenticated
from blackboard.server.documents import room as documents_room
from blackboard.server.documents.room import EditInFlight, Room
from blackboard.server.documents.session import Session
from blackboard.wire.ysync import Edit
from tests.conformance.peers import Peer
from tests.unit.server.hooked import service_over
from tests.waiting import TIMEOUT_S, let_pass, wait_until

BOARD, KEY = "board", "public/memo"


async def test_an_edit_is_sent_before_the_log_brings_it_and_not_again(tmp_path: Path) -> None:
    """While nobody can read the log, the others have it; when it can be read, they are not told
    again."""
    may_read = asyncio.Event()
    may_read.set()
    async with service_over(tmp_path) as (service, store):
        store.hook("after log", lambda: _wait(may_read))
        link = service.link(access.operator())
        async with (
            Peer().connected(link, BOARD, KEY) as ann,
            Peer().connected(link, BOARD, KEY) as ben,
        ):
            await ann.sync()
            await ben.sync()
            may_read.clear()
            for word in ("one ", "two ", "three "):
                await ann.push(ann.edit(word))
            told: list[Edit] = []
            while str(ben.text) != str(ann.text):
                told += [m for m in await ben.take() if isinstance(m, Edit)]
            may_read.set()
            await ann.push(ann.edit("four "))
            while str(ben.text) != str(ann.text):
                told += [m for m in await ben.take() if isinstance(m, Edit)]
            spans = [(s.clock, s.length) for m in told for s in crdt.read_update(m.update).structs]
            assert sum(length for _, length in spans) == len("one two three four ")
            assert len(set(spans)) == len(spans)
            await ben.sync_again()
            assert str(ben.text) == "four three two one "


async def test_edits_that_come_together_are_one_commit_and_one_update(tmp_path: Path) -> None:
    """Typing is stored as it would be had it been inserted at once; each edit is acknowledged."""
    async with service_over(tmp_path) as (service, _):
        link = service.link(access.operator())
        async with (
            Peer().connected(link, BOARD, KEY) as ann,
            Peer().connected(link, BOARD, KEY) as ben,
        ):
            await ann.sync()
            await ben.sync()
            before = (await link.head(BOARD)).revision
            keys = [ann.edit(key, at) for at, key in enumerate("typed in a go")]
            for key in keys:
                await ann.push(key)
            await ann.sync_again()
            assert (await link.head(BOARD)).revision == before + 1
            told: list[Edit] = []
            while str(ben.text) != "typed in a go":
                told += [m for m in await ben.take() if isinstance(m, Edit)]
            [edit] = told
            assert len(edit.update) < len(keys[0]) + len(keys)
            [struct] = crdt.read_update(edit.update).structs
            assert struct.length == len(keys)


async def test_who_comes_in_between_gets_it_once(tmp_path: Path) -> None:
    """An answer is given when the log was read up to the newest commit."""
    async with service_over(tmp_path) as (service, _):
        link = service.link(access.operator())
        async with Peer().connected(link, BOARD, KEY) as ann:
            await ann.sync()
            for i in range(20):
                await ann.push(ann.edit(f"{i} "))
                async with Peer().connected(link, BOARD, KEY) as late:
                    await late.sync()
                    await late.sync_again()
                    assert str(late.text) in str(ann.text)
            await ann.sync_again()
            async with Peer().connected(link, BOARD, KEY) as late:
                await late.sync()
                assert str(late.text) == str(ann.text)


async def test_an_edit_that_fails_is_sent_to_nobody(tmp_path: Path) -> None:
    """Its sender is ended; the others go on, and the next edit builds on what is committed."""
    async with service_over(tmp_path) as (service, store):
        link = service.link(access.operator())
        async with Peer().connected(link, BOARD, KEY) as ben:
            await ben.sync()
            async with Peer().connected(link, BOARD, KEY) as ann:
                await ann.sync()
                store.hook("before commit", _refuse)
                await ann.push(ann.edit("lost "))
                assert (await ann.refusal()).cause == "closed"
                del store.hooks["before commit"]
            async with Peer().connected(link, BOARD, KEY) as cleo:
                await cleo.sync()
                await cleo.push(cleo.edit("found "))
                while str(ben.text) != "found ":
                    await ben.take()


async def _wait(event: asyncio.Event) -> None:
    await event.wait()


async def _refuse() -> None:
    raise Unauthenticated(reason="for the test")


async def test_an_edit_that_waited_for_another_is_sent_with_it(tmp_path: Path) -> None:
    """The log may bring two edits the wrong way round; both are delivered once both are there."""
    async with service_over(tmp_path) as (service, _):
        room = Room(service.link, BOARD, KEY)
        peer = Peer()
        items = [Item((), peer.edit(word), "ann") for word in ("a", "b", "c")]
        assert room._apply(items[1]) == []
        assert room._apply(items[0]) == [items[0], items[1]]
        assert room._apply(items[2]) == [items[2]]


async def test_an_edit_is_not_sent_before_the_one_it_builds_on(tmp_path: Path) -> None:
    """Acknowledgements of two members may come the wrong way round: the log brings both in order.
    What was delivered is in the document at once."""
    async with service_over(tmp_path) as (service, _):
        room = Room(service.link, BOARD, KEY)
        peer = Peer()
        first, second = (peer.edit(word) for word in ("a", "b"))
        async with service.link(access.operator()).document(BOARD, KEY) as member:
            for data in (first, second):
                edit = EditInFlight(member, crdt.read_update(data))
                room._in_flight._in_flight[data] = edit
            room._forward_acknowledged([second])
            assert not room.live.clocks
            room._forward_acknowledged([first, second])
            assert room._in_flight.find(first) == EditInFlight(
                member, crdt.read_update(first), True
            )
            assert room.live.clocks == crdt.read_state(peer.doc.get_state())
            assert room._apply_once(Item((), second, "ann")) == []


async def test_what_cannot_be_delivered_is_not_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the library fails as edits are put together for others, the document is opened again: what
    counts as told, and is not in it, would never be."""

    def damaged(_: list[bytes]) -> bytes:
        raise DamagedError("for the test")

    monkeypatch.setattr(documents_room, "merged", damaged)
    async with service_over(tmp_path) as (service, _):
        room = Room(service.link, BOARD, KEY)
        room._task = asyncio.create_task(_wait(asyncio.Event()))
        peer, link = Peer(), service.link(access.operator())
        async with link.document(BOARD, KEY) as ann, link.document(BOARD, KEY) as ben:
            room._listening.add(ben)
            edits = [peer.edit(word) for word in ("a", "b")]
            for data in edits:
                room._in_flight._in_flight[data] = EditInFlight(ann, crdt.read_update(data))
            room._forward_acknowledged(edits)
            async with asyncio.timeout(TIMEOUT_S):
                await asyncio.wait([room._task])
            assert room._task.cancelled()


# --- the shortcut to the socket -------------------------------------------------------------------


class Socket:
    """Takes what is written while it `is_open`; and somebody who reads the rest."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.got: list[bytes] = []
        self.is_open = True
        session.attach(self.write)

    def write(self, frame: bytes) -> bool:
        """As `blackboard.server.http.uvicorn_protocol.Write`."""
        if self.is_open:
            self.got.append(frame)
        return self.is_open

    async def read(self) -> None:
        """Take what waits, until the session ends."""
        while True:
            self.got.append(await self.session.receive())


async def test_what_is_written_and_what_waits_stay_in_order(tmp_path: Path) -> None:
    async with service_over(tmp_path) as (service, _):
        link = service.link(access.operator())
        async with link.document(BOARD, KEY) as session:
            socket = Socket(session)
            session.deliver(b"0")  # nobody reads yet: it waits
            reader = asyncio.create_task(socket.read())
            await wait_until(lambda: _has(socket, 2))
            frames = [b"%d" % i for i in range(1, 60)]
            for i, frame in enumerate(frames):
                socket.is_open = i % 3 != 0
                session.deliver(frame)
                if i % 7 == 0:
                    await let_pass(0)
            await wait_until(lambda: _has(socket, 61))
            assert [f for f in socket.got if f.isdigit()] == [b"0", *frames]
            reader.cancel()


async def test_nothing_is_written_under_a_token_that_ended(tmp_path: Path) -> None:
    is_over = False

    def check() -> None:
        if is_over:
            raise Unauthenticated(reason="for the test")

    async with service_over(tmp_path) as (service, _):
        documents, principal = service.host.documents, access.operator()
        assert documents is not None
        await service.link(principal).head(BOARD)
        async with documents.join(BOARD, KEY, principal, check) as session:
            socket = Socket(session)
            reader = asyncio.create_task(socket.read())
            await wait_until(lambda: _has(socket, 1))
            is_over = True
            session.deliver(b"secret")
            with pytest.raises((Unauthenticated, DocumentRefused)):
                async with asyncio.timeout(TIMEOUT_S):
                    await reader
            assert b"secret" not in socket.got


async def _has(socket: Socket, count: int) -> bool:
    return len(socket.got) >= count
