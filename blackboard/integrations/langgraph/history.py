"""Reading the records of a thread from the board, and what their values need."""

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, cast

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, writes_sort_key
from langgraph.checkpoint.serde.base import SerializerProtocol

from blackboard import Board
from blackboard.errors import Corrupt, InvalidRequest
from blackboard.integrations.langgraph.keys import ThreadPlace, segment, text
from blackboard.integrations.langgraph.payloads import read, reread
from blackboard.integrations.langgraph.records import (
    CheckpointRecord,
    TaskWrite,
    decode,
    decode_writes,
)
from blackboard.integrations.langgraph.tips import Tip
from blackboard.integrations.langgraph.values import Values
from blackboard.integrations.reading import read_entries
from blackboard.types import Entry

ROUNDS: Final = 2
"""Requests for single records, before those of a chain are read page by page."""
PAGE: Final = 256
AT_ONCE: Final = 32
"""Records of several threads that are in memory together, of up to a megabyte each."""
FIRST_PAGE: Final = 4
"""Records that are read to find the first child of a checkpoint: it is nearly always the next."""


@dataclass(frozen=True, slots=True)
class LoadedRecord:
    """A record as it was read."""

    id: str
    record: CheckpointRecord
    entry: Entry


Led = list[tuple[int, list[TaskWrite]]]
"""Writes, with the revision at which they were put."""


async def loaded_from(board: Board, entry: Entry) -> LoadedRecord:
    """The record in an entry. Errors: Corrupt."""
    try:
        record = decode(await read(board, entry))
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise Corrupt(what=entry.key, reason=f"it is no record of a checkpoint: {error}") from error
    names = record.names
    return LoadedRecord(names[2] if names else text(entry.key.rpartition("/")[2]), record, entry)


async def present_in(board: Board, entry: Entry) -> LoadedRecord | None:
    """The same, as it is now if others replace it meanwhile; None when it is gone."""
    return await reread(board, entry, partial(loaded_from, board))


@dataclass(slots=True)
class ThreadHistory:
    """The records of one namespace of a thread, as far as they are loaded."""

    board: Board
    place: ThreadPlace
    values: Values
    loaded: dict[str, LoadedRecord] = field(default_factory=dict)
    _by_key: dict[str, LoadedRecord] = field(default_factory=dict)

    async def take(self, entry: Entry) -> LoadedRecord:
        """The record in an entry, which is decoded once."""
        known = self._by_key.get(entry.key)
        if known is not None and known.entry.mod_revision == entry.mod_revision:
            return known
        loaded = await loaded_from(self.board, entry)
        self._by_key[entry.key] = self.loaded[loaded.id] = loaded
        self.values.add(loaded.id, loaded.record)
        return loaded

    async def fill(self, id_: str) -> None:
        """Load what the values of the record `id_` need. Errors: Corrupt when that is gone."""
        rounds = 0
        while missing := sorted(self.values.missing(id_)):
            keys = [self.place.checkpoint(each) for each in missing]
            found = list((await read_entries(self.board.entries, keys)).values())
            if len(found) < len(keys):
                reason = "a record that it builds on is gone"
                raise Corrupt(what=self.place.checkpoint(id_), reason=reason)
            # A chain: the records before these are needed next, and come together in one request.
            if rounds >= ROUNDS:
                pattern = f"{self.place.checkpoints}/*"
                page = await self.board.list(pattern, after=min(keys), reverse=True)
                found += page.entries
            for entry in found:
                await self.take(entry)
            rounds += 1

    async def read(
        self, entry: Entry, is_wanted: Callable[[str, Any], bool]
    ) -> tuple[LoadedRecord, dict[str, Any] | None]:
        """The record in an entry, and its values if `is_wanted(id, metadata)`. Errors: Corrupt;
        then nothing is known any more, because what was loaded may have been replaced."""
        try:
            loaded = await self.take(entry)
            if not is_wanted(loaded.id, self.values.load(loaded.record.metadata)):
                return loaded, None
            await self.fill(loaded.id)
            return loaded, self.values.channel_values(loaded.id)
        except (Corrupt, InvalidRequest):
            self.values = Values(self.values.load)
            self.loaded.clear()
            self._by_key.clear()
            raise

    def tip(self, id_: str, serde: SerializerProtocol) -> Tip:
        """What the next checkpoint builds on, if `id_` is its parent. It must be filled."""
        loaded = self.loaded[id_]
        rest: Any = serde.loads_typed(loaded.record.rest)
        owners = loaded.record.owners(id_)
        revisions = {
            owner: self.loaded[owner].entry.mod_revision for owner in {id_, *owners.values()}
        }
        return Tip(id_, rest["channel_versions"], serde, owners, self.values.held(id_), revisions)


async def history_of(
    board: Board, place: ThreadPlace, entry: Entry, serde: SerializerProtocol
) -> tuple[ThreadHistory, LoadedRecord]:
    """The record in `entry` with all that its values need."""
    history = ThreadHistory(board, place, Values(serde.loads_typed))
    loaded = await history.take(entry)
    await history.fill(loaded.id)
    return history, loaded


# --- writes ---------------------------------------------------------------------------------------


async def written(board: Board, place: ThreadPlace, id_: str) -> Led:
    """The writes of a checkpoint that no record has."""
    found: Led = []
    async for entry in board.scan(f"{place.writes(id_)}/*"):
        writes = await reread(board, entry, partial(writes_from, board))
        found += [] if writes is None else [(entry.mod_revision, writes)]
    return found


async def writes_from(board: Board, entry: Entry) -> list[TaskWrite]:
    """The writes in an entry. Errors: Corrupt."""
    try:
        return decode_writes(await read(board, entry))
    except (AttributeError, IndexError, TypeError, ValueError) as error:
        raise Corrupt(what=entry.key, reason=f"it is no write of a task: {error}") from error


async def with_writes(board: Board, place: ThreadPlace) -> set[str]:
    """The segments of the checkpoints that have such writes."""
    found = board.scan(place.written(), keys_only=True)
    return {entry.key.split("/")[-2] async for entry in found}


async def led_from(board: Board, place: ThreadPlace, id_: str) -> Led:
    """The writes of a checkpoint that the record of its first child has."""
    after: str | None = place.checkpoint(id_)
    limit = FIRST_PAGE
    while after is not None:
        page = await board.list(f"{place.checkpoints}/*", after=after, limit=limit)
        for entry in page.entries:
            loaded = await present_in(board, entry)
            if loaded is not None and loaded.record.parent == id_ and loaded.record.led:
                return [(entry.mod_revision, loaded.record.led)]
        after, limit = page.next_key, PAGE
    return []


def merged(old: Sequence[TaskWrite], new: Sequence[TaskWrite]) -> list[TaskWrite]:
    """Writes after others: of a task and an index the first counts, but of the special ones
    (errors, interrupts, answers to them) the last."""
    found = {(write.task_id, write.index): write for write in old}
    for write in new:
        if write.index < 0 or (write.task_id, write.index) not in found:
            found[write.task_id, write.index] = write
    return list(found.values())


# --- what LangGraph gets --------------------------------------------------------------------------


def config_of(place: ThreadPlace, id_: str) -> RunnableConfig:
    """The config that names a checkpoint."""
    names = {"thread_id": place.thread, "checkpoint_ns": place.namespace, "checkpoint_id": id_}
    return {"configurable": names}


def tuple_of(
    place: ThreadPlace,
    loaded: LoadedRecord,
    values: dict[str, Any],
    led: Led,
    serde: SerializerProtocol,
) -> CheckpointTuple:
    """A checkpoint with its metadata and the writes that were put on it."""
    record, writes = loaded.record, list[TaskWrite]()
    # In the order in which they were put: of a task and an index the first write counts.
    for _, found in sorted(led, key=lambda pair: pair[0]):
        writes = merged(writes, found)
    rest = serde.loads_typed(record.rest)
    checkpoint = {**rest, "id": loaded.id, "channel_values": values}
    writes.sort(key=lambda write: writes_sort_key(write.task_path, write.task_id, write.index))
    return CheckpointTuple(
        config=config_of(place, loaded.id),
        checkpoint=cast(Checkpoint, checkpoint),
        metadata=serde.loads_typed(record.metadata),
        parent_config=config_of(place, record.parent) if record.parent else None,
        pending_writes=[
            (write.task_id, write.channel, serde.loads_typed(write.value.typed)) for write in writes
        ],
    )


async def newest_first(
    board: Board, prefix: str, thread: str | None, namespace: str | None
) -> AsyncGenerator[tuple[ThreadPlace, Entry], None]:
    """The entries of the records of a namespace; of a whole thread, or of all, without it."""
    if thread is not None and namespace is not None:
        place = ThreadPlace(prefix, thread, namespace)
        async for entry in board.scan(f"{place.checkpoints}/*", reverse=True):
            yield place, entry
        return
    below = "*" if thread is None else segment(thread)
    pattern = f"{prefix}/{below}/c/{'*' if namespace is None else segment(namespace)}/*"
    # Names only: the values of a whole board are more than a process has room for.
    keys = [entry.key async for entry in board.scan(pattern, keys_only=True)]
    keys.sort(key=lambda key: key.rpartition("/")[2], reverse=True)
    for start in range(0, len(keys), AT_ONCE):
        some = keys[start : start + AT_ONCE]
        found = await read_entries(board.entries, some)
        for entry in (found[key] for key in some if key in found):
            where = await reread(board, entry, partial(place_of, board, prefix))
            if where is not None:
                yield where, entry


async def place_of(board: Board, prefix: str, entry: Entry) -> ThreadPlace:
    """Where the record in an entry lies."""
    thread, _, namespace, _ = entry.key.removeprefix(f"{prefix}/").split("/")
    if "~" in (thread[:1], namespace[:1]):
        names = (await loaded_from(board, entry)).record.names
        if names is None:
            raise Corrupt(what=entry.key, reason="its names are missing")
        return ThreadPlace(prefix, *names[:2])
    return ThreadPlace(prefix, text(thread), text(namespace))
