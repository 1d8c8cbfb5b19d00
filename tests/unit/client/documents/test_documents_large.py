"""Documents as large as they may be: loaded, compacted, restored, and not a byte larger."""

import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.documents.layout import PIECE_BYTES
from blackboard.client.link import Transport
from blackboard.core import access
from blackboard.core.documents import update as crdt
from blackboard.core.path import document_prefix
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import DocumentRefused
from blackboard.limits import DEFAULT, DOCUMENT_BYTES_MAX, DOCUMENT_UPDATE_BYTES_MAX, Limits
from blackboard.server.service import Service
from blackboard.wire import ysync
from blackboard.wire.ysync import AwarenessState
from tests.conformance.peers import Peer
from tests.waiting import wait_until

BOARD, KEY = "board", "public/memo"
OVERHEAD = 64
"""What an update of one insertion has besides its text, at most."""
PART = "x" * (DOCUMENT_UPDATE_BYTES_MAX - OVERHEAD)
PARTS = DOCUMENT_BYTES_MAX // DOCUMENT_UPDATE_BYTES_MAX


@pytest.fixture
async def link(tmp_path: Path, limits: Limits) -> AsyncIterator[Transport]:
    """A way to a service that can look back."""
    store, archive = await SqliteStore.at(tmp_path, "memory"), await archive_beside(tmp_path)
    async with Service(store, archive=archive, limits=limits) as service:
        yield service.link(access.operator())


@pytest.fixture
def board(link: Transport) -> Board:
    """The same, as people use it."""
    return Client(link).board(BOARD)


async def fill(peer: Peer, parts: int = PARTS) -> None:
    """Write so many updates of the largest size."""
    for _ in range(parts):
        await peer.push(peer.edit(PART))
        await peer.sync_again()


async def test_a_document_is_as_large_as_it_may_be(link: Transport, board: Board) -> None:
    """A peer that joins later gets it, although it is more than may wait for a slow reader."""
    async with Peer().connected(link, BOARD, KEY) as writer:
        await writer.sync()
        await writer.send(ysync.write_awareness([AwarenessState(1, 1, '{"name":"writer"}')]))
        await fill(writer)
        room = DOCUMENT_BYTES_MAX - PARTS * len(PART)
        assert PARTS * len(PART) > DEFAULT.service.outgoing_bytes_max
        async with Peer().connected(link, BOARD, KEY) as reader:
            await reader.sync()
            assert len(str(reader.text)) == PARTS * len(PART)
            await writer.push(writer.edit("y" * 100))
            while len(str(reader.text)) == PARTS * len(PART):
                await reader.take()
        await writer.push(writer.edit("y" * room))
        assert (await writer.refusal()).cause == "too_large"
    async with board.document(KEY) as doc:
        assert len(doc.text()) == PARTS * len(PART) + 100
        doc.text().insert(0, "and on ")


async def test_a_repeated_question_is_answered_once(link: Transport) -> None:
    """As stock clients do: one answer may be as large as a document, two may not wait."""
    async with Peer().connected(link, BOARD, KEY) as writer:
        await writer.sync()
        await fill(writer)
        async with Peer().connected(link, BOARD, KEY) as reader:
            for _ in range(2):
                await reader.send(ysync.write_step1(crdt.EMPTY_STATE))
            await writer.push(writer.edit("and more "))
            await writer.sync_again()
            for _ in range(2):
                await reader.sync_again()
            while len(str(reader.text)) < PARTS * len(PART) + len("and more "):
                await reader.take()


@pytest.mark.limits(document_tail_updates=12, compaction_delay_ms=0)
async def test_it_is_compacted_into_pieces_and_restored(link: Transport, board: Board) -> None:
    """Its base is more than one value, and so is the inverse update that brings it all back."""
    async with Peer().connected(link, BOARD, KEY) as writer:
        await writer.sync()
        await fill(writer, PARTS)

        async def compacted() -> bool:
            base = await board.get(f"{document_prefix(KEY)}/base")
            return base is not None and base["parts"][1] * PIECE_BYTES > 3 * len(PART)

        await wait_until(compacted)
        await board.checkpoint("whole")
        before = writer.doc.get_state()
        del writer.text[1000:]
        await writer.push(writer.doc.get_update(before))
        await writer.sync_again()
    await board.restore("whole")
    async with Peer().connected(link, BOARD, KEY) as reader:
        await reader.sync()
        assert len(str(reader.text)) == PARTS * len(PART)


async def test_what_was_made_away_from_the_line_may_be_too_large(
    link: Transport, board: Board
) -> None:
    """It cannot be taken in one commit; the document and others are unharmed."""
    peer = Peer()
    for _ in range(2):
        peer.edit(PART)
    async with peer.connected(link, BOARD, KEY):
        with pytest.raises(DocumentRefused) as refused:
            await peer.sync()
        assert refused.value.cause == "too_large"
    async with board.document(KEY) as doc:
        assert len(doc.text()) == 0


async def test_an_imported_document_says_the_same(
    link: Transport, board: Board, tmp_path: Path
) -> None:
    """It is edited on, and what was exported takes the edits in: they have one history."""
    async with board.document(KEY) as doc:
        doc.text().append("né 😀 " * 1000)
        doc.map("facts")["price"] = {"usd_bn": 2900, "raw": b"\x00"}
        await doc.synced()
        await board.checkpoint("whole")
        await board.export("whole", tmp_path / "board.bbx")
        assert (await board.verify("whole")).ok
        other = await Client(link).import_board(tmp_path / "board.bbx", "other")
        async with other.document(KEY) as copy:
            assert copy.digest() == doc.digest()
            assert type(copy.map("facts")["price"]["usd_bn"]) is int
            copy.text().insert(0, "tried: ")
            await copy.synced()
            doc.merge(copy)
            await doc.synced()
            assert copy.digest() == doc.digest()


async def test_a_closed_document_is_freed(board: Board) -> None:
    """Although parts of it were observed, and nobody ended that."""
    seen: list[object] = []
    async with await board.document(KEY) as memo:
        closed = weakref.ref(memo)
        memo.text().observe(seen.append)
        memo.list("tasks").observe(seen.append)
        stop = memo.map("status").observe(seen.append)
        memo.text().append("Buy.")
        memo.list("tasks").append("read")
        await memo.synced()
    assert len(seen) == 2
    stop()
    del memo, stop

    async def is_freed() -> bool:
        gc.collect()
        return closed() is None

    await wait_until(is_freed)
