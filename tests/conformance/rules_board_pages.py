"""Pages: nothing about them tells what others keep, whatever they keep and however much of it.

Two boards are written alike, but for what the reader may not read: on one of them there is much of
it, under many names. Every method that answers in pages is asked on both, one item at a time, and
by every kind of reader: the answers have to be the same, cursors and ends of pages included.
"""

import itertools
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from blackboard.client.board import Board
from blackboard.client.link import Transport
from blackboard.core import access
from blackboard.core.access import Principal
from blackboard.core.checkpoints import DiffRequest
from blackboard.core.commit import (
    FORWARD,
    Append,
    Delete,
    Directory,
    Entry,
    Grant,
    ListOptions,
    Op,
    Put,
)
from blackboard.core.path import directory_of
from blackboard.errors import AccessDenied
from blackboard.limits import OPERATIONS_MAX
from blackboard.wire import methods
from blackboard.wire.codec import encode_value
from tests.conformance.team import Team

ONE = encode_value(1)
SUBTREES = ("**", "private/**", "private/ada/**", "public/**")
PATTERNS = ("**", "private/**", "*/ada/**", "private/ada/**", "private/*/plan", "public/*", "*/*/*")

READERS = {
    "agent": access.agent("bob"),
    "reader of public": Principal("eve", (access.parse_grant("public/**=read"),)),
    "reader of parts": Principal(
        "pat",
        (access.parse_grant("private/*/shared/**=read"), access.parse_grant("public/*=read")),
    ),
    "reader of a key": Principal("kit", (access.parse_grant("private/ada/open=read"),)),
    "keeper": Principal("kim", (access.parse_grant("**=checkpoint,restore"),)),
    "nobody": Principal("nobody", ()),
}


def _much() -> list[list[Op]]:
    """What nobody but ada may read: four commits of it."""
    names = [f"private/ada/secret-{number:05d}" for number in range(OPERATIONS_MAX)]
    return [
        [Put(name, ONE) for name in names],
        [Append("private/ada/list", encode_value("x" * 500)) for _ in range(200)],
        [Grant(name, "ada", 600_000) for name in names[:20]],
        [Delete(name) for name in names[::2]],
    ]


def _little() -> list[list[Op]]:
    return [
        [Put("private/ada/another", ONE)],
        [Put("private/ada/another", encode_value(2))],
        [Grant("private/ada/another", "ada", 600_000)],
        [Delete("private/ada/another")],
    ]


async def _write(team: Team, board: str, hidden: Sequence[list[Op]]) -> tuple[str, int]:
    """Write a board; `hidden` is what only ada may read of it. Returns its name and revision."""
    ada = (await team.client(access.agent("ada"))).board(board)
    bob = (await team.client(access.agent("bob"))).board(board)
    operator = (await team.client(access.operator())).board(board)
    await bob.commit([Put(f"private/bob/k{number}", ONE) for number in range(6)])
    await ada.commit(hidden[0])
    await ada.commit([Put("public/plan", ONE), Put("private/ada/shared/a", ONE), *hidden[1]])
    await operator.checkpoint("first")
    await ada.commit(hidden[2])
    await ada.commit([Grant("public/plan", "ada", 600_000), Put("private/ada/open", ONE)])
    await bob.commit([Put("public/more", ONE), Put("public/deep/er", ONE)])
    await bob.commit([Put("private/bob/shared/b", ONE), Delete("private/bob/k0")])
    await ada.commit(hidden[3])
    await operator.checkpoint("second")
    await bob.commit([Put("public/more", encode_value(3)), Delete("private/bob/k1")])
    return board, (await bob.head()).revision


# --- what is asked --------------------------------------------------------------------------------

Walk = Callable[[Transport, str, int], Awaitable[list[Any]]]
"""Everything that a method answers about a board, page by page, without what differs anyway."""


def _entry(entry: Entry | None) -> Any:
    """An entry but for its time; records of the service have random ids in them."""
    if entry is None:
        return None
    value = b"" if entry.key.startswith("system/") else bytes(entry.value)
    return (entry.key, value, entry.mod_revision, entry.author)


async def _list_at(
    link: Transport, board: str, at: int | str | None, options: ListOptions = FORWARD
) -> list[Any]:
    told: list[Any] = []
    for pattern in SUBTREES if options.delimiter else PATTERNS:
        after: str | None = None
        while True:
            page = await link.list(board, pattern, after=after, limit=1, at=at, options=options)
            shown = [*map(_entry, page.entries), *page.directories]
            told.append((pattern, page.revision, shown, page.next_key))
            after = page.next_key
            if after is None:
                break
    return told


async def _list(link: Transport, board: str, head: int) -> list[Any]:
    found = [await _list_at(link, board, at) for at in (None, 3, "first", head)]
    backwards = ListOptions(reverse=True, keys_only=True)
    directories = ListOptions(delimiter="/")
    last_first = ListOptions(reverse=True, delimiter="/")
    for options in (backwards, directories, last_first):
        found += [await _list_at(link, board, at, options) for at in (None, head)]
    for after in ("private/ada/0", "private/ada/secret-00007", "private/ada/z", "public/a"):
        page = await link.list(board, "**", after=after, limit=1)
        found.append([(after, [*map(_entry, page.entries)], page.next_key)])
    return found


async def _leases(link: Transport, board: str, head: int) -> list[Any]:
    told: list[Any] = []
    for pattern in PATTERNS:
        after: str | None = None
        while True:
            page = await link.leases(board, pattern, after=after, limit=1)
            told.append(([(x.key, x.holder) for x in page.leases], page.next_key))
            after = page.next_key
            if after is None:
                break
    return told


async def _log(link: Transport, board: str, head: int) -> list[Any]:
    told: list[Any] = []
    for limit in (1, 1_000):
        after = 0
        while after < head:
            page = await link.log(board, after, limit=limit)
            shown = [(e.revision, e.author, [c.key for c in e.changes]) for e in page.entries]
            told.append((shown, page.through, page.head.log_entries))
            assert page.through is not None
            after = page.through
    return told


async def _checkpoints(link: Transport, board: str, head: int) -> list[Any]:
    told: list[Any] = []
    after = 0
    while page := await link.checkpoints(board, after=after, limit=1):
        told += [(found.name, found.revision) for found in page]
        after = page[-1].revision
    return told


async def _differences(link: Transport, board: str, head: int) -> list[Any]:
    told: list[Any] = []
    for a, b in ((0, head), (head, 2), ("first", "second")):
        for pattern in PATTERNS:
            after: str | None = None
            while True:
                request = DiffRequest(a, b, pattern=pattern, after=after, limit=1)
                page = await link.differences(board, request)
                shown = [(x.key, _entry(x.before), _entry(x.after)) for x in page.differences]
                told.append((pattern, shown, page.next_key))
                after = page.next_key
                if after is None:
                    break
    return told


async def _history(link: Transport, board: str, head: int) -> list[Any]:
    told: list[Any] = []
    for key in ("public/more", "private/bob/k0", "private/ada/open", "private/ada/secret-00000"):
        before: int | None = None
        try:
            while page := await link.history(board, key, before=before, limit=1):
                told += [(key, found.revision, _entry(found.entry)) for found in page]
                before = page[-1].revision
        except AccessDenied as refused:
            told.append(refused.fields())
    return told


async def _activity(link: Transport, board: str, head: int) -> list[Any]:
    found = [await link.activity(board, after=0, until=head, parts=parts) for parts in (1, 4, 64)]
    return [(one.step, one.authors, one.more_authors, len(one.epochs)) for one in found]


async def _refusals(link: Transport, board: str, head: int) -> list[Any]:
    return [(one.author, one.key, one.note) for one in await link.refusals(board, after=0)]


async def _refused(attempt: Awaitable[object]) -> list[Any]:
    with pytest.raises(AccessDenied) as refused:
        await attempt
    return [refused.value.fields()]


async def _audit(link: Transport, board: str, head: int) -> list[Any]:
    return await _refused(link.audit(after=None, limit=1))


async def _export(link: Transport, board: str, head: int) -> list[Any]:
    return await _refused(link.export(board, "first", after=None))


PAGED: dict[str, Walk] = {
    "list": _list,
    "leases": _leases,
    "log": _log,
    "checkpoints": _checkpoints,
    "differences": _differences,
    "history": _history,
    "activity": _activity,
    "refusals": _refusals,
    "audit": _audit,
    "export": _export,
}
"""Every method that answers in pages."""
NOT_PAGES = {"watch"}  # its `after` is a position in the log


class PageRules:
    """What a reader gets in pages."""

    def test_every_method_that_answers_in_pages_is_asked(self) -> None:
        """One that is new has to be told here how it is asked."""
        cursors = {"after", "before", "limit"}
        paged = {
            name
            for name, method in methods.METHODS.items()
            if cursors & set(method.request.__struct_fields__)
        }
        assert paged - NOT_PAGES == set(PAGED)

    @pytest.mark.parametrize("reader", READERS)
    async def test_no_page_tells_what_others_keep(self, team: Team, reader: str) -> None:
        """Not by a cursor, not by where it ends, not by how many pages there are."""
        boards = [
            await _write(team, f"{team.name}-{name}", hidden)
            for name, hidden in (("much", _much()), ("little", _little()))
        ]
        link = (await team.client(READERS[reader])).link
        for method, walk in PAGED.items():
            much, little = [await walk(link, *board) for board in boards]
            assert much == little, method

    @pytest.mark.parametrize("reader", READERS)
    async def test_directories_are_of_what_may_be_read(self, team: Team, reader: str) -> None:
        """Present and past, in both directions: they have exactly the keys that a listing shows."""
        board, head = await _write(team, team.name, _much())
        link = (await team.client(READERS[reader])).link
        for at, pattern, reverse in itertools.product((None, head), SUBTREES, (False, True)):
            prefix = pattern.removesuffix("**").removesuffix("/")
            keys = [e.key for e in (await link.list(board, pattern, limit=1_000, at=at)).entries]
            places = [directory_of(prefix, key) for key in keys]
            counts = Counter(place for place in places if place is not None)
            options = ListOptions(reverse=reverse, keys_only=True, delimiter="/")
            page = await link.list(board, pattern, limit=1_000, at=at, options=options)
            direct = [key for key, place in zip(keys, places, strict=True) if place is None]
            turn = -1 if reverse else 1
            assert [entry.key for entry in page.entries] == direct[::turn]
            names = sorted(counts, key=lambda name: f"{name}/", reverse=reverse)
            assert page.directories == tuple(Directory(name, counts[name]) for name in names)
            assert page.next_key is None

    async def test_a_listing_shows_all_that_may_be_read(self, team: Team, bob: Board) -> None:
        """So that the rule above does not hold because nothing is shown."""
        board, head = await _write(team, team.name, _much())
        for reader, expected in (
            ("agent", {f"private/bob/k{n}" for n in range(2, 6)} | {"private/bob/shared/b"}),
            ("reader of parts", {"private/ada/shared/a", "private/bob/shared/b"}),
            ("reader of a key", {"private/ada/open"}),
        ):
            link = (await team.client(READERS[reader])).link
            for at in (None, head):
                shown = {e[0] for x in await _list_at(link, board, at) for e in x[2]}
                assert {key for key in shown if key.startswith("private/")} == expected
