"""What the adapters of sessions share: any names as keys, one prefix of a board, foreign errors.

    records = Records(board, "public/openai", translate)
    await records.commit([records.append(records.key("thread 7", "items"), item)])

A board of `blackboard.sync` works from any event loop; an asynchronous one only on its own. That is
checked, because nothing else would say so.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import blackboard
from blackboard.errors import BlackboardError, InvalidRequest, LimitExceeded, LocalProtocolError
from blackboard.integrations.reading import read_entries
from blackboard.limits import LIST_ENTRIES_MAX, OPERATIONS_MAX
from blackboard.names import segment
from blackboard.ops import Append, Delete, DeletePrefix, KeyAt, PrefixUnchanged, Put, encode_value
from blackboard.types import Entry, Receipt

AnyBoard = blackboard.Board | blackboard.sync.Board
Op = Append | Delete | Put
Condition = KeyAt | PrefixUnchanged
DIGEST = "~sha256-"
"""Begins the segment of a name that is too long for one; `segment` returns none that does."""
REDACTED: Final = {"$redacted": True}
"""What a redaction leaves in place of a value: a restore to before it puts this back."""


class Records:
    """The entries of one adapter, below `prefix`. Errors of the board leave it as `translate` of
    them, with the board's own as their `__cause__`."""

    def __init__(
        self, board: AnyBoard, prefix: str, translate: Callable[[BlackboardError], Exception]
    ) -> None:
        self.board = board
        self._prefix = prefix
        self._translate = translate
        self._loop = _running_loop()

    @property
    def attempts_max(self) -> int:
        """How often to repeat what another writer came before: MERGE_ATTEMPTS_MAX."""
        return self.board.limits.client.merge_attempts_max

    # --- keys and operations ----------------------------------------------------------------------

    def key(self, *names: str) -> str:
        """The key of `names`, each any text, below the prefix."""
        return self.below(self._prefix, *names)

    def below(self, key: str, *names: str) -> str:
        """The key of `names`, each any text, below `key`."""
        with self.translated():
            return "/".join([key, *map(_segment, names)])

    def put(self, key: str, value: Any) -> Put:
        """The operation that sets `key` to `value` (JSON types and bytes, up to 1 MiB)."""
        with self.translated():
            return Put(key, encode_value(value))

    def append(self, prefix: str, value: Any) -> Append:
        """The operation that adds `value` as the next item below `prefix`."""
        with self.translated():
            return Append(prefix, encode_value(value))

    # --- reading and writing ----------------------------------------------------------------------

    async def entry(self, key: str) -> Entry | None:
        """The entry at `key`, or None."""
        return (await self.entries([key])).get(key)

    async def entries(self, keys: Sequence[str]) -> dict[str, Entry]:
        """The entries that exist, by key; those that fit into one answer are of one revision."""
        with self.translated():
            return await read_entries(partial(self._call, self.board.entries), keys)

    async def all(
        self, pattern: str, *, newest: int | None = None, keys_only: bool = False
    ) -> list[Entry]:
        """The entries that match, in the order of their keys, or the `newest` last of them.

        What was redacted is passed over, except with `keys_only`. A page (up to LIST_ENTRIES_MAX
        entries and 2 MiB) is of one revision, later pages of later ones.
        """
        found: list[Entry] = []
        after = None
        look = partial(self.board.list, pattern, reverse=newest is not None, keys_only=keys_only)
        while newest is None or len(found) < newest:
            limit = (
                LIST_ENTRIES_MAX if newest is None else min(newest - len(found), LIST_ENTRIES_MAX)
            )
            page = await self._ask(partial(look, after=after, limit=limit))
            found += [e for e in page.entries if keys_only or readable(e) is not None]
            after = page.next_key
            if after is None:
                break
        if not found:  # a listing passes over what may not be read, which is not the same as empty
            await self.entry(self.key("any"))
        return found if newest is None else found[::-1]

    async def commit(self, ops: Sequence[Op], *, conditions: Sequence[Condition] = ()) -> Receipt:
        """Carry out `ops` as one revision. Errors: Conflict as it is, for its caller to answer."""
        receipt: Receipt = await self._ask(partial(self.board.commit, ops, conditions=conditions))
        return receipt

    async def accepted(self, ops: Sequence[Op], *conditions: Condition) -> Receipt | None:
        """Carry out `ops` as one revision; None, and nothing changed, if a condition fails."""
        try:
            return await self.commit(ops, conditions=conditions)
        except blackboard.Conflict:
            return None

    async def remove(self, keys: Sequence[str]) -> None:
        """Remove `keys`, OPERATIONS_MAX at once; those that are absent are passed over."""
        for start in range(0, len(keys), OPERATIONS_MAX):
            await self.commit([Delete(key) for key in keys[start : start + OPERATIONS_MAX]])

    async def drop(self, prefix: str, *first: str) -> None:
        """Remove everything below `prefix`: at once if it is up to OPERATIONS_MAX entries. If it is
        more, what is below `first`, in that order, goes before the rest: so what says that there is
        something is there until nothing else is, and a removal that broke off is done again."""
        with self.translated():
            try:
                await self._call(self.board.commit, [DeletePrefix(prefix)])
            except LimitExceeded as refused:
                if refused.limit != "OPERATIONS_MAX":
                    raise
                for part in (*first, prefix):
                    await self._call(self.board.delete_prefix, part)

    async def _ask(self, method: Callable[..., Any], *arguments: Any) -> Any:
        with self.translated():
            return await self._call(method, *arguments)

    async def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        if isinstance(self.board, blackboard.sync.Board):
            # It blocks until the loop of `blackboard.sync` answers: not in the caller's loop.
            return await asyncio.to_thread(method, *arguments)
        # Made outside of any loop, it belongs to the first one that uses it.
        self._loop = self._loop or _running_loop()
        if self._loop is not _running_loop():
            reason = "the board belongs to another event loop: use a board of blackboard.sync"
            raise LocalProtocolError(reason=reason)
        return await method(*arguments)

    @contextmanager
    def translated(self) -> Iterator[None]:
        """A block in which errors of the board, but for Conflict, become the framework's."""
        try:
            yield
        except blackboard.Conflict:
            raise
        except BlackboardError as error:
            raise self._translate(error) from error


def readable(entry: Entry | None) -> Entry | None:
    """`entry`, or None if its value was redacted."""
    return None if entry is None or entry.value == REDACTED else entry


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _segment(name: str) -> str:
    """The segment for `name`. Errors: InvalidRequest for what is not Unicode text."""
    if not isinstance(name, str):
        raise InvalidRequest(field="name", reason=f"{name!r:.200} is not text")
    try:
        return segment(name)
    except LimitExceeded:
        return DIGEST + hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
