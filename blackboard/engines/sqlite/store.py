"""The embedded engine: one directory, one SQLite file per board, the state of a board in memory.

Invariants
- One process owns the directory, from `SqliteStore.at` to `aclose`: it holds a lock on `lock`, and
  `owner.json` identifies it.
- `boards/<board>.db` exists once the board does; a board is created completely or not at all.
- After a failed write, a board is loaded again from its file before it serves anything. After a
  failed sync, it is Unavailable for the rest of this process, and the next process writes its file
  again (engines/sqlite/suspect.py).
- A board that has less than it is known to have had (engines/sqlite/heads.py) begins an epoch above
  that when it is opened, before it serves anything.
- The directory is released only after the last transaction ended.
"""

import asyncio
import contextlib
import logging
import os
import sqlite3
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import anyio

from blackboard import limits
from blackboard.core.access import is_reserved
from blackboard.core.commit import (
    FORWARD,
    Entry,
    Epoch,
    Head,
    ListOptions,
    LogEntry,
    LogPage,
    Reading,
    Seed,
)
from blackboard.core.directories import Children, ranges_behind
from blackboard.core.history import check_seed
from blackboard.core.model import Outcome
from blackboard.core.path import Ranges, check_name
from blackboard.core.state import State
from blackboard.engines.base import (
    BatchAnswer,
    EngineFacts,
    LoggedValue,
    ValuePlaces,
    check_epoch,
    check_hold,
    check_size,
)
from blackboard.engines.disk import SyncError, files_max, has_room
from blackboard.engines.sqlite import suspect
from blackboard.engines.sqlite.board import EmbeddedBoard, Threads
from blackboard.engines.sqlite.cache import CacheBudget
from blackboard.engines.sqlite.connection import (
    FILES_OF_A_BOARD,
    ROOM_BYTES,
    check_ordinary,
    is_without_room,
    translated,
)
from blackboard.engines.sqlite.directory import (
    SUFFIX,
    DataDirectory,
    TakenDirectory,
    board_names,
    let_go,
    taken,
    write_owner,
)
from blackboard.engines.sqlite.file import DISTRUSTED, BoardFile, Level, Loaded
from blackboard.engines.sqlite.heads import HeadsTimer, KnownHead
from blackboard.engines.sqlite.journal import has_no_journal, look_at_journal
from blackboard.engines.sqlite.new import (
    NewFile,
    create,
    keep_in_mind,
    next_epoch,
    no_entries,
    read_removed,
    remove,
    seed_path,
)
from blackboard.errors import (
    Corrupt,
    HeadMoved,
    InvalidRequest,
    NoSuchBoard,
    Unavailable,
)
from blackboard.limits import DEFAULT, Limits
from blackboard.units import Key, Milliseconds, Prefix, Revision
from blackboard.wire.codec import Prepared

log = logging.getLogger(__name__)
T = TypeVar("T")

_WRITERS: Final = 4  # boards whose transactions sync at the same time
_READERS: Final = 2


class SqliteStore:
    """The embedded engine, opened: `store = await SqliteStore.at(directory)`; a `Store`."""

    def __init__(
        self,
        taken: TakenDirectory,
        *,
        level: Level,
        clock_ns: Callable[[], int],
        file_bytes_max: int | None,
        threads: Threads | None,
        limits: Limits,
    ) -> None:
        self.directory, self._taken, self._heads = taken.directory, taken, taken.heads
        self.level: Level = level
        self._limits = limits
        self._clock_ns = clock_ns
        self._file_bytes_max = file_bytes_max
        self._boards: dict[str, EmbeddedBoard] = {}
        self._loading: dict[str, asyncio.Task[EmbeddedBoard]] = {}
        self._wanted: Counter[str] = Counter()
        """The boards for which callers wait that they are loaded, and how many."""
        self._leaving: dict[str, asyncio.Task[None]] = {}
        """The unused boards that are being closed."""
        self._left: dict[str, Head] = {}
        """The heads of boards that were closed before their known heads were written."""
        self._busy: set[str] = set()  # boards that are being made or removed
        self._steps: set[asyncio.Future[Any]] = set()
        self._seen: set[str] = set()  # boards that this process opened before
        self._distrusted: dict[str, str] = {}  # boards of which a sync failed, and why
        self._put_back: dict[str, str] = {}  # boards of which an older copy was put back
        self._closing: asyncio.Task[None] | None = None
        self._cache = CacheBudget(limits.boards.boards_cache_bytes, self._boards)
        self._threads = threads or Threads(
            writers=ThreadPoolExecutor(_WRITERS, thread_name_prefix="board-writer"),
            readers=ThreadPoolExecutor(_READERS, thread_name_prefix="board-reader"),
        )
        self._heads_timer = HeadsTimer(
            self._heads,
            self._durable_heads,
            partial(board_names, self.directory),
            self._is_behind,
            limits.boards.known_heads_interval_ms,
        )
        self._heads_timer.start()

    @classmethod
    async def at(
        cls,
        directory: str | os.PathLike[str] | DataDirectory,
        level: Level = "disk",
        *,
        clock_ns: Callable[[], int] = time.time_ns,
        file_bytes_max: int | None = None,
        threads: Threads | None = None,
        limits: Limits = DEFAULT,
    ) -> Self:
        """Take possession of `directory`, which is made if it is missing.

        `level` is what an acknowledged commit survives: "disk" (power loss) or "memory" (the end of
        this process). `file_bytes_max` bounds the file of one board; beyond it, commits are
        Unavailable. `threads` are where blocking calls run, by default threads of its own. Errors:
        DataDirectoryInUse when another process has it; Unavailable, also when another one has the
        file with the known heads. Cancellation: the directory is
        released, at the latest when the thread that takes it ends.
        """
        if level not in ("disk", "memory"):
            raise InvalidRequest(field="level", reason=f"{level!r} is neither disk nor memory")
        where = directory
        if not isinstance(where, DataDirectory):
            where = DataDirectory(Path(where))
        return cls(
            await taken(where.absolute(), limits.boards.known_heads_max),
            level=level,
            clock_ns=clock_ns,
            file_bytes_max=file_bytes_max,
            threads=threads,
            limits=limits,
        )

    def announce(self, url: str | None) -> None:
        """Record in `owner.json` the URL at which this process serves the directory."""
        write_owner(self.directory, url)

    async def facts(self) -> EngineFacts:
        """As `Store.facts`. Errors: Unavailable once a sync of a board's file failed."""
        if names := ", ".join(sorted(self._distrusted)):
            raise Unavailable(what=f"board {names}", reason=DISTRUSTED)
        where, warnings = str(self.directory), (*self._heads.warnings, *self._put_back.values())
        return EngineFacts("sqlite", sqlite3.sqlite_version, where, self.level, warnings)

    async def open(self, board: str, *, again: bool = False) -> Head:
        """As `Store.open`."""
        if again and (gone := await self._removed(board)) is not None:
            # A client of the removed board may adopt the new epoch, so none of its revisions comes
            # again.
            revision, number = gone[0] + limits.EPOCH_JUMP, gone[1] + 1
            epoch = Epoch(number, uuid.uuid4().hex, revision=revision)
            with contextlib.suppress(InvalidRequest):  # another call began it in between
                await self.seed(board, Seed(epoch, self._now_ms()), no_entries())
        return (await self._board(board, create=True)).head

    async def removed(self, board: str) -> Revision | None:
        """As `Store.removed`."""
        return None if (gone := await self._removed(board)) is None else gone[0]

    async def _removed(self, board: str) -> tuple[Revision, int] | None:
        check_name(board, "board")
        if board in self._boards:
            return None
        return await asyncio.to_thread(read_removed, self._path(board))

    async def begin_epoch(self, board: str, head: Head, *, above: Revision) -> Head:
        """As `Store.begin_epoch`. Cancellation: the epoch may have begun or not."""
        check_name(board, "board")
        if not await self.exists(board):
            raise InvalidRequest(field="board", reason=f"there is no board {board!r}")
        while loading := self._loading.get(board):
            await asyncio.wait([loading])
        if board in self._busy:
            raise _unfinished(board)
        # As a load, for which other calls wait: they need not fail for the moment that it takes.
        loading = self._begin_load(board, self._load_in_epoch(board, head, above))
        return (await _loaded_by(loading)).head

    async def _load_in_epoch(self, name: str, head: Head, above: Revision) -> EmbeddedBoard:
        await self._let_go_of(name)
        await self._step(partial(self._begin_in_file, name, head, above))
        return await self._load(name, self._path(name))

    def _begin_in_file(self, name: str, head: Head, above: Revision) -> None:
        """In a thread: write the marker of an epoch, if the file of a closed board is at `head`."""
        with self._opened(name, self._path(name)) as file:
            loaded = file.load(name)
            file.update(loaded)
            state = loaded.state
            if (state.revision, state.epoch.id) == (head.revision, head.epoch.id):
                known = self._known_above(self._missing(name, state))
                epoch = next_epoch(state, max(above, known))
                file.begin_epoch(loaded, epoch, self._now_ms())
            else:
                # Closing copies the journal, and the head must say before that where the log ends.
                file.follow(loaded)
            file.close()

    async def exists(self, board: str) -> bool:
        """As `Store.exists`."""
        check_name(board, "board")
        self._taken.check()
        return board in self._boards or await asyncio.to_thread(self._path(board).exists)

    async def commit(self, board: str, batch: Sequence[Prepared]) -> list[Outcome]:
        """As `Store.commit`. After a write that may have succeeded, every outcome is
        OutcomeUnknown.

        Cancellation does not stop the write.
        """
        check_size("BATCH_COMMITS_MAX", len(batch), limits.BATCH_COMMITS_MAX)
        opened = await self._board(board)
        path = self._path(board)
        # Tried with each commit, because nothing reports that a disk has room again.
        if opened.read_only != "" and await asyncio.to_thread(has_room, path, ROOM_BYTES):
            opened.give_up("it is opened again: there is room on the disk now")
            opened = await self._board(board)
        return await opened.commit(batch)

    def begin(self, board: str, batch: Sequence[Prepared], answer: BatchAnswer) -> bool:
        """As `Begins.begin`."""
        opened = self._boards.get(board)
        if opened is None or self._closing is not None or len(batch) > limits.BATCH_COMMITS_MAX:
            return False
        opened.last_use_s = time.monotonic()
        return opened.begin(batch, answer)

    async def read(self, board: str, keys: Sequence[Key]) -> Reading:
        """As `Store.read`."""
        check_size("READ_KEYS_MAX", len(keys), limits.READ_KEYS_MAX)
        return await (await self._board(board)).read(keys)

    async def list(
        self,
        board: str,
        within: Prefix | Ranges,
        *,
        after: Key | None = None,
        limit: int,
        reverse: bool = False,
        keys_only: bool = False,
    ) -> Reading:
        """As `Store.list`."""
        limit = min(limit, limits.LIST_ENTRIES_MAX)
        opened, options = await self._board(board), ListOptions(reverse, keys_only)
        return await opened.page(within, after=after, limit=limit, options=options)

    async def children(
        self,
        board: str,
        within: Ranges,
        prefix: Prefix,
        *,
        after: Key | None = None,
        limit: int,
        options: ListOptions = FORWARD,
    ) -> Reading:
        """As `Store.children`."""
        left = ranges_behind(within, prefix, after, reverse=options.reverse)
        page = Children(prefix, min(limit, limits.LIST_ENTRIES_MAX))
        return await (await self._board(board)).children(page, left, options)

    async def log(
        self, board: str, after: Revision, *, limit: int, wait_ms: Milliseconds = 0
    ) -> LogPage:
        """As `Store.log`."""
        opened = await self._board(board)
        return await opened.log(after, limit=min(limit, limits.LOG_ENTRIES_MAX), wait_ms=wait_ms)

    async def due(self, board: str, *, limit: int, by_ms: Milliseconds | None = None) -> Reading:
        """As `Store.due`."""
        opened = await self._board(board)
        return await opened.due(limit=min(limit, limits.LIST_ENTRIES_MAX), by_ms=by_ms)

    async def leases(self, board: str, *, due: bool = False) -> Reading:
        """As `Store.leases`."""
        return await (await self._board(board)).leases(due=due)

    async def compact(self, board: str, oldest: Revision) -> Head:
        """As `Store.compact`. The file keeps its size; its free pages are used again."""
        return await (await self._board(board)).compact(oldest)

    async def hold(self, board: str, hold_ms: Milliseconds) -> None:
        """As `Store.hold`."""
        check_hold(hold_ms)
        await (await self._board(board)).hold(hold_ms)

    async def seed(
        self,
        board: str,
        seed: Seed,
        pages: AsyncIterator[Sequence[Entry]],
        *,
        replaces: Head | None = None,
    ) -> Head:
        """As `Store.seed`: a replaced board stays in place until the new file is complete."""
        check_name(board, "board")
        path = self._path(board)
        async with self._alone(board):
            if await asyncio.to_thread(path.exists):
                if replaces is None:
                    raise InvalidRequest(field="board", reason=f"there is a board {board!r}")
                await self._let_go_of(board)
                await self._step(partial(self._check_head, board, replaces))
            new = NewFile(path, seed_path(path))
            try:
                await self._step(new.begin)
                after = ""
                async for page in pages:
                    after = check_seed(seed, after, page)
                    await self._step(partial(new.add, page))
                await self._step(partial(new.finish, board, seed))
            finally:
                # A draft that stayed would keep the name: no board is begun beside one.
                with anyio.CancelScope(shield=True):
                    await asyncio.to_thread(new.abandon)
        return await self.open(board)

    def _check_head(self, name: str, head: Head) -> None:
        """In a thread. Errors: HeadMoved unless the file of a closed board is at `head`."""
        with self._opened(name, self._path(name)) as file:
            loaded = file.load(name)
            file.update(loaded)
            file.follow(loaded)
            file.close()
        found = (loaded.state.revision, loaded.state.epoch.id)
        if found != (head.revision, head.epoch.id):
            raise HeadMoved(head.revision, found[0])

    async def drop(self, board: str) -> None:
        """As `Store.drop`. Errors: Unavailable, also for concurrent calls on the board."""
        check_name(board, "board")
        async with self._alone(board):
            await self._let_go_of(board)
            self._seen.discard(board)
            self._distrusted.pop(board, None)
            self._put_back.pop(board, None)
            await self._step(partial(remove, self._path(board)))
            self._left.pop(board, None)
            # Last: while the board may still be there, its known head protects it.
            self._heads.forget(board)

    async def remove(self, board: str, *, above: Revision = 0, epoch: str | None = None) -> None:
        """As `Store.remove`. Errors: also Corrupt when the board cannot be read."""
        check_name(board, "board")
        path = self._path(board)
        gone = await self._removed(board)
        if gone is None:
            head = None
            if await self.exists(board):
                head = (await self._board(board)).head
                check_epoch(head, epoch)
            last = above if head is None else max(head.revision, above)
            number = 0 if head is None else head.epoch.number
        async with self._alone(board):
            await self._let_go_of(board)
            if gone is None:
                # First: after a crash in between there is a board, beside which the record does not
                # count.
                await self._step(partial(keep_in_mind, path, last, number))
            self._seen.discard(board)
            self._put_back.pop(board, None)
            # The known head stays: an older copy may be put back after the removal.
            await self._step(partial(remove, path))

    async def scrub(self, board: str) -> str:
        """As `Scrubs.scrub`. Errors: InvalidRequest when there is no such board; Unavailable."""
        if await (await self._board(board)).scrub():
            return ""
        return f"another program reads {self._path(board)}: its journal keeps removed data"

    async def places(self, board: str, entries: Sequence[LogEntry]) -> Sequence[ValuePlaces]:
        """As `ServesValues.places`."""
        if (opened := await self._there(board)) is None:
            return [{} for _ in entries]
        found = opened.tail.places(entries)
        return await opened.read_file(lambda file: file.places(entries)) if found is None else found

    async def values(self, board: str, wanted: Sequence[LoggedValue]) -> Sequence[bytes | None]:
        """As `ServesValues.values`."""
        if (opened := await self._there(board)) is None:
            return [None] * len(wanted)
        return await opened.read_file(lambda file: file.values(wanted))

    async def _there(self, board: str) -> EmbeddedBoard | None:
        """The open board; None if there is none."""
        with contextlib.suppress(InvalidRequest, NoSuchBoard):
            return await self._board(board)
        return None

    async def boards(self) -> Sequence[str]:
        """As `Store.boards`."""
        return await asyncio.to_thread(board_names, self.directory)

    async def aclose(self) -> None:
        """As `Store.aclose`. May be called again. Cancellation does not stop it."""
        if self._closing is None:
            self._closing = asyncio.create_task(self._close())
        await asyncio.shield(self._closing)

    @contextlib.asynccontextmanager
    async def _alone(self, board: str) -> AsyncIterator[None]:
        """Exclude other calls that open, make or remove `board`. Errors: Unavailable."""
        if board in self._busy:
            raise _unfinished(board)
        self._busy.add(board)
        try:
            if loading := self._loading.get(board):
                await asyncio.wait([loading])
            yield
        finally:
            self._busy.discard(board)

    async def _step(self, work: Callable[[], T]) -> T:
        """Run `work` in a writer thread. Nothing stops it, also not closing the store.

        Cancellation: raised when it has ended, so that nobody else uses the file meanwhile.
        """
        if self._closing is not None:
            raise Unavailable(what=str(self.directory), reason="the store was closed")
        self._taken.check()
        loop = asyncio.get_running_loop()
        step = loop.run_in_executor(self._threads.writers, work)
        self._steps.add(step)
        step.add_done_callback(self._steps.discard)
        await _ended(step)
        return step.result()

    # --- boards -----------------------------------------------------------------------------------

    async def _board(self, name: str, *, create: bool = False) -> EmbeddedBoard:
        """The open board `name`, loaded if necessary.

        Errors: InvalidRequest when it does not exist, without `create`; Corrupt, Unavailable.
        """
        if self._closing is not None:
            raise Unavailable(what=str(self.directory), reason="the store was closed")
        board = self._boards.get(name)
        if board is not None and board.failure is None:
            board.last_use_s = time.monotonic()
            return board
        check_name(name, "board")
        self._wanted[name] += 1
        try:
            return await self._loaded(name, create=create)
        finally:
            self._wanted[name] -= 1
            if not self._wanted[name]:
                del self._wanted[name]

    async def _loaded(self, name: str, *, create: bool) -> EmbeddedBoard:
        path = self._path(name)
        self._taken.check()
        if name in self._busy:
            raise _unfinished(name)
        if await asyncio.to_thread(read_removed, path) is not None:
            raise NoSuchBoard(name)
        self._check_trusted(name)
        if not create and not await asyncio.to_thread(path.exists):
            raise InvalidRequest(field="board", reason=f"there is no board {name!r}")
        # Again: it may have begun, or ended, during the waits above.
        if name in self._busy:
            raise _unfinished(name)
        if (board := self._boards.get(name)) is not None and board.failure is None:
            return board
        if (loading := self._loading.get(name)) is None:
            loading = self._begin_load(name, self._load(name, path))
        return await _loaded_by(loading)

    def _begin_load(
        self, name: str, load: Coroutine[Any, Any, EmbeddedBoard]
    ) -> asyncio.Task[EmbeddedBoard]:
        """Begin a load. Calls that need the board meanwhile wait for it."""
        loading = asyncio.create_task(load, name=f"load board {name}")
        self._loading[name] = loading
        loading.add_done_callback(lambda _: self._loading.pop(name))
        return loading

    def _check_trusted(self, name: str) -> None:
        """Errors: Unavailable once a sync of a board's file failed."""
        if name in self._distrusted:
            raise Unavailable(what=f"board {name}", reason=self._distrusted[name])

    async def _let_go_of(self, name: str) -> None:
        """Close a board, if it is open: what was decided of it is written first, or failed.

        Errors: Unavailable once the store is being closed, which closes its boards itself.
        Cancellation: raised when it is closed; a second writer of its file would damage it.
        """
        if self._closing is not None:
            raise Unavailable(what=str(self.directory), reason="the store was closed")
        leaving, old = self._leaving.get(name), self._boards.pop(name, None)
        if leaving is not None:
            await _ended(leaving)
        if old is not None:
            closing = asyncio.create_task(old.aclose())
            self._steps.add(closing)  # closing the store waits for it: it needs the threads
            closing.add_done_callback(self._steps.discard)
            try:
                await _ended(closing)
            finally:
                # Its file is the business of the caller.
                with contextlib.suppress(Corrupt, Unavailable):
                    closing.result()

    async def _load(self, name: str, path: Path) -> EmbeddedBoard:
        await self._let_go_of(name)
        # A file that this process had open before has lost nothing since: no epoch has to begin.
        first = name not in self._seen
        run = asyncio.get_running_loop().run_in_executor
        file, loaded = await run(self._threads.writers, self._load_file, name, path, first)
        self._seen.add(name)
        board = EmbeddedBoard(
            name,
            file=file,
            loaded=loaded,
            threads=self._threads,
            now_ms=self._now_ms,
            distrusted=lambda: self.distrust(name),
        )
        board.loader.make_room = self._cache.fit
        self._boards[name] = board
        self._left.pop(name, None)
        self._close_unused()
        return board

    def _close_unused(self) -> None:
        """Close unused boards, those first that were used longest ago, while more than twice
        BOARDS_UNUSED_MAX are open: so many are unused for a moment while a service closes them.

        What was used within BOARDS_UNUSED_MS goes only if files become scarce: a service looks at
        each of its boards every second, and would open them all again.
        """
        excess = len(self._boards) - 2 * self._limits.boards.boards_unused_max
        if excess <= 0 or self._closing is not None:
            return
        scarce = len(self._boards) - files_max() // (2 * FILES_OF_A_BOARD)
        recent_s = time.monotonic() - self._limits.boards.boards_unused_ms / 1000
        unused = [b for n, b in self._boards.items() if b.is_unused and n not in self._wanted]
        unused.sort(key=lambda each: each.last_use_s)
        for number, board in enumerate(unused[:excess]):
            if number >= scarce and board.last_use_s > recent_s:
                return
            self._left[board.name] = self._boards.pop(board.name).head
            closing = asyncio.create_task(self._close_one(board), name=f"close board {board.name}")
            self._leaving[board.name] = closing
            self._steps.add(closing)
            closing.add_done_callback(self._steps.discard)

    async def _close_one(self, board: EmbeddedBoard) -> None:
        try:
            await board.aclose()
        except (Corrupt, Unavailable) as error:
            log.warning("board %s was not closed in order: %s", board.name, error)
        finally:
            if board.is_suspect:
                self.distrust(board.name)
            del self._leaving[board.name]

    def _durable_heads(self) -> dict[str, Head]:
        """The heads of the open boards, and those that were closed since the last call. It comes
        every second, so boards that nobody uses are closed here, and entries are evicted."""
        self._close_unused()
        self._cache.fit()
        if not self._taken.is_there:
            return {}  # the file with the known heads may be that of another process
        left, self._left = self._left, {}
        for name in self._heads.newer(left):  # until they are written
            self._left[name] = left[name]
        return self._left | {name: board.head for name, board in self._boards.items()}

    def _is_behind(self, name: str) -> None:
        """A board has less than it is known to have had."""
        board = self._boards.get(name)
        if board is not None:  # else it is compared when it is opened
            board.give_up("its known head is out of reach no more")

    def _load_file(self, name: str, path: Path, first: bool) -> tuple[BoardFile, Loaded]:
        """In a thread: open or create the file, and begin a new epoch if it may have lost some."""
        now_ms = self._now_ms()
        if not os.path.lexists(path):  # a link that leads nowhere is no reason to begin a new board
            if seed_path(path).exists():
                raise _unfinished(name)
            create(path, name, Epoch(1, uuid.uuid4().hex), now_ms)
        try:
            with self._opened(name, path) as file:
                loaded = file.load(name)
                file.update(loaded)
                known = self._missing(name, loaded.state)
                if known is not None or (first and not loaded.clean):
                    epoch = next_epoch(loaded.state, self._known_above(known))
                    loaded = file.begin_epoch(loaded, epoch, now_ms)
                # Last: at level `memory` nothing is synced after it.
                file.begin_run(loaded)
            if known is not None:
                self._note_put_back(name, known, loaded.state.epoch)
            return file, loaded
        except Unavailable as error:
            if not is_without_room(error):
                raise
            return self._load_to_read(name, path, first, error)

    def _load_to_read(
        self, name: str, path: Path, first: bool, error: Unavailable
    ) -> tuple[BoardFile, Loaded]:
        """In a thread: open a complete file read-only, when no files can be made beside it. Errors:
        Unavailable, if it has a journal to read, or if an epoch would have to begin."""
        why = f"no room on the disk for {path.name}-wal and {path.name}-shm ({error.reason})"
        needed = f"{ROOM_BYTES:,} bytes are needed"
        with translated(path):
            if not has_no_journal(path):
                raise Unavailable(what=str(path), reason=f"{why}: {needed}") from error
        reason = f"{why}: the board can be read; to commit, {needed}"
        file = BoardFile(path, level=self.level, read_only=reason, limits=self._limits)
        try:
            loaded = file.load(name)
            if (first and not loaded.clean) or self._missing(name, loaded.state) is not None:
                raise Unavailable(what=str(path), reason=f"{why}: {needed}") from error
        except BaseException:
            file.abandon()
            raise
        log.warning("board %s: %s", name, reason)
        return file, loaded

    def _missing(self, name: str, state: State) -> KnownHead | None:
        """The known head of a board that has less than that; None if nothing is missing."""
        return self._heads.ahead(name, state.epoch.number, state.revision)

    def _known_above(self, known: KnownHead | None) -> Revision:
        return 0 if known is None else known.above(self._now_ms())

    def _note_put_back(self, name: str, known: KnownHead, begun: Epoch) -> None:
        """Announce that a board had more than its file has."""
        text = (
            f"board {name}: an older copy of its file was put back, or the file is missing: it had"
            f" revision {known.revision} in epoch {known.epoch}, now {begun.from_revision} in epoch"
            f" {begun.number - 1}. It continues at {begun.revision}, in a new epoch"
        )
        if is_reserved(name):
            text += ". It is the service's own: see docs/howto/recover.md"
        self._put_back[name] = text
        log.warning("%s", text)

    @contextlib.contextmanager
    def _opened(self, name: str, path: Path) -> Iterator[BoardFile]:
        """In a thread: the file of a board that is not open, abandoned if the block fails."""
        self._check_trusted(name)
        self._make_sure(name, path)
        file = self._file(path)
        try:
            yield file
        except BaseException:
            if file.suspect:
                self.distrust(name)
            file.abandon()
            raise

    def _file(self, path: Path) -> BoardFile:
        most = self._file_bytes_max
        return BoardFile(path, level=self.level, file_bytes_max=most, limits=self._limits)

    def _make_sure(self, name: str, path: Path) -> None:
        """In a thread, before a file is read: make sure that the disk holds all that a read
        returns.

        After a failed sync the file is written again, and an epoch begins: acknowledged commits may
        be lost, and their revisions must not be reused.
        """
        with translated(path):
            check_ordinary(path)
            if not suspect.is_marked(path):
                with contextlib.suppress(SyncError):  # then it is marked
                    suspect.trust_journal(path)
                    return
            try:
                suspect.write_again(
                    path, partial(look_at_journal, path), partial(self._begin_again, name)
                )
            except (OSError, sqlite3.Error, Unavailable) as error:
                # Each attempt copies the whole file, so only the next process tries again.
                self.distrust(name, f"{DISTRUSTED} (it could not be written again: {error})")
                raise

    def _begin_again(self, name: str, path: Path) -> None:
        """Check a copy of a board's file, and begin an epoch in it."""
        # Whatever the level of the store is: the copy counts only once the disk holds it.
        file = BoardFile(path, level="disk")
        try:
            loaded = file.load(name, whole=True)
            above = self._known_above(self._missing(name, loaded.state))
            epoch = next_epoch(loaded.state, above)
            file.begin_run(file.begin_epoch(loaded, epoch, self._now_ms()))
        except BaseException:
            file.abandon()
            raise
        file.close()

    def distrust(self, name: str, reason: str = DISTRUSTED) -> None:
        """Refuse a board until this store is closed: a sync of its file failed."""
        self._distrusted.setdefault(name, reason)

    async def _close(self) -> None:
        errors: list[Corrupt | Unavailable] = []
        await asyncio.gather(*self._loading.values(), *self._steps, return_exceptions=True)
        for board in self._boards.values():
            try:
                await board.aclose()
            except (Corrupt, Unavailable) as error:
                errors.append(error)
        # After the boards: their last commits count as known heads, too.
        await self._heads_timer.aclose()
        self._threads.writers.shutdown(wait=False)
        self._threads.readers.shutdown(wait=False)
        await asyncio.to_thread(let_go, self._taken)
        if errors:
            raise errors[0]

    def _path(self, name: str) -> Path:
        return self.directory / "boards" / f"{name}{SUFFIX}"

    def _now_ms(self) -> Milliseconds:
        return self._clock_ns() // 1_000_000


async def _ended(work: "asyncio.Future[Any]") -> None:
    """Wait for the end of what nothing stops. Cancellation: raised then."""
    cancelled: asyncio.CancelledError | None = None
    with anyio.CancelScope(shield=True):
        while not work.done():
            try:
                await asyncio.wait([work])
            except asyncio.CancelledError as error:
                cancelled = error
    if cancelled is not None:
        raise cancelled


async def _loaded_by(loading: asyncio.Task[EmbeddedBoard]) -> EmbeddedBoard:
    """The board. Cancellation: others may wait for the same load, so it goes on."""
    await asyncio.wait([loading])
    return loading.result()


def _unfinished(board: str) -> Unavailable:
    return Unavailable(what=f"board {board}", reason="it is being made or removed")
