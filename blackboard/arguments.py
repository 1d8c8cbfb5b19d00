"""Checks what callers pass to a class of the interface, by the annotations of its methods.

    @checks_arguments
    class Board: ...

A value of another type than the annotated one is refused where it enters, embedded and over a
WebSocket alike, before anything is sent: InvalidRequest names the parameter, and says what to pass.
The annotations are the table; there is no second list of parameters. Records, such as operations,
are checked field by field, as making one checks nothing: `ops.0.key`. What a type cannot say, such
as the grammar of a key, is checked further in.

Invariants
- A method is checked before its body runs. One that returns an awaitable raises when it is awaited,
  every other one at the call.
- A wrong number or name of arguments stays Python's own TypeError.
"""

import os
import re
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, wraps
from inspect import Parameter, iscoroutinefunction, signature
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Struct

from blackboard.errors import InvalidRequest

T = TypeVar("T")
Accepts = Callable[[Any], bool]
_INTEGER_BITS_MAX = 1_024
"""Python refuses to write larger integers as text, which every error about them would do."""
_LEAST = {"limit": 1, "timeout_ms": 0}
"""The least value of a parameter of that name. What is above a limit is refused further in."""
_SURROGATE = re.compile("[\ud800-\udfff]")


def checks_arguments(cls: type[T]) -> type[T]:
    """Make every public method of `cls` check its arguments. Errors: InvalidRequest, on use."""
    for name, method in list(vars(cls).items()):
        if not name.startswith("_") and isinstance(method, types.FunctionType):
            setattr(cls, name, _checked(method))
    return cls


def _checked(method: Callable[..., Any]) -> Callable[..., Any]:
    if len(signature(method).parameters) == 1:  # self
        return method
    check = _Check(method)
    if iscoroutinefunction(method):

        @wraps(method)
        async def checked(*args: Any, **named: Any) -> Any:
            check(args, named)
            return await method(*args, **named)

    else:

        @wraps(method)
        def checked(*args: Any, **named: Any) -> Any:
            check(args, named)
            return method(*args, **named)

    return checked


class _Check:
    """Checks the arguments of calls of one method; reads its annotations at the first one, since
    few programs call every method."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self._scope = method.__globals__
        self._in_order: Sequence[str] = ()
        self._rest = ""
        self._bounded: Collection[str] = ()
        self._wanted: dict[str, tuple[Accepts, str]] = {}
        self._is_read = False

    def __call__(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> None:
        """Errors: InvalidRequest for the first argument that is not of its type."""
        if not self._is_read:
            self._read()
        for name, value in zip(self._in_order, args, strict=False):
            self._look(name, value)
        if self._rest:
            for value in args[len(self._in_order) :]:
                self._look(self._rest, value)
        for name, value in named.items():
            self._look(name, value)
        for name in self._bounded:
            value = {**dict(zip(self._in_order, args, strict=False)), **named}.get(name)
            if value is not None and value < _LEAST[name]:
                raise InvalidRequest(name, f"{value} is less than {_LEAST[name]}")

    def _look(self, name: str, value: Any) -> None:
        wanted = self._wanted.get(name)
        if wanted is not None and not wanted[0](value):
            raise _refusal(name, value, wanted[1])

    def _read(self) -> None:
        parameters = list(signature(self._method).parameters.values())
        # Not that of the result: its module may be one that the call itself loads.
        written = {n: hint for n, hint in self._method.__annotations__.items() if n != "return"}
        hints = get_type_hints(types.SimpleNamespace(__annotations__=written), self._scope)
        for parameter in parameters:
            if parameter.name in hints:
                self._wanted[parameter.name] = _wanted(hints[parameter.name])
        self._in_order = [p.name for p in parameters if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
        self._rest = next((p.name for p in parameters if p.kind is Parameter.VAR_POSITIONAL), "")
        self._bounded = [p.name for p in parameters if p.name in _LEAST]
        self._is_read = True


def check_argument(name: str, value: object, hint: Any) -> None:
    """As for an argument: check what a callback returned. Errors: InvalidRequest."""
    accepts, text = _wanted(hint)
    if not accepts(value):
        raise _refusal(name, value, text)


def _refusal(name: str, value: object, text: str) -> InvalidRequest:
    """The error for a value that is not as `text` says, or for a field of a record in it."""
    path, odd, wanted = _odd_field(name, value) or (name, value, text)
    return InvalidRequest(path, f"{_kind_of(odd)} here: pass {wanted}")


def _odd_field(path: str, value: object) -> tuple[str, object, str] | None:
    """The first field of a record, in `value` or one of its items, that is not of its type: its
    path, its content, and what to pass."""
    if isinstance(value, list | tuple):
        places = (_odd_field(f"{path}.{n}", item) for n, item in enumerate(value))
        return next(filter(None, places), None)
    if isinstance(value, Struct):
        for name, (accepts, text) in _fields_of(type(value)).items():
            content = getattr(value, name)
            if not accepts(content):
                return f"{path}.{name}", content, text
    return None


@cache
def _fields_of(kind: type[Struct]) -> Mapping[str, tuple[Accepts, str]]:
    """Which values each field of a record accepts. Making a record checks none of them."""
    hints = get_type_hints(kind)
    return {name: _wanted(hints[name]) for name in kind.__struct_fields__}


def _is_record(kind: type[Struct]) -> Accepts:
    def is_record(value: Any) -> bool:
        if not isinstance(value, kind):
            return False
        fields = _fields_of(type(value))
        return all(accepts(getattr(value, name)) for name, (accepts, _) in fields.items())

    return is_record


def _wanted(hint: Any) -> tuple[Accepts, str]:
    """Which values `hint` accepts, and what to say that it wants."""
    origin, parts = get_origin(hint), get_args(hint)
    if hint in _PLAIN:
        return _PLAIN[hint]
    if origin in (Union, types.UnionType):
        each = [_wanted(part) for part in parts]
        return (lambda value: any(accepts(value) for accepts, _ in each)), _either(each)
    if origin is Literal:
        return (lambda value: value in parts), _listed([repr(part) for part in parts])
    if origin is Sequence:
        return _sequence_of(*_wanted(parts[0]))
    if origin is tuple:
        each = [_wanted(part) for part in parts]
        return _tuple_of([accepts for accepts, _ in each]), "a tuple of " + ", ".join(
            text for _, text in each
        )
    if origin is Callable or hint is Callable:
        return callable, "a function"
    if isinstance(hint, type) and issubclass(hint, Struct):
        return _is_record(hint), _article(hint.__name__)
    if isinstance(hint, type):
        return (lambda value: isinstance(value, hint)), _article(hint.__name__)
    return (lambda _: True), "anything"  # Any, and the variables of a generic method


def _is_integer(value: Any) -> bool:
    # True and False are ints, too, and never meant as one.
    return (
        isinstance(value, int)
        and not isinstance(value, bool)
        and value.bit_length() <= _INTEGER_BITS_MAX
    )


def _is_text(value: Any) -> bool:
    """No encoding can carry half a surrogate pair."""
    return isinstance(value, str) and (value.isascii() or not _SURROGATE.search(value))


def _is_path(value: Any) -> bool:
    """No file has a name with a NUL, or one that cannot be encoded."""
    try:
        return isinstance(value, Path) and b"\0" not in os.fsencode(value)
    except UnicodeEncodeError:
        return False


_PLAIN: dict[Any, tuple[Accepts, str]] = {
    int: (_is_integer, "a whole number"),
    str: (_is_text, "a str"),
    bool: (lambda value: isinstance(value, bool), "True or False"),
    type(None): (lambda value: value is None, "None"),
    bytes: (lambda value: isinstance(value, bytes), "bytes"),
    Path: (_is_path, "a Path"),
    Any: (lambda _: True, "anything"),
}


def _sequence_of(accepts: Accepts, text: str) -> tuple[Accepts, str]:
    def all_of(value: Any) -> bool:
        # Text would pass as a list of characters, and an iterator would be used up by the check.
        if isinstance(value, str | bytes | Mapping) or not isinstance(value, Collection):
            return False
        return all(map(accepts, value))

    return all_of, f"a list in which each item is {text}"


def _tuple_of(each: Sequence[Accepts]) -> Accepts:
    def every(value: Any) -> bool:
        if not isinstance(value, tuple | list) or len(value) != len(each):
            return False
        return all(accepts(part) for accepts, part in zip(each, value, strict=True))

    return every


def _either(each: Sequence[tuple[Accepts, str]]) -> str:
    return _listed([text for _, text in each])


def _listed(texts: Sequence[str]) -> str:
    return " or ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def _kind_of(value: Any) -> str:
    """What `value` is, for an error; never the value itself, which may be a secret."""
    if isinstance(value, int) and not isinstance(value, bool) and not _is_integer(value):
        return "an int of too many digits"
    if isinstance(value, str) and not _is_text(value):
        return "text that is not Unicode"
    if isinstance(value, Path) and not _is_path(value):
        return "a path that no file can have"
    return _article(type(value).__name__)


def _article(name: str) -> str:
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
