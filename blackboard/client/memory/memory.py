"""Semantic memory: texts and facts of an agent or a team, and a search by meaning in them.

    async with board.memory(embed=embed, model="potion-base-8M") as memory:
        await memory.remember("The customer wants invoices in euros", sources=["public/mail"])
        for found in await memory.search("currency of the invoice", limit=3):
            print(found.similarity, found.text)

Memories are ordinary entries (client/memory/records.py has the layout). The index is derived from
them in the process that searches, and follows the log.

Invariants
- A search is answered from the index as of a revision that is not before the call, and what it
  returns was read from the board after that: nothing that was removed, restored away, redacted or
  erased by then, and nothing that the caller may not read.
- Whatever interrupts the index (a gap, an error, a cancellation) discards it: the next search
  builds it from the board.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar, runtime_checkable

from msgspec.structs import replace

from blackboard.arguments import checks_arguments
from blackboard.client.cancellation import finish
from blackboard.client.memory.embedding import Embed, Embedder, call_bounded
from blackboard.client.memory.index import Hit, Index, Question
from blackboard.client.memory.records import (
    NO_MODEL,
    Consolidated,
    Fact,
    MemoryFilter,
    MemoryPolicy,
    MemoryRecord,
    ModelRecord,
    Remembered,
    Writing,
    checked_text,
    in_commits,
    model_of,
    record_of,
    remembered,
    store_prefix,
    text_and_fact,
)
from blackboard.client.views import Entry, Listing, Receipt, RevisionEvent
from blackboard.client.watch import Watch
from blackboard.core.commit import ABSENT, Condition, Delete, KeyAt, Op, Put
from blackboard.core.path import check_name
from blackboard.errors import (
    Compacted,
    Conflict,
    InvalidRequest,
    LimitExceeded,
    Resync,
    RolledBack,
    TypeMismatch,
)
from blackboard.limits import (
    BASED_ON_MAX,
    EMBED_TEXTS_MAX,
    LIST_ENTRIES_MAX,
    MEMORY_RESULTS_MAX,
    OPERATIONS_MAX,
    Limits,
)
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import encode_value

T = TypeVar("T")
Summarise = Callable[[Sequence[Remembered]], Any]
"""From memories, oldest first, to the text that takes their place, at once or awaited."""


class MemoryBoard(Protocol):
    """The part of a Board that its memory uses."""

    @property
    def agent(self) -> str:
        """The name under which it is changed."""

    @property
    def limits(self) -> Limits:
        """How often this process tries, and how much it keeps."""

    async def entry(self, key: Key) -> Entry | None:
        """The entry at `key`."""

    async def entries(self, keys: Sequence[Key]) -> dict[Key, Entry]:
        """The entries of `keys`, all as of one revision."""

    async def list(
        self, pattern: str, *, after: Key | None = None, limit: int = LIST_ENTRIES_MAX
    ) -> Listing:
        """A page of the entries that match."""

    async def commit(
        self,
        ops: Sequence[Op],
        *,
        conditions: Sequence[Condition] = (),
        based_on: Sequence[tuple[Key, Revision]] = (),
        note: str = "",
    ) -> Receipt:
        """Carry out all of `ops` if every condition holds."""

    def watch(self, *patterns: str, snapshot: bool = False) -> Watch:
        """Watch the changes of keys that match."""


@runtime_checkable
class MemoryStep(Protocol):
    """A step, or the context of one: what happens in its commit."""

    async def entry(self, key: Key) -> Entry | None:
        """The entry at `key`; the read is tracked."""

    def put(self, key: Key, value: Any) -> None:
        """Set `key` to `value`."""

    def append(self, prefix: Prefix, value: Any) -> None:
        """Add `value` as the next item below `prefix`."""


@checks_arguments
class Memory:
    """One store of memories: `board.memory`. A block, or closed by `aclose`.

    Rights: those to everything below its `prefix`. The first search reads the whole store, later
    ones what has changed. Searches of one object run one after the other.
    """

    def __init__(self, board: MemoryBoard, prefix: Prefix, embedder: Embedder | None) -> None:
        self.prefix = prefix
        """Where its entries are."""
        self._board = board
        self._embedder = embedder
        self._entries: Prefix = f"{prefix}/entries"
        self._model_key: Key = f"{prefix}/model"
        self._index: Index | None = None
        self._watch: Watch | None = None
        self._state: dict[Key, Entry] = {}
        """What the watch began with: another dictionary means that it began again."""
        self._model: tuple[Revision, ModelRecord] | None = None
        """That of the index, with its revision."""
        self._stack = AsyncExitStack()
        self._lock = asyncio.Lock()

    # --- remembering ------------------------------------------------------------------------------

    async def remember(
        self,
        what: str | Fact,
        *,
        name: str | None = None,
        sources: Sequence[Key] = (),
        ttl_ms: Milliseconds | None = None,
    ) -> Key:
        """Keep a text, or a fact: members by name, of which `text`, or else all, is its text.

        With `name` it takes the place of the memory of that name. `sources`: the keys that it was
        made from, which `Board.why` follows. With `ttl_ms` it is removed after that time. Returns
        its key, for `forget`.

        Errors, with nothing kept: InvalidRequest without text, or for a source that is absent;
        LimitExceeded (MEMORY_TEXT_BYTES_MAX, BASED_ON_MAX, those of a commit); ModelFailed when the
        embedding failed, took too long, or is no vector (NaN, zeros); TypeMismatch when the store
        has embeddings of another model or size: call `reembed`; as of `Board.commit`.
        """
        text, fact = text_and_fact(what)
        key = None if name is None else self._named(name)
        (vector,) = await self._vectors([text])
        based_on = await self._revisions_of(sources)
        record = self._record(text, fact, vector, sources)
        (kept,) = await self._commit([Writing(key, record, ttl_ms)], based_on)
        return kept

    async def remember_all(self, what: Iterable[str | Fact]) -> tuple[Key, ...]:
        """Keep many texts and facts, in commits of up to EMBED_TEXTS_MAX; returns their keys.

        Errors: as of `remember`. All texts are checked first; after a later error, or a
        cancellation, whole commits have been made or not.
        """
        checked = [text_and_fact(one) for one in what]
        keys: list[Key] = []
        for first in range(0, len(checked), EMBED_TEXTS_MAX):
            part = checked[first : first + EMBED_TEXTS_MAX]
            vectors = await self._vectors([text for text, _ in part])
            writings = [
                Writing(None, self._record(text, fact, vector))
                for (text, fact), vector in zip(part, vectors, strict=True)
            ]
            for fitting in in_commits(writings):
                keys += await self._commit(fitting)
        return tuple(keys)

    async def add(self, step: MemoryStep, what: str | Fact, *, name: str | None = None) -> None:
        """As `remember`, in the commit of `step` (or of the context of an agent's step): kept if
        and only if the step is committed."""
        text, fact = text_and_fact(what)
        key = None if name is None else self._named(name)
        (vector,) = await self._vectors([text])
        # A tracked read: the step is refused if the model of the store changes before it commits.
        entry = await step.entry(self._model_key)
        changed = self._new_model(entry, len(vector) // 4)
        if changed is not None:
            step.put(self._model_key, changed)
        record = self._record(text, fact, vector)
        if key is None:
            step.append(self._entries, record)
        else:
            step.put(key, record)

    async def forget(self, *keys: Key) -> int:
        """Remove memories; returns how many there were. Errors: InvalidRequest for other keys."""
        # All of them before the first commit, so that a wrong one is refused with nothing removed.
        for key in keys:
            if not key.startswith(f"{self._entries}/"):
                raise InvalidRequest("keys", f"{key} is no memory of this store")
        gone = 0
        for first in range(0, len(keys), OPERATIONS_MAX):
            ops = [Delete(key) for key in keys[first : first + OPERATIONS_MAX]]
            gone += sum(map(bool, (await self._board.commit(ops)).results))
        return gone

    # --- finding ----------------------------------------------------------------------------------

    async def search(
        self,
        text: str,
        *,
        limit: int = 10,
        where: MemoryFilter | None = None,
        words_weight: int | float = 0.5,
    ) -> tuple[Remembered, ...]:
        """The memories that fit `text` best, at most `limit` (1..MEMORY_RESULTS_MAX).

        By meaning and by words: two rankings, fused. `words_weight` is the share of the words: 0
        asks by meaning alone, 1 by words alone, without an embedding. A store without `embed` is
        searched by words. `where` leaves out what does not fit before the best are chosen.

        Errors: InvalidRequest; LimitExceeded (MEMORY_TEXT_BYTES_MAX, MEMORIES_MAX); ModelFailed;
        TypeMismatch when the store has embeddings of another model or size: call `reembed`; as of
        `Board.list` and of a watch.
        """
        _check_between("limit", limit, 1, MEMORY_RESULTS_MAX)
        _check_between("words_weight", words_weight, 0, 1)
        where = (where or MemoryFilter()).check()
        checked_text(text)
        vector = None
        # Before the lock is taken: other searches go on while the model answers.
        if self._embedder is not None and words_weight < 1:
            vector = (await self._embedder.vectors([text]))[0]
        weight = 1.0 if vector is None else words_weight
        question = Question(text, vector, limit, where, weight)
        return await self._read(lambda index: self._ranked(index, question))

    async def newest(
        self, limit: int = 10, *, where: MemoryFilter | None = None
    ) -> tuple[Remembered, ...]:
        """The newest memories, at most `limit` (1..MEMORY_RESULTS_MAX). Errors: as of `search`."""
        _check_between("limit", limit, 1, MEMORY_RESULTS_MAX)
        where = (where or MemoryFilter()).check()
        return await self._read(lambda index: index.newest(limit, where))

    async def count(self) -> int:
        """How many memories there are. Errors: as of `search`."""
        async with self._lock:
            return len(await self._caught_up())

    # --- upkeep -----------------------------------------------------------------------------------

    async def consolidate(
        self, policy: MemoryPolicy, summarise: Summarise | None = None
    ) -> Consolidated:
        """Take away what `policy` does not keep; with `summarise`, in exchange for summaries.

        `policy.group` memories become one: its text is what `summarise` makes of them, its sources
        are their keys, and `Board.why` leads to what they were. Each exchange is one commit. A
        single memory that is left over stays until there is another one. What changed meanwhile
        stays, too.

        Errors: ModelFailed when `summarise` fails or takes too long, InvalidRequest when it returns
        no text; as of `remember`. What was exchanged before stays exchanged.
        """
        policy.check()
        before = None
        if policy.age_ms_max is not None:
            before = _now_ms() - policy.age_ms_max
        # Not for longer: `summarise` may take long, and searches wait for the lock.
        async with self._lock:
            seen = (await self._caught_up()).oldest(before, policy.count_max)
        if summarise is None:
            return Consolidated((), await self._forget_unchanged(seen))
        summaries: list[Key] = []
        forgotten = 0
        for first in range(0, len(seen), policy.group):
            group = await self._unchanged(seen[first : first + policy.group])
            if len(group) > 1 and (key := await self._exchange(group, summarise)) is not None:
                summaries.append(key)
                forgotten += len(group)
        return Consolidated(tuple(summaries), forgotten)

    async def reembed(self) -> int:
        """Let the model of this object be that of the store, and embed what other models have;
        returns how many memories that were.

        From its beginning, objects with the old model are refused; memories that are not embedded
        again yet are found by words. After an error or a cancellation, call it again: it continues.
        """
        if self._embedder is None:
            raise InvalidRequest("embed", "this memory has none: pass embed to board.memory")
        dimensions = (await self._embedder.vectors(["dimensions"])).shape[1]
        model = ModelRecord(self._embedder.model, dimensions)
        entry = await self._board.entry(self._model_key)
        if model_of(entry) != model:
            held = KeyAt(self._model_key, _revision(entry))
            put = Put(self._model_key, encode_value(model))
            await self._board.commit([put], conditions=[held], note="another model")
        done = 0
        after: Key | None = None
        while True:
            page = await self._board.list(f"{self._entries}/**", after=after, limit=EMBED_TEXTS_MAX)
            done += await self._embed_again(page.entries, model)
            after = page.next_key
            if after is None:
                return done

    async def aclose(self) -> None:
        """Drop the index, and end its watch."""
        async with self._lock:
            await self._discard()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    # --- writing ----------------------------------------------------------------------------------

    def _named(self, name: str) -> Key:
        if check_name(name).isdecimal():
            raise InvalidRequest("name", f"{name} is an index: give it a letter")
        return f"{self._entries}/{name}"

    async def _vectors(self, texts: Sequence[str]) -> Sequence[bytes]:
        """The embeddings as they are stored; empty ones without a model."""
        if self._embedder is None:
            return [b""] * len(texts)
        from blackboard.client.memory.vectors import packed

        return [packed(vector) for vector in await self._embedder.vectors(texts)]

    def _record(
        self, text: str, fact: dict[str, Any], vector: bytes, sources: Sequence[Key] = ()
    ) -> MemoryRecord:
        model = self._embedder.model if self._embedder else ""
        author, now = self._board.agent, _now_ms()
        return MemoryRecord(text, author, now, fact, tuple(sources), model, vector)

    async def _revisions_of(self, sources: Sequence[Key]) -> Sequence[tuple[Key, Revision]]:
        if len(sources) > BASED_ON_MAX:
            raise LimitExceeded("BASED_ON_MAX", len(sources), BASED_ON_MAX)
        found = await self._board.entries(sources) if sources else {}
        for key in sources:
            if key not in found:
                raise InvalidRequest("sources", f"{key} is absent")
        return [(key, found[key].mod_revision) for key in dict.fromkeys(sources)]

    async def _commit(
        self,
        writings: Sequence[Writing],
        based_on: Sequence[tuple[Key, Revision]] = (),
        *,
        replaced: Sequence[tuple[Key, Revision]] = (),
        note: str = "",
    ) -> Sequence[Key]:
        """Commit under the store's model, in place of what is `replaced`; the keys of `writings`.
        Errors: Conflict when something to replace has changed."""
        dimensions = len(writings[0].record.vector) // 4
        kept = {writing.key for writing in writings}
        gone = [Delete(key) for key, _ in replaced if key not in kept]
        ops: list[Op] = [*(writing.op(self._entries) for writing in writings), *gone]
        unchanged = [KeyAt(key, revision) for key, revision in replaced]
        for left in reversed(range(self._board.limits.client.merge_attempts_max)):
            entry = await self._board.entry(self._model_key)
            # Else an embedding could be stored after `reembed` had made another model the store's.
            conditions = [*unchanged, KeyAt(self._model_key, _revision(entry))]
            changed = self._new_model(entry, dimensions)
            put = [] if changed is None else [Put(self._model_key, encode_value(changed))]
            sent = [*ops, *put]
            try:
                receipt = await self._board.commit(
                    sent, conditions=conditions, based_on=based_on, note=note
                )
            except Conflict as conflict:
                if not left or conflict.key != self._model_key:
                    raise
                continue
            # Not strict: removals, and perhaps the model, come behind the writings.
            results = zip(writings, receipt.results, strict=False)
            return [writing.key or str(result) for writing, result in results]
        raise AssertionError("the last attempt returns or raises")

    def _new_model(self, entry: Entry | None, dimensions: int) -> ModelRecord | None:
        """The model to write with the first memory, or the first embedding; None if it is there.
        Errors: TypeMismatch."""
        found = model_of(entry)
        if self._embedder is None:
            return NO_MODEL if found is None else None
        wanted = ModelRecord(self._embedder.model, dimensions)
        if found is not None and found.model:
            self._check_model(found, dimensions)
        return None if found == wanted else wanted

    def _check_model(self, found: ModelRecord, dimensions: int) -> None:
        assert self._embedder is not None
        mine = (self._embedder.model, dimensions)
        if found.model and (found.model, found.dimensions) != mine:
            raise TypeMismatch(
                self._model_key,
                f"{found.dimensions} dimensions of {found.model}",
                f"{mine[1]} of {mine[0]} (reembed() changes the model of the store)",
            )

    async def _unchanged(self, seen: Sequence[tuple[Key, Revision]]) -> Sequence[Remembered]:
        """The memories of `seen`, in that order, without what changed since, or is gone."""
        found = await self._board.entries([key for key, _ in seen])
        same = [found[key] for key, at in seen if key in found and found[key].mod_revision == at]
        there = [(entry, record_of(entry)) for entry in same]
        return [remembered(entry, record) for entry, record in there if record is not None]

    async def _forget_unchanged(self, seen: Sequence[tuple[Key, Revision]]) -> int:
        """Remove the memories of `seen` that did not change since; returns how many."""
        gone = 0
        for first in range(0, len(seen), OPERATIONS_MAX):
            left = dict(seen[first : first + OPERATIONS_MAX])
            while left:
                held = [KeyAt(key, revision) for key, revision in left.items()]
                try:
                    receipt = await self._board.commit(list(map(Delete, left)), conditions=held)
                except Conflict as conflict:
                    if left.pop(conflict.key, None) is None:
                        raise
                    continue
                gone += sum(map(bool, receipt.results))
                break
        return gone

    async def _exchange(self, group: Sequence[Remembered], summarise: Summarise) -> Key | None:
        """A summary in place of `group`; None if one of them changed meanwhile."""
        text = await call_bounded("summarise", summarise, group)
        if not isinstance(text, str):
            raise InvalidRequest("summarise", f"returned {type(text).__name__}: return a str")
        (vector,) = await self._vectors([checked_text(text)])
        record = self._record(text, {}, vector, [one.key for one in group])
        read = [(one.key, one.revision) for one in group]
        note = f"consolidated {len(group)} memories"
        try:
            (key,) = await self._commit([Writing(None, record)], read, replaced=read, note=note)
        except Conflict:
            return None
        return key

    async def _embed_again(self, entries: Sequence[Entry], model: ModelRecord) -> int:
        read = [(entry, record_of(entry)) for entry in entries]
        old = [
            (entry, record)
            for entry, record in read
            if record is not None
            and (record.model, len(record.vector)) != (model.model, 4 * model.dimensions)
        ]
        vectors = await self._vectors([record.text for _, record in old])
        done = 0
        for (entry, record), vector in zip(old, vectors, strict=True):
            seen = remembered(entry, record)
            stated = replace(record, author=seen.author, time_ms=seen.time_ms, kept=True)
            again = replace(stated, model=model.model, vector=vector)
            # It may have expired already, and not be swept yet: then it goes in a
            # moment (`max(1, left)`).
            left = None if entry.expires_at_ms is None else entry.expires_at_ms - _now_ms()
            written = Writing(entry.key, again, None if left is None else max(1, left))
            try:
                await self._commit([written], replaced=[(entry.key, entry.mod_revision)])
            except Conflict:
                continue  # written since, with this model, or removed
            done += 1
        return done

    # --- the index --------------------------------------------------------------------------------

    def _ranked(self, index: Index, question: Question) -> list[Hit]:
        if question.vector is not None:
            self._check_model(index.model, len(question.vector))
        return index.rank(question)

    async def _read(self, look: Callable[[Index], list[Hit]]) -> tuple[Remembered, ...]:
        """What `look` finds, as the board has it now; once more if that is not what was found."""
        found: list[Remembered] = []
        for _ in range(self._board.limits.client.memory_search_attempts_max):
            async with self._lock:
                index = await self._caught_up()
                hits = await _in_thread(partial(look, index))
            entries = await self._board.entries([hit.key for hit in hits]) if hits else {}
            found = [one for hit in hits if (one := _as_found(hit, entries.get(hit.key)))]
            if len(found) == len(hits):
                break
        return tuple(found)

    async def _caught_up(self) -> Index:
        """The index, as of now."""
        try:
            while True:
                # A list and not `entry`, because it has the revision that the index must reach.
                page = await self._board.list(self._model_key, limit=1)
                entry = page.entries[0] if page.entries else None
                model = (entry.mod_revision if entry else 0, model_of(entry) or NO_MODEL)
                if self._index is not None and model == self._model:
                    if await self._follow(self._index, page.revision):
                        return self._index
                    continue
                # A model that was replaced, restored or erased, and the first search.
                await self._begin(*model)
        except BaseException:
            await self._discard()
            raise

    async def _begin(self, revision: Revision, model: ModelRecord) -> None:
        await self._discard()
        # Without an embedder nobody asks by meaning, and NumPy may be missing.
        indexed = NO_MODEL if self._embedder is None else model
        index = Index(indexed, limits=self._board.limits)
        watch = self._board.watch(f"{self._entries}/**", snapshot=True)
        self._watch = await self._stack.enter_async_context(watch)
        self._state = watch.state
        self._index, self._model = index, (revision, model)
        await _apply(index, [*watch.state.values()])
        # Emptied, as the index has it all by now, but kept: `_follow` compares the
        # dictionary itself.
        watch.state.clear()

    async def _follow(self, index: Index, revision: Revision) -> bool:
        """Take in what was committed up to `revision`; False if the index has to begin again."""
        assert self._watch is not None
        try:
            events = await self._watch.wait_for(revision)
        except (Compacted, RolledBack, Resync):
            await self._discard()
            return False
        if self._watch.state is not self._state:  # a restore that was too large to be delivered
            await self._discard()
            return False
        if events:
            await _apply(index, _changed(events))
        return True

    async def _discard(self) -> None:
        index, self._index, self._watch, self._model = self._index, None, None, None
        self._state = {}
        stack, self._stack = self._stack, AsyncExitStack()
        try:
            await stack.aclose()
        finally:
            if index is not None:
                index.close()


def memory_of(
    board: MemoryBoard, namespace: Prefix, store: str, embed: Embed | None, model: str
) -> Memory:
    """`Board.memory`. Errors: InvalidRequest; ModuleNotFoundError without NumPy for `embed`."""
    if embed is None and model:
        raise InvalidRequest("model", "there is no `embed` that uses it: pass both or neither")
    embedder = None if embed is None else Embedder(embed, model)
    return Memory(board, store_prefix(namespace, store), embedder)


async def _apply(index: Index, changes: Sequence[Entry | Key]) -> None:
    """Let `index` take in `changes`, in a thread, a page at a time."""
    for first in range(0, len(changes), LIST_ENTRIES_MAX):
        page = changes[first : first + LIST_ENTRIES_MAX]
        await _in_thread(partial(index.apply, page))


async def _in_thread(work: Callable[[], T]) -> T:
    """Run `work` in a thread; a cancellation waits for its end, which is near."""
    return await finish(asyncio.to_thread(work))


def _changed(events: Sequence[RevisionEvent]) -> list[Entry | Key]:
    """What `events` put (as entries) and removed (as keys), in order."""
    found: list[Entry | Key] = []
    for event in events:
        for change in event.changes:
            if change.kind == "delete":
                found.append(change.key)
            elif change.kind == "put":
                author, at = event.author, event.time_ms
                found.append(
                    Entry(change.key, change.value, event.revision, event.revision, author, at)
                )
    return found


def _as_found(hit: Hit, entry: Entry | None) -> Remembered | None:
    """The memory of `hit` if the board still has it as it was found."""
    if entry is None or entry.mod_revision != hit.revision:
        return None
    record = record_of(entry)
    if record is None:
        return None
    return replace(remembered(entry, record), score=hit.score, similarity=hit.similarity)


def _revision(entry: Entry | None) -> Revision:
    return entry.mod_revision if entry else ABSENT


def _check_between(name: str, value: float, low: int, high: int) -> None:
    if not low <= value <= high:
        raise InvalidRequest(name, f"{value} is not in {low}..{high}")


def _now_ms() -> Milliseconds:
    return time.time_ns() // 1_000_000
