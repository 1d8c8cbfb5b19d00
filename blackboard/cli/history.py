"""watch, log, why: the past and present changes of a board."""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from blackboard.cli import screen
from blackboard.cli.errors import wrong_usage
from blackboard.cli.options import Flags, ReadCommand

if TYPE_CHECKING:
    from blackboard.cli.render import LogPrinter
    from blackboard.client.board import Board
    from blackboard.client.client import Client
    from blackboard.client.views import Cause, RevisionEvent
    from blackboard.client.watch import Watch
    from blackboard.core.checkpoints import When
    from blackboard.core.commit import Head

LOG_LIMIT_DEFAULT = 20
_TOKEN = re.compile("[^:]+:[0-9]{1,16}:([0-9a-f]{16})?")
"""What `watch` and `log --follow` say at the end; no time is written so."""
_LOOK_BACK = 8  # revisions scanned per requested one, where some are not visible to us
_LOOK_BACK_MAX = 65_536  # 64 requests, of a few milliseconds each

app = typer.Typer()


@app.command(
    cls=ReadCommand,
    rich_help_panel="History",
    epilog="""\
blackboard watch  # everything public, until Ctrl-C
blackboard watch 'public/plan/**' 'inbox/architect/**' --snapshot
blackboard watch --after 3 --count 1  # the first revision after 3
blackboard watch --json | jq -c '.changes[]'""",
)
def watch(
    context: typer.Context,
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATTERN...", help="Which keys. Default: public/**", show_default=False
        ),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", metavar="TOKEN|REV", help="Continue after a resume token, or a revision."
        ),
    ] = None,
    snapshot: Annotated[
        bool, typer.Option("--snapshot", help="First the present state, then changes.")
    ] = False,
    count: Annotated[
        int | None, typer.Option("--count", metavar="N", min=1, help="End after N revisions.")
    ] = None,
) -> None:
    """Print changes as they happen, one line each.

    The resume token that goes to standard error at the end continues exactly there, even after days
    or on another machine.
    """
    from blackboard.cli import render as show, session, values
    from blackboard.core.watch import Position
    from blackboard.limits import DEFAULT

    flags = Flags.of(context)
    if after is not None and snapshot:
        raise wrong_usage("--snapshot starts at the present: leave out --after")
    start = values.parse_revision(after) if after is not None and after.isdecimal() else after
    printer = show.LogPrinter(as_json=flags.as_json)

    async def follow(client: "Client", board: "Board") -> None:
        chosen = patterns or ["public/**"]
        async with board.watch(*chosen, after=start, snapshot=snapshot) as watch:
            since = Position.parse(watch.position).revision
            if not since and not await session.has_begun(board):
                await session.tell_no_commits(client, board)
            screen.say(f"watching {' '.join(chosen)} on {board.name}, after revision {since}")
            if snapshot:
                printer.state(watch.revision, sorted(watch.state.values(), key=lambda e: e.key))
            await _print_all(watch, printer, count)

    # It keeps trying, because its service may be restarting.
    session.with_client_and_board(flags, follow, patience_ms=DEFAULT.connection.request_timeout_ms)


async def _print_all(
    watch: "Watch", printer: "LogPrinter", count: int | None, author: str | None = None
) -> None:
    """Print changes, of one author or of all, until `count` revisions were printed, or the reader
    of our output is gone."""
    import anyio

    position = watch.position
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_until_reader_is_gone)
            async for revised in watch:
                # Also for a revision that is not printed: the token continues behind it.
                position = revised.position
                if author is not None and revised.author != author:
                    continue
                printer.revision(revised)
                count = None if count is None else count - 1
                if count == 0:
                    break
            tasks.cancel_scope.cancel()
    except* (BrokenPipeError, screen.NotWrittenError):
        # No token: what was printed last was perhaps never read, and would be skipped.
        position = ""
        raise
    finally:
        if position:
            screen.say(f"resume with --after {position}")


async def _until_reader_is_gone() -> None:
    """Wait until the reading end of our output is closed. Errors: BrokenPipeError, then.

    Without this, `blackboard watch | head -1` would only end with the change after the first.
    """
    import os
    import stat

    import anyio

    descriptor = sys.stdout.fileno()
    kind = os.fstat(descriptor).st_mode
    if stat.S_ISFIFO(kind):
        # The writing end of a pipe becomes "readable" when the reader closes the other one.
        await anyio.wait_readable(descriptor)
        raise BrokenPipeError


@app.command(
    cls=ReadCommand,
    rich_help_panel="History",
    epilog="""\
blackboard log  # the newest twenty revisions
blackboard log --after 0 --limit 100  # from the beginning
blackboard log --follow  # and those that follow
blackboard log --pattern 'public/plan/**' --author ann
blackboard log --since 2026-11-21T09:30  # or the name of a checkpoint
blackboard log --json | jq -c '{revision, author, note}'""",
)
def log(
    context: typer.Context,
    after: Annotated[
        str | None,
        typer.Option(
            "--after", "--since", metavar="MOMENT", help="Start after this revision or moment."
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=1, help="How many revisions at most.")
    ] = LOG_LIMIT_DEFAULT,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Then follow new revisions.")
    ] = False,
    pattern: Annotated[
        str | None,
        typer.Option("--pattern", metavar="PATTERN", help="Only changes of keys that match."),
    ] = None,
    author: Annotated[
        str | None,
        typer.Option("--author", metavar="AGENT", help="Only commits of this agent."),
    ] = None,
) -> None:
    """Print the newest revisions: who changed what, and why.

    With --pattern or --author, the newest 65,536 revisions are searched; with --after, all from
    there on.
    """
    from blackboard.cli import render as show, session

    flags = Flags.of(context)
    # Exactly there is only where a watch begins: the epoch of a token says what is in its past.
    token = after if follow and after is not None and _TOKEN.fullmatch(after) else None
    moment = _moment(after)
    wanted = _Wanted(pattern, author)
    printer = show.LogPrinter(as_json=flags.as_json)

    async def read(client: "Client", board: "Board") -> None:
        if not await session.has_begun(board):
            await session.tell_no_commits(client, board)
            if not (moment or follow):
                return  # reading its head would create it
        head = await board.head()
        if token is not None:
            async with board.watch(pattern or "**", after=token) as watch:
                await _print_all(watch, printer, None, author)
            return
        if moment is None:
            found = await wanted.newest(board, limit)
        else:
            look = partial(board.log, since=moment, limit=limit)
            found = await look(pattern=pattern, author=author)
        for revised in found:
            printer.revision(revised)
        if not found and head.revision:
            screen.say("nothing that you may see")
        if follow:
            last = found[-1].revision if found else head.revision
            # Everything up to the head was scanned, including what we may not see.
            if len(found) < limit:
                last = max(last, head.revision)
            async with board.watch(pattern or "**", after=last) as watch:
                await _print_all(watch, printer, None, author)

    session.with_client_and_board(flags, read)


def _moment(after: str | None) -> "When | None":
    """The moment that `after` names, also as a resume token. Errors: CommandError."""
    from blackboard.cli import values
    from blackboard.core.watch import Position

    if after is None:
        return None
    if _TOKEN.fullmatch(after):
        return Position.parse(after).revision
    return values.parse_moment(after)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The requested revisions; None: all of them."""

    pattern: str | None
    author: str | None

    async def newest(self, board: "Board", limit: int) -> Sequence["RevisionEvent"]:
        """The newest `limit` that may be seen; fewer if they are not near the head."""
        if self.pattern is None and self.author is None:
            return await _newest(board, limit)
        head, back = await board.head(), _LOOK_BACK * limit
        while True:
            start = max(head.oldest - 1, _back_from(head, back))
            found = await board.log(
                after=start, limit=back, pattern=self.pattern, author=self.author
            )
            if len(found) >= limit or start < head.oldest or back >= _LOOK_BACK_MAX:
                return found[-limit:]
            back = min(2 * back, _LOOK_BACK_MAX)


def _back_from(head: "Head", revisions: int) -> int:
    """The revision that many before the head, without those that the newest epoch skipped."""
    start, epoch = head.revision - revisions, head.epoch
    if epoch.cause == "engine" and start < epoch.revision:
        start -= epoch.revision - 1 - epoch.from_revision
    return start


async def _newest(board: "Board", limit: int) -> Sequence["RevisionEvent"]:
    """The newest `limit` revisions that may be seen; fewer if they are not near the head."""
    head = await board.head()
    start = max(head.oldest - 1, head.revision - limit)
    found = await board.log(after=start, limit=limit)
    if len(found) < limit and start > head.oldest - 1:
        # Some revisions were skipped by an epoch, or are not visible to us: look further back,
        # once.
        near = min(start, head.epoch.from_revision if head.epoch.revision > start else start)
        start = max(head.oldest - 1, near - _LOOK_BACK * limit)
        # All of them, up to the head: those that are wanted are the last ones.
        found = await board.log(after=start, limit=(_LOOK_BACK + 1) * limit)
    return found[-limit:]


@app.command(
    cls=ReadCommand,
    rich_help_panel="History",
    epilog="""\
blackboard why public/valuation
blackboard why public/valuation --json | jq -r '.causes[].author'""",
)
def why(
    context: typer.Context,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="The key to explain.", show_default=False)
    ],
) -> None:
    """Show the commits that a value is based on.

    Who wrote it, what the writer had read, who wrote that, and so on, as far as the log goes.
    """
    from blackboard.cli import render as show, session

    flags = Flags.of(context)

    async def ask(client: "Client", board: "Board") -> Sequence["Cause"]:
        causes = await board.why(key)
        if not causes:
            raise await session.absent(client, board, key)
        return causes

    causes = session.with_client_and_board(flags, ask)
    if flags.as_json:
        show.print_json({"causes": show.plain(causes)})
    else:
        show.print_causes(causes)
