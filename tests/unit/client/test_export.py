"""The file of an export: what has its name already, and what ends an export half way."""

import os
import socket
import stat
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from blackboard.archive.sql import archive_beside
from blackboard.client import export
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.checkpoints import ExportPage
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import InvalidRequest, Unavailable
from blackboard.limits import LIST_ENTRIES_MAX, OPERATIONS_MAX
from blackboard.server.requests import RequestHandler
from blackboard.server.service import Service
from blackboard.units import Key

GOOD = b"an export of last week"


class HookedLink(RequestHandler):
    """A way to the service on which `hook` is awaited before each page, with its number."""

    hook: Callable[[int], Awaitable[None]]
    pages = 0

    async def export(self, board: str, name: str, *, after: Key | None = None) -> ExportPage:
        """As `Link.export`, with the hook."""
        await self.hook(self.pages)
        self.pages += 1
        return await super().export(board, name, after=after)


@pytest.fixture
async def link(tmp_path: Path) -> AsyncIterator[HookedLink]:
    """A way to a board with a checkpoint "one" that is exported in several pages."""
    store = await SqliteStore.at(tmp_path / "data", "memory")
    async with Service(store, archive=await archive_beside(tmp_path / "data")) as service:
        link = HookedLink(service.boards, access.operator())
        board = Board(link, "main")
        for start in range(0, LIST_ENTRIES_MAX + 1, OPERATIONS_MAX):
            async with board.step() as step:
                for number in range(start, start + OPERATIONS_MAX):
                    step.put(f"public/{number:05}", number)
        await board.checkpoint("one")
        yield link


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where to, in a directory of its own."""
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "one.bbx"


def plant(file: Path, mode: int = 0o600) -> None:
    """Make it what an earlier export wrote."""
    file.write_bytes(GOOD)
    file.chmod(mode)


def modes_in(directory: Path) -> list[int]:
    """Who may do what with the files there."""
    return sorted(stat.S_IMODE(path.lstat().st_mode) for path in directory.iterdir())


def lead_nowhere(file: Path) -> None:
    """Make it a link to what there is not."""
    file.symlink_to(file.with_name("gone"))


def lead_to_a_file(file: Path) -> None:
    """Make it a link to an earlier export."""
    plant(target := file.with_name("target"))
    file.symlink_to(target)


def listen(file: Path) -> None:
    """Make it a socket."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(file))


def is_as_planted(file: Path) -> bool:
    """Whether it still is, and nothing lies beside it."""
    return file.read_bytes() == GOOD and list(file.parent.iterdir()) == [file]


async def nothing(page: int) -> None:
    """Let it go on."""


async def test_a_file_that_exists_stays(link: HookedLink, file: Path) -> None:
    """The refusal names it; no page is asked for."""
    plant(file)
    link.hook = nothing
    with pytest.raises(InvalidRequest) as refused:
        await Board(link, "main").export("one", file)
    assert (refused.value.field, str(file) in refused.value.reason) == ("file", True)
    assert (is_as_planted(file), link.pages) == (True, 0)


async def test_a_link_that_leads_nowhere_stays(link: HookedLink, file: Path) -> None:
    """It is a name that is taken, too."""
    lead_nowhere(file)
    link.hook = nothing
    with pytest.raises(InvalidRequest):
        await Board(link, "main").export("one", file)
    assert list(file.parent.iterdir()) == [file]


async def test_a_file_that_comes_meanwhile_stays(link: HookedLink, file: Path) -> None:
    """Of two that export to one name, the later one is refused."""

    async def come(page: int) -> None:
        if page == 1:
            plant(file)

    link.hook = come
    with pytest.raises(InvalidRequest, match="exists already"):
        await Board(link, "main").export("one", file)
    assert is_as_planted(file)


async def test_a_file_is_replaced_by_a_whole_one_only(link: HookedLink, file: Path) -> None:
    """What ends an export half way leaves the file as it was, and nothing beside it."""
    plant(file)

    async def end(page: int) -> None:
        if page == 1:
            assert len(list(file.parent.iterdir())) == 1 + 1  # it, and the draft
            raise Unavailable("service", "gone")

    link.hook = end
    board = Board(link, "main")
    with pytest.raises(Unavailable):
        await board.export("one", file, overwrite=True)
    assert is_as_planted(file)
    link.hook = nothing
    exported = await board.export("one", file, overwrite=True)
    assert list(file.parent.iterdir()) == [file]
    other = await Client(link).import_board(file, "other")
    assert len([entry async for entry in other.scan("public/**")]) == exported.entries


@pytest.mark.parametrize("make", [os.mkfifo, listen, Path.mkdir, lead_to_a_file, lead_nowhere])
async def test_nothing_but_a_regular_file_is_replaced(
    link: HookedLink, file: Path, make: Callable[[Path], None]
) -> None:
    """As root, a device would be gone; a link says nothing of what is to become of its target."""
    make(file)
    before = {path: path.lstat() for path in file.parent.iterdir()}
    link.hook = nothing
    with pytest.raises(InvalidRequest, match="is no regular file"):
        await Board(link, "main").export("one", file, overwrite=True)
    assert {path: path.lstat() for path in file.parent.iterdir()} == before
    assert link.pages == 0


async def test_a_device_that_comes_meanwhile_stays(link: HookedLink, file: Path) -> None:
    """What has the name is looked at once more when the file is whole."""

    async def come(page: int) -> None:
        if page == 1:
            os.mkfifo(file)

    link.hook = come
    with pytest.raises(InvalidRequest, match="is no regular file"):
        await Board(link, "main").export("one", file, overwrite=True)
    assert [stat.S_ISFIFO(path.lstat().st_mode) for path in file.parent.iterdir()] == [True]


@pytest.mark.parametrize("name", ["a" * 256, "a/b", "a\0b", "missing/one.bbx"])
@pytest.mark.parametrize("overwrite", [False, True])
async def test_a_name_that_no_file_can_have_is_refused_as_such(
    link: HookedLink, file: Path, name: str, overwrite: bool
) -> None:
    """Too long, below a file, with a NUL, in no directory; what follows does not hide it."""
    plant(file.with_name("a"))
    link.hook = nothing
    with pytest.raises(InvalidRequest) as refused:
        await Board(link, "main").export("one", file.parent / name, overwrite=overwrite)
    assert refused.value.field == "file"
    assert [path.name for path in file.parent.iterdir()] == ["a"]


async def test_the_longest_name_that_a_file_can_have_is_written(
    link: HookedLink, file: Path
) -> None:
    """The draft beside it is shorter, also when each character takes four bytes."""
    link.hook = nothing
    for name in ("a" * 255, "\U0001f600" * 63):
        await Board(link, "main").export("one", file.with_name(name))


async def test_only_its_owner_may_read_an_export(link: HookedLink, file: Path) -> None:
    """Neither the draft nor the file, whatever the mode of the one that it replaces: every
    private namespace is in it."""
    plant(file, 0o644)
    modes: list[list[int]] = []

    async def look(page: int) -> None:
        modes.append(modes_in(file.parent))

    link.hook = look
    before = os.umask(0)
    try:
        await Board(link, "main").export("one", file, overwrite=True)
    finally:
        os.umask(before)
    assert modes == [[0o644]] + [[0o600, 0o644]] * (link.pages - 1)
    assert (len(modes) > 1, modes_in(file.parent)) == (True, [0o600])


async def test_a_file_is_hashed_beside_the_loop_when_it_is_imported(
    link: HookedLink, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one takes seconds, in which leases would not be renewed."""
    threads: list[int] = []
    seal_of = export._seal_of

    def noted(path: Path) -> str:
        threads.append(threading.get_ident())
        return seal_of(path)

    link.hook = nothing
    await Board(link, "main").export("one", file)
    monkeypatch.setattr(export, "_seal_of", noted)
    await Client(link).import_board(file, "copy")
    assert threads
    assert threading.get_ident() not in threads
