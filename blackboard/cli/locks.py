"""lock, leases, claims: present holders, and a command that runs only while it holds a lock."""

from typing import TYPE_CHECKING, Annotated

import typer

from blackboard.cli import screen
from blackboard.cli.errors import wrong_usage
from blackboard.cli.options import Flags, ReadCommand

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blackboard.client.board import Board
    from blackboard.client.leases.claim import Claimed
    from blackboard.core.commit import Lease

_PANEL = "Locks"
_PATTERN = typer.Argument(metavar="PATTERN", help="* is one segment, a final ** is the rest.")

app = typer.Typer()


@app.command(
    cls=ReadCommand,
    rich_help_panel=_PANEL,
    epilog="""\
blackboard lock public/deploy -- make deploy
blackboard lock public/deploy --timeout 0 -- make deploy  # only if it is free
blackboard lock public/deploy --ttl 60 -- sh -c 'echo fence $BLACKBOARD_FENCE'""",
)
def lock(
    context: typer.Context,
    key: Annotated[
        str, typer.Argument(metavar="KEY", help="What to lock: a path.", show_default=False)
    ],
    command: Annotated[
        list[str],
        typer.Argument(metavar="-- COMMAND...", help="What to run.", show_default=False),
    ],
    ttl_s: Annotated[
        float | None,
        typer.Option("--ttl", metavar="SECONDS", help="How long others wait if this process dies."),
    ] = None,
    timeout_s: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="SECONDS", help="How long to wait for the lock. 0: not at all."
        ),
    ] = None,
) -> None:
    """Run a command while holding a lock.

    Waits in the queue. Exits with the exit code of the command. If the lock is lost while the
    command runs, it is terminated. BLACKBOARD_FENCE has the fence, BLACKBOARD_LEASE the lease.
    """
    from blackboard.cli import locked, session, values
    from blackboard.limits import DEFAULT, LEASE_TTL_MS

    flags = Flags.of(context)
    asked_ms = values.milliseconds(ttl_s, "--ttl")
    ttl_ms = LEASE_TTL_MS if asked_ms is None else asked_ms
    timeout_ms = values.milliseconds(timeout_s, "--timeout")
    if timeout_ms is not None and timeout_ms < 0:
        raise wrong_usage("--timeout is at least 0")
    program = locked.program_of(command)

    async def run(board: "Board") -> int:
        held = board.lock(key, ttl_ms=ttl_ms, timeout_ms=timeout_ms)
        return await locked.run(board.name, held, [program, *command[1:]])

    # It keeps waiting: its service may be restarted.
    done = session.with_board(
        flags, run, create=True, patience_ms=DEFAULT.connection.request_timeout_ms
    )
    raise typer.Exit(done)


@app.command(
    cls=ReadCommand,
    rich_help_panel=_PANEL,
    epilog="""\
blackboard leases
blackboard leases 'public/tasks/*' --json | jq -r '.leases[].holder'""",
)
def leases(context: typer.Context, pattern: Annotated[str, _PATTERN] = "public/**") -> None:
    """List the leases: holder, end, and waiters."""
    from blackboard.cli import render as show, session

    flags = Flags.of(context)

    async def read(board: "Board") -> "Sequence[Lease]":
        return await board.leases(pattern)

    found = session.with_board(flags, read)
    if flags.as_json:
        show.print_json({"leases": show.plain(found)})
        return
    if not found:
        screen.say(f"no lease matches {pattern}")
        return
    now = show.now_ms()
    rows = [
        (
            lease.key,
            lease.holder,
            str(lease.fence),
            show.clock(lease.until_ms, now),
            " ".join(waiter.holder for waiter in lease.waiters),
        )
        for lease in found
    ]
    show.print_table(("key", "holder", "fence", "until", "waiting"), rows)


@app.command(
    cls=ReadCommand,
    rich_help_panel=_PANEL,
    epilog="""\
blackboard claims
blackboard claims 'public/tasks/**'
blackboard claims --json | jq '.claims[] | select(.state == "dead")'""",
)
def claims(context: typer.Context, pattern: Annotated[str, _PATTERN] = "public/**") -> None:
    """List tasks that were claimed and are not done.

    With the holder, the number of attempts, the last error, and the dead letters.
    """
    from blackboard.cli import render as show, session

    flags = Flags.of(context)

    async def read(board: "Board") -> "Sequence[Claimed]":
        return await board.claims(pattern)

    found = session.with_board(flags, read)
    if flags.as_json:
        show.print_json({"claims": show.plain(found)})
        return
    if not found:
        screen.say(f"no task that matches {pattern} is claimed, returned or dead")
        return
    now = show.now_ms()
    rows = [
        (
            task.key,
            task.state,
            str(task.tries),
            task.holder or "",
            show.clock(task.until_ms, now) if task.until_ms else "",
            screen.safe(task.last_error),
        )
        for task in found
    ]
    show.print_table(("key", "state", "tries", "holder", "until", "last error"), rows)
