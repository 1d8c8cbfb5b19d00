"""Parses what the service sent: the inverse of `wire/answers.py`.

Read strictly, field by field, without models: a watcher reads hundreds of thousands of these.

Invariants
- `read_x(write_x(x)) == x` in either encoding.
- A public reader returns the right types or raises RemoteProtocolError, for any input.

The most frequent messages are read in one step: receipts of commits, and changes of watches.

A frame that contains only these is decoded directly into records, as the service does with commits
(`requests.py`). Every other frame goes through `frames.py` and the readers here, which know all
messages and say what is wrong.
"""

from collections.abc import Sequence
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct

from blackboard.core.commit import (
    Change,
    ChangeKind,
    CommitId,
    Entry,
    Epoch,
    Head,
    Lease,
    LogEntry,
    LogPage,
    Proof,
    Reading,
    Result,
    Waiter,
    signature,
)
from blackboard.core.watch import Position
from blackboard.errors import BlackboardError, Rejected, RemoteProtocolError, from_fields
from blackboard.wire.frames import CONTAINERS_MAX, Encoding

_WRONG: Final = (KeyError, TypeError, ValueError, IndexError, AttributeError)


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
        wrong = (*_WRONG, msgspec.MsgspecError, Rejected)
        if isinstance(error, wrong):
            reason = f"bad {self.what}: {type(error).__name__}: {str(error)[:200]}"
            raise RemoteProtocolError(reason) from error


def read_error(message: Any) -> BlackboardError:
    """The error that a peer described; RemoteProtocolError if the description cannot be read."""
    data = message.get("data") if isinstance(message, dict) else None
    if isinstance(data, dict):
        code, values = data.get("code"), data.get("fields")
        if isinstance(code, str) and isinstance(values, dict):
            return from_fields(code, values)
    return RemoteProtocolError(reason="an error without code and fields")


T = TypeVar("T")
_convert: Final = partial(msgspec.convert, builtin_types=(bytes,))


def read_as(kind: type[T], message: Any) -> T:
    """A result whose message has the members of its record. Errors: RemoteProtocolError."""
    with from_peer(kind.__name__.lower()):
        found: T = _convert(message, kind)
        return found


def read_reading(message: Any, encoding: Encoding) -> Reading:
    """Result of `read` and `list`. Errors: RemoteProtocolError."""
    with from_peer("reading"):
        return Reading(
            _int(message, "revision"),
            _str(message, "epoch"),
            tuple([_entry(entry, encoding) for entry in _list(message, "entries")]),
            _str(message, "next_key") if "next_key" in message else None,
        )


def read_log(message: Any, encoding: Encoding) -> LogPage:
    """Result of `log`. Errors: RemoteProtocolError."""
    with from_peer("log"):
        entries = tuple([_revision(m, encoding) for m in _list(message, "revisions")])
        proofs = tuple([_proof(m) for m in _list(message, "proofs")] if "proofs" in message else ())
        return LogPage(_convert(message["head"], Head), entries, _int(message, "through"), proofs)


def read_results(message: Any) -> tuple[Result, ...]:
    """What the operations of a commit computed. Errors: RemoteProtocolError."""
    with from_peer("results"):
        return tuple([_result(item) for item in _list(message, "results")])


def read_leases(message: Any) -> Reading:
    """A reading of leases. Errors: RemoteProtocolError."""
    with from_peer("leases"):
        return Reading(
            _int(message, "revision"),
            _str(message, "epoch"),
            next_key=_str(message, "next_key") if "next_key" in message else None,
            leases=tuple([_lease(lease) for lease in _list(message, "leases")]),
        )


def read_revisions(messages: Any, encoding: Encoding) -> list[LogEntry]:
    """Revisions of a delivery. Errors: RemoteProtocolError."""
    with from_peer("revisions"):
        if type(messages) is not list:
            raise TypeError("not an array")
        return [_revision(message, encoding) for message in messages]


def read_position(token: Any) -> Position:
    """A resume token. Errors: RemoteProtocolError."""
    with from_peer("position"):
        return Position.parse(token)


def read_int(message: Any, name: str) -> int:
    """A member that is an integer. Errors: RemoteProtocolError."""
    with from_peer("message"):
        return _int(message, name)


def read_str(message: Any, name: str) -> str:
    """A member that is a string. Errors: RemoteProtocolError."""
    with from_peer("message"):
        return _str(message, name)


def read_optional_str(message: Any, name: str) -> str | None:
    """A member that is a string; None if it is absent. Errors: RemoteProtocolError."""
    with from_peer("message"):
        return _str(message, name) if name in message else None


def read_entry(message: Any, encoding: Encoding) -> Entry:
    """What a key holds. Errors: RemoteProtocolError."""
    with from_peer("entry"):
        return _entry(message, encoding)


def read_grounds(message: Any) -> tuple[tuple[str, int], ...]:
    """The member `based_on`. Errors: RemoteProtocolError."""
    with from_peer("based_on"):
        return _grounds(message)


def join_revisions(before: Sequence[LogEntry], after: Sequence[LogEntry]) -> list[LogEntry]:
    """Join what `answers.pack_revisions` split."""
    if not before or not after or before[-1].revision != after[0].revision:
        return [*before, *after]
    first, more = before[-1], after[0]
    whole = LogEntry(
        first.revision,
        first.time_ms,
        first.id,
        first.changes + more.changes,
        first.digest,
        first.based_on,
        first.note,
        first.epoch,
    )
    return [*before[:-1], whole, *after[1:]]


# --- parts; they raise Python's own errors -----------------------------------------------------


def _int(message: Any, name: str) -> int:
    value = message[name]
    if type(value) is not int:
        raise TypeError(f"{name} is not an integer")
    return value


def _str(message: Any, name: str) -> str:
    value = message[name]
    if type(value) is not str:
        raise TypeError(f"{name} is not a string")
    return value


def _list(message: Any, name: str) -> list[Any]:
    value = message[name]
    if type(value) is not list:
        raise TypeError(f"{name} is not an array")
    return value


def _entry(message: Any, encoding: Encoding) -> Entry:
    return Entry(
        _str(message, "key"),
        encoding.value_told(message["value"]),
        _int(message, "mod_revision"),
        _int(message, "create_revision"),
        read_author(message),
        _int(message, "time_ms"),
        _int(message, "expires_at_ms") if "expires_at_ms" in message else None,
    )


def read_author(message: Any) -> str:
    """The signature of a message's author. Errors: ValueError."""
    name, account = _str(message, "author"), _account(message, _str(message, "author"))
    return signature(name, account)


def read_account(message: Any) -> str:
    """The account of the author of a message, if its name was narrowed from it; else "".

    Errors: ValueError, KeyError, TypeError.
    """
    return _account(message, _str(message, "author"))


def _account(message: Any, name: str) -> str:
    """Older services send no account."""
    return _checked_account(name, _str(message, "account") if "account" in message else "")


def _checked_account(name: str, account: str) -> str:
    if account and not name.startswith(account + "."):
        raise ValueError(f"{name!r} is not narrowed from {account!r}")
    return account


def _revision(message: Any, encoding: Encoding) -> LogEntry:
    return LogEntry(
        _int(message, "revision"),
        _int(message, "time_ms"),
        CommitId(_str(message, "author"), 0, "", 0),
        tuple([_change(change, encoding) for change in _list(message, "changes")]),
        bytes.fromhex(_str(message, "digest")),
        _grounds(message) if "based_on" in message else (),
        _str(message, "note") if "note" in message else "",
        _convert(message["epoch"], Epoch) if "epoch" in message else None,
        account=_account(message, _str(message, "author")),
    )


def _proof(message: Any) -> Proof | None:
    if message is None:
        return None
    hashes = [_list(message, name) for name in ("salts", "contents", "leaves")]
    salts, contents, leaves = [
        tuple([None if part is None else bytes.fromhex(part) for part in parts]) for parts in hashes
    ]
    if None in salts or None in leaves:
        raise TypeError("a proof has salts and leaves")
    return Proof(_present(salts), contents, _present(leaves))


def _present(hashes: Sequence[bytes | None]) -> tuple[bytes, ...]:
    return tuple([each for each in hashes if each is not None])


def _change(message: Any, encoding: Encoding) -> Change:
    return Change(
        ChangeKind(message["kind"]),
        _str(message, "key"),
        encoding.value_told(message["value"]) if "value" in message else None,
        _int(message, "expires_at_ms") if "expires_at_ms" in message else None,
        _int(message, "item") if "item" in message else None,
        _lease(message["lease"]) if "lease" in message else None,
    )


def _lease(message: Any) -> Lease:
    return Lease(
        _str(message, "key"),
        _str(message, "holder"),
        _int(message, "fence"),
        _int(message, "until_ms"),
        tuple([_waiter(waiter) for waiter in _list(message, "waiters")])
        if "waiters" in message
        else (),
        _int(message, "ttl_ms") if "ttl_ms" in message else None,
    )


def _waiter(message: Any) -> Waiter:
    return Waiter(_str(message, "holder"), _int(message, "ttl_ms"), _int(message, "until_ms"))


def _grounds(message: Any) -> tuple[tuple[str, int], ...]:
    pairs = _list(message, "based_on")
    if not all(type(key) is str and type(revision) is int for key, revision in pairs):
        raise TypeError("based_on holds no pairs of key and revision")
    return tuple([(key, revision) for key, revision in pairs])


def _result(item: Any) -> Result:
    if item is None or type(item) in (int, str):
        result: int | str | None = item
        return result
    if type(item) is not list or not all(type(part) in (str, int) for part in item):
        raise TypeError("a result is an integer, a string, a list of these, or null")
    return tuple(item)


class ReceiptNews(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """`answers.ReceiptMessage`, read."""

    revision: int
    time_ms: int
    results: tuple[int | str | tuple[str | int, ...] | None, ...]
    level: str
    duplicate: bool = False


class RevisionNews(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """`answers.RevisionMessage`, read."""

    revision: int
    time_ms: int
    author: str
    changes: tuple[Change, ...]
    digest: str
    based_on: tuple[tuple[str, int], ...] = ()
    note: str = ""
    epoch: Epoch | None = None
    account: str = ""

    def to_core(self) -> LogEntry:
        """The same as a log entry. Errors: ValueError for an invalid digest."""
        return LogEntry(
            self.revision,
            self.time_ms,
            CommitId(self.author, 0, "", 0),
            self.changes,
            bytes.fromhex(self.digest),
            self.based_on,
            self.note,
            self.epoch,
            account=_checked_account(self.author, self.account),
        )


class ChangesNews(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """`answers.ChangesMessage`, read; without `more`, which is rare and goes the other way."""

    watch: int
    position: str
    revisions: tuple[RevisionNews, ...]

    def to_core(self) -> tuple[int, Position, tuple[LogEntry, ...]]:
        """The number of the watch, its position, and its revisions. Errors: ValueError,
        InvalidRequest."""
        revisions = tuple([revision.to_core() for revision in self.revisions])
        return self.watch, Position.parse(self.position), revisions


class News(Struct, forbid_unknown_fields=True, frozen=True, gc=False):
    """A message: an answer with `id` and `result`, or a notification with `method` and `params`."""

    id: int | None = None
    result: ReceiptNews | None = None
    method: Literal["changes"] | None = None
    params: ChangesNews | None = None


_decode: Final = msgspec.msgpack.Decoder(list[News]).decode


def read_news(frame: bytes) -> list[News]:
    """The messages of a msgpack frame that contains only receipts and changes; none for any other
    frame."""
    if len(frame) > CONTAINERS_MAX:
        return []
    try:
        return _decode(frame)
    except (msgspec.MsgspecError, ValueError):
        return []


def read_receipt(message: Any) -> ReceiptNews:
    """A receipt from any other frame. Errors: ValueError."""
    try:
        return msgspec.convert(message, ReceiptNews)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def pack_changes(
    watch: int,
    position: Position,
    pieces: Sequence[bytes],
    encoding: Encoding,
    *,
    more: bool = False,
) -> list[bytes]:
    """Messages to a watch with the pieces of `answers.pack_revisions`; without pieces, a progress
    mark. With `more`, the last revision continues in later messages.
    """
    pack, join = encoding.pack, encoding.map
    params = {"watch": pack(watch), "position": pack(str(position))}
    method, messages = pack("changes"), []
    for index, piece in enumerate(pieces or [pack([])]):
        members = {**params, "revisions": piece}
        if more or index < len(pieces) - 1:
            members["more"] = pack(True)
        messages.append(join({"method": method, "params": join(members)}))
    return messages
