"""Making a board that begins with entries (`Store.seed`): the steps of `scripts/seed.lua`.

Invariants
- No step writes more than _STEP_ENTRIES entries or about _STEP_BYTES bytes, so that the server can
  serve others in between.
- Only the last step makes it a board. Every step first compares the name of this call, so that two
  calls for the same board never mix.
- A failure leaves nothing. But in place of a board that was replaced it leaves an unfinished one:
  the next user would otherwise begin an empty board, which looks as if it had lost nothing.
"""

import secrets
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

import anyio
import msgpack

from blackboard.core.commit import Entry, Head, Seed, account_of
from blackboard.core.history import check_seed
from blackboard.core.path import namespace_of
from blackboard.core.state import BoardUsage, shares_of
from blackboard.engines.redis.driver import Argument
from blackboard.engines.redis.layout import pack_epoch, pack_usage, write_entry
from blackboard.engines.redis.lua import Scripts
from blackboard.errors import BlackboardError, HeadMoved, InvalidRequest, Unavailable

_STEP_ENTRIES: Final = 500
_STEP_BYTES: Final = 1024 * 1024
_NAME_BYTES: Final = 12
_INDEX_SCORE: Final = "0"


@dataclass(slots=True)
class _Step:
    """What one call writes, as flat lists: see scripts/seed.lua."""

    fields: list[bytes | str] = field(default_factory=list)
    index: list[bytes | str] = field(default_factory=list)
    expiry: list[bytes | str] = field(default_factory=list)
    meta: list[bytes | str] = field(default_factory=list)
    size: int = 0

    def add(self, entry: Entry) -> None:
        """Write `entry`, too."""
        text, large = write_entry(entry)
        self.fields += (entry.key, text)
        if large is not None:
            self.fields += (f"\0{entry.key}", large)
        self.index += (_INDEX_SCORE, entry.key)
        if entry.expires_at_ms is not None:
            self.expiry += (str(entry.expires_at_ms), entry.key)
        self.size += len(text) + len(large or b"")

    @property
    def is_full(self) -> bool:
        # A score and a member for each entry.
        return self.size >= _STEP_BYTES or len(self.index) >= 2 * _STEP_ENTRIES

    def arguments(self) -> list[bytes]:
        lists = (self.fields, self.index, self.expiry, self.meta)
        return [msgpack.packb(parts, use_bin_type=False) for parts in lists]


async def make_board(
    scripts: Scripts,
    board: str,
    seed: Seed,
    pages: AsyncIterator[Sequence[Entry]],
    replaces: Head | None = None,
) -> None:
    """Make `board` from the entries of `pages`, in place of the one whose head is `replaces`.

    Errors: InvalidRequest, HeadMoved, Unavailable: not made.
    """
    await _Making(scripts, board, seed, replaces).run(pages)


class _Making:
    """One call of `Store.seed` for one board."""

    def __init__(self, scripts: Scripts, board: str, seed: Seed, replaces: Head | None) -> None:
        self._scripts = scripts
        self._board = board
        self._seed = seed
        self._replaces = replaces
        self._name = secrets.token_urlsafe(_NAME_BYTES)
        self._usage: dict[str, BoardUsage] = {}

    async def run(self, pages: AsyncIterator[Sequence[Entry]]) -> None:
        old = self._replaces
        try:
            await self._call("begin", *(() if old is None else (old.revision, old.epoch.id)))
            step, after = _Step(), ""
            async for page in pages:
                after = check_seed(self._seed, after, page)
                for entry in page:
                    step.add(entry)
                    self._count(entry)
                    if step.is_full:
                        await self._call("page", *step.arguments())
                        step = _Step()
            await self._call("page", *step.arguments())
            await self._end()
        except BaseException:
            if old is None:
                # The first error says more. What is left now, the next `seed` of the name removes.
                with anyio.CancelScope(shield=True), suppress(BlackboardError):
                    await self._call("undo")
            raise

    def _count(self, entry: Entry) -> None:
        size = len(entry.key) + len(entry.value)
        namespace = namespace_of(entry.key)
        for name in (namespace, "", *shares_of(account_of(entry.author), namespace)):
            used = self._usage.get(name, BoardUsage())
            self._usage[name] = BoardUsage(used.keys + 1, used.bytes + size)

    async def _end(self) -> None:
        counters = [(f"#{prefix}", str(item)) for prefix, item in self._seed.next_item]
        for some in _slices(counters):
            await self._call("page", *_Step(fields=some).arguments())
        sums = [(f"u:{name}", pack_usage(used)) for name, used in self._usage.items()]
        for some in _slices(sums):
            await self._call("page", *_Step(meta=some).arguments())
        epoch = self._seed.epoch
        # The counters and sums are there now: a board that could be opened earlier would lack them.
        await self._call("end", pack_epoch(epoch), epoch.id, epoch.revision, self._seed.time_ms)

    async def _call(self, step: str, *arguments: Argument) -> None:
        answer = await self._scripts.make(self._board, [step, self._name, *arguments])
        if answer.startswith(b"at "):
            assert self._replaces is not None
            raise HeadMoved(self._replaces.revision, int(answer[3:]))
        if answer == b"exists":
            raise InvalidRequest(field="board", reason=f"there is a board {self._board!r}")
        if answer == b"lost":
            reason = "another process is making or removing it"
            raise Unavailable(what=f"board {self._board}", reason=reason)


def _slices(pairs: Sequence[tuple[str, bytes | str]]) -> Iterator[list[bytes | str]]:
    """The pairs in flat lists, each for one step."""
    for first in range(0, len(pairs), _STEP_ENTRIES):
        yield [part for pair in pairs[first : first + _STEP_ENTRIES] for part in pair]
