"""The protocol, described for programs: an AsyncAPI 3 document made from the models.

Everything here is derived: the requests from the pydantic models of wire/messages.py, the rest from
the TypedDicts of wire/answers.py. docs/protocol.md holds the same as tables (`tables`).
"""

from types import UnionType
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter

from blackboard.server.http.handshake import VERSION
from blackboard.wire import answers
from blackboard.wire import history_messages as past
from blackboard.wire.errors import METHOD_NOT_FOUND, RPC_CODES
from blackboard.wire.frames import SUBPROTOCOLS
from blackboard.wire.messages import METHODS

RESULTS: Final[dict[str, Any]] = {
    "hello": answers.WelcomeMessage,
    "head": answers.HeadMessage,
    "commit": answers.ReceiptMessage,
    "read": answers.ReadingMessage,
    "list": answers.ReadingMessage,
    "leases": answers.LeasesMessage,
    "log": answers.LogMessage,
    "why": list[answers.CauseMessage],
    "boards": list[str],
    "lost_boards": list[past.LostBoardMessage],
    "whoami": answers.IdentityMessage,
    "refresh": answers.IdentityMessage,
    "revoke": answers.RevokedMessage,
    "audit": list[answers.AuditMessage],
    "erase": answers.KeysMessage,
    "rewrap": answers.KeysMessage,
    "checkpoint": past.CheckpointMessage,
    "checkpoints": list[past.CheckpointMessage],
    "manifest": past.ManifestMessage,
    "pin": None,
    "prune": past.PrunedMessage,
    "restore": past.RestoredMessage,
    "recover": past.RecoveredMessage,
    "redact": past.RedactionMessage,
    "freeze": past.FreezeMessage,
    "thaw": past.FreezeMessage | None,
    "remove": None,
    "branch": answers.HeadMessage,
    "differences": past.DifferencesMessage,
    "history": list[past.VersionMessage],
    "verify": past.VerifiedMessage,
    "export": past.ExportMessage,
    "import_begin": None,
    "import_page": None,
    "import_end": answers.HeadMessage,
    "watch": answers.WatchMessage,
    "unwatch": None,
    "progress": None,
}
"""The type of each method's result."""
NOTIFICATIONS: Final[dict[str, Any]] = {
    "changes": answers.ChangesMessage,
    "cancelled": answers.CancelledMessage,
    "draining": answers.DrainingMessage,
}
"""The params of what the service sends unasked."""


def asyncapi() -> dict[str, Any]:
    """The AsyncAPI 3.0 document."""
    schemas: dict[str, Any] = {}
    messages = {name: _request(name, model, schemas) for name, model in METHODS.items()}
    messages |= {f"{name}.result": _result(name, schemas) for name in METHODS}
    messages |= {name: _notification(name, schemas) for name in NOTIFICATIONS}
    messages["error"] = _message("error", _schema(answers.ErrorResponse, schemas))
    references = {name: {"$ref": f"#/components/messages/{name}"} for name in messages}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Blackboard",
            "version": VERSION,
            "description": "JSON-RPC 2.0 in frames: every WebSocket message is an array of these.",
        },
        "channels": {
            "v1": {
                "address": "/v1",
                "messages": references,
                "bindings": {
                    "ws": {
                        "headers": {
                            "type": "object",
                            "properties": {"Sec-WebSocket-Protocol": {"enum": list(SUBPROTOCOLS)}},
                        }
                    }
                },
            }
        },
        "operations": _operations(),
        "components": {"messages": messages, "schemas": schemas},
    }


def _operations() -> dict[str, Any]:
    channel = {"$ref": "#/channels/v1"}
    operations: dict[str, Any] = {
        name: {
            "action": "receive",
            "channel": channel,
            "messages": [{"$ref": f"#/channels/v1/messages/{name}"}],
            "reply": {
                "channel": channel,
                "messages": [
                    {"$ref": f"#/channels/v1/messages/{name}.result"},
                    {"$ref": "#/channels/v1/messages/error"},
                ],
            },
        }
        for name in METHODS
    }
    for name in NOTIFICATIONS:
        message = {"$ref": f"#/channels/v1/messages/{name}"}
        operations[name] = {"action": "send", "channel": channel, "messages": [message]}
    return operations


def _request(name: str, model: type[BaseModel], schemas: dict[str, Any]) -> dict[str, Any]:
    members = {"id": _ID, "method": {"const": name}, "params": _schema(model, schemas)}
    return _message(name, _object(members, "jsonrpc"))


def _result(name: str, schemas: dict[str, Any]) -> dict[str, Any]:
    members = {"id": _ID, "result": _schema(RESULTS[name], schemas)}
    return _message(f"{name}.result", _object(members))


def _notification(name: str, schemas: dict[str, Any]) -> dict[str, Any]:
    members = {"method": {"const": name}, "params": _schema(NOTIFICATIONS[name], schemas)}
    return _message(name, _object(members))


_ID: Final = {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 64}]}


def _object(members: dict[str, Any], *optional: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**members, **{name: {"type": "string"} for name in optional}},
        "required": list(members),
        "additionalProperties": False,
    }


def _message(name: str, payload: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "payload": payload}


def _schema(kind: Any, schemas: dict[str, Any]) -> dict[str, Any]:
    """The schema of a model or TypedDict; what it refers to is put into `schemas`."""
    found = TypeAdapter(kind).json_schema(ref_template="#/components/schemas/{model}")
    schemas |= found.pop("$defs", {})
    return found


# --- tables ---------------------------------------------------------------------------------------


def tables() -> str:
    """The methods, notifications and errors as Markdown: the generated part of docs/protocol.md."""
    lines = ["| method | params | result |", "|---|---|---|"]
    for name, model in METHODS.items():
        lines.append(f"| `{name}` | {_members(model)} | {_result_members(name)} |")
    lines += ["", "| notification | params |", "|---|---|"]
    for name, kind in NOTIFICATIONS.items():
        lines.append(f"| `{name}` | {_typed_members(kind)} |")
    lines += ["", "| error | JSON-RPC code |", "|---|---|"]
    lines += [f"| `{code}` | {number} |" for code, number in RPC_CODES.items()]
    lines.append(f"| `invalid_request` for `method` | {METHOD_NOT_FOUND} |")
    return "\n".join(lines) + "\n"


def _members(model: type[BaseModel]) -> str:
    shown = [
        f"`{name}`" if field.is_required() else f"`{name}`?"
        for name, field in model.model_fields.items()
    ]
    return ", ".join(sorted(shown, key=lambda text: text.endswith("?")))


def _result_members(name: str) -> str:
    kind = RESULTS[name]
    if kind is None:
        return "null"
    if getattr(kind, "__origin__", None) is list:
        (item,) = kind.__args__
        return "array of strings" if item is str else f"array of: {_typed_members(item)}"
    if isinstance(kind, UnionType):
        return f"{_typed_members(kind.__args__[0])}, or null"
    return _typed_members(kind)


def _typed_members(kind: Any) -> str:
    names = [*sorted(kind.__required_keys__), *sorted(kind.__optional_keys__)]
    optional = kind.__optional_keys__
    return ", ".join(f"`{name}`?" if name in optional else f"`{name}`" for name in names)
