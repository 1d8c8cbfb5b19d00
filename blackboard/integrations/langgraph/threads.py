"""The checkpoints of LangGraph's threads on a board: what the saver does, in the board's loop.

Invariants
- A checkpoint is one commit: its record, with the writes that led to it, is there or is not.
- A record builds only on records that are there: a commit names the revision of each of them, and
  before a record is removed or replaced, those that build on it are made to stand by themselves.
- A checkpoint whose parent this saver saw, and which is gone since (deleted, or taken back by a
  restore), is refused: a run on an abandoned future does not revive it. So are writes on one.
- Writes are on the board when `put_writes` returns. They wait WRITES_WAIT_S for the checkpoint that
  they lead to, which then takes them along: half as many commits, and a message that is both
  written and appended is stored once.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from langgraph.checkpoint.base import Checkpoint, CheckpointTuple
from langgraph.checkpoint.serde.base import SerializerProtocol

from blackboard import Board
from blackboard.errors import Conflict, StaleEpoch
from blackboard.integrations.langgraph import upkeep
from blackboard.integrations.langgraph.history import (
    Led,
    LoadedRecord,
    ThreadHistory,
    history_of,
    led_from,
    loaded_from,
    merged,
    newest_first,
    present_in,
    tuple_of,
    with_writes,
    writes_from,
    written,
)
from blackboard.integrations.langgraph.keys import ThreadPlace, segment, thread_prefix
from blackboard.integrations.langgraph.payloads import (
    Payloads,
    drop_files,
    file_of,
    reread,
)
from blackboard.integrations.langgraph.records import (
    TaskWrite,
    encode,
    encode_writes,
)
from blackboard.integrations.langgraph.tips import Tip, Tips, following
from blackboard.integrations.langgraph.values import Values, value_of
from blackboard.ops import ABSENT, PRESENT, HeldFence, KeyAt
from blackboard.types import Entry, Receipt

WRITES_WAIT_S: Final = 0.005
"""How long writes wait for the checkpoint that they lead to, once nothing is on its way."""
WRITES_WAIT_MAX_S: Final = 0.2
"""The same while checkpoints before it are on their way: LangGraph puts one after the other."""
ATTEMPTS_MAX: Final = 5
"""Attempts at a commit while others change what it builds on."""


@dataclass(frozen=True, slots=True, eq=False)
class _WaitingWrites:
    """Writes that wait for their checkpoint."""

    writes: Sequence[TaskWrite]
    taken: asyncio.Future[bool]
    """True once they are on the board; False if they have to go by themselves."""


class ThreadBook:
    """All threads below `prefix` on one board."""

    def __init__(self, board: Board, prefix: str) -> None:
        self.board = board
        self.prefix = prefix
        self.fences: dict[str, Callable[[], Sequence[HeldFence]]] = {}
        """Of the threads that this saver owns."""
        self._tips = Tips()
        self._waiting: dict[tuple[ThreadPlace, str], list[_WaitingWrites]] = {}
        self._in_flight: dict[ThreadPlace, set[asyncio.Future[None]]] = {}
        """The checkpoints that are being put."""
        self._is_stale = False

    # --- writing ----------------------------------------------------------------------------------

    async def put(
        self,
        place: ThreadPlace,
        parent: str | None,
        checkpoint: Checkpoint,
        metadata: Any,
        serde: SerializerProtocol,
    ) -> None:
        """Put a checkpoint, with the writes that wait for it. Errors: Fenced when another worker
        owns the thread by now; Conflict when its parent is gone; as of `Board.commit`."""
        # Before anything is awaited: `_are_taken` sees by it that its writes are on their way.
        waiting = self._waiting.pop((place, parent or ""), [])
        writes = [write for each in waiting for write in each.writes]
        is_put, replaced = False, None
        ended = asyncio.get_running_loop().create_future()
        self._in_flight.setdefault(place, set()).add(ended)
        try:
            for left in reversed(range(ATTEMPTS_MAX)):
                tip = await self._tip(place, parent, serde)
                record, after = following(tip, checkpoint, serde)
                record.parent, record.metadata = parent, serde.dumps_typed(metadata)
                record.led, record.names = writes, place.names(checkpoint["id"])
                key = place.checkpoint(checkpoint["id"])
                payloads = Payloads(self.board, place.files)
                payloads.put(key, encode(record))
                there = ABSENT if replaced is None else replaced.entry.mod_revision
                conditions = [KeyAt(key, there), *_builds_on(place, tip, record.sources())]
                try:
                    receipt = await self._replace(place, payloads, replaced, conditions, serde)
                except Conflict as conflict:
                    replaced = await self._resolve(place, conflict, checkpoint["id"], parent)
                    writes = merged([] if replaced is None else replaced.record.led, writes)
                    if not left:
                        raise
                    continue
                after.revisions[after.id] = receipt.revision
                self._tips.keep(place, after)
                is_put = True
                return
        finally:
            ended.set_result(None)
            self._in_flight[place].remove(ended)
            if not self._in_flight[place]:
                del self._in_flight[place]
            for each in waiting:
                if not each.taken.done():
                    each.taken.set_result(is_put)

    async def _resolve(
        self, place: ThreadPlace, conflict: Conflict, id_: str, parent: str | None
    ) -> LoadedRecord | None:
        """What a repeated commit replaces: the checkpoint, if it is there already, as elsewhere.
        Errors: the Conflict, when there is no way."""
        self._tips.forget(place)
        if conflict.key == place.checkpoint(id_):
            entry = await self.board.entry(conflict.key)
            return None if entry is None else await present_in(self.board, entry)
        if parent and conflict.key == place.checkpoint(parent) and conflict.actual == ABSENT:
            raise conflict
        return None

    async def _replace(
        self,
        place: ThreadPlace,
        payloads: Payloads,
        replaced: LoadedRecord | None,
        conditions: Sequence[KeyAt],
        serde: SerializerProtocol,
    ) -> Receipt:
        """Commit a checkpoint, in place of the one that has its id."""
        if replaced is None:
            return await self._commit(place.thread, payloads, conditions)
        async with upkeep.standing_alone(self.board, place, {replaced.id}, serde):
            receipt = await self._commit(place.thread, payloads, conditions)
        await upkeep.drop_files_of(self.board, [replaced.entry])
        return receipt

    async def _commit(
        self, thread: str, payloads: Payloads, conditions: Sequence[KeyAt]
    ) -> Receipt:
        fences = self.fences[thread]() if thread in self.fences else ()
        try:
            return await payloads.commit(conditions, fences)
        except StaleEpoch:
            # Not refreshed at once: a run that goes on from what a restore took back is refused
            # until its end. The next one begins with `get`.
            self._is_stale = True
            raise

    async def _tip(
        self, place: ThreadPlace, parent: str | None, serde: SerializerProtocol
    ) -> Tip | None:
        """What the next checkpoint builds on; None if it has no parent, or one that nobody knows.
        Errors: Conflict when the parent was there, and is gone."""
        if parent is None:
            return None
        tip = self._tips.get(place)
        if tip is not None and tip.id == parent:
            return tip
        key = place.checkpoint(parent)
        entry = await self.board.entry(key)
        found = None if entry is None else await self._found(place, entry, serde)
        if found is None and self._tips.has_seen(place, parent):
            raise Conflict(key=key, expected=PRESENT, actual=ABSENT)
        return found and found[1]

    async def put_writes(self, place: ThreadPlace, id_: str, writes: Sequence[TaskWrite]) -> None:
        """Put the writes of one task on the checkpoint `id_`. Errors: Conflict when that was there
        and is gone; Fenced; as of `Board.commit`."""
        if not writes:
            return
        tip = self._tips.get(place)
        is_newest = place in self._in_flight or (tip is not None and tip.id == id_)
        if not is_newest or not await self._are_taken(place, id_, writes):
            await self._put_alone(place, id_, writes)

    async def _are_taken(self, place: ThreadPlace, id_: str, writes: Sequence[TaskWrite]) -> bool:
        """Wait for the checkpoint that writes lead to, for a moment; whether it took them along."""
        each = _WaitingWrites(writes, asyncio.get_running_loop().create_future())
        waiting = self._waiting.setdefault((place, id_), [])
        waiting.append(each)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(WRITES_WAIT_MAX_S):
                    await self._none_came(place, each.taken)
        finally:
            still = self._waiting.get((place, id_))
            if still is waiting:  # no checkpoint came
                waiting.remove(each)
                if not waiting:
                    del self._waiting[place, id_]
                each.taken.set_result(False)
        return await each.taken

    async def _none_came(self, place: ThreadPlace, taken: asyncio.Future[bool]) -> None:
        """Return when writes are taken, or no checkpoint has been on its way for WRITES_WAIT_S."""
        while not taken.done():
            if ended := self._in_flight.get(place):
                either: list[asyncio.Future[Any]] = [taken, *ended]
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                continue
            await asyncio.wait([taken], timeout=WRITES_WAIT_S)
            if place not in self._in_flight:
                return

    async def _put_alone(self, place: ThreadPlace, id_: str, writes: Sequence[TaskWrite]) -> None:
        key = f"{place.writes(id_)}/{segment(writes[0].task_id)}"
        found, revision, file = merged([], writes), ABSENT, None
        # Otherwise they would be left behind by the deletion of the thread. They may come before a
        # checkpoint, but not after it.
        above = place.checkpoint(id_)
        known = [KeyAt(above, PRESENT)] if self._tips.has_seen(place, id_) else []
        for left in reversed(range(ATTEMPTS_MAX)):
            payloads = Payloads(self.board, place.files)
            payloads.put(key, encode_writes(found))
            try:
                await self._commit(place.thread, payloads, [*known, KeyAt(key, revision)])
            except Conflict as conflict:
                if not left or conflict.key == above:
                    raise
            else:
                await drop_files(self.board, [file] if file else [])
                return
            entry = await self.board.entry(key)
            old = [] if entry is None else await writes_from(self.board, entry)
            found = merged(old, writes)
            if found == old:
                return
            revision = ABSENT if entry is None else entry.mod_revision
            file = None if entry is None else file_of(entry)

    # --- reading ----------------------------------------------------------------------------------

    async def get(
        self, place: ThreadPlace, id_: str | None, serde: SerializerProtocol
    ) -> CheckpointTuple | None:
        """The checkpoint `id_`, or the newest one; None without one."""
        if self._is_stale:  # a run begins: what it reads is the board as it is now
            await self.board.refresh()
            self._is_stale = False
        found = None
        while found is None:  # again, when somebody removed it meanwhile
            if id_ is not None:
                entry = await self.board.entry(place.checkpoint(id_))
            else:
                page = await self.board.list(f"{place.checkpoints}/*", reverse=True, limit=1)
                entry = page.entries[0] if page.entries else None
            if entry is None:
                return None
            found = await self._found(place, entry, serde)
        loaded, tip = found
        if id_ is None and self._tips.get(place) is not tip:
            self._tips.keep(place, tip)
        values = {name: value_of(held, serde.loads_typed) for name, held in tip.held.items()}
        led = await written(self.board, place, loaded.id)
        # The writes of the newest one are in no record yet: only its child would have taken them.
        if id_ is not None:
            led += await led_from(self.board, place, loaded.id)
        return tuple_of(place, loaded, values, led, serde)

    async def _found(
        self, place: ThreadPlace, entry: Entry, serde: SerializerProtocol
    ) -> tuple[LoadedRecord, Tip] | None:
        """The record in an entry, with what the next one builds on; None when it is gone."""

        async def look(entry: Entry) -> tuple[LoadedRecord, Tip]:
            loaded, tip = await loaded_from(self.board, entry), self._tips.get(place)
            known = None if tip is None else tip.revisions.get(loaded.id)
            if tip is not None and tip.id == loaded.id and known == entry.mod_revision:
                return loaded, tip
            history, loaded = await history_of(self.board, place, entry, serde)
            return loaded, history.tip(loaded.id, serde)

        return await reread(self.board, entry, look)

    async def listing(
        self,
        thread: str | None,
        namespace: str | None,
        serde: SerializerProtocol,
        is_wanted: Callable[[str, Any], bool],
    ) -> AsyncGenerator[CheckpointTuple, None]:
        """The checkpoints of a thread, or of all, for which `is_wanted(id, metadata)`; the newest
        first."""
        histories: dict[ThreadPlace, tuple[ThreadHistory, set[str]]] = {}
        led: dict[tuple[ThreadPlace, str], Led] = {}
        newest = newest_first(self.board, self.prefix, thread, namespace)
        async with aclosing(newest) as found:
            async for place, entry in found:
                if place not in histories:
                    history = ThreadHistory(self.board, place, Values(serde.loads_typed))
                    histories[place] = (history, await with_writes(self.board, place))
                history, writes = histories[place]
                read = await reread(self.board, entry, partial(history.read, is_wanted=is_wanted))
                if read is None:  # somebody removed it meanwhile
                    continue
                loaded, values = read
                record, id_ = loaded.record, loaded.id
                if record.parent and record.led:
                    lead = (loaded.entry.mod_revision, record.led)
                    led.setdefault((place, record.parent), []).append(lead)
                if values is None:
                    led.pop((place, id_), None)
                    continue
                more = await written(self.board, place, id_) if segment(id_) in writes else []
                yield tuple_of(place, loaded, values, more + led.pop((place, id_), []), serde)

    # --- removing, copying ------------------------------------------------------------------------

    async def delete(self, thread: str) -> None:
        """Remove everything of a thread. A run that is still going on is refused: its tip stays."""
        await self.board.delete_prefix(thread_prefix(self.prefix, thread))

    async def detach(self, place: ThreadPlace, ids: set[str], serde: SerializerProtocol) -> None:
        """Remove the checkpoints `ids` with their writes. Those that build on them stay whole."""
        # It may name one of them, and the next checkpoint would build on what is gone.
        self._tips.forget(place)
        for left in reversed(range(ATTEMPTS_MAX)):
            try:
                await upkeep.detach(self.board, place, ids, serde)
            except Conflict:
                if not left:
                    raise
            else:
                return

    async def delete_for_runs(self, run_ids: set[str], serde: SerializerProtocol) -> None:
        """Remove the checkpoints of those runs, in whichever thread."""
        for place, ids in (await upkeep.of_runs(self.board, self.prefix, run_ids, serde)).items():
            await self.detach(place, ids, serde)

    async def prune(self, thread: str, serde: SerializerProtocol) -> None:
        """Keep the newest checkpoint of each namespace of a thread."""
        for place, ids in (await upkeep.outdated(self.board, self.prefix, thread, serde)).items():
            await self.detach(place, ids, serde)

    async def copy(self, source: str, target: str) -> None:
        """Copy a thread, in place of the checkpoints of `target` that have the same ids."""
        self._tips.forget_thread(self.prefix, target)
        await upkeep.copy(self.board, self.prefix, source, target)


def _builds_on(place: ThreadPlace, tip: Tip | None, sources: set[str]) -> list[KeyAt]:
    """The conditions that what a record builds on, and its parent, are as they were seen."""
    if tip is None:
        return []
    ids = sorted({tip.id, *sources})
    return [KeyAt(place.checkpoint(id_), tip.revisions[id_]) for id_ in ids]
