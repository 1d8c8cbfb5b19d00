"""Requests carried out on a link: a handler for each method of the table (`wire/methods.py`).

A handler calls the link; the table says how its answer is written. `_plainly` makes the handler of
a method whose params are the link's arguments, by name.

The link checks rights, so that a program with the service in its own process passes the same
checks. `hello`, `whoami`, `refresh` and what concerns watches belong to a connection:
`server/http/connection.py` answers them.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from blackboard.client.link import Transport
from blackboard.core.access import Principal, TokenRequest
from blackboard.core.checkpoints import (
    AUTOMATIC,
    NAMED,
    CheckpointRequest,
    ImportRequest,
    RetentionPolicy,
)
from blackboard.core.commit import ListOptions
from blackboard.errors import InvalidRequest
from blackboard.wire import answers, methods
from blackboard.wire.frames import Encoding
from blackboard.wire.methods import METHODS, Charge, Params

Handler = Callable[[Transport, Any], Awaitable[Any]]
"""Carries out a request on a link; returns its result. Errors: those of the link."""
HANDLERS: Final[dict[str, Handler]] = {}
"""The handler of each method that a link carries out."""
OF_CONNECTIONS: Final = frozenset({"hello", "whoami", "refresh", "watch", "unwatch", "progress"})
"""Methods that a connection answers itself."""


def is_read(params: Params[Any]) -> bool:
    """Whether a request waits in the queue of reads, for room for its answer."""
    return METHODS[params.method].charge is Charge.READ


async def call(link: Transport, params: Params[Any], encoding: Encoding) -> Any:
    """Carry out a request other than those of connections; returns its result as a message.

    Errors: those of the link; InvalidRequest for a method that needs a WebSocket.
    """
    handler = HANDLERS.get(params.method)
    if handler is None:
        raise InvalidRequest(field="method", reason=f"{params.method} needs a WebSocket")
    found = await handler(link, params)
    return answers.write(METHODS[params.method].result, found, encoding)


def _handles(handler: Handler) -> Handler:
    """Register a handler for the method of its name."""
    HANDLERS[handler.__name__.removeprefix("_")] = handler
    return handler


# --- boards ---------------------------------------------------------------------------------------


@_handles
async def _commit(link: Transport, params: methods.CommitParams) -> Any:
    return await link.commit(params.board, params.to_core(link.agent))


# --- history --------------------------------------------------------------------------------------


@_handles
async def _checkpoint(link: Transport, params: methods.CheckpointParams) -> Any:
    spec = CheckpointRequest(
        params.name,
        params.request,
        params.note,
        params.barrier_ms,
        params.stale_ok,
        AUTOMATIC if params.automatic else NAMED,
    )
    return await link.checkpoint(params.board, spec)


@_handles
async def _prune(link: Transport, params: methods.PruneParams) -> Any:
    policy = RetentionPolicy(
        params.last, params.days, params.named, params.history_ms, params.history_bytes
    )
    return await link.prune(params.board, policy, dry_run=params.dry_run)


@_handles
async def _list(link: Transport, params: methods.ListParams) -> Any:
    options = ListOptions(params.reverse, params.keys_only, params.delimiter or "")
    page = partial(link.list, params.board, params.pattern, after=params.after)
    return await page(limit=params.limit, at=params.at, options=options)


@_handles
async def _import_begin(link: Transport, params: methods.ImportBeginParams) -> Any:
    manifest, signature = params.manifest.encode(), bytes.fromhex(params.signature)
    spec = ImportRequest(params.request, manifest, signature, params.items, params.note)
    return await link.import_begin(params.board, spec)


@_handles
async def _import_page(link: Transport, params: methods.ImportPageParams) -> Any:
    entries = [entry.to_core() for entry in params.entries]
    return await link.import_page(params.board, params.request, params.number, entries)


# --- the service ----------------------------------------------------------------------------------


@_handles
async def _erase(link: Transport, params: methods.EraseParams) -> Any:
    return await link.erase(params.name, params.board, params.request)


@_handles
async def _issue(link: Transport, params: methods.IssueParams) -> Any:
    boards = frozenset(params.boards)
    return await link.issue(TokenRequest(params.name, params.grants, boards, params.ttl_ms))


# --- all others -----------------------------------------------------------------------------------


def _plainly(name: str) -> Handler:
    """A handler for a method of the link that takes the board and the `noun` of its params, or all
    their members by name."""
    request = METHODS[name].request
    members = [member for member in request.__struct_fields__ if member != "agent"]

    async def carry_out(link: Transport, params: Params[Any]) -> Any:
        given = {member: getattr(params, member) for member in members}
        by_place = [given.pop("board")] if "board" in given else []
        if request.noun is not None:
            return await getattr(link, name)(*by_place, params.spec())
        return await getattr(link, name)(*by_place, **given)

    return carry_out


PLAIN: Final = METHODS.keys() - HANDLERS.keys() - OF_CONNECTIONS
"""Methods that need no handler of their own."""
HANDLERS.update({name: _plainly(name) for name in PLAIN})


def describe(principal: Principal, agent: str) -> answers.IdentityMessage:
    """Result of `whoami`."""
    return answers.IdentityMessage.of((principal, agent))
