"""get, set, delete, ls, boards: the present content of a board."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec.structs import replace

from blackboard.cli import screen
from blackboard.cli.errors import explain, not_found, wrong_usage
from blackboard.cli.options import Flags, ReadCommand, ServiceCommand, WriteCommand
from blackboard.errors import BlackboardError, Corrupt, NewerFormat, OlderFormat, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blackboard.client.board import Board
    from blackboard.client.client import Client
    from blackboard.client.files import FileInfo
    from blackboard.client.views import Entry, Listing, Receipt
    from blackboard.core.checkpoints import LostBoard, When
    from blackboard.core.commit import Directory, Head

LIST_LIMIT_DEFAULT = 1000
_KEY = typer.Argument(metavar="KEY", help="A path such as public/plan/budget.", show_default=False)

_AT = typer.Option(
    "--at", metavar="MOMENT", help="As it was then: at a revision, a checkpoint, or a time."
)

app = typer.Typer()


@app.command(
    cls=ReadCommand,
    rich_help_panel="Boards",
    epilog="""\
blackboard get public/valuation
blackboard get public/valuation --entry  # with revision, author and times
blackboard get public/greeting --raw  # a string without quotes
blackboard get public/valuation --at 4  # as it was at that revision
blackboard get public/valuation --json  # on one line""",
)
def get(
    context: typer.Context,
    key: Annotated[str, _KEY],
    entry: Annotated[
        bool, typer.Option("--entry", help="Also revisions, author and times.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Strings and bytes as they are, without quotes.")
    ] = False,
    at: Annotated[str | None, _AT] = None,
) -> None:
    """Print the value of a key, or a document, as JSON."""
    from blackboard.cli import render as show, session, values

    flags = Flags.of(context)
    if raw and (entry or flags.as_json):
        raise wrong_usage("--raw goes with neither --entry nor --json")
    moment = None if at is None else values.parse_moment(at)

    async def read(client: "Client", board: "Board") -> "Entry":
        # A document has no entry at its key: its updates are entries below it.
        found = await board.entry(key, at=moment) or await board.document_entry(key, at=moment)
        if found is None:
            raise await session.absent(client, board, key)
        return found

    found = session.with_client_and_board(flags, read)
    if raw:
        show.print_raw(found.value)
    elif flags.as_json:
        show.print_json(show.plain(found) if entry else found.value)
    elif entry:
        show.print_entry(found)
    else:
        show.print_value(found.value)


@app.command(
    "set",
    cls=WriteCommand,
    rich_help_panel="Boards",
    epilog="""\
blackboard set public/valuation '{"usd_bn": 2900}' --note "first estimate"
blackboard set public/greeting "Good morning"  # text that is not JSON is a string
blackboard set public/owner planner --expect 0  # only if it is absent
blackboard set public/heartbeat true --ttl 30  # gone after 30 seconds
echo '[1, 2, 3]' | blackboard set public/series -  # from standard input""",
)
def set_key(
    context: typer.Context,
    key: Annotated[str, _KEY],
    value: Annotated[
        str | None,
        typer.Argument(
            metavar="VALUE", help="JSON, or text. - reads standard input.", show_default=False
        ),
    ] = None,
    is_json: Annotated[
        bool | None,
        typer.Option(
            "--json-value/--string",
            help="Read the value as JSON, or as text. Default: as JSON if it is.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option("--file", metavar="FILE", help="Take the value from a file."),
    ] = None,
    ttl_s: Annotated[
        float | None,
        typer.Option("--ttl", metavar="SECONDS", help="Remove it after that time."),
    ] = None,
) -> None:
    """Set a key to a value. Prints the revision."""
    from blackboard.cli import render as show, session, values

    flags = Flags.of(context)
    content = _value(value, file, is_json=is_json)
    if ttl_s is not None and not ttl_s > 0:
        raise wrong_usage("--ttl must be more than 0 seconds")
    ttl_ms = values.milliseconds(ttl_s, "--ttl")

    async def write(board: "Board") -> "Receipt":
        return await board.put(
            key, content, expected=flags.expect, ttl_ms=ttl_ms, note=flags.note or ""
        )

    receipt = session.with_board(flags, write, create=True)
    if flags.as_json:
        show.print_json({"key": key, **show.plain(receipt)})
    else:
        screen.answer(f"{key} is at revision {receipt.revision} ({SURVIVES[receipt.level]})")


SURVIVES = {
    "disk": "on disk",
    "second": "on disk within a second",
    "replica": "on a replica",
    "memory": "in memory",
}
"""What an acknowledgement of each level says, in words."""


def _value(value: str | None, file: Path | None, *, is_json: bool | None) -> Any:
    from blackboard.cli import values

    if (value is None) == (file is None):
        raise wrong_usage("give either a VALUE or --file", "A lone - reads standard input.")
    if value is not None and value != "-":
        return values.parse(value, is_json=is_json)
    try:
        content = values.from_file(file) if file else values.from_stdin()
    except OSError as error:
        raise not_found(f"{file} cannot be read: {error.strerror}") from error
    return values.parse_bytes(content, is_json=is_json)


@app.command(
    cls=WriteCommand,
    rich_help_panel="Boards",
    epilog="""\
blackboard delete public/greeting
blackboard delete public/owner --expect 3  # only if it is still at revision 3""",
)
def delete(context: typer.Context, key: Annotated[str, _KEY]) -> None:
    """Remove a key. The log still has its value."""
    from blackboard.cli import render as show, session
    from blackboard.core.commit import Delete, KeyAt

    flags = Flags.of(context)
    conditions = [] if flags.expect is None else [KeyAt(key, flags.expect)]

    async def remove(board: "Board") -> "Receipt":
        return await board.commit([Delete(key)], conditions=conditions, note=flags.note or "")

    receipt = session.with_board(flags, remove)
    # A commit that deletes an absent key is accepted: its result alone says that it was absent.
    if not receipt.results[0]:
        raise not_found(f"{key} was already absent; nothing changed")
    if flags.as_json:
        show.print_json({"key": key, **show.plain(receipt)})
    else:
        screen.answer(
            f"{key} is gone since revision {receipt.revision} ({SURVIVES[receipt.level]})"
        )


@app.command(
    cls=ReadCommand,
    rich_help_panel="Boards",
    epilog="""\
blackboard ls  # everything public
blackboard ls 'public/plan/*'  # one level below public/plan
blackboard ls 'private/researcher/**' --as researcher
blackboard ls --at 4  # as it was at that revision
blackboard ls --dirs  # what lies directly below, and how many keys below that
blackboard ls --json | jq -r '.entries[].key'""",
)
def ls(
    context: typer.Context,
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="* is one segment, a final ** is the rest.")
    ] = "public/**",
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="How many at most.")
    ] = LIST_LIMIT_DEFAULT,
    after: Annotated[
        str | None, typer.Option("--after", metavar="KEY", help="Start behind this key.")
    ] = None,
    at: Annotated[str | None, _AT] = None,
    dirs: Annotated[
        bool,
        typer.Option(
            "--dirs", help="Count what lies deeper, by directory; PATTERN is PREFIX/** or **."
        ),
    ] = False,
) -> None:
    """List the keys that match a pattern, with their values.

    A document is one key. Records of the service and the runtime (below a segment that begins with
    ~) are listed only if the pattern names that segment. With --dirs, a document is a directory.
    """
    from blackboard.cli import render as show, session, values
    from blackboard.limits import LIST_ENTRIES_MAX

    flags = Flags.of(context)
    moment = None if at is None else values.parse_moment(at)

    async def read(client: "Client", board: "Board") -> tuple["KeyListing", str | None]:
        shown = KeyListing(board, pattern, moment, after)
        look = partial(board.list, pattern, at=moment, delimiter="/" if dirs else None)
        last = after
        while True:
            # Page by page until there are enough: parts of files and documents are not shown.
            page = await look(after=last, limit=min(limit - len(shown), LIST_ENTRIES_MAX))
            await shown.take(page)
            last = page.next_key
            if last is None or len(shown) >= limit:
                break
        if not len(shown) and not await session.has_begun(board):
            await session.tell_no_commits(client, board)
        return shown, last

    shown, next_key = session.with_client_and_board(flags, read)
    if flags.as_json:
        listed = {"directories": show.plain(shown.directories)} if dirs else {}
        entries = show.plain(shown.entries)
        show.print_json({**listed, "entries": entries, "next_key": next_key})
        return
    if shown.directories:
        show.print_directories(shown.directories)
    if shown.entries:
        show.print_entries(shown.entries)
    elif not shown.directories:
        below = "" if "*" in pattern else f"; what is below it: '{pattern.rstrip('/')}/**'"
        screen.say(f"nothing matches {pattern}{below}")
    if next_key is not None:
        screen.say(f"there are more: --after {next_key}, or a higher --limit")


class KeyListing:
    """Collects the entries of a listing: a document as one entry, the runtime's branches only if
    named.

    `entries` and `directories` grow with each page.
    """

    def __init__(
        self, board: "Board", pattern: str, at: "When | None", after: str | None = None
    ) -> None:
        from blackboard.core.path import document_of

        self.entries: list[Entry] = []
        self.directories: list[Directory] = []
        self._board = board
        self._pattern = pattern
        self._at = at
        # Between its keys, `after` ended a page that has the document.
        self._document = None if after is None else document_of(after)

    def __len__(self) -> int:
        return len(self.entries) + len(self.directories)

    async def take(self, page: "Listing") -> None:
        """Add what is shown of a page."""
        from blackboard.core.path import FILE, RESERVED, document_of, file_of, is_meant

        for each in page.directories:
            is_shown = is_meant(self._pattern, f"{each.prefix}/key")
            self.directories += [each] if is_shown else []
        for entry in page.entries:
            file = None if FILE in self._pattern else file_of(entry.key)
            if file is not None:
                is_info = entry.key == f"{file}/{FILE}/info"
                self.entries += [replace(entry, key=file)] if is_info else []
                continue
            document = None if RESERVED in self._pattern else document_of(entry.key)
            if document is None:
                self.entries += [entry] if is_meant(self._pattern, entry.key) else []
            elif document != self._document:
                self._document = document
                whole = await self._board.document_entry(document, at=self._at)
                self.entries += [] if whole is None else [whole]


@app.command(
    cls=ServiceCommand,
    rich_help_panel="Boards",
    epilog="""\
blackboard boards
blackboard boards --json""",
)
def boards(context: typer.Context) -> None:
    """List the boards, and the head of each."""
    from blackboard.cli import render as show, session

    flags = Flags.of(context)

    async def read(client: "Client") -> "tuple[_Heads, Sequence[LostBoard]]":
        heads = _Heads()
        for name in await client.boards():
            await heads.add(client.board(name))
        return heads, await session.lost_boards(client)

    heads, losses = session.with_client(flags, read)
    if flags.as_json:
        boards = [{"name": name, **show.plain(head)} for name, head in heads.found]
        show.print_json({"boards": boards, "lost": show.plain(losses)})
    else:
        for loss in losses:
            screen.say(": ".join(session.describe_loss(loss)))
        _print_boards(heads.found, is_none=not heads.found and not heads.refused)
    heads.check()


class _Heads:
    """The heads of boards. One that cannot be opened hides no other."""

    def __init__(self) -> None:
        self.found: list[tuple[str, Head]] = []
        self.refused: list[BlackboardError] = []

    async def add(self, board: "Board") -> None:
        """Read that of `board`."""
        try:
            self.found.append((board.name, await board.head()))
        except (Corrupt, NewerFormat, OlderFormat, Unavailable) as error:
            self.refused.append(error)

    def check(self) -> None:
        """Errors: that of the first board which cannot be opened; the others are printed."""
        for error in self.refused[1:]:
            screen.say(explain(error).message)
        if self.refused:
            raise self.refused[0]


def _print_boards(found: "Sequence[tuple[str, Head]]", *, is_none: bool) -> None:
    from blackboard.cli import render as show

    if is_none:
        screen.say("there is no board yet; the first blackboard set makes one")
    if not found:
        return
    now = show.now_ms()
    rows = [
        (name, str(head.revision), str(head.epoch.number), str(head.log_entries), _age(head, now))
        for name, head in found
    ]
    show.print_table(("board", "revision", "epoch", "entries", "age"), rows)


def _age(head: "Head", now: int) -> str:
    from blackboard.cli import render as show

    return show.age(head.time_ms, now) if head.time_ms else ""


@app.command(
    cls=WriteCommand,
    rich_help_panel="Boards",
    epilog="""\
blackboard upload public/report report.pdf --note "the final one"
blackboard upload public/report report.pdf --expect 0  # only if there is none""",
)
def upload(
    context: typer.Context,
    key: Annotated[str, _KEY],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="What to upload.", show_default=False)
    ],
    media_type: Annotated[
        str, typer.Option("--type", metavar="TYPE", help="What it is, such as application/pdf.")
    ] = "",
) -> None:
    """Put a file onto the board, whole.

    It takes the place of the one at that key. Up to 64 MiB.
    """
    from blackboard.cli import render as show, session

    flags = Flags.of(context)

    async def write(board: "Board") -> "FileInfo":
        with screen.progress(f"uploading {file}", _size(file)) as reached:
            return await board.files.put(
                key,
                file,
                expected=flags.expect,
                media_type=media_type,
                note=flags.note or "",
                progress=reached,
            )

    info = session.with_board(flags, write, create=True)
    if flags.as_json:
        show.print_json(show.plain(info))
    else:
        screen.answer(f"{key} is at revision {info.revision} ({info.size_bytes} bytes)")


@app.command(
    cls=ReadCommand,
    rich_help_panel="Boards",
    epilog="""\
blackboard download public/report report.pdf
blackboard download public/report old.pdf --at before-plan  # as it was then""",
)
def download(
    context: typer.Context,
    key: Annotated[str, _KEY],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Where to write it.", show_default=False)
    ],
    at: Annotated[str | None, _AT] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an existing regular file.")
    ] = False,
) -> None:
    """Write a file of the board to FILE.

    It appears when it is complete, and only its owner can read it.
    """
    from blackboard.cli import render as show, session, values

    flags = Flags.of(context)
    moment = None if at is None else values.parse_moment(at)

    async def read(_: "Client", board: "Board") -> "FileInfo":
        info = await board.files.info(key, at=moment)
        if info is None:
            raise not_found(f"there is no file at {key} on board {board.name}")
        with screen.progress(f"downloading {key}", info.size_bytes) as reached:
            return await board.files.save(
                key, file, at=moment, overwrite=overwrite, progress=reached
            )

    info = session.with_client_and_board(flags, read)
    if flags.as_json:
        show.print_json(show.plain(info))
    else:
        screen.answer(f"{file} has the {info.size_bytes} bytes of revision {info.revision}")


def _size(file: Path) -> int:
    """Bytes of a file; 0 if that cannot be said."""
    try:
        return file.stat().st_size
    except (OSError, ValueError):
        return 0
