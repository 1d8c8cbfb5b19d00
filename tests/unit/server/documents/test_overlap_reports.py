"""Reports of overlaps: what they cost, how many a document has, and what they must not end."""

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.path import barrier_key, document_prefix, overlaps_prefix
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import RateLimited
from blackboard.limits import Limits
from blackboard.ops import Delete
from blackboard.server.service import Service
from blackboard.wire import ysync
from tests.conformance.peers import Peer
from tests.conformance.rules_board_checkpoint import BARRIER_MS, under_way
from tests.conformance.team import PATIENCE_S

BOARD, KEY = "board", "public/memo"
ADA = access.agent("ada")


@pytest.fixture
async def service(tmp_path: Path, limits: Limits) -> AsyncIterator[Service]:
    """A service over an empty directory."""
    async with Service(await SqliteStore.at(tmp_path, "memory"), limits=limits) as running:
        yield running


@pytest.fixture
def board(service: Service) -> Board:
    """The board, as its operator sees it."""
    return Client(service.link(access.operator())).board(BOARD)


def met(count: int, text: str = "text") -> bytes:
    """A frame with so many reports."""
    return b"".join(ysync.write_met(ysync.Met(text, 0, 1, ())) for _ in range(count))


async def reports(board: Board) -> int:
    """How many the document has."""
    return len((await board.list(f"{overlaps_prefix(KEY)}/*")).entries)


@pytest.mark.limits(overlap_reports_max=5)
async def test_a_document_has_so_many_reports(service: Service, board: Board) -> None:
    """OVERLAP_REPORTS_MAX; further ones are left out, also of a peer that comes later."""
    for _ in range(2):
        async with Peer().connected(service.link(ADA), BOARD, KEY) as peer:
            await peer.sync()
            await peer.send(met(9))
            await peer.sync_again()
            assert await reports(board) == 5
    await board.delete_prefix(overlaps_prefix(KEY))
    async with Peer().connected(service.link(ADA), BOARD, KEY) as peer:
        await peer.sync()
        await peer.send(met(3))
        await peer.sync_again()
        assert await reports(board) == 3
    await board.delete_prefix(document_prefix(KEY))


async def test_a_report_is_paid_for(service: Service, board: Board) -> None:
    """As an edit: it waits until the account may add to the logs."""
    charged: list[int] = []

    def pay(size: int) -> RateLimited | None:
        charged.append(size)
        return RateLimited("log", "too many bytes", 1) if len(charged) == 1 else None

    assert service.host.documents is not None
    async with service.host.documents.join(BOARD, KEY, ADA, pay=pay) as session:
        peer = Peer()
        peer.pipe = session
        await peer.send(met(2, "x" * 500))
        await peer.sync_again()
    assert await reports(board) == 2
    assert len(charged) == 3
    assert min(charged) > 500


async def test_a_report_that_meets_a_barrier_ends_no_session(
    service: Service, board: Board
) -> None:
    """It is left out, and the edits of the session are not."""
    ada = board.as_agent("ada")
    async with Peer().connected(service.link(ADA), BOARD, KEY) as peer:
        await peer.sync()
        async with ada.attach(), under_way(board, "plan", BARRIER_MS) as taking:
            await peer.send(met(1))
            await peer.sync_again()
            await ada.commit([Delete(barrier_key("ada"))])
            with anyio.fail_after(PATIENCE_S):
                await taking
        await peer.push(peer.edit("afterwards"))
        await peer.sync_again()
    assert await reports(board) == 0
    async with board.document(KEY) as doc:
        assert str(doc.text()) == "afterwards"
