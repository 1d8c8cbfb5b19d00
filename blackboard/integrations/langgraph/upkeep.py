"""Removing and copying checkpoints that share values with others."""

from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from langgraph.checkpoint.serde.base import SerializerProtocol

from blackboard import Board
from blackboard.integrations.langgraph.history import (
    LoadedRecord,
    ThreadHistory,
    newest_first,
    present_in,
)
from blackboard.integrations.langgraph.keys import ThreadPlace, text, thread_prefix
from blackboard.integrations.langgraph.payloads import (
    COMMIT_BYTES,
    Payloads,
    drop_files,
    file_of,
    read,
    reread,
)
from blackboard.integrations.langgraph.records import Pieced, decode, encode
from blackboard.integrations.langgraph.values import Held, Values, Version
from blackboard.ops import Delete, KeyAt
from blackboard.types import Entry

DELTAS = "counters_since_delta_snapshot"
"""The metadata of LangGraph that says how far back the values of delta channels begin."""


async def detach(
    board: Board, place: ThreadPlace, ids: set[str], serde: SerializerProtocol
) -> None:
    """Remove the checkpoints `ids` with their files and the writes that were put on them; those
    that build on them are made to stand by themselves.

    Errors: Conflict when a record that builds on them was replaced meanwhile.
    """
    async with standing_alone(board, place, ids, serde, without_writes=ids) as history:
        removed = [history.loaded[id_].entry for id_ in ids & history.loaded.keys()]
        for id_ in ids & history.loaded.keys():
            removed += [entry async for entry in board.scan(f"{place.writes(id_)}/*")]
        # A commit without operations is refused.
        if removed:
            payloads = Payloads(board, place.files)
            payloads.ops += [Delete(entry.key) for entry in removed]
            await payloads.commit()
    await drop_files_of(board, removed)


@asynccontextmanager
async def standing_alone(
    board: Board,
    place: ThreadPlace,
    ids: set[str],
    serde: SerializerProtocol,
    *,
    without_writes: Collection[str] = (),
) -> AsyncGenerator[ThreadHistory, None]:
    """Within it, remove or replace the checkpoints `ids`: those that build on them stand by
    themselves, without the writes that were put on those of `without_writes`.

    A record may be put between the look and the change that builds on one of them; afterwards none
    can, because it would name a revision that is gone. So there is a second look, and what was
    there before is still known then. Errors: Conflict when a record that builds on them was
    replaced meanwhile.
    """
    history = await _look(board, place, ThreadHistory(board, place, Values(serde.loads_typed)))
    await _make_whole(board, place, ids, history, without_writes)
    yield history
    await _make_whole(board, place, ids, await _look(board, place, history), without_writes)


async def _look(board: Board, place: ThreadPlace, history: ThreadHistory) -> ThreadHistory:
    """Take in the records that are there now."""
    async for entry in board.scan(f"{place.checkpoints}/*"):
        await history.take(entry)
    return history


async def _make_whole(
    board: Board,
    place: ThreadPlace,
    ids: set[str],
    history: ThreadHistory,
    without_writes: Collection[str],
) -> None:
    """Store the records that build on `ids` without what they share with them, and without the
    writes that were put on those of `without_writes`."""
    for id_, loaded in history.loaded.items():
        record = loaded.record
        if id_ in ids or not record.sources() & ids:
            continue
        values = {name: _whole(held) for name, held in history.values.held(id_).items()}
        led = [] if record.parent in without_writes else record.led
        payloads = Payloads(board, place.files)
        alone = replace(record, at={}, grown={}, values=values, led=led)
        payloads.put(loaded.entry.key, encode(alone))
        await payloads.commit([KeyAt(loaded.entry.key, loaded.entry.mod_revision)])
        await drop_files_of(board, [loaded.entry])


async def drop_files_of(board: Board, entries: Iterable[Entry]) -> None:
    """Remove the files of entries that are gone, or replaced."""
    files = [file for entry in entries if (file := file_of(entry)) is not None]
    await drop_files(board, files)


def _whole(held: Held) -> Pieced:
    return Pieced(held.type, held.items, is_list=True) if isinstance(held, Version) else held


async def of_runs(
    board: Board, prefix: str, run_ids: set[str], serde: SerializerProtocol
) -> dict[ThreadPlace, set[str]]:
    """The ids of the checkpoints of those runs, by place."""
    found: dict[ThreadPlace, set[str]] = {}
    async for place, entry in newest_first(board, prefix, None, None):
        loaded = await present_in(board, entry)
        if loaded is None:
            continue
        if serde.loads_typed(loaded.record.metadata).get("run_id") in run_ids:
            found.setdefault(place, set()).add(loaded.id)
    return found


async def outdated(
    board: Board, prefix: str, thread: str, serde: SerializerProtocol
) -> dict[ThreadPlace, set[str]]:
    """The ids of all checkpoints of a thread but the newest of each namespace, and those before it
    that the values of its delta channels begin with."""
    places: dict[ThreadPlace, dict[str, LoadedRecord]] = {}
    async for place, entry in newest_first(board, prefix, thread, None):
        loaded = await present_in(board, entry)
        if loaded is not None:
            places.setdefault(place, {})[loaded.id] = loaded
    return {
        place: set(found) - _needed(found, next(iter(found)), serde)
        for place, found in places.items()
    }


def _needed(found: dict[str, LoadedRecord], newest: str, serde: SerializerProtocol) -> set[str]:
    needed, id_ = {newest}, newest
    metadata = serde.loads_typed(found[newest].record.metadata)
    open_ = set(metadata.get(DELTAS) or ()) - found[newest].record.owners(newest).keys()
    while open_ and (parent := found[id_].record.parent) is not None and parent in found:
        needed.add(parent)
        open_ -= found[parent].record.owners(parent).keys()
        id_ = parent
    return needed


async def copy(board: Board, prefix: str, source: str, target: str) -> None:
    """Copy the records, writes and files of a thread to another one.

    Records before those that build on them: a copy that is interrupted can be repeated.
    """
    below, other = thread_prefix(prefix, source), thread_prefix(prefix, target)
    # Looked up first: the puts below replace the entries, and nothing else names these files.
    replaced = [entry async for entry in board.scan(f"{other}/*/*/**") if file_of(entry)]
    payloads, copied = Payloads(board, f"{other}/f"), set[str]()
    for kind in ("c", "w"):
        async for entry in board.scan(f"{below}/{kind}/**"):
            data = await reread(board, entry, partial(read, board))
            if data is None:
                continue
            if kind == "c":
                record = decode(data)
                *_, namespace, id_ = entry.key.split("/")
                names = record.names or (source, *map(text, (namespace, id_)))
                record.names = ThreadPlace(prefix, target, names[1]).names(names[2])
                data = encode(record)
            key = other + entry.key.removeprefix(below)
            payloads.put(key, data)
            copied.add(key)
            if payloads.size_bytes > COMMIT_BYTES:
                await payloads.commit()
                payloads = Payloads(board, f"{other}/f")
    if payloads.ops:
        await payloads.commit()
    await drop_files_of(board, [entry for entry in replaced if entry.key in copied])
