"""Files at the edges: the largest one, a client that died, what others put in their place."""

import asyncio
import hashlib
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO

import pytest

import blackboard
from blackboard.client import files
from blackboard.client.board import Board
from blackboard.client.files import PARTS_PER_COMMIT
from blackboard.core.checkpoints import When
from blackboard.core.path import check_file, file_info_key, file_parts_prefix, upload_key
from blackboard.errors import Conflict, Corrupt, InvalidRequest, LimitExceeded
from blackboard.integrity.private_files import open_new_binary
from blackboard.limits import KEY_BYTES_MAX, LARGE_BYTES_MAX, LARGE_PART_BYTES

KEY = "public/report"


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """A board without a network."""
    async with blackboard.open(tmp_path / "data", level="memory") as client:
        yield client.board("main")


async def keys(board: Board) -> list[str]:
    """Everything there is."""
    return [entry.key async for entry in board.scan("public/**")]


async def test_the_largest_file(board: Board) -> None:
    def pieces() -> Iterator[bytes]:
        for _ in range(LARGE_BYTES_MAX // LARGE_PART_BYTES):
            yield bytes(LARGE_PART_BYTES)

    info = await board.files.put(KEY, pieces())
    assert info.size_bytes == LARGE_BYTES_MAX
    assert len(await keys(board)) == 1 + LARGE_BYTES_MAX // LARGE_PART_BYTES


async def test_a_restore_brings_back_the_largest(board: Board) -> None:
    """Its entries have keys, too, and something else has changed as well."""
    parts_max = LARGE_BYTES_MAX // LARGE_PART_BYTES
    info = await board.files.put(KEY, (b"\1" * LARGE_PART_BYTES for _ in range(parts_max)))
    await board.put("public/a", b"\2" * LARGE_PART_BYTES)
    await board.checkpoint("then")
    await board.files.delete(KEY)
    await board.delete("public/a")
    assert (await board.restore("then")).put_back == parts_max + 2
    found = await board.files.info(KEY)
    assert found is not None
    assert (found.size_bytes, found.sha256) == (LARGE_BYTES_MAX, info.sha256)
    assert len(await keys(board)) == parts_max + 2


async def test_what_a_dead_client_left_is_removed_by_the_next_upload(board: Board) -> None:
    never = asyncio.Event()

    async def stops() -> AsyncIterator[bytes]:
        yield bytes(PARTS_PER_COMMIT * LARGE_PART_BYTES)
        never.set()
        await asyncio.Event().wait()

    upload = await board.files._begin(KEY, "0123456789abcdef")
    putting = asyncio.create_task(board.files._put_parts(KEY, upload, stops(), None))
    await never.wait()
    putting.cancel()
    await asyncio.wait([putting])
    assert len(await keys(board)) == 1 + PARTS_PER_COMMIT
    assert await board.files.info(KEY) is None
    await board.files.put(KEY, b"done")
    assert len(await keys(board)) == 2


async def test_an_upload_that_lost_its_place_at_its_end(board: Board) -> None:
    """All of its parts were put; then somebody else put a file there."""
    upload = await board.files._begin(KEY, "0123456789abcdef")
    stored = await board.files._put_parts(KEY, upload, b"mine", None)
    other = await board.files.put(KEY, b"theirs")
    with pytest.raises(Conflict):
        await board.files._publish(KEY, upload, stored, None, "")
    assert await board.files.info(KEY) == other
    assert [piece async for piece in board.files.read(KEY)] == [b"theirs"]


async def test_parts_that_are_not_those_that_were_put(board: Board) -> None:
    """Missing, changed, or longer: found when the file is read."""
    await board.files.put(KEY, bytes(2 * LARGE_PART_BYTES))
    found = await board.get(file_info_key(KEY))
    second = f"{file_parts_prefix(KEY, found['parts'])}/0001"
    for wrong in (b"", bytes(LARGE_PART_BYTES - 1) + b"x", bytes(LARGE_PART_BYTES + 1), 7):
        await board.put(second, wrong)
        with pytest.raises(Corrupt, match="not those that were put"):
            [piece async for piece in board.files.read(KEY)]
    revision = (await board.put(second, bytes(LARGE_PART_BYTES))).revision
    assert len([piece async for piece in board.files.read(KEY, at=revision)]) == 2


@pytest.mark.parametrize("value", [7, None, {}, {"sha256": 1, "size_bytes": 1, "parts": "x"}])
async def test_an_entry_that_says_nothing_about_a_file(board: Board, value: object) -> None:
    await board.put(file_info_key(KEY), value)
    with pytest.raises(InvalidRequest, match="says nothing about a file"):
        await board.files.info(KEY)


@pytest.mark.parametrize("value", [7, {"parts": 1}, {"parts": "../x"}, {"parts": "a b"}])
async def test_an_upload_that_was_put_by_hand(board: Board, value: object) -> None:
    await board.put(upload_key(KEY), value)
    await board.files.put(KEY, b"done")
    assert [piece async for piece in board.files.read(KEY)] == [b"done"]


async def test_a_key_that_leaves_room_for_the_parts(board: Board) -> None:
    room = len("/~file/part/0123456789abcdef/0000")
    longest = "public/" + "/".join(["a" * 60] * 20)
    longest = longest[: KEY_BYTES_MAX - room]
    await board.files.put(longest, b"done")
    with pytest.raises(LimitExceeded) as refused:
        check_file(longest + "a")
    assert refused.value.limit == "KEY_BYTES_MAX"


async def test_what_is_said_of_a_saved_file_is_said_of_its_bytes(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is replaced as soon as it was looked up."""
    before = await board.files.put(KEY, b"before")
    entry = board.entry

    async def replaced(key: str, **named: Any) -> Any:
        found = await entry(key, **named)
        monkeypatch.undo()
        await board.files.put(KEY, b"after")
        return found

    monkeypatch.setattr(board, "entry", replaced)
    info = await board.files.save(KEY, tmp_path / "saved")
    content = (tmp_path / "saved").read_bytes()
    assert hashlib.sha256(content).hexdigest() == info.sha256
    assert (content, info) == (b"before", before)


async def test_a_save_that_is_cancelled_while_it_begins_leaves_nothing(
    board: Board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the disk is slow: what was to be its draft is not made afterwards."""
    await board.files.put(KEY, b"content")
    loop, removed, opened = asyncio.get_running_loop(), threading.Event(), threading.Event()
    unlink = Path.unlink

    def slowly(path: Path) -> BinaryIO:
        loop.call_soon_threadsafe(saving.cancel)
        removed.wait(0.3)
        try:
            return open_new_binary(path)
        finally:
            opened.set()

    def noting(path: Path, *, missing_ok: bool = False) -> None:
        unlink(path, missing_ok=missing_ok)
        removed.set()

    monkeypatch.setattr(files, "open_new_binary", slowly)
    monkeypatch.setattr(Path, "unlink", noting)
    (tmp_path / "there").mkdir()
    saving = asyncio.ensure_future(board.files.save(KEY, tmp_path / "there" / "saved"))
    await asyncio.wait([saving])
    assert saving.cancelled()
    await asyncio.to_thread(opened.wait)
    assert [*(tmp_path / "there").iterdir()] == []


@pytest.mark.parametrize("at", [None, "now", datetime(2999, 1, 1, tzinfo=UTC)])
async def test_a_file_that_is_replaced_while_it_is_read_is_read_to_its_end(
    board: Board, at: When | None
) -> None:
    """At a moment that moves on, too."""
    before = b"a" * LARGE_PART_BYTES + b"z"
    await board.files.put(KEY, before)
    found = b""
    async for piece in board.files.read(KEY, at=at):
        if not found:
            await board.files.put(KEY, b"after")
        found += piece
    assert found == before
