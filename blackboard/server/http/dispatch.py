"""One request, carried out on a link: what the WebSocket and the HTTP side have in common.

Requests about the past, carried out on a link: the second half of `server/http/dispatch.py`.
"""

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
    Instant,
    Moment,
    RecoverRequest,
    RedactRequest,
    RestoreRequest,
    RetentionPolicy,
)
from blackboard.core.commit import Entry
from blackboard.errors import InvalidRequest
from blackboard.wire import answers, messages
from blackboard.wire import history_messages as past
from blackboard.wire.answers import CauseMessage, ReceiptMessage
from blackboard.wire.commits import CommitParams
from blackboard.wire.frames import Encoding

UNKNOWN = object()
"""What `call_past` returns for a request of another kind."""


def moment_in(moment: messages.Moment) -> Moment:
    """A moment as the service knows it."""
    return Instant(moment.time_ms) if isinstance(moment, messages.InstantPart) else moment


async def call_past(link: Transport, params: messages.Params, encoding: Encoding) -> Any:
    """Carry out a request about the past; returns its result as a message, or UNKNOWN.

    Errors: whatever the link raises.
    """
    match params:
        case messages.CheckpointsParams():
            found = await link.checkpoints(params.board, after=params.after, limit=params.limit)
            return [past.write_checkpoint(checkpoint) for checkpoint in found]
        case messages.ManifestParams():
            return past.write_manifest(await link.manifest(params.board, params.name))
        case messages.DifferencesParams():
            page = await link.differences(params.board, _diff_request(params))
            return past.write_differences(page, encoding)
        case messages.HistoryParams():
            versions = await link.history(
                params.board, params.key, before=params.before, limit=params.limit
            )
            return [past.write_version(version, encoding) for version in versions]
        case messages.ExportParams():
            exported = await link.export(params.board, params.name, after=params.after)
            return past.write_export(exported, encoding)
    return await call_deed(link, params)


DEEDS = (
    messages.CheckpointParams,
    messages.PinParams,
    messages.PruneParams,
    messages.RestoreParams,
    messages.RecoverParams,
    messages.RedactParams,
    messages.FreezeParams,
    messages.ThawParams,
    messages.RemoveParams,
    messages.BranchParams,
    messages.VerifyParams,
    messages.ImportBeginParams,
    messages.ImportPageParams,
    messages.ImportEndParams,
)
"""Those that take their time, or change something: they do not wait their turn as reads do."""


async def call_deed(link: Transport, params: messages.Params) -> Any:
    """Carry out one of DEEDS; UNKNOWN for another one."""
    match params:
        case messages.CheckpointParams():
            return past.write_checkpoint(await link.checkpoint(params.board, _spec(params)))
        case messages.PinParams():
            return await link.pin(params.board, params.name, pinned=params.pinned)
        case messages.PruneParams():
            policy = RetentionPolicy(params.last, params.days, params.named, params.history_ms)
            pruned = await link.prune(params.board, policy, dry_run=params.dry_run)
            return past.write_pruned(pruned)
        case messages.RestoreParams():
            to = moment_in(params.to)
            spec = RestoreRequest(to, params.request, params.note, params.keep_calls)
            return past.write_restored(await link.restore(params.board, spec))
        case messages.RecoverParams():
            at = None if params.at is None else moment_in(params.at)
            recovered = await link.recover(params.board, RecoverRequest(at, params.note))
            return past.write_recovered(recovered)
        case messages.RedactParams():
            redact = RedactRequest(params.key, params.why, params.request)
            return past.write_redaction(await link.redact(params.board, redact))
        case messages.FreezeParams():
            return past.write_freeze(await link.freeze(params.board, params.note))
        case messages.ThawParams():
            ended = await link.thaw(params.board, params.note)
            return None if ended is None else past.write_freeze(ended)
        case messages.RemoveParams():
            return await link.remove(params.board)
        case messages.BranchParams():
            branch = BranchRequest(params.new, moment_in(params.at), params.request, params.note)
            return answers.write_head(await link.branch(params.board, branch))
        case messages.VerifyParams():
            return past.write_verified(await link.verify(params.board, moment_in(params.at)))
    return await _call_import(link, params)


async def _call_import(link: Transport, params: messages.Params) -> Any:
    match params:
        case messages.ImportBeginParams():
            manifest, signature = params.manifest.encode(), bytes.fromhex(params.signature)
            items = tuple(params.items)
            spec = ImportRequest(params.request, manifest, signature, items, params.note)
            return await link.import_begin(params.board, spec)
        case messages.ImportPageParams():
            entries = [_entry(entry) for entry in params.entries]
            return await link.import_page(params.board, params.request, params.number, entries)
        case messages.ImportEndParams():
            return answers.write_head(await link.import_end(params.board, params.request))
    return UNKNOWN


def _spec(params: messages.CheckpointParams) -> CheckpointRequest:
    return CheckpointRequest(
        params.name,
        params.request,
        params.note,
        params.barrier_ms,
        params.stale_ok,
        AUTOMATIC if params.automatic else NAMED,
    )


def _diff_request(params: messages.DifferencesParams) -> DiffRequest:
    return DiffRequest(
        moment_in(params.a),
        moment_in(params.b),
        params.other,
        params.pattern,
        params.after,
        params.limit,
    )


def _entry(entry: messages.ImportedEntry) -> Entry:
    return Entry(
        entry.key,
        entry.value,
        entry.mod_revision,
        entry.create_revision,
        entry.author,
        entry.time_ms,
        entry.expires_at_ms,
    )


def is_read(params: messages.Params | CommitParams) -> bool:
    """Whether a request is a look-up, which waits for nobody but for room for its answer."""
    return not isinstance(params, _OTHERS)


_OTHERS: Final = (
    *(
        messages.CommitModel,
        CommitParams,
        messages.WatchParams,
        messages.UnwatchParams,
        messages.ProgressParams,
    ),
    *(messages.WhoAmIParams, messages.RefreshParams, *DEEDS),
)


async def call(link: Transport, params: messages.Params | CommitParams, encoding: Encoding) -> Any:
    """Carry out a request other than those about watches; returns its result as a message.

    Errors: whatever the link raises; InvalidRequest for a method that is not of this kind.
    """
    match params:
        case messages.CommitModel() | CommitParams():
            return write_receipt(await link.commit(params.board, params.to_core(link.agent)))
        case messages.ReadParams():
            at = None if params.at is None else moment_in(params.at)
            found = await link.read(params.board, params.keys, at=at)
            return answers.write_reading(found, encoding)
        case messages.HeadParams():
            return answers.write_head(await link.head(params.board))
        case messages.ListParams():
            at = None if params.at is None else moment_in(params.at)
            reading = await link.list(
                params.board, params.pattern, after=params.after, limit=params.limit, at=at
            )
            return answers.write_reading(reading, encoding)
        case messages.LeasesParams():
            found = await link.leases(
                params.board, params.pattern, after=params.after, limit=params.limit
            )
            return answers.write_leases(found)
        case messages.LogParams():
            page = await link.log(
                params.board,
                params.after,
                limit=params.limit,
                pattern=params.pattern,
                author=params.author,
                proofs=params.proofs,
            )
            return answers.write_log(page, encoding)
        case messages.WhyParams():
            return [write_cause(cause) for cause in await link.why(params.board, params.key)]
        case messages.BoardsParams():
            return list(await link.boards())
        case messages.LostBoardsParams():
            return [asdict(found) for found in await link.lost_boards()]
        case messages.AuditParams():
            records = await link.audit(after=params.after, limit=params.limit)
            return [{"key": key, **asdict(record)} for key, record in records]
        case messages.EraseParams():
            return answers.KeysMessage(keys=await link.erase(params.name, params.board))
        case messages.RewrapParams():
            return answers.KeysMessage(keys=await link.rewrap())
        case messages.RevokeParams():
            count = await link.revoke(
                tokens=params.tokens, principal=params.principal, until_ms=params.until_ms
            )
            return answers.RevokedMessage(revoked=count)
    result = await call_past(link, params, encoding)
    if result is UNKNOWN:
        raise InvalidRequest(field="method", reason=f"{params.method} needs a WebSocket")
    return result


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
