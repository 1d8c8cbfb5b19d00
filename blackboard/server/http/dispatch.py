"""Requests carried out on a link: a handler for each method of the table (`wire/methods.py`).

A handler calls the link and turns the answer into a message. Where the link takes the members of
the params by name, and the message has the members of the answer, `_plainly` makes the handler.

Rights are checked by the link, so that a program with the service in its own process passes the
same checks. `hello`, `whoami`, `refresh` and what concerns watches belong to a connection:
`server/http/connection.py` answers them.
"""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Final

from blackboard.client.link import Transport
from blackboard.client.views import Cause, Receipt
from blackboard.core.access import Principal
from blackboard.core.checkpoints import (
    AUTOMATIC,
    NAMED,
    BranchRequest,
    CheckpointRequest,
    DiffRequest,
    ImportRequest,
    RecoverRequest,
    RedactRequest,
    RestoreRequest,
    RetentionPolicy,
)
from blackboard.errors import InvalidRequest
from blackboard.wire import answers, history_messages as past, methods
from blackboard.wire.answers import CauseMessage, ReceiptMessage
from blackboard.wire.frames import Encoding
from blackboard.wire.methods import METHODS, Charge, Params

Handler = Callable[[Transport, Any, Encoding], Awaitable[Any]]
"""Carries out a request on a link; returns its result as a message. Errors: those of the link."""
HANDLERS: Final[dict[str, Handler]] = {}
"""The handler of each method that a link carries out."""
OF_CONNECTIONS: Final = frozenset({"hello", "whoami", "refresh", "watch", "unwatch", "progress"})
"""Methods that a connection answers itself."""


def is_read(params: Params) -> bool:
    """Whether a request waits its turn, and for room for its answer."""
    return METHODS[params.method].charge is Charge.READ


async def call(link: Transport, params: Params, encoding: Encoding) -> Any:
    """Carry out a request other than those of connections; returns its result as a message.

    Errors: those of the link; InvalidRequest for a method that needs a WebSocket.
    """
    handler = HANDLERS.get(params.method)
    if handler is None:
        raise InvalidRequest(field="method", reason=f"{params.method} needs a WebSocket")
    return await handler(link, params, encoding)


def _handles(handler: Handler) -> Handler:
    """Enter a handler under the method that its name says."""
    HANDLERS[handler.__name__.removeprefix("_")] = handler
    return handler


# --- boards ---------------------------------------------------------------------------------------


@_handles
async def _commit(link: Transport, params: methods.CommitParams, _: Encoding) -> Any:
    return write_receipt(await link.commit(params.board, params.to_core(link.agent)))


@_handles
async def _read(link: Transport, params: methods.ReadParams, encoding: Encoding) -> Any:
    found = await link.read(params.board, params.keys, at=params.at)
    return answers.write_reading(found, encoding)


@_handles
async def _list(link: Transport, params: methods.ListParams, encoding: Encoding) -> Any:
    found = await link.list(
        params.board, params.pattern, after=params.after, limit=params.limit, at=params.at
    )
    return answers.write_reading(found, encoding)


@_handles
async def _leases(link: Transport, params: methods.LeasesParams, _: Encoding) -> Any:
    found = await link.leases(params.board, params.pattern, after=params.after, limit=params.limit)
    return answers.write_leases(found)


@_handles
async def _log(link: Transport, params: methods.LogParams, encoding: Encoding) -> Any:
    page = await link.log(
        params.board,
        params.after,
        limit=params.limit,
        pattern=params.pattern,
        author=params.author,
        proofs=params.proofs,
    )
    return answers.write_log(page, encoding)


@_handles
async def _why(link: Transport, params: methods.WhyParams, _: Encoding) -> Any:
    return [write_cause(cause) for cause in await link.why(params.board, params.key)]


# --- history --------------------------------------------------------------------------------------


@_handles
async def _checkpoint(link: Transport, params: methods.CheckpointParams, _: Encoding) -> Any:
    spec = CheckpointRequest(
        params.name,
        params.request,
        params.note,
        params.barrier_ms,
        params.stale_ok,
        AUTOMATIC if params.automatic else NAMED,
    )
    return answers.write_noun(await link.checkpoint(params.board, spec))


@_handles
async def _manifest(link: Transport, params: methods.ManifestParams, _: Encoding) -> Any:
    return past.write_manifest(await link.manifest(params.board, params.name))


@_handles
async def _prune(link: Transport, params: methods.PruneParams, _: Encoding) -> Any:
    policy = RetentionPolicy(params.last, params.days, params.named, params.history_ms)
    return answers.write_noun(await link.prune(params.board, policy, dry_run=params.dry_run))


@_handles
async def _restore(link: Transport, params: methods.RestoreParams, _: Encoding) -> Any:
    spec = RestoreRequest(params.to, params.request, params.note, params.keep_calls)
    return answers.write_noun(await link.restore(params.board, spec))


@_handles
async def _recover(link: Transport, params: methods.RecoverParams, _: Encoding) -> Any:
    spec = RecoverRequest(params.at, params.note)
    return answers.write_noun(await link.recover(params.board, spec))


@_handles
async def _redact(link: Transport, params: methods.RedactParams, _: Encoding) -> Any:
    spec = RedactRequest(params.key, params.why, params.request)
    return answers.write_noun(await link.redact(params.board, spec))


@_handles
async def _branch(link: Transport, params: methods.BranchParams, _: Encoding) -> Any:
    spec = BranchRequest(params.new, params.at, params.request, params.note)
    return answers.write_noun(await link.branch(params.board, spec))


@_handles
async def _differences(
    link: Transport, params: methods.DifferencesParams, encoding: Encoding
) -> Any:
    request = DiffRequest(
        params.a, params.b, params.other, params.pattern, params.after, params.limit
    )
    return past.write_differences(await link.differences(params.board, request), encoding)


@_handles
async def _history(link: Transport, params: methods.HistoryParams, encoding: Encoding) -> Any:
    found = await link.history(params.board, params.key, before=params.before, limit=params.limit)
    return [past.write_version(version, encoding) for version in found]


@_handles
async def _export(link: Transport, params: methods.ExportParams, encoding: Encoding) -> Any:
    page = await link.export(params.board, params.name, after=params.after)
    return past.write_export(page, encoding)


@_handles
async def _import_begin(link: Transport, params: methods.ImportBeginParams, _: Encoding) -> Any:
    manifest, signature = params.manifest.encode(), bytes.fromhex(params.signature)
    spec = ImportRequest(params.request, manifest, signature, params.items, params.note)
    return await link.import_begin(params.board, spec)


@_handles
async def _import_page(link: Transport, params: methods.ImportPageParams, _: Encoding) -> Any:
    entries = [entry.to_core() for entry in params.entries]
    return await link.import_page(params.board, params.request, params.number, entries)


# --- the service ----------------------------------------------------------------------------------


@_handles
async def _audit(link: Transport, params: methods.AuditParams, _: Encoding) -> Any:
    records = await link.audit(after=params.after, limit=params.limit)
    return [{"key": key, **asdict(record)} for key, record in records]


@_handles
async def _erase(link: Transport, params: methods.EraseParams, _: Encoding) -> Any:
    return answers.KeysMessage(keys=await link.erase(params.name, params.board))


@_handles
async def _rewrap(link: Transport, _params: methods.RewrapParams, _: Encoding) -> Any:
    return answers.KeysMessage(keys=await link.rewrap())


@_handles
async def _revoke(link: Transport, params: methods.RevokeParams, _: Encoding) -> Any:
    count = await link.revoke(
        tokens=params.tokens, principal=params.principal, until_ms=params.until_ms
    )
    return answers.RevokedMessage(revoked=count)


# --- all others -----------------------------------------------------------------------------------


def _plainly(name: str) -> Handler:
    """A handler for a method of the link that takes the members of its params by name, and whose
    result is written member by member."""
    members = [member for member in METHODS[name].request.__struct_fields__ if member != "agent"]

    async def carry_out(link: Transport, params: Params, _: Encoding) -> Any:
        given = {member: getattr(params, member) for member in members}
        by_place = [given.pop("board")] if "board" in given else []
        return answers.write_noun(await getattr(link, name)(*by_place, **given))

    return carry_out


PLAIN: Final = METHODS.keys() - HANDLERS.keys() - OF_CONNECTIONS
"""Methods that need no handler of their own."""
HANDLERS.update({name: _plainly(name) for name in PLAIN})

# --- messages -------------------------------------------------------------------------------------


def write_receipt(receipt: Receipt) -> ReceiptMessage:
    """A receipt as a message."""
    message: ReceiptMessage = {
        "revision": receipt.revision,
        "time_ms": receipt.time_ms,
        "results": answers.write_results(receipt.results),
        "level": receipt.level,
    }
    if receipt.duplicate:
        message["duplicate"] = True
    return message


def write_cause(cause: Cause) -> CauseMessage:
    """A cause as a message."""
    message: CauseMessage = {
        "key": cause.key,
        "revision": cause.revision,
        "depth": cause.depth,
        "author": cause.author,
        "time_ms": cause.time_ms,
        "note": cause.note,
        "based_on": [[key, revision] for key, revision in cause.based_on],
        "missing": cause.missing,
    }
    if cause.account:
        message["account"] = cause.account
    return message


def describe(principal: Principal, agent: str) -> answers.IdentityMessage:
    """Result of `whoami`."""
    message: answers.IdentityMessage = {
        "principal": principal.name,
        "agent": agent,
        "grants": [{"pattern": g.pattern, "rights": sorted(g.rights)} for g in principal.grants],
        "boards": sorted(principal.boards),
    }
    if principal.expires_at_ms is not None:
        message["expires_at_ms"] = principal.expires_at_ms
    return message
