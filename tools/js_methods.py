"""Write what clients/js takes from the protocol: `python -m tools.js_methods`.

- `methods.js`: the params and the result of each method as types, from the table of methods.
- `errors.js`: the error tree, with its codes and fields.
- `limits.js`: the limits that a client respects or waits for, with their reasons.

A test compares the files with the code, so neither can be changed without the other.
"""

import ast
import inspect
import json
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, fields
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from blackboard import errors, limits
from blackboard.server.http.schema import asyncapi
from blackboard.wire.methods import METHODS

FOLDER: Final = Path(__file__).resolve().parents[1] / "clients" / "js" / "src"
_HEAD: Final = """\
// Written by `python -m tools.js_methods` from {source}: change that instead.
"""
_NOTIFICATIONS: Final = ("changes", "cancelled")
_RULES: Final = (
    "BASED_ON_MAX BARRIER_MS_MAX CHECKPOINTS_PAGE_MAX CLAIM_TRIES_MAX DIFF_KEYS_MAX "
    "DOCUMENT_TOKEN_TTL_MS_MAX "
    "FENCES_MAX FRAME_BYTES_MAX HISTORY_VERSIONS_MAX INTEGER_MAX LANES_MAX LEASE_TTL_MS "
    "LEASE_TTL_MS_MIN "
    "LIST_ENTRIES_MAX LOG_ENTRIES_MAX MESSAGES_PER_FRAME_MAX NARROWINGS_MAX NOTE_BYTES_MAX "
    "OPERATIONS_MAX "
    "READ_KEYS_MAX "
    "REQUESTS_IN_FLIGHT_MAX REVISION_MAX SEGMENT_BYTES_MAX STEP_ATTEMPTS_MAX VALUE_BYTES_MAX "
    "VALUE_DEPTH_MAX WATCHES_PER_CONNECTION_MAX"
).split()
"""What all parties to a board agree on, as far as the client needs it."""
_CHOICES: Final = {
    limits.ClientLimits: (
        "commit_timeout_ms connect_wait_ms long_request_timeout_ms finish_timeout_ms "
        "merge_attempts_max renewals_per_ttl claim_look_entries claim_take_attempts_max "
        "commit_pauses_ms connect_pauses_ms "
        "token_refresh_percent"
    ).split(),
    limits.ConnectionLimits: ["request_timeout_ms", "handshake_timeout_ms", "ping_interval_ms"],
    limits.WatchLimits: ["watch_queue_changes_max", "watch_queue_bytes_max"],
}
"""What a client chooses for itself; `connect` takes other values."""


def files() -> dict[Path, str]:
    """The content of each file."""
    return {
        FOLDER / "methods.js": methods_page(),
        FOLDER / "errors.js": errors_page(),
        FOLDER / "limits.js": limits_page(),
    }


# --- methods --------------------------------------------------------------------------------------


def methods_page() -> str:
    """The types of the methods, from the published schema."""
    document = asyncapi()["components"]
    messages, schemas = document["messages"], dict(document["schemas"])
    rows, notices = list[str](), list[str]()
    for name in METHODS:
        params = messages[name]["payload"]["properties"]["params"]
        result = messages[f"{name}.result"]["payload"]["properties"]["result"]
        title = f"{_camel(name)}Params"
        schemas[title] = params
        shown = _named(f"{_camel(name)}Result", result, schemas)
        rows.append(f" * @property {{{{ params: {title}, result: {shown} }}}} {name}")
    for name in _NOTIFICATIONS:
        shown = messages[name]["payload"]["properties"]["params"]
        notices.append(_named(f"{_camel(name)}Notice", shown, schemas))
    kinds = "\n\n".join(_typedef(name, schemas[name]) for name in sorted(schemas))
    doc = "/**\n * Every method by its name.\n * @typedef {object} Methods\n"
    encoded = "/**\n * The msgpack of a value, as the board keeps it.\n"
    encoded += " * @typedef {Uint8Array} Encoded\n */"
    names = "\n".join(f"  '{name}'," for name in METHODS)
    listed = (
        "/** Every method of the protocol. @type {ReadonlyArray<keyof Methods>} */\n"
        f"export const METHODS = Object.freeze([\n{names}\n])\n"
    )
    head = _HEAD.format(source="blackboard/wire/methods.py")
    table = doc + "\n".join(rows) + "\n */"
    return "\n\n".join([head, encoded, kinds, table, listed])


def _camel(name: str) -> str:
    return "".join(part.capitalize() for part in name.split("_"))


def _named(name: str, schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    """The type of a result; one that has members gets a name."""
    if "properties" not in schema:
        return _type(schema)
    schemas[name] = schema
    return name


def _typedef(name: str, schema: dict[str, Any]) -> str:
    lines = [f" * {line}" for line in _text(schema.get("description", ""))]
    if "properties" not in schema:
        return "\n".join(["/**", *lines, f" * @typedef {{{_type(schema)}}} {name}", " */"])
    lines.append(f" * @typedef {{object}} {name}")
    required = schema.get("required", [])
    for member, found in schema["properties"].items():
        is_value = member == "value" and "const" not in found
        kind = "Encoded" if is_value else _type(found)
        shown = member if member in required else f"[{member}]"
        lines.append(f" * @property {{{kind}}} {shown}")
    return "\n".join(["/**", *lines, " */"])


def _text(text: str) -> list[str]:
    parts = inspect.cleandoc(text).split("\n\n")
    return [line for part in parts for line in textwrap.wrap(" ".join(part.split()), 96)]


_PLAIN: Final = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}


def _type(schema: dict[str, Any]) -> str:
    """A schema as a type of TypeScript."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for name in ("anyOf", "oneOf"):
        if name in schema:
            return " | ".join(dict.fromkeys(_type(each) for each in schema[name]))
    if "const" in schema or "enum" in schema:
        values = [schema["const"]] if "const" in schema else schema["enum"]
        return " | ".join(f"'{value}'" for value in values)
    kind = schema.get("type")
    if kind == "array":
        return _array(schema)
    if kind == "object":
        members = schema.get("additionalProperties")
        return f"Record<string, {_type(members) if isinstance(members, dict) else 'unknown'}>"
    return _PLAIN.get(str(kind), "unknown")


def _array(schema: dict[str, Any]) -> str:
    if "prefixItems" in schema:
        return f"[{', '.join(_type(each) for each in schema['prefixItems'])}]"
    items = schema.get("items")
    inner = _type(items) if isinstance(items, dict) else "unknown"
    return f"Array<{inner}>"


# --- errors ---------------------------------------------------------------------------------------

_ROOT: Final = """\
/** Root of the tree. Never thrown itself: `code` and `fields` are stable, the message is not. */
export class BlackboardError extends Error {
  static code = 'error'
  static retryable = false
  /** @type {ReadonlyArray<string>} */
  static names = []

  /**
   * @param {Record<string, unknown>} fields
   * @param {string} [message] as the service worded it
   */
  constructor (fields, message) {
    super(message)
    this.name = new.target.name
    /** The stable code of the error. */
    this.code = new.target.code
    /** Whether the same request may be sent again. */
    this.retryable = new.target.retryable
    /** The fields by name, as in the table of errors. */
    this.fields = /** @type {Record<string, unknown>} */ (Object.create(null))
    for (const name of new.target.names) this.fields[name] = fields[name]
    if (message === undefined) this.message = worded(this.code, this.fields)
  }
}

/**
 * @param {string} code
 * @param {Record<string, unknown>} fields
 */
function worded (code, fields) {
  const shown = Object.keys(fields).filter(name => fields[name] !== null)
  return `${code}: ${shown.map(name => `${name}=${printed(fields[name])}`).join(' ')}`
}

/** @param {unknown} value */
function printed (value) {
  try {
    return JSON.stringify(value, (_, part) => typeof part === 'bigint' ? String(part) : part)
  } catch {
    return String(value)
  }
}
"""
_TAIL: Final = """\
/**
 * The error that a peer described; an unknown code becomes RemoteProtocolError.
 * @param {unknown} code
 * @param {Record<string, unknown>} fields
 * @param {string} [message]
 * @returns {BlackboardError}
 */
export function fromFields (code, fields, message) {
  const kind = typeof code === 'string' ? BY_CODE.get(code) : undefined
  if (kind === undefined) {
    return new RemoteProtocolError({ reason: `error ${printed(code)?.slice(0, 100)}` })
  }
  return new kind(/** @type {any} */ (fields), message)
}
"""
_TYPES: Final = {"str": "string", "int": "number", "bool": "boolean", "Any": "unknown"}


def errors_page() -> str:
    """The error tree as classes."""
    kinds = list(_tree(errors.BlackboardError))
    rows = "\n".join(f"  [{kind.__name__}.code, {kind.__name__}]," for kind in kinds)
    table = (
        "/** Every error by its code.\n"
        " * @type {ReadonlyMap<string, new (fields: any, message?: string) => BlackboardError>}\n"
        " */\n"
        f"export const BY_CODE = new Map(/** @type {{any}} */ ([\n{rows}\n]))\n"
    )
    head = _HEAD.format(source="blackboard/errors.py")
    return "\n".join([head, _ROOT, *map(_error, kinds), table, _TAIL])


def _tree(base: type[errors.BlackboardError]) -> Iterator[type[errors.BlackboardError]]:
    for kind in base.__subclasses__():
        if kind.__module__.startswith("blackboard.errors"):
            yield kind
            yield from _tree(kind)


def _error(kind: type[errors.BlackboardError]) -> str:
    own = fields(kind)
    doc = "\n".join(
        f" * {line}".rstrip() for line in inspect.cleandoc(kind.__doc__ or "").split("\n")
    )
    defaults = ", ".join(
        f"{one.name}: {json.dumps(one.default)}" for one in own if one.default is not MISSING
    )
    given = "whole" if defaults else "fields"
    whole = f"    const whole = {{ {defaults}, ...fields }}\n" if defaults else ""
    shown = "".join(
        f"    this.{one.name} = {given}.{one.name}\n"
        for one in own
        if one.name != "name"  # an Error has a name of its own: `fields.name` has the field
    )
    members = ", ".join(
        f"{one.name}{'' if one.default is MISSING else '?'}: {_field_type(str(one.type))}"
        for one in own
    )
    names = ", ".join(f"'{one.name}'" for one in own)
    named = f"  static names = [{names}]\n" if own else ""
    base = kind.__mro__[1]
    is_other = kind.retryable != getattr(base, "retryable", None)
    retryable = f"  static retryable = {str(kind.retryable).lower()}\n" if is_other else ""
    return (
        f"/**\n{doc}\n */\nexport class {kind.__name__} extends {base.__name__} {{\n"
        f"  static code = '{kind.code}'\n{retryable}{named}\n"
        f"  /**\n   * @param {{{{ {members} }}}} fields\n   * @param {{string}} [message]\n   */\n"
        f"  constructor (fields, message) {{\n"
        f"{whole}    super({given}, message)\n{shown}  }}\n}}\n"
    )


def _field_type(text: str) -> str:
    name = text.removeprefix("<class '").removesuffix("'>")
    if name.startswith("list["):
        return "string[]"
    parts = [part.strip() for part in name.split("|")]
    return " | ".join(
        "null" if part == "None" else _TYPES[part.rpartition(".")[2]] for part in parts
    )


# --- limits ---------------------------------------------------------------------------------------


def limits_page() -> str:
    """The limits, with the reasons that stand in the source."""
    tree = ast.parse(inspect.getsource(limits))
    reasons = dict(_reasons(tree.body))
    rules = "\n".join(
        f"{_comment(reasons.get(name, ''), '')}export const {name} = {getattr(limits, name)}\n"
        for name in _RULES
    )
    rows = []
    for group, names in _CHOICES.items():
        [definition] = ast.parse(inspect.getsource(group)).body
        assert isinstance(definition, ast.ClassDef)
        found = dict(_reasons(definition.body))
        for name in names:
            value = getattr(group(), name)
            shown = json.dumps(list(value) if isinstance(value, tuple) else value)
            rows.append(f"{_comment(found[name], '  ')}  {name}: {shown},\n")
    head = _HEAD.format(source="blackboard/limits.py")
    chosen = "/** What one client chooses for itself; `connect` takes others as `limits`. */\n"
    return f"{head}\n{rules}\n{chosen}export const DEFAULTS = {{\n{''.join(rows)}}}\n"


def _reasons(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for before, after in pairwise(body):
        match before, after:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, " ".join(text.split())


def _comment(text: str, indent: str) -> str:
    if not text:
        return ""
    lines = textwrap.wrap(text, 94 - len(indent))
    if len(lines) == 1:
        return f"{indent}/** {lines[0]} */\n"
    body = "".join(f"{indent} * {line}\n" for line in lines)
    return f"{indent}/**\n{body}{indent} */\n"


if __name__ == "__main__":
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
