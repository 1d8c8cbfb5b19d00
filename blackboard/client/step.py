"""A step: an agent's tracked reads and gathered writes, and the one commit that combines them.

Invariants
- Nothing is sent before the end of the block; a block that raises commits nothing.
- The commit is conditioned on what was read: a key on its mod_revision at the first read, a listing
  of a whole subtree on "nothing changed below it since". The runtime's branches count only if the
  pattern names them.
- A step from before a restore is refused, even if its board was refreshed in between.
- `get` and `merge` see the step's own writes (except appended items, whose keys are not known yet).
"""

from collections.abc import Awaitable, Callable, Sequence
from types import TracebackType
from typing import Any, Protocol, TypeVar, overload

from blackboard.client.compound import apply
from blackboard.client.views import Entry, Listing, Receipt
from blackboard.core.commit import (
    ABSENT,
    Append,
    Condition,
    Delete,
    DeletePrefix,
    HeldFence,
    Increment,
    KeyAt,
    Op,
    PrefixUnchanged,
    Put,
)
from blackboard.core.path import is_meant, is_prefix, parse_pattern
from blackboard.errors import Conflict, InvalidRequest, LocalProtocolError, TypeMismatch
from blackboard.limits import BASED_ON_MAX
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import as_type as typed, decode_value, encode_value

T = TypeVar("T")

Ground = tuple[Key, Revision]
"""A key, and the revision of it that was read: what a commit is based on."""


class StepBoard(Protocol):
    """The part of a Board that a step uses."""

    @property
    def agent(self) -> str:
        """The agent that takes the step."""

    async def entry(self, key: Key) -> Entry | None:
        """The entry at `key`."""

    async def list(self, pattern: str) -> Listing:
        """The entries that match."""

    async def commit(
        self,
        ops: Sequence[Op],
        *,
        conditions: Sequence[Condition],
        fences: Sequence[HeldFence],
        based_on: Sequence[Ground],
        note: str,
    ) -> Receipt:
        """Carry out `ops`."""


class Step:
    """Made by `Board.step`. After the block `receipt` says what was committed (None = nothing)."""

    def __init__(
        self,
        board: StepBoard,
        *,
        validate: bool,
        note: str,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.receipt: Receipt | None = None
        self.note = note
        self._board = board
        self._check_standing = check  # raises if earlier reads are no longer valid
        self._validate = validate
        self._ops: list[Op] = []
        self._read: dict[Key, Revision] = {}
        self._listed: dict[Prefix, Revision] = {}
        self._conditions: list[Condition] = []
        self._fences: list[HeldFence] = []
        self._covered: set[Key] = set()
        self._grounds: dict[Key, Revision] = {}
        self._open = False

    @property
    def agent(self) -> str:
        """The agent that takes this step."""
        return self._board.agent

    @property
    def ops(self) -> tuple[Op, ...]:
        """The operations that the step will commit."""
        return tuple(self._ops)

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """The conditions that the commit of the step will have."""
        conditions = list(self._conditions)
        if self._validate:
            conditions += [PrefixUnchanged(p, since) for p, since in self._listed.items()]
            # What a listing covers needs no condition of its own: a commit has at most
            # OPERATIONS_MAX.
            conditions += [KeyAt(k, at) for k, at in self._read.items() if k not in self._covered]
        return tuple(conditions)

    @property
    def patterns(self) -> tuple[str, ...]:
        """Patterns of all that the step read: what it is conditioned on."""
        return (*self._read, *(f"{prefix}/**" for prefix in self._listed))

    # --- reads ------------------------------------------------------------------------------------

    @overload
    async def get(self, key: Key, default: Any = None) -> Any: ...

    @overload
    async def get(self, key: Key, default: T, *, as_type: type[T]) -> T: ...

    @overload
    async def get(self, key: Key, default: None = None, *, as_type: type[T]) -> T | None: ...

    async def get(self, key: Key, default: Any = None, *, as_type: Any = None) -> Any:
        """The value at `key` as this step sees it, own writes included; `default` if absent.

        It is not read from the board (and not tracked) when the step itself put or deleted it.
        `as_type` as in `Board.get`.
        """
        absent: Any = object()
        found = await self._value(key, absent)
        if found is absent:
            return default
        return found if as_type is None else typed(found, as_type, key)

    async def _value(self, key: Key, default: Any) -> Any:
        self._check_open()
        base, added = self._own(key)
        if base is None:
            entry = await self.entry(key)
            found = [] if entry is None else [entry.value]
        else:
            found = [decode_value(base.value)] if isinstance(base, Put) else []
        if added:
            return _add(key, found[0] if found else 0, added)
        return found[0] if found else default

    def _own(self, key: Key) -> tuple[Put | Delete | DeletePrefix | None, list[int]]:
        """The step's last absolute effect on `key`, and the increments after it."""
        base: Put | Delete | DeletePrefix | None = None
        added: list[int] = []
        for op in self._ops:
            match op:
                case Put() | Delete() if op.key == key:
                    base, added = op, []
                case DeletePrefix() if key.startswith(op.prefix + "/"):
                    base, added = op, []
                case Increment() if op.key == key:
                    added.append(op.by)
                case _:
                    pass
        return base, added

    async def entry(self, key: Key) -> Entry | None:
        """The entry at `key` on the board, without own writes; the read is tracked."""
        self._check_open()
        entry = await self._board.entry(key)
        # The first read counts: what was decided on it is wrong if the key changed since then.
        self._read.setdefault(key, entry.mod_revision if entry else ABSENT)
        return entry

    def saw(self, entry: Entry) -> None:
        """Track a read that was made outside of the step: its commit is also conditioned on
        `entry`."""
        self._check_open()
        self._read.setdefault(entry.key, entry.mod_revision)

    async def list(self, pattern: str) -> Listing:
        """The first LIST_ENTRIES_MAX entries that match, without own writes; tracked.

        A pattern `<prefix>/**` within one namespace is tracked as a whole (including new and
        removed keys), any other one by the entries found. The runtime's branches (such as
        `public/~agents`) are listed, but tracked only if the pattern names them.
        """
        self._check_open()
        listing = await self._board.list(pattern)
        prefix = parse_pattern(pattern).prefix
        if pattern == f"{prefix}/**" and is_prefix(prefix):
            self._listed.setdefault(prefix, listing.revision)
            meant = (e for e in listing.entries if is_meant(pattern, e.key))
            # A key that was read before at another revision keeps its condition, which then fails.
            self._covered |= {e.key for e in meant if self._agrees(e)}
        for entry in listing.entries:
            if is_meant(pattern, entry.key):
                self._read.setdefault(entry.key, entry.mod_revision)
        return listing

    def _agrees(self, entry: Entry) -> bool:
        """Whether `entry` agrees with an earlier read of this step, if there was one."""
        return self._read.get(entry.key, entry.mod_revision) == entry.mod_revision

    # --- writes -----------------------------------------------------------------------------------

    def put(self, key: Key, value: Any, *, ttl_ms: Milliseconds | None = None) -> None:
        """Set `key` to `value` when the step commits."""
        self._check_open()
        self._ops.append(Put(key, encode_value(value), ttl_ms))

    def delete(self, key: Key) -> None:
        """Remove `key` when the step commits."""
        self._check_open()
        self._ops.append(Delete(key))

    def delete_prefix(self, prefix: Prefix) -> None:
        """Remove everything below `prefix` when the step commits."""
        self._check_open()
        self._ops.append(DeletePrefix(prefix))

    def append(self, prefix: Prefix, value: Any, *, ttl_ms: Milliseconds | None = None) -> None:
        """Add `value` as the next item below `prefix`; its key is in `receipt.results`."""
        self._check_open()
        self._ops.append(Append(prefix, encode_value(value), ttl_ms))

    def increment(self, key: Key, by: int = 1) -> None:
        """Add `by` to the integer at `key`; the sum is in `receipt.results`."""
        self._check_open()
        self._ops.append(Increment(key, by))

    def send(self, agent: str, message: Any) -> None:
        """Append `message` to the inbox of `agent`, in the same commit as everything else."""
        self.append(f"inbox/{agent}/messages", message)

    async def merge(self, key: Key, patch: Any) -> Any:
        """Apply a JSON merge patch (RFC 7396) to `key` as this step sees it; returns the value."""
        merged = apply(await self.get(key), patch)
        self.put(key, merged)
        return merged

    def expect(self, *conditions: Condition) -> None:
        """Add conditions of your own."""
        self._check_open()
        self._conditions += conditions

    def rest_on(self, *grounds: Ground) -> None:
        """Add entries to the provenance of this step (`why`), without a condition: they may have
        changed."""
        self._check_open()
        self._grounds |= dict(grounds)

    def rely_on(self, *fences: HeldFence) -> None:
        """Add leases without which the commit must not happen."""
        self._check_open()
        self._fences += fences

    # --- the block --------------------------------------------------------------------------------

    async def __aenter__(self) -> "Step":
        self._open = True
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._open = False
        if kind is None and self._ops:
            self.receipt = await self._commit()

    async def _commit(self) -> Receipt:
        self._check_standing()
        seen = self._grounds | self._read
        grounds = [(key, at) for key, at in seen.items() if at != ABSENT]
        return await self._board.commit(
            self._ops,
            conditions=self.conditions,
            fences=self._fences,
            # Provenance is for people: it is cut, where a missing condition would be an error.
            based_on=grounds[:BASED_ON_MAX],
            note=self.note,
        )

    def _check_open(self) -> None:
        if not self._open:
            raise LocalProtocolError(reason="a step is used inside its `async with` block only")


def _add(key: Key, value: Any, added: list[int]) -> int:
    """The result of the increments of `value`. Errors: TypeMismatch, as the commit would."""
    if type(value) is not int:
        raise TypeMismatch(key, "integer", type(value).__name__)
    return sum(added, value)


async def repeat_step(
    begin: Callable[[], Step], body: Callable[[Step], Awaitable[T]], attempts: int
) -> T:
    """`Board.run_step`."""
    if attempts < 1:
        raise InvalidRequest("attempts", f"{attempts} is below 1: write how often to run it")
    for attempt in range(attempts):
        try:
            async with begin() as step:
                return await body(step)
        except Conflict:
            # No pause: a conflict means that another commit got in, and the next attempt reads it.
            if attempt == attempts - 1:
                raise
    raise AssertionError("the last attempt returns or raises")
