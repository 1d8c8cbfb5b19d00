"""One request, carried out on a link: what the WebSocket and the HTTP side have in common."""

from dataclasses import asdict
from typing import Any

from blackboard.client.link import Link
from blackboard.client.views import Cause, Receipt
from blackboard.core.access import Principal
from blackboard.errors import InvalidRequest
from blackboard.server.http.past_calls import UNKNOWN, call_past, moment_in
from blackboard.wire import answers, messages
from blackboard.wire.answers import CauseMessage, ReceiptMessage
from blackboard.wire.commits import CommitParams
from blackboard.wire.frames import Encoding


async def call(link: Link, params: messages.Params | CommitParams, encoding: Encoding) -> Any:
    """Carry out a request other than those about watches; returns its result as a message.

    Errors: whatever the link raises; InvalidRequest for a method that is not of this kind.
    """
    match params:
        case messages.Commit() | CommitParams():
            return write_receipt(await link.commit(params.board, params.to_core(link.agent)))
        case messages.Read():
            at = None if params.at is None else moment_in(params.at)
            found = await link.read(params.board, params.keys, at=at)
            return answers.write_reading(found, encoding)
        case messages.Head():
            return answers.write_head(await link.head(params.board))
        case messages.List():
            at = None if params.at is None else moment_in(params.at)
            reading = await link.list(
                params.board, params.pattern, after=params.after, limit=params.limit, at=at
            )
            return answers.write_reading(reading, encoding)
        case messages.Leases():
            found = await link.leases(
                params.board, params.pattern, after=params.after, limit=params.limit
            )
            return answers.write_leases(found)
        case messages.Log():
            page = await link.log(params.board, params.after, limit=params.limit)
            return answers.write_log(page, encoding)
        case messages.Why():
            return [write_cause(cause) for cause in await link.why(params.board, params.key)]
        case messages.Boards():
            return list(await link.boards())
        case messages.Audit():
            records = await link.audit(after=params.after, limit=params.limit)
            return [{"key": key, **asdict(record)} for key, record in records]
        case messages.Erase():
            return answers.KeysMessage(keys=await link.erase(params.name, params.board))
        case messages.Rewrap():
            return answers.KeysMessage(keys=await link.rewrap())
        case messages.Revoke():
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
    return {
        "key": cause.key,
        "revision": cause.revision,
        "depth": cause.depth,
        "author": cause.author,
        "time_ms": cause.time_ms,
        "note": cause.note,
        "based_on": [[key, revision] for key, revision in cause.based_on],
        "missing": cause.missing,
    }


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
