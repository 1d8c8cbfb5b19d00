"""Errors as messages: a number for JSON-RPC, and the stable code with its fields."""

from types import TracebackType
from typing import Any, Final, TypedDict

from msgspec import MsgspecError, Struct

from blackboard.errors import BlackboardError, Rejected, RemoteProtocolError, from_fields


class ErrorData(TypedDict):
    """The stable code of an error and its fields."""

    code: str
    fields: dict[str, Any]


class ErrorMessage(TypedDict):
    """The `error` of a response, and of `cancelled`."""

    code: int
    message: str
    data: ErrorData


class ErrorResponse(Struct, frozen=True):
    """The answer to a refused request. `id` is null if the request had none."""

    id: int | str | None
    error: ErrorMessage


# JSON-RPC 2.0 leaves -32099 to -32000 to implementations; the others are its own.
RPC_CODES: Final[dict[str, int]] = {
    "remote_protocol_error": -32700,
    "rejected": -32600,
    "invalid_request": -32602,
    "local_protocol_error": -32603,
    "unauthenticated": -32001,
    "access_denied": -32002,
    "limit_exceeded": -32003,
    "conflict": -32010,
    "fenced": -32011,
    "lease_held": -32012,
    "lease_lost": -32016,
    "nothing_to_claim": -32017,
    "stale_epoch": -32013,
    "step_superseded": -32014,
    "attempt_too_old": -32018,
    "type_mismatch": -32015,
    "compacted": -32020,
    "future_revision": -32021,
    "rolled_back": -32022,
    "resync": -32023,
    "head_moved": -32024,
    "snapshot_first": -32025,
    "no_such_checkpoint": -32026,
    "barrier_missed": -32027,
    "document_refused": -32028,
    "no_such_board": -32029,
    "board_frozen": -32034,
    "unavailable": -32030,
    "outcome_unknown": -32031,
    "overloaded": -32032,
    "rate_limited": -32033,
    "corrupt": -32040,
    "engine_refused": -32041,
    "data_directory_in_use": -32042,
    "newer_format": -32043,
    "older_format": -32044,
    "model_failed": -32050,
    "call_failed": -32051,
    "call_interrupted": -32052,
    "diverged": -32053,
    "schema_too_new": -32054,
    "migration_failed": -32055,
    "invalid_state": -32056,
    "agent_interrupted": -32057,
    "file_refused": -32058,
    "unsaved_files": -32059,
    "workspace_held": -32060,
    "command_stopped": -32061,
}
"""The integer that JSON-RPC wants, by stable code. Programs should look at the latter."""
METHOD_NOT_FOUND: Final = -32601
"""What JSON-RPC wants instead when the field that is invalid is the method."""


def write_error(error: BlackboardError) -> ErrorMessage:
    """An error as the `error` member of a response."""
    values = error.fields()
    number = RPC_CODES[error.code]
    if error.code == "invalid_request" and values["field"] == "method":
        number = METHOD_NOT_FOUND
    return {
        "code": number,
        "message": str(error)[:1000],
        "data": {"code": error.code, "fields": values},
    }


def read_error(message: Any) -> BlackboardError:
    """The error that a peer described; RemoteProtocolError if the description cannot be read."""
    data = message.get("data") if isinstance(message, dict) else None
    if isinstance(data, dict):
        code, values = data.get("code"), data.get("fields")
        if isinstance(code, str) and isinstance(values, dict):
            return from_fields(code, values)
    return RemoteProtocolError(reason="an error without code and fields")


_WRONG: Final = (
    *(KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError),
    *(MsgspecError, Rejected),
)


class from_peer:  # noqa: N801 - used as a statement
    """`with from_peer("head"):` errors inside the block become RemoteProtocolError: the peer's
    fault."""

    __slots__ = ("what",)

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        return None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, _WRONG):
            reason = f"bad {self.what}: {type(error).__name__}: {str(error)[:200]}"
            raise RemoteProtocolError(reason) from error
