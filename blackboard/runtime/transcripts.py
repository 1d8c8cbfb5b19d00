"""An agent's memory of its conversations: recent turns, a summary, and everything on demand.

    transcript = Transcript("researcher")
    async with board.step("researcher") as step:
        transcript.add(step, "user", "Which year was filed last?")
    window = await transcript.window(board, tokens_max=4_000)
    reply = await model.complete(Prompt(messages=window.messages))

Below `private/<agent>/~transcript/<name>/`: `turns/<index>` are appended; a janitor moves the
oldest, unchanged, into `pages/<first index>`, and adds their content to `summary`; `count`,
`tokens` and `bytes` are totals.

Invariants
- A turn is never changed. It is below `turns` or in one page, and one commit moves it. So a reader
  that reads the turns first, and then the pages (or the summary), misses none.
- an index never names two turns, not even after a restore.
- The search index of a process is built from the board alone, and is rebuilt when a page of it was
  changed or removed, as by a restore or a redaction.
"""

import asyncio
import sqlite3
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from blackboard.client.memory.index import WORD
from blackboard.client.views import Entry, Listing, Receipt
from blackboard.core.commit import ABSENT, Condition, Delete, KeyAt, Op, Put
from blackboard.core.path import check_name, item_key
from blackboard.errors import Conflict, Corrupt, InvalidRequest, LimitExceeded
from blackboard.limits import (
    DEFAULT,
    LIST_ENTRIES_MAX,
    TRANSCRIPT_PAGE_BYTES_MAX,
    TRANSCRIPT_PAGE_TURNS_MAX,
    TRANSCRIPT_TURN_BYTES_MAX,
    WINDOW_TURNS_MAX,
    Limits,
)
from blackboard.runtime.models import ChatMessage, Role
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import encode_text, encode_value

K = TypeVar("K", bound=BaseModel)
_BYTES_PER_TOKEN: Final = 4


class StepWriter(Protocol):
    """A step, or its context: the operations happen in its commit."""

    def append(self, prefix: Prefix, value: Any) -> None:
        """Add `value` as the next item below `prefix`."""

    def increment(self, key: Key, by: int = 1) -> None:
        """Add `by` to the integer at `key`."""


class TranscriptBoard(Protocol):
    """The part of a Board that transcripts need."""

    async def entry(self, key: Key) -> Entry | None:
        """The entry at `key`."""

    async def entries(self, keys: Sequence[Key]) -> Mapping[Key, Entry]:
        """The entries of `keys`, all as of one revision."""

    async def list(
        self,
        pattern: str,
        *,
        after: Key | None = None,
        limit: int = LIST_ENTRIES_MAX,
        keys_only: bool = False,
    ) -> Listing:
        """A page of the entries that match; with `keys_only` without values."""

    async def commit(
        self, ops: Sequence[Op], *, conditions: Sequence[Condition] = (), note: str = ""
    ) -> Receipt:
        """Carry out `ops`."""


class Works(Protocol):
    """The context of a step: `Context`."""

    async def list(self, pattern: str) -> Listing:
        """The entries that match; tracked."""

    async def entry(self, key: Key) -> Entry | None:
        """The entry at `key`; tracked."""

    def put(self, key: Key, value: Any) -> None:
        """Set `key` to `value`."""

    def delete(self, key: Key) -> None:
        """Remove `key`."""

    def expect(self, *conditions: Condition) -> None:
        """Add conditions to the step's commit."""


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True)


class Turn(_Kept):
    """One turn. `index` is its place from 0; `tokens` is what it counts for in a window."""

    index: int = Field(ge=0)
    role: Role
    text: str
    tokens: int = Field(ge=0)
    time_ms: Milliseconds


class Summary(_Kept):
    """The summary of all archived turns: `archived` of them, the last one with index `last`."""

    text: str = ""
    last: int = -1
    archived: int = 0
    tokens: int = 0


class _Page(_Kept):
    turns: tuple[Turn, ...]


class _Stored(_Kept):
    role: Role
    text: str
    tokens: int = Field(ge=0)


@dataclass(frozen=True, slots=True)
class _MovedTurns:
    summary: Summary
    page: _Page
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Window:
    """The content for a prompt: the summary of the archived turns, and the newest turns."""

    summary: str
    turns: tuple[Turn, ...]
    summary_tokens: int = 0

    @property
    def tokens(self) -> int:
        """The tokens of the turns and the summary."""
        return sum(turn.tokens for turn in self.turns) + self.summary_tokens

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """As the beginning of a prompt."""
        said = [ChatMessage(role=turn.role, content=turn.text) for turn in self.turns]
        summary = f"Summary of the earlier conversation:\n{self.summary}"
        return (*([ChatMessage(role="system", content=summary)] if self.summary else []), *said)


@dataclass(frozen=True, slots=True)
class TranscriptSize:
    """The size of a transcript: all turns, archived turns, tokens and bytes of all turns."""

    turns: int
    archived: int
    tokens: int
    text_bytes: int


Summarise = Callable[[str, Sequence[Turn]], Awaitable[str]]
"""From the summary so far, and turns that are about to be archived, to the summary of both."""


def tokens_of(text: str) -> int:
    """A quarter of its bytes, rounded up: near enough for a window, whatever the model.

    Errors: InvalidRequest for half of a surrogate pair.
    """
    return -(-len(encode_text(text)) // _BYTES_PER_TOKEN)


class Transcript:
    """The conversation `name` of `agent`. The object has no state: everything is on the board.

    `count_tokens` measures texts; give the tokenizer of your model if windows must be exact.
    """

    def __init__(
        self, agent: str, name: str = "main", *, count_tokens: Callable[[str], int] = tokens_of
    ) -> None:
        check_name(name)
        self.agent = check_name(agent, "agent")
        self.prefix: Prefix = f"private/{agent}/~transcript/{name}"
        self._count_tokens = count_tokens

    # --- writing ----------------------------------------------------------------------------------

    def add(self, step: StepWriter, role: Role, text: str) -> None:
        """Add a turn when `step` commits. Errors: LimitExceeded (TRANSCRIPT_TURN_BYTES_MAX);
        InvalidRequest for half of a surrogate pair."""
        size = len(encode_text(text))
        if size > TRANSCRIPT_TURN_BYTES_MAX:
            raise LimitExceeded("TRANSCRIPT_TURN_BYTES_MAX", size, TRANSCRIPT_TURN_BYTES_MAX)
        turn = _Stored(role=role, text=text, tokens=self._count_tokens(text))
        step.append(f"{self.prefix}/turns", turn.model_dump())
        # Increments read nothing: two steps that add turns at the same time do not conflict.
        step.increment(self._key("count"))
        step.increment(self._key("tokens"), turn.tokens)
        step.increment(self._key("bytes"), size)

    async def archive(
        self, board: TranscriptBoard, summarise: Summarise, *, every: int = 64, keep: int = 64
    ) -> Summary | None:
        """Move the oldest `every` turns into a page, as soon as `keep` turns remain.

        Returns the new summary; None when there is nothing to do, or another janitor was faster. A
        page holds fewer turns when they are long (TRANSCRIPT_PAGE_BYTES_MAX). Errors: whatever
        `summarise` raises, and nothing is moved.
        """
        oldest = await _entries(board, f"{self.prefix}/turns/*", None, enough=every + keep)
        entry = await board.entry(self._key("summary"))
        moved = await self._moved(oldest, len(oldest), entry, summarise, (every, keep))
        if moved is None:
            return None
        page_key = self._page_key(moved)
        ops: list[Op] = [
            Put(page_key, encode_value(moved.page.model_dump())),
            Put(self._key("summary"), encode_value(moved.summary.model_dump())),
            *(Delete(found.key) for found in moved.entries),
        ]
        conditions: list[Condition] = [
            KeyAt(page_key, ABSENT),
            KeyAt(self._key("summary"), entry.mod_revision if entry else ABSENT),
            # Of two janitors that read the same turns, one moves them.
            *(KeyAt(found.key, found.mod_revision) for found in moved.entries),
        ]
        try:
            await board.commit(ops, conditions=conditions, note=f"archived {len(ops) - 2} turns")
        except Conflict:
            return None
        return moved.summary

    async def archive_in(
        self, ctx: Works, summarise: Summarise, *, every: int = 64, keep: int = 64
    ) -> Summary | None:
        """As `archive`, in the commit of a step: what `summarise` asks by `ctx.model` is journaled.

        The step is refused, and runs again, when a turn was added in between.
        """
        listing = await ctx.list(f"{self.prefix}/turns/**")
        entry = await ctx.entry(self._key("summary"))
        present = len(listing.entries)
        if listing.next_key is not None:  # it has the oldest ones only, because turns are long
            archived = _read(Summary, entry).archived if entry else 0
            present = max(present, _count(await ctx.entry(self._key("count"))) - archived)
        moved = await self._moved(listing.entries, present, entry, summarise, (every, keep))
        if moved is None:
            return None
        ctx.put(self._page_key(moved), moved.page.model_dump())
        ctx.put(self._key("summary"), moved.summary.model_dump())
        for found in moved.entries:
            ctx.delete(found.key)
        ctx.expect(KeyAt(self._page_key(moved), ABSENT))
        return moved.summary

    async def _moved(
        self,
        oldest: Sequence[Entry],
        present: int,
        entry: Entry | None,
        summarise: Summarise,
        every_keep: tuple[int, int],
    ) -> "_MovedTurns | None":
        """The part of the `oldest` turns to move, of which `present` are not archived yet, and the
        resulting summary."""
        every, keep = every_keep
        if not (1 <= every <= TRANSCRIPT_PAGE_TURNS_MAX and 0 <= keep <= WINDOW_TURNS_MAX // 2):
            reason = f"every is 1..{TRANSCRIPT_PAGE_TURNS_MAX}, keep 0..{WINDOW_TURNS_MAX // 2}"
            raise InvalidRequest(field="every", reason=reason)
        if present < every + keep:
            return None
        chosen = _fitting(oldest[:every])
        turns = tuple(_turn(found) for found in chosen)
        before = _read(Summary, entry) if entry else Summary()
        summary = Summary(
            text=await summarise(before.text, turns),
            last=turns[-1].index,
            archived=before.archived + len(turns),
            tokens=before.tokens + sum(turn.tokens for turn in turns),
        )
        return _MovedTurns(summary, _Page(turns=turns), tuple(chosen))

    def _page_key(self, moved: "_MovedTurns") -> Key:
        return item_key(f"{self.prefix}/pages", moved.page.turns[0].index)

    # --- reading ----------------------------------------------------------------------------------

    async def window(
        self, board: TranscriptBoard, *, turns_max: int = 64, tokens_max: int | None = None
    ) -> Window:
        """The newest turns, and the summary of the archived ones.

        At most `turns_max` (1..WINDOW_TURNS_MAX), and as many of those as have `tokens_max` tokens
        with the summary; the newest turn is always there.
        """
        if not 1 <= turns_max <= WINDOW_TURNS_MAX:
            reason = f"{turns_max} is not in 1..{WINDOW_TURNS_MAX}"
            raise InvalidRequest(field="turns_max", reason=reason)
        # The n-th turn never has a smaller index than n: what is left out here is older.
        first = _count(await board.entry(self._key("count"))) - turns_max
        turns = deque(await self._turns(board, first), maxlen=turns_max)
        entry = await board.entry(self._key("summary"))  # after the turns: see the invariants
        summary = _read(Summary, entry).text if entry else ""
        summary_tokens = self._count_tokens(summary) if summary else 0
        if tokens_max is not None:
            left = tokens_max - summary_tokens
            while len(turns) > 1 and sum(turn.tokens for turn in turns) > left:
                turns.popleft()
        return Window(summary, tuple(turns), summary_tokens)

    async def account(self, board: TranscriptBoard) -> TranscriptSize:
        """The size of the transcript."""
        keys = [self._key(part) for part in ("count", "tokens", "bytes", "summary")]
        found = await board.entries(keys)
        count, tokens, size = (_count(found.get(key)) for key in keys[:3])
        entry = found.get(keys[3])
        return TranscriptSize(count, _read(Summary, entry).archived if entry else 0, tokens, size)

    async def _turns(self, board: TranscriptBoard, first: int = 0) -> list[Turn]:
        """The turns that are not archived, from index `first`."""
        prefix = f"{self.prefix}/turns"
        after = item_key(prefix, first - 1) if first > 0 else None
        return [_turn(entry) for entry in await _entries(board, f"{prefix}/*", after)]

    async def pages(self, board: TranscriptBoard, after: Key | None = None) -> Sequence[Entry]:
        """The pages of archived turns after the one with key `after`."""
        return await _entries(board, f"{self.prefix}/pages/*", after)

    async def _page_revisions(self, board: TranscriptBoard) -> dict[Key, Revision]:
        """The mod_revision of each page."""
        found = await _entries(board, f"{self.prefix}/pages/*", None, keys_only=True)
        return {entry.key: entry.mod_revision for entry in found}

    def _key(self, part: str) -> Key:
        return f"{self.prefix}/{part}"


async def _entries(
    board: TranscriptBoard,
    pattern: str,
    after: Key | None,
    *,
    enough: int | None = None,
    keys_only: bool = False,
) -> list[Entry]:
    """All that match after `after`; or the first ones, as soon as there are `enough`."""
    found: list[Entry] = []
    while True:
        limit = LIST_ENTRIES_MAX if enough is None else min(enough - len(found), LIST_ENTRIES_MAX)
        page = await board.list(pattern, after=after, limit=limit, keys_only=keys_only)
        found += page.entries
        after = page.next_key
        if after is None or len(found) == enough:
            return found


def _fitting(entries: Sequence[Entry]) -> list[Entry]:
    """As many of the first entries as fit into a page; at least one does."""
    chosen: list[Entry] = []
    size = 0
    for entry in entries:
        size += len(_read(_Stored, entry).text.encode())
        if chosen and size > TRANSCRIPT_PAGE_BYTES_MAX:
            break
        chosen.append(entry)
    return chosen


def _turn(entry: Entry) -> Turn:
    stored = _read(_Stored, entry)
    index = int(entry.key.rpartition("/")[2])
    return Turn(**dict(stored), index=index, time_ms=entry.time_ms)


def _count(entry: Entry | None) -> int:
    return entry.value if entry and isinstance(entry.value, int) else 0


def _read(kind: type[K], entry: Entry) -> K:
    """Parse an entry. Errors: Corrupt when it is malformed."""
    try:
        return kind.model_validate(entry.value)
    except ValidationError as error:
        first = error.errors()[0]
        raise Corrupt(entry.key, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


# --- recall ---------------------------------------------------------------------------------------

_SCHEMA = """
CREATE VIRTUAL TABLE turns USING fts5 (
    text, role UNINDEXED, tokens UNINDEXED, time_ms UNINDEXED, tokenize = 'porter unicode61'
)"""


class Recall:
    """A search in all turns of a transcript, archived ones and recent ones. A block, or closed.

    It keeps an index in memory, to which new pages are added: the full-text search of SQLite, which
    comes with Python. Words are found in any of their forms (English), in any case; the best match
    comes first, by BM25. Above RECALL_TURNS_MAX turns the oldest are left out.
    Cancellation: the next search continues indexing where this one stopped.
    """

    def __init__(self, transcript: Transcript, *, limits: Limits = DEFAULT) -> None:
        self._transcript = transcript
        self._limits = limits.agents
        self._pages: dict[Key, Revision] = {}
        """The pages that are indexed, in order, with their mod_revisions."""
        self._recent: list[int] = []
        """Indices of the turns that were not archived at the last search."""
        self._turn = asyncio.Lock()
        """Of two searches at once, one reads the board after the other."""
        self._sql = sqlite3.connect(":memory:", isolation_level=None)
        self._sql.execute(_SCHEMA)

    async def search(
        self, board: TranscriptBoard, words: str, *, limit: int = 10
    ) -> tuple[Turn, ...]:
        """The turns that have one of `words` at least, at most `limit` (1..RECALL_RESULTS_MAX)."""
        results_max = self._limits.recall_results_max
        if not 1 <= limit <= results_max:
            raise InvalidRequest(field="limit", reason=f"{limit} is not in 1..{results_max}")
        known = WORD.findall(words)[: self._limits.recall_words_max]
        # Quoted: FTS5 takes the bare words AND, OR, NOT and NEAR for operators.
        wanted = " OR ".join(f'"{word}"' for word in known)
        if not wanted:
            return ()
        async with self._turn:
            await self._catch_up(board)
        rows = self._sql.execute(
            "SELECT rowid, role, text, tokens, time_ms FROM turns WHERE turns MATCH ?"
            " ORDER BY bm25(turns), rowid DESC LIMIT ?",
            (wanted, limit),
        )
        names = ("index", "role", "text", "tokens", "time_ms")
        return tuple(Turn.model_validate(dict(zip(names, row, strict=True))) for row in rows)

    def close(self) -> None:
        """Drop the index."""
        self._sql.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    async def _catch_up(self, board: TranscriptBoard) -> None:
        recent = await self._transcript._turns(board)  # first: see the invariants
        if self._pages:
            # A restore may have removed the newest ones, and a redaction removes any of them.
            there = await self._transcript._page_revisions(board)
            if any(there.get(key) != revision for key, revision in self._pages.items()):
                self._start_again()
        pages = await self._transcript.pages(board, next(reversed(self._pages), None))
        # They may be in a page by now, or gone after a restore.
        self._forget(self._recent)
        self._recent = [turn.index for turn in recent]
        self._take_in(recent)
        for page in pages:
            turns = _read(_Page, page).turns
            self._take_in(turns)
            # What was archived meanwhile is read from its page only once: it must stay.
            archived = {turn.index for turn in turns}
            self._recent = [index for index in self._recent if index not in archived]
            self._pages[page.key] = page.mod_revision
        self._sql.execute(
            "DELETE FROM turns WHERE rowid IN"
            # SQLite has no OFFSET without a LIMIT; a negative one means none.
            " (SELECT rowid FROM turns ORDER BY rowid DESC LIMIT -1 OFFSET ?)",
            (self._limits.recall_turns_max,),
        )

    def _start_again(self) -> None:
        self._pages, self._recent = {}, []
        self._sql.execute("DELETE FROM turns")

    def _forget(self, indices: Sequence[int]) -> None:
        self._sql.executemany("DELETE FROM turns WHERE rowid = ?", [(index,) for index in indices])

    def _take_in(self, turns: Sequence[Turn]) -> None:
        self._sql.executemany(
            "INSERT OR REPLACE INTO turns (rowid, text, role, tokens, time_ms)"
            " VALUES (?, ?, ?, ?, ?)",
            [(turn.index, turn.text, turn.role, turn.tokens, turn.time_ms) for turn in turns],
        )
