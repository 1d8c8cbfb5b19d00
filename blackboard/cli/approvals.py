"""approvals, approve, reject: what agents ask people, and the answers."""

from typing import TYPE_CHECKING, Annotated

import typer

from blackboard.cli import screen
from blackboard.cli.errors import CommandError, Exit, not_found, wrong_usage
from blackboard.cli.options import Flags, ReadCommand
from blackboard.core.path import check_name
from blackboard.errors import InvalidRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from blackboard.client.board import Board
    from blackboard.client.views import Receipt
    from blackboard.runtime.approvals import Pending

_PANEL = "Agents"
_AGENT = typer.Argument(metavar="AGENT", help="The requesting agent.", show_default=False)
_ID = typer.Argument(
    metavar="ID", help="The request, or its beginning. Not needed if there is one."
)
_REVISION = typer.Option(
    "--revision", metavar="REV", help="Only if the request is still the one of this revision."
)
_REASON = typer.Option("--reason", metavar="TEXT", help="Why; the agent reads it.")

_OTHERS = "Nothing was answered. Use the token of an approver: --token or BLACKBOARD_TOKEN."

app = typer.Typer()


@app.command(
    cls=ReadCommand,
    rich_help_panel=_PANEL,
    epilog="""\
blackboard approvals
blackboard approvals buyer  # of one agent
blackboard approvals --json | jq '.approvals[] | {agent, id, question: .request.question}'""",
)
def approvals(
    context: typer.Context,
    asker: Annotated[str, typer.Argument(metavar="AGENT", help="* is every agent.")] = "*",
) -> None:
    """List requests for approval, with their facts."""
    from blackboard.cli import render as show, session
    from blackboard.core.commit import signature

    flags = Flags.of(context)

    async def read(board: "Board") -> "Sequence[Pending]":
        return await _pending(board, asker)

    found = session.with_board(flags, read)
    if flags.as_json:
        show.print_json({"approvals": [_plain(one) for one in found]})
        return
    if not found:
        screen.say("no agent waits for an approval")
        return
    now = show.now_ms()
    rows = [
        (
            signature(one.agent, one.account),
            one.id[:8],
            str(one.revision),
            show.age(one.time_ms, now),
            screen.safe(one.request.question),
            screen.safe(_facts(one)),
        )
        for one in found
    ]
    show.print_table(("agent", "id", "revision", "since", "question", "facts"), rows)


@app.command(
    cls=ReadCommand,
    rich_help_panel=_PANEL,
    epilog="""\
blackboard approve buyer
blackboard approve buyer 3f2a --revision 41 --reason "within the budget\"""",
)
def approve(
    context: typer.Context,
    asker: Annotated[str, _AGENT],
    name: Annotated[str, _ID] = "",
    revision: Annotated[int | None, _REVISION] = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="The agent reads it.")
    ] = "",
) -> None:
    """Approve a request of an agent.

    The agent continues, unless a fact has changed: then it asks again.
    """
    _answer(Flags.of(context), asker, name, (True, revision, reason))


@app.command(
    cls=ReadCommand,
    rich_help_panel=_PANEL,
    epilog="""\
blackboard reject buyer --reason "too expensive\"""",
)
def reject(
    context: typer.Context,
    asker: Annotated[str, _AGENT],
    name: Annotated[str, _ID] = "",
    revision: Annotated[int | None, _REVISION] = None,
    reason: Annotated[
        str, typer.Option("--reason", metavar="TEXT", help="The agent reads it.")
    ] = "",
) -> None:
    """Reject a request of an agent.

    The agent continues, and reads the reason.
    """
    _answer(Flags.of(context), asker, name, (False, revision, reason))


async def _pending(board: "Board", agent: str) -> "Sequence[Pending]":
    """The requests that are not answered yet."""
    from blackboard.runtime.approvals import pending

    return [one for one in await pending(board, agent) if one.answer is None]


def _answer(flags: Flags, agent: str, name: str, said: tuple[bool, int | None, str]) -> None:
    """Give the answer `said`: whether it is approved, the expected revision, and the reason."""
    from blackboard.cli import render as show, session

    approved, revision, reason = said
    check_name(agent, "agent")  # and no pattern: whose request it is must have been read

    async def give(board: "Board") -> "tuple[Pending, Receipt]":
        from blackboard.runtime.approvals import answer

        one = _meant(await _pending(board, agent), agent, name, revision)
        try:
            return one, await answer(board, one, approved=approved, reason=reason)
        except InvalidRequest as error:
            if error.field != "answer":
                raise
            raise CommandError("does_not_count", Exit.DENIED, error.reason, _OTHERS) from error

    one, receipt = session.with_board(flags, give)
    if flags.as_json:
        document = {"agent": agent, "id": one.id, "approved": approved, **show.plain(receipt)}
        show.print_json(document)
    else:
        verb = "approved" if approved else "rejected"
        screen.answer(
            f"{verb}: {screen.safe(one.request.question)} ({agent}, revision {receipt.revision})"
        )


def _meant(found: "Sequence[Pending]", agent: str, name: str, revision: int | None) -> "Pending":
    """The selected request. Errors: CommandError."""
    mine = [one for one in found if one.id.startswith(name)]
    if not mine:
        raise not_found(f"{agent} waits for no such approval", "Look: blackboard approvals")
    if len(mine) > 1:
        raise wrong_usage(
            f"{agent} has asked {len(mine)} things", "Give the ID: blackboard approvals"
        )
    if revision is not None and mine[0].revision != revision:
        raise not_found(
            f"{agent} has repeated the request, at revision {mine[0].revision}",
            "Look: blackboard approvals",
        )
    return mine[0]


def _plain(one: "Pending") -> dict[str, object]:
    return {
        "agent": one.agent,
        **({"account": one.account} if one.account else {}),
        "id": one.id,
        "revision": one.revision,
        "time_ms": one.time_ms,
        "request": one.request.model_dump(),
    }


def _facts(one: "Pending") -> str:
    """`public/price=1500 (was 1200)`."""
    from blackboard.cli import values

    was = {change.key: values.compact(change.was) for change in one.request.changed}
    return ", ".join(
        f"{fact.key}={values.compact(fact.value)}"
        + (f" (was {was[fact.key]})" if fact.key in was else "")
        for fact in one.request.facts
    )
