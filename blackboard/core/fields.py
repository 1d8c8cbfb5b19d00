"""The types of fields that come from outside, and the checks that their types carry.

A field is declared once, as `key: KeyText`. msgspec checks the type and the bounds when it decodes
a record; it also writes the published schema from them. What it cannot check, such as the grammar
of a key, is a `Check` in the annotation. `checks_of` gathers the checks of a whole record, so that
nobody has to list its fields a second time.

Records that the service makes itself are not checked: building one costs nothing extra.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, structs

from blackboard import limits
from blackboard.core.path import check_holder, check_key, check_name, check_prefix, parse_pattern
from blackboard.errors import InvalidRequest, LimitExceeded, Rejected


@dataclass(frozen=True, slots=True)
class Check:
    """Part of a field's annotation: `run` raises Rejected for a value that it does not accept."""

    run: Callable[[Any], object]


class RefusedFieldError(Exception):
    """A check refused a field: `path` leads to it, `reason` is what the check raised.

    Raised by the function that `checks_of` returns, which names no field itself.
    """

    def __init__(self, path: tuple[str | int, ...], reason: Rejected) -> None:
        super().__init__(path, reason)
        self.path = path
        self.reason = reason


def check_text(text: str) -> None:
    """Errors: InvalidRequest for half a surrogate pair, which no encoding can carry."""
    # ASCII has no surrogates; for the rest, encoding is the only test.
    if not text.isascii():
        _size(text)


def check_note(note: str) -> None:
    """Errors: InvalidRequest for what is not Unicode text; LimitExceeded above NOTE_BYTES_MAX."""
    # Notes of an embedded client come here without msgspec, which checks the types of others.
    if type(note) is not str:
        raise InvalidRequest(field="note", reason=f"a {type(note).__name__} is not text")
    size = len(note) if note.isascii() else _size(note, "note")
    if size > limits.NOTE_BYTES_MAX:
        raise LimitExceeded("NOTE_BYTES_MAX", size, limits.NOTE_BYTES_MAX, "note")


def _size(text: str, field: str = "text") -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequest(field=field, reason="is not Unicode text") from error


# --- the fields -----------------------------------------------------------------------------------

_SHORT: Final = limits.SEGMENT_BYTES_MAX

Text = Annotated[str, Check(check_text)]
ShortText = Annotated[str, Meta(max_length=_SHORT), Check(check_text)]
Note = Annotated[str, Check(check_note)]
Name = Annotated[
    str, Meta(max_length=_SHORT, description="a name: one segment of a key"), Check(check_name)
]
Holder = Annotated[
    str,
    Meta(
        max_length=_SHORT,
        description="`<name>~<anything>`, in a name with dots an @ where its account ends",
    ),
    Check(check_holder),
]
KeyText = Annotated[str, Meta(description="a key: docs/keys.md"), Check(check_key)]
PrefixText = Annotated[str, Meta(description="a key path, no trailing slash"), Check(check_prefix)]
PatternText = Annotated[
    str, Meta(description="a key path; * is one segment, ** the rest"), Check(parse_pattern)
]
InstantMs = Annotated[int, Meta(ge=0, le=limits.INTEGER_MAX)]
RevisionNumber = Annotated[int, Meta(ge=0, le=limits.REVISION_MAX)]
GrantedFence = Annotated[int, Meta(ge=1, le=limits.REVISION_MAX)]
FenceOrTicket = Annotated[int, Meta(ge=0, le=limits.REVISION_MAX)]
Integer = Annotated[int, Meta(ge=-limits.INTEGER_MAX, le=limits.INTEGER_MAX)]
EntryTtl = Annotated[int, Meta(ge=1, le=limits.TTL_MS_MAX)]
LeaseTtl = Annotated[int, Meta(ge=limits.LEASE_TTL_MS_MIN, le=limits.TTL_MS_MAX)]

# --- gathering checks -----------------------------------------------------------------------------

Walk = Callable[[Any], object]
"""Runs every check below a value."""


_GATHERED: Final[dict[type[Struct], Walk]] = {}


def checks_of(kind: type[Struct]) -> Walk:
    """A function that runs the checks in the annotations of `kind`, at any depth.

    It raises RefusedFieldError for the first field that a check refuses. The fields must have the
    types that they are declared with: let msgspec decode the record first.
    """
    found = _GATHERED.get(kind)
    if found is None:
        found = _GATHERED[kind] = _walk(kind) or _nothing
    return found


def _nothing(_: Any) -> None:
    """There is nothing to check."""


def _walk(kind: Any) -> Walk | None:
    """What checks a value of type `kind`; None if nothing does."""
    origin = get_origin(kind)
    if origin is Annotated:
        base, *extras = get_args(kind)
        checks = [extra.run for extra in extras if isinstance(extra, Check)]
        return checks[0] if checks else _walk(base)
    if origin is list or (origin is tuple and get_args(kind)[1:] == (...,)):
        return _each(get_args(kind)[0])
    if origin is tuple:
        return _places([_walk(part) for part in get_args(kind)])
    if origin in (Union, UnionType):
        return _by_type(_walks_of(kind))
    if isinstance(kind, type) and issubclass(kind, Struct):
        hints = get_type_hints(kind, include_extras=True)
        walks = {name: _walk(hints[name]) for name in kind.__struct_fields__}
        defaults = {field.name: field.default for field in structs.fields(kind)}
        return _members(walks, defaults)
    return None


def _walks_of(union: Any) -> dict[type, Walk]:
    """What checks the members of a union, by the class of the value."""
    found = {_runtime(part): _walk(part) for part in get_args(union)}
    return {kind: walk for kind, walk in found.items() if walk is not None}


def _runtime(kind: Any) -> type:
    while get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    found: type = kind
    return found


def _by_type(walks: Mapping[type, Walk]) -> Walk | None:
    if not walks:
        return None
    find = walks.get

    def run(value: Any) -> None:
        # By the exact class: msgspec makes no instances of subclasses.
        walk = find(type(value))
        if walk is not None:
            walk(value)

    return run


def _each(kind: Any) -> Walk | None:
    """For the items of a list. A union is looked at here: a call for each item would cost more."""
    is_union = get_origin(kind) in (Union, UnionType)
    walk = _walk(kind)
    if walk is None:
        return None
    find: Callable[[type], Walk | None] = _walks_of(kind).get if is_union else lambda _: walk

    def run(items: Any) -> None:
        place = 0
        try:
            for item in items:
                check = find(type(item))
                if check is not None:
                    check(item)
                place += 1
        except (Rejected, RefusedFieldError) as error:
            raise _below(place, error) from error

    return run


def _members(walks: Mapping[str, Walk | None], defaults: Mapping[str, Any]) -> Walk | None:
    """For the fields of a record. A default is not checked: it was written in our code.

    The function is generated, as those of dataclasses are: every commit runs it, and a loop over
    the fields takes twice as long.
    """
    known: dict[str, Any] = {"refused": (Rejected, RefusedFieldError), "below": _below}
    lines = []
    for name, walk in walks.items():
        if walk is None:
            continue
        known[f"check_{name}"], known[f"default_{name}"] = walk, defaults[name]
        lines += [
            f"        at, value = {name!r}, record.{name}",
            f"        if value is not default_{name}: check_{name}(value)",
        ]
    if not lines:
        return None
    tail = ["    except refused as error:", "        raise below(at, error) from error"]
    exec("\n".join(["def run(record):", "    try:", *lines, *tail]), known)  # noqa: S102
    run: Walk = known["run"]
    return run


def _places(walks: Sequence[Walk | None]) -> Walk | None:
    """For the parts of a tuple."""
    checked = [(place, walk) for place, walk in enumerate(walks) if walk is not None]
    if not checked:
        return None

    def run(items: Any) -> None:
        for place, walk in checked:
            try:
                walk(items[place])
            except (Rejected, RefusedFieldError) as error:
                raise _below(place, error) from error

    return run


def _below(step: str | int, error: Rejected | RefusedFieldError) -> RefusedFieldError:
    if isinstance(error, RefusedFieldError):
        return RefusedFieldError((step, *error.path), error.reason)
    return RefusedFieldError((step,), error)
