"""Requests as messages: written by the client, parsed by the service.

`parse` takes the params of any request, and says what is wrong with them. `read_commits` reads a
whole frame of commits in one step, since no other request comes as often; it only ever says yes.

Invariants
- `parse` returns params or raises InvalidRequest or LimitExceeded, for any input.
- An error names the path of the field and the reason, and never holds more than
  `_ECHO_CHARACTERS_MAX` characters of what came.
- What `read_commits` takes, `parse` takes too, and it is the same commit.
"""

import re
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from blackboard import limits
from blackboard.core import commit as core
from blackboard.core.fields import RefusedFieldError, checks_of
from blackboard.errors import InvalidRequest, LimitExceeded, Rejected
from blackboard.wire.frames import CONTAINERS_MAX, MSGPACK, Encoding
from blackboard.wire.methods import METHODS, CommitParams, Params

# --- parsing --------------------------------------------------------------------------------------

_ECHO_CHARACTERS_MAX: Final = 200
_LIMITS: Final = {
    "ops": "OPERATIONS_MAX",
    "conditions": "OPERATIONS_MAX",
    "fences": "FENCES_MAX",
    "based_on": "BASED_ON_MAX",
    "keys": "READ_KEYS_MAX",
    "patterns": "PATTERNS_MAX",
}
"""The limit on the length of a list, by its name."""


def parse(name: object, params: object, encoding: Encoding) -> Params[Any]:
    """Validate the params of a request. Errors: InvalidRequest, LimitExceeded."""
    method = METHODS.get(name) if type(name) is str else None
    if method is None:
        raise InvalidRequest(field="method", reason=f"there is no method {_short(repr(name))}")
    given = {} if params is None else params
    try:
        with_bytes = _with_values(given, method.request, encoding)
        found: Params[Any] = msgspec.convert(with_bytes, method.request, builtin_types=(bytes,))
        checks_of(method.request)(found)
    except msgspec.ValidationError as error:
        raise _explained(str(error), given) from None
    except RefusedFieldError as error:
        raise _refusal(error) from None
    except UnicodeEncodeError:  # msgspec compares names and kinds as UTF-8
        raise InvalidRequest(_short(_not_unicode(with_bytes)), "is not Unicode text") from None
    return found


def _not_unicode(params: Any) -> str:
    """The path of the first text or name in `params` that is not Unicode."""
    waiting: list[tuple[str, Any]] = [("", params)]  # no recursion: it may nest deeply
    while waiting:
        path, part = waiting.pop()
        if isinstance(part, str):
            try:
                part.encode()
            except UnicodeEncodeError:
                break
        if isinstance(part, dict):
            for name, member in reversed(part.items()):
                waiting += [(f"{path}.{name}", member), (path, name)]
        elif isinstance(part, list | tuple):
            waiting += [(f"{path}.{n}", item) for n, item in reversed([*enumerate(part)])]
    return path.removeprefix(".") or "params"


def _with_values(given: Any, request: type[Params[Any]], encoding: Encoding) -> Any:
    """The params with each value as canonical bytes: only the encoding knows what it looks like.

    Errors: RefusedFieldError.
    """
    values = request.values
    records = given.get(values.member) if values is not None and type(given) is dict else None
    if values is None or type(records) is not list or len(records) > values.count_max:
        return given  # the records are refused as such
    read, found = values.read, list(records)
    for place, record in enumerate(records):
        if type(record) is dict and "value" in record:
            try:
                found[place] = {**record, "value": read(record["value"], encoding)}
            except Rejected as error:
                raise RefusedFieldError((values.member, place, "value"), error) from error
    return {**given, values.member: found}


def _refusal(refused: RefusedFieldError) -> Rejected:
    """What a check said, about the field that it said it of."""
    path, error = ".".join(map(str, refused.path)), refused.reason
    if isinstance(error, LimitExceeded):
        return LimitExceeded(error.limit, error.value, error.maximum, path)
    reason = error.reason if isinstance(error, InvalidRequest) else str(error)
    return InvalidRequest(path, _short(reason))


_AT: Final = re.compile(r"(.*?)(?: - at (?:`key` in )?`\$(.*)`)?", re.DOTALL)
_NAMED: Final = re.compile(r"Object (missing required|contains unknown) field `(.*)`", re.DOTALL)
_TOO_SHORT: Final = re.compile(r"Expected `array` of length (\d+), got (\d+)")
_KIND: Final = "kind"


def _explained(text: str, given: Any) -> Rejected:
    """The error that says where and why, of msgspec's text: `Expected ... - at `$.ops[0].key``."""
    match = _AT.fullmatch(text)
    assert match is not None, "the pattern matches any text"
    reason, where = match[1], match[2] or ""
    path = [part for part in where.replace("[", ".").replace("]", "").split(".") if part]
    if reason.startswith("Expected `array` of length <=") and where[1:] in _LIMITS:
        maximum = int(reason.rpartition(" ")[2])
        return LimitExceeded(_LIMITS[where[1:]], len(given[where[1:]]), maximum, where[1:])
    if named := _NAMED.fullmatch(reason):
        is_missing = named[1].startswith("missing")
        path.append(named[2])
        reason = "Field required" if is_missing else "Extra inputs are not permitted"
    elif short := _TOO_SHORT.fullmatch(reason):
        path += [short[2]] if int(short[2]) < int(short[1]) else []
    if path and path[-1] == _KIND and path[0] in ("ops", "conditions"):
        path.pop()  # the record as a whole is none of those that there are
        reason = f"its kind is not known: {reason}"
    return InvalidRequest(_short(".".join(path)) or "params", _short(reason))


def _short(text: str) -> str:
    plain = text.encode(errors="backslashreplace").decode()
    if len(plain) <= _ECHO_CHARACTERS_MAX:
        return plain
    return plain[: _ECHO_CHARACTERS_MAX - 4] + " ..."


# --- writing and quick reading --------------------------------------------------------------------


def write_request(params: Params[Any], encoding: Encoding) -> dict[str, Any]:
    """The params of a request as `encoding.pack` takes them; members with defaults are left out."""
    message: dict[str, Any] = msgspec.to_builtins(params, builtin_types=(bytes,))
    values = params.values
    if values is not None and not encoding.binary:
        message[values.member] = [
            {**record, "value": values.write(record["value"], encoding)}
            if "value" in record
            else record
            for record in message[values.member]
        ]
    return message


def write_commit(board: str, commit: core.Commit, encoding: Encoding) -> dict[str, Any]:
    """The params of the request that makes `commit`. Errors: LocalProtocolError."""
    return write_request(CommitParams.of(board, commit), encoding)


class UsualCommit(Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A whole request to commit, as a client of ours writes it."""

    id: Annotated[int, Meta(ge=-limits.INTEGER_MAX, le=limits.INTEGER_MAX)]
    method: Literal["commit"]
    params: CommitParams
    traceparent: Annotated[str, Meta(max_length=limits.TRACEPARENT_CHARACTERS_MAX)] | UnsetType = (
        UNSET
    )


_decode: Final = msgspec.msgpack.Decoder(list[UsualCommit]).decode
_encode: Final = msgspec.msgpack.Encoder().encode


_BEGINS_LIKE_A_COMMIT: Final = b"\xa6method\xa6commit"
_BEGINNING: Final = 40
"""The first commit of a frame names its method within this many bytes, after the count and its
id."""


def may_be_commits(frame: bytes) -> bool:
    """Whether a msgpack frame begins with a commit; `read_commits` says whether it has only
    commits."""
    return frame.find(_BEGINS_LIKE_A_COMMIT, 0, _BEGINNING) >= 0


def read_commits(frame: bytes) -> list[UsualCommit]:
    """The requests of a msgpack frame of valid commits, decoded in one step; else none.

    Only a frame that is byte for byte what encoding its requests gives is taken: it has one
    meaning, with no member twice and nothing unknown. Every other frame is left to `frames.split`
    and `parse`, which say what is wrong; a large one too, since `split` counts what it
    builds.
    """
    if len(frame) > CONTAINERS_MAX:
        return []
    try:
        requests = _decode(frame)
        check = checks_of(CommitParams)
        for request in requests:
            check(request.params)
            _check_values(request.params.ops)
    except (msgspec.MsgspecError, ValueError, Rejected, RefusedFieldError):
        return []
    usual = len(requests) <= limits.MESSAGES_PER_FRAME_MAX and _encode(requests) == frame
    return requests if usual else []


_WITH_VALUE: Final = (core.Put, core.Append)
_value_of: Final = MSGPACK.value_in


def _check_values(ops: tuple[core.AskedOp, ...]) -> None:
    for op in ops:
        if isinstance(op, _WITH_VALUE) and _value_of(op.value) != op.value:
            raise ValueError("its value has another canonical encoding")
