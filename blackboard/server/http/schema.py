"""The protocol, described for programs: an AsyncAPI 3 document made from the table of methods.

Everything here is derived: params and results from `wire/methods.py`, and notifications from
`wire/answers.py`. docs/protocol.md contains the same as tables (`tables`).
"""

from types import UnionType
from typing import Any, Final

import msgspec

from blackboard import limits
from blackboard.server.http.handshake import VERSION
from blackboard.wire import answers
from blackboard.wire.errors import METHOD_NOT_FOUND, RPC_CODES, ErrorResponse
from blackboard.wire.frames import SUBPROTOCOLS
from blackboard.wire.methods import METHODS, ImportedEntry, Method, Params

NOTIFICATIONS: Final[dict[str, Any]] = {
    "changes": answers.ChangesMessage,
    "cancelled": answers.CancelledMessage,
    "draining": answers.DrainingMessage,
}
"""The params of notifications."""


def asyncapi() -> dict[str, Any]:
    """The AsyncAPI 3.0 document."""
    schemas: dict[str, Any] = {}
    messages = {name: _request(method, schemas) for name, method in METHODS.items()}
    messages |= {f"{name}.result": _result(method, schemas) for name, method in METHODS.items()}
    messages |= {name: _notification(name, schemas) for name in NOTIFICATIONS}
    messages["error"] = _message("error", _schema(ErrorResponse, schemas))
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


def _request(method: Method, schemas: dict[str, Any]) -> dict[str, Any]:
    params = _schema(method.request, schemas)
    members = {"id": _ID, "method": {"const": method.name}, "params": params}
    return _message(method.name, _object(members, "jsonrpc"))


def _result(method: Method, schemas: dict[str, Any]) -> dict[str, Any]:
    members = {"id": _ID, "result": _schema(method.result, schemas, is_sent=True)}
    return _message(f"{method.name}.result", _object(members))


def _notification(name: str, schemas: dict[str, Any]) -> dict[str, Any]:
    members = {
        "method": {"const": name},
        "params": _schema(NOTIFICATIONS[name], schemas, is_sent=True),
    }
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


_REFERENCE: Final = "#/components/schemas/"
_VALUE: Final = {
    "description": "JSON: any JSON value, bytes as {'$bytes': base64}; msgpack: `bin` that holds "
    f"the msgpack of the value. At most {limits.VALUE_BYTES_MAX} bytes of msgpack and "
    f"{limits.VALUE_DEPTH_MAX} levels of nesting."
}
_EXPORTED_VALUE: Final = {
    "description": "A value; or one that is encrypted, as it was exported: JSON "
    "{'$sealed': base64}; msgpack: `bin`."
}


def _schema(kind: Any, schemas: dict[str, Any], *, is_sent: bool = False) -> dict[str, Any]:
    """The schema of a record; the schemas that it refers to are put into `schemas`.

    In what we send, only members that would be null are left out.
    """
    (found,), parts = msgspec.json.schema_components([kind], ref_template=_REFERENCE + "{name}")
    parts = {name: _described(name, part) for name, part in parts.items()}
    for part in parts.values() if is_sent else ():
        part["required"] = [
            member
            for member, facts in part.get("properties", {}).items()
            if member in part["required"] or facts.pop("default", None) is not None
        ]
    reference = found.get("$ref", "").removeprefix(_REFERENCE)
    if reference:
        found = parts.pop(reference)
    schemas |= parts
    shown: dict[str, Any] = found
    return shown


def _described(name: str, part: dict[str, Any]) -> dict[str, Any]:
    """Add what cannot be derived: what a value looks like, and that a kind is a constant."""
    members = part.get("properties", {})
    if "value" in members:
        members["value"] = _EXPORTED_VALUE if name == ImportedEntry.__name__ else _VALUE
    if "enum" in members.get("kind", {}):
        (members["kind"],) = [{"const": kind} for kind in members["kind"]["enum"]]
    return part


# --- tables ---------------------------------------------------------------------------------------


def tables() -> str:
    """The methods, notifications and errors as Markdown: the generated part of docs/protocol.md."""
    lines = ["| method | params | result |", "|---|---|---|"]
    for name, method in METHODS.items():
        members, result = _members(method.request), _result_members(method.result)
        lines.append(f"| `{name}` | {members} | {result} |")
    lines += ["", "| notification | params |", "|---|---|"]
    for name, kind in NOTIFICATIONS.items():
        lines.append(f"| `{name}` | {_typed_members(kind)} |")
    lines += ["", "| error | JSON-RPC code |", "|---|---|"]
    lines += [f"| `{code}` | {number} |" for code, number in RPC_CODES.items()]
    lines.append(f"| `invalid_request` for `method` | {METHOD_NOT_FOUND} |")
    return "\n".join(lines) + "\n"


def _members(request: type[Params[Any]]) -> str:
    shown = [
        f"`{field.name}`" if field.required else f"`{field.name}`?"
        for field in msgspec.structs.fields(request)
    ]
    return ", ".join(sorted(shown, key=lambda text: text.endswith("?")))


def _result_members(kind: Any) -> str:
    if kind is None:
        return "null"
    if getattr(kind, "__origin__", None) is list:
        (item,) = kind.__args__
        return "array of strings" if item is str else f"array of: {_typed_members(item)}"
    if isinstance(kind, UnionType):
        return f"{_typed_members(kind.__args__[0])}, or null"
    return _typed_members(kind)


def _typed_members(kind: Any) -> str:
    schema = _schema(kind, {}, is_sent=True)
    required, members = schema["required"], schema.get("properties", {})
    optional = members.keys() - required
    shown = [*(f"`{name}`" for name in sorted(required))]
    return ", ".join([*shown, *(f"`{name}`?" for name in sorted(optional))])
