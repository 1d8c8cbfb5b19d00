"""When a document is compacted: after so many updates, so many bytes, and before nobody has it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from blackboard.client.documents.layout import PIECE_BYTES, TAIL_DELETED_MAX, Base, UpdateTail
from blackboard.client.link import Transport
from blackboard.client.writer import CommitRequest, Writer
from blackboard.core import access
from blackboard.core.commit import Delete, Op
from blackboard.core.path import base_key, document_prefix, parts_prefix, updates_prefix
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Conflict
from blackboard.limits import DEFAULT, Limits
from blackboard.server.service import Service
from blackboard.units import Key
from tests.conformance.peers import Peer
from tests.lowered import lowered

BOARD, KEY = "board", "public/memo"
TAIL_BYTES = DEFAULT.documents.document_tail_bytes


def test_it_is_due_after_so_many_updates() -> None:
    tail = UpdateTail(KEY)
    for number in range(DEFAULT.documents.document_tail_updates):
        assert not tail.is_due
        tail.add(f"{updates_prefix(KEY)}/{number:016}", number + 1, 1)
    assert tail.is_due


def test_it_is_due_after_so_many_bytes() -> None:
    tail = UpdateTail(KEY)
    tail.add("one", 1, TAIL_BYTES - 1)
    assert not tail.is_due
    tail.add("two", 2, 1)
    assert tail.is_due
    tail.drop("two")
    tail.drop("what is not there")
    assert not tail.is_due


def test_beside_a_large_base_it_may_be_an_eighth_of_it() -> None:
    tail = UpdateTail(KEY, base_bytes=16 * TAIL_BYTES)
    tail.add("one", 1, 2 * TAIL_BYTES - 1)
    assert not tail.is_due
    tail.add("two", 2, 1)
    assert tail.is_due


class NotedWriter:
    """Commits nothing, and notes what was to be committed."""

    def __init__(self) -> None:
        self.ops: list[Op] = []

    async def commit(self, request: CommitRequest, **_: object) -> None:
        """As `Writer.commit`."""
        self.ops += request.ops


async def test_a_compaction_removes_whole_updates() -> None:
    """The rest of one, which lies in several values, would be read as an update of its own."""
    tail, writer = UpdateTail(KEY), NotedWriter()
    whole = [f"{updates_prefix(KEY)}/{number:010}" for number in range(TAIL_DELETED_MAX - 1)]
    for number, path in enumerate(whole):
        tail.add(path, number + 1, 1)
    for number in (TAIL_DELETED_MAX - 1, TAIL_DELETED_MAX):
        path = f"{updates_prefix(KEY)}/{number:010}"
        tail.add(path, TAIL_DELETED_MAX, 1, goes_on=number < TAIL_DELETED_MAX)
    await tail.compact(cast(Writer, writer), Base(), old=Base(), revision=TAIL_DELETED_MAX)
    assert [op.key for op in writer.ops if isinstance(op, Delete)] == whole


UNHURRIED = lowered(compaction_delay_ms=3_600_000, last_compaction_ms=60_000)
"""Only the end of a room hurries a compaction, and waits for it."""


@asynccontextmanager
async def linked(path: Path, limits: Limits = UNHURRIED) -> AsyncIterator[Transport]:
    """A way to a service over the boards in `path`."""
    async with Service(await SqliteStore.at(path, "memory"), limits=limits) as service:
        yield service.link(access.operator())


@pytest.fixture
async def link(tmp_path: Path) -> AsyncIterator[Transport]:
    """A way to a service."""
    async with linked(tmp_path) as link:
        yield link


async def write(link: Transport, text: str) -> None:
    """Insert a text and leave."""
    async with Peer().connected(link, BOARD, KEY) as peer:
        await peer.sync()
        await peer.push(peer.edit(text))
        await peer.sync_again()


async def parts(link: Transport) -> tuple[bool, int]:
    """Whether the document has a base, and how many updates besides."""
    found = await link.list(BOARD, f"{document_prefix(KEY)}/**", limit=100)
    keys = [entry.key for entry in found.entries]
    return base_key(KEY) in keys, sum(key.startswith(updates_prefix(KEY)) for key in keys)


async def length(link: Transport) -> int:
    """Of the text, as a new peer gets it."""
    async with Peer().connected(link, BOARD, KEY) as peer:
        await peer.sync()
        return len(str(peer.text))


async def test_what_is_due_is_done_before_nobody_has_the_document(link: Transport) -> None:
    await write(link, "x" * 100)
    assert await parts(link) == (False, 1)
    await write(link, "y" * TAIL_BYTES)
    assert await parts(link) == (True, 0)
    await write(link, "z" * 100)
    assert await parts(link) == (True, 1)
    assert await length(link) == TAIL_BYTES + 200


async def test_what_was_left_over_is_due_when_the_document_is_loaded(tmp_path: Path) -> None:
    """The process that should have done it may have died."""
    async with linked(tmp_path, lowered(UNHURRIED, document_tail_bytes=2**40)) as link:
        await write(link, "y" * TAIL_BYTES)
    async with linked(tmp_path) as link:
        assert await parts(link) == (False, 1)
        assert await length(link) == TAIL_BYTES
        assert await parts(link) == (True, 0)
        assert await length(link) == TAIL_BYTES


async def pieces(link: Transport) -> set[Key]:
    """The keys of the pieces of compacted states."""
    found: set[Key] = set()
    after: Key | None = None
    while True:
        page = await link.list(BOARD, f"{parts_prefix(KEY, '*')}/*", after=after, limit=100)
        found |= {entry.key for entry in page.entries}
        after = page.next_key
        if after is None:
            return found


class Interrupted(Exception):
    """Ends a compaction."""


class HaltingWriter:
    """Commits the pieces of a compaction, and ends it before its last commit, which it keeps."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.last: CommitRequest | None = None

    async def commit(self, request: CommitRequest, **_: object) -> None:
        """As `Writer.commit`."""
        if request.conditions:
            self.last = request
            raise Interrupted
        await self.writer.commit(request)


async def halted(link: Transport, tail: UpdateTail, old: Base) -> HaltingWriter:
    """A compaction to a large state that is interrupted after its pieces."""
    writer = HaltingWriter(Writer(link, BOARD))
    large = Base(b"s" * (4 * PIECE_BYTES))
    with pytest.raises(Interrupted):
        await tail.compact(cast(Writer, writer), large, old=old, revision=1)
    return writer


async def test_the_next_compaction_removes_what_an_interrupted_one_left(link: Transport) -> None:
    """Nothing else would: no base names these pieces, and they count in quotas."""
    await write(link, "x" * 100)
    await halted(link, UpdateTail(KEY), Base())
    assert len(await pieces(link)) == 4
    await write(link, "y" * TAIL_BYTES)
    assert await parts(link) == (True, 0)
    assert len(await pieces(link)) == 1
    assert await length(link) == TAIL_BYTES + 100


async def test_a_compaction_whose_pieces_were_removed_is_refused(link: Transport) -> None:
    """A process puts its pieces while another one, which has the document open, compacts."""
    async with Peer().connected(link, BOARD, KEY) as peer:
        await peer.sync()
        rival = await halted(link, UpdateTail(KEY), Base())
        await peer.push(peer.edit("y" * TAIL_BYTES))
        await peer.sync_again()
    assert await parts(link) == (True, 0)
    assert len(await pieces(link)) == 1
    assert rival.last is not None
    with pytest.raises(Conflict):
        await rival.writer.commit(rival.last)
    assert await length(link) == TAIL_BYTES
