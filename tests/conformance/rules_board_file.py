"""Files: values that are too large for one entry, whole or not there, on every engine and link."""

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from blackboard.client.board import Board
from blackboard.core import access
from blackboard.core.path import file_prefix
from blackboard.errors import AccessDenied, Conflict, InvalidRequest, LimitExceeded
from blackboard.limits import LARGE_BYTES_MAX, LARGE_PART_BYTES
from tests.conformance.team import Team

KEY = "public/report"
OWN = "private/ada/report"
SMALL = b"all of it"
LARGE = bytes(range(256)) * (5 * LARGE_PART_BYTES // 256) + b"and a bit more"


async def content(board: Board, key: str = KEY, at: int | str | None = None) -> bytes:
    """The bytes of a file."""
    return b"".join([piece async for piece in board.files.read(key, at=at)])


async def parts(board: Board, key: str = KEY) -> list[str]:
    """The entries of a file."""
    return [entry.key async for entry in board.scan(f"{file_prefix(key)}/**")]


def halves() -> Iterator[bytes]:
    """A source that is not async."""
    yield LARGE[: len(LARGE) // 2]
    yield LARGE[len(LARGE) // 2 :]


class FileRules:
    """What `Board.files` promises."""

    @pytest.mark.parametrize("data", [b"", SMALL, b"\0" * LARGE_PART_BYTES, LARGE])
    async def test_a_file_comes_back_as_it_was_put(
        self, ada: Board, bob: Board, data: bytes
    ) -> None:
        seen: list[int] = []
        info = await ada.files.put(KEY, data, media_type="text/plain", progress=seen.append)
        assert (info.size_bytes, info.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert (info.author, info.media_type, info.key) == ("ada", "text/plain", KEY)
        assert await bob.files.info(KEY) == info
        assert await content(bob) == data
        assert seen == sorted(seen)
        assert (seen or [0])[-1] == len(data)

    async def test_a_source_is_a_path_or_an_iterable(self, ada: Board, tmp_path: Path) -> None:
        (tmp_path / "in").write_bytes(LARGE)
        await ada.files.put("public/path", tmp_path / "in")
        await ada.files.put("public/iterable", halves())
        with (tmp_path / "in").open("rb") as opened:
            await ada.files.put("public/opened", opened)
        for key in ("public/path", "public/iterable", "public/opened"):
            assert await content(ada, key) == LARGE
        saved = await ada.files.save("public/path", tmp_path / "out")
        assert (tmp_path / "out").read_bytes() == LARGE
        assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600
        assert saved == await ada.files.info("public/path")
        with pytest.raises(InvalidRequest, match="exists already"):
            await ada.files.save("public/path", tmp_path / "out")
        assert not await asyncio.to_thread(lambda: [*tmp_path.glob("*.part")])

    async def test_a_replaced_file_leaves_no_parts_and_its_past_stays(self, ada: Board) -> None:
        first = await ada.files.put(KEY, LARGE)
        second = await ada.files.put(KEY, SMALL)
        assert len(await parts(ada)) == 2
        assert await content(ada) == SMALL
        assert await content(ada, at=first.revision) == LARGE
        assert await ada.files.info(KEY, at=first.revision) == first
        assert await ada.files.delete(KEY, expected=second.revision)
        assert not await ada.files.delete(KEY)
        assert await parts(ada) == []
        assert await ada.files.info(KEY) is None
        assert await content(ada, at=second.revision) == SMALL
        with pytest.raises(InvalidRequest, match="no file"):
            await content(ada)

    async def test_one_that_is_replaced_while_it_is_read(self, ada: Board, bob: Board) -> None:
        """The reader gets the one that it began with."""
        await ada.files.put(KEY, LARGE)
        read: list[bytes] = []
        async for piece in bob.files.read(KEY):
            if not read:
                await ada.files.put(KEY, SMALL)
            read.append(piece)
        assert b"".join(read) == LARGE

    async def test_an_expectation(self, ada: Board, bob: Board) -> None:
        info = await ada.files.put(KEY, SMALL, expected=0)
        with pytest.raises(Conflict) as refused:
            await bob.files.put(KEY, LARGE, expected=0)
        assert refused.value.actual == info.revision
        with pytest.raises(Conflict):
            await bob.files.delete(KEY, expected=info.revision + 1)
        assert await content(bob) == SMALL
        assert len(await parts(bob)) == 2
        await bob.files.put(KEY, LARGE, expected=info.revision)
        assert await content(ada) == LARGE

    async def test_another_upload_ends_the_first(self, ada: Board, bob: Board) -> None:
        """Whoever begins last puts the file; what the other one left is removed."""
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            yield LARGE
            begun.set()
            await go_on.wait()
            yield LARGE

        first = asyncio.create_task(ada.files.put(KEY, slow()))
        await begun.wait()
        await bob.files.put(KEY, SMALL)
        go_on.set()
        with pytest.raises(Conflict):
            await first
        assert await content(ada) == SMALL
        assert len(await parts(ada)) == 2

    async def test_a_source_that_fails(self, ada: Board, tmp_path: Path) -> None:
        """The file stays as it was."""
        await ada.files.put(KEY, SMALL)

        def breaks() -> Iterator[bytes]:
            yield LARGE
            raise ValueError("no more")

        def text() -> Iterator[object]:
            yield LARGE
            yield "text"

        with pytest.raises(ValueError, match="no more"):
            await ada.files.put(KEY, breaks())
        with pytest.raises(InvalidRequest, match="a str came from it"):
            await ada.files.put(KEY, text())  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="source"):
            await ada.files.put(KEY, tmp_path / "missing")
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(InvalidRequest, match="not a file"):
            await ada.files.put(KEY, tmp_path / "pipe")
        with pytest.raises(InvalidRequest, match="a str"):
            await ada.files.put(KEY, "text")  # type: ignore[arg-type]
        assert await content(ada) == SMALL
        assert len(await parts(ada)) == 2

    async def test_one_that_is_too_large(self, ada: Board) -> None:
        def endless() -> Iterator[bytes]:
            while True:
                yield b"\0" * LARGE_PART_BYTES

        with pytest.raises(LimitExceeded) as refused:
            await ada.files.put(KEY, endless())
        assert (refused.value.limit, refused.value.maximum) == ("LARGE_BYTES_MAX", LARGE_BYTES_MAX)
        assert await parts(ada) == []

    async def test_rights_are_those_of_its_entries(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        await ada.files.put(OWN, LARGE)
        for attempt in (bob.files.info(OWN), content(bob, OWN), bob.files.put(OWN, SMALL)):
            with pytest.raises(AccessDenied):
                await attempt
        with pytest.raises(AccessDenied):
            await bob.files.delete(OWN)
        assert await content(ada, OWN) == LARGE

    async def test_a_restore_and_a_branch_have_it(self, team: Team, ada: Board) -> None:
        await ada.files.put(KEY, LARGE)
        await ada.files.put(OWN, SMALL)
        operator = await team.operator()
        await operator.checkpoint("then")
        await ada.files.put(KEY, SMALL)
        await ada.files.delete(OWN)
        assert await content(ada, at="then") == LARGE
        changes = (await operator.diff("then")).changes
        assert [(change.key, change.kind) for change in changes] == [
            (OWN, "removed"),
            (KEY, "changed"),
        ]
        assert changes[1].after is not None
        assert changes[1].after.value["size_bytes"] == len(SMALL)
        await operator.restore("then")
        await ada.refresh()
        assert (await content(ada), await content(ada, OWN)) == (LARGE, SMALL)
        await ada.files.put(KEY, b"later")
        branch = await operator.branch(f"{team.name}-files", "then")
        assert await content(branch) == LARGE
        assert (await operator.verify()).findings == ()

    async def test_a_redacted_file_is_gone_with_its_past(self, team: Team, ada: Board) -> None:
        info = await ada.files.put(KEY, LARGE)
        await ada.files.put(KEY, SMALL)
        client = await team.client(access.operator())
        done = await client.redact(KEY, board=team.name, why="pasted")
        assert done.versions >= 8
        assert await ada.files.info(KEY) is None
        assert await parts(ada) == []
        with pytest.raises(InvalidRequest, match="redacted"):
            await content(ada, at=info.revision)
        part = f"{file_prefix(KEY)}/info"
        with pytest.raises(InvalidRequest, match="part of file"):
            await client.redact(part, board=team.name)
        assert (await (await team.operator()).verify()).findings == ()
        await ada.files.put(KEY, SMALL)
        assert await content(ada) == SMALL
