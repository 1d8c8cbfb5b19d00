"""The tool `restore`: nothing is taken back before a person, or a model that has seen what would
change, has confirmed it.

A client that can put a question to its user (elicitation) is asked to; there a model cannot confirm
in the user's place. Any other client gets what would change, and a token, with which the call is
repeated. Newer clients get the question as an answer, and repeat the call with what the user said;
older ones are asked in the middle of the call.
"""

from typing import Any

from mcp.server.context import ServerRequestContext
from mcp_types import (
    CallToolRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequiredResult,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from blackboard.integrations.mcp import answers as said, arguments as given
from blackboard.integrations.mcp.answers import refused
from blackboard.integrations.mcp.session import AgentSession
from blackboard.integrations.mcp.tools import diff_shown, moment

_QUESTION = "restore"
DESCRIPTION = " ".join(
    """Take the whole board back to a checkpoint: everybody's public and private entries, at once.
    All claims end, and every agent has to read again. Your user is asked first; if your client
    cannot ask, you get a preview and a `confirm` token: show it to your user, and call again with
    both once they agree. It can be undone: the present is kept as a checkpoint.""".split()
)


async def restore(
    session: AgentSession,
    args: given.RestoreArguments,
    ctx: "ServerRequestContext[Any]",
    params: CallToolRequestParams,
) -> "said.RestoreAnswer | InputRequiredResult":
    """Take the board back, once that is confirmed. Errors: BlackboardError, ToolFailure."""
    to = moment(args.to)
    assert to is not None
    board = session.board
    epoch = (await board.head()).epoch.id  # before the preview: what is confirmed was seen in it
    preview = await board.preview_restore(to, keys_max=said.ANSWER_ITEMS)
    # A revision: by the time of an answer, a time or a name may stand for another one.
    target = preview.diff.b
    if params.request_state is not None:
        _check(session, params.request_state, target, epoch)
        response = (params.input_responses or {}).get(_QUESTION)
        if not isinstance(response, ElicitResult) or not _is_yes(response):
            raise _declined()
    elif _can_elicit(ctx):
        question = _question(args, len(preview.diff), [one.agent for one in preview.agents])
        if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS:
            request = ElicitRequest(params=question)
            state = session.seal(target, epoch)
            return InputRequiredResult(input_requests={_QUESTION: request}, request_state=state)
        if not _is_yes(
            await ctx.session.elicit_form(
                question.message, question.requested_schema, ctx.request_id
            )
        ):
            raise _declined()
    elif args.confirm is None:
        shown = diff_shown(preview.diff)
        shown["done"] = False
        shown["interrupts"] = [one.agent for one in preview.agents]
        shown["confirm"] = session.seal(target, epoch)
        shown["next_step"] = (
            "Nothing was changed yet. Show this to your user; if they agree, call restore again"
            f" with to={target} and this `confirm`, within 10 minutes."
        )
        return shown
    else:
        _check(session, args.confirm, target, epoch)
    # The user may have thought about it for minutes. A restore is accepted in any epoch.
    if (await board.head()).epoch.id != epoch:
        raise _not_confirmed("another epoch began since this was looked at: nothing was changed")
    done = await board.restore(target, note=args.note)
    return {
        "done": True,
        "revision": done.revision,
        "put_back": done.put_back,
        "removed": done.removed,
        "undo": done.before,
        "next_step": "Read again what you rely on: claims ended, and entries changed.",
    }


def _check(session: AgentSession, token: str, target: int, epoch: str) -> None:
    """Errors: ToolFailure for a token that is of no preview of this restore."""
    if not session.is_sealed(token, target, epoch):
        raise _not_confirmed(
            "this confirmation is not of this restore, used or too old: nothing was changed"
        )


def _not_confirmed(why: str) -> said.ToolFailure:
    fix = "Call restore without `confirm` to see what it would change now."
    return refused("not_confirmed", why, fix)


def _can_elicit(ctx: "ServerRequestContext[Any]") -> bool:
    known = ctx.session.client_capabilities
    elicitation = None if known is None else known.elicitation
    # A client of before there were modes says nothing, and means a form.
    return elicitation is not None and (elicitation.form is not None or elicitation.url is None)


def _question(
    args: given.RestoreArguments, keys: int, agents: "list[str]"
) -> ElicitRequestFormParams:
    running = f" It interrupts {', '.join(agents[:10])}." if agents else ""
    most = "at least " if keys >= said.ANSWER_ITEMS else ""
    message = (
        f"Take the whole board back to {args.to}? {most}{keys} keys change (of those that you may"
        f" see), for every agent, and all claims end.{running} The present is kept as a checkpoint."
    )
    schema = {
        "type": "object",
        "properties": {
            "restore": {"type": "boolean", "title": "Take the board back", "default": False}
        },
        "required": ["restore"],
    }
    return ElicitRequestFormParams(message=message, requested_schema=schema)


def _is_yes(answer: ElicitResult) -> bool:
    return answer.action == "accept" and (answer.content or {}).get("restore") is True


def _declined() -> said.ToolFailure:
    return refused(
        "declined",
        "your user did not agree: nothing was changed",
        "Go on without the restore, or ask your user what to do instead.",
    )
