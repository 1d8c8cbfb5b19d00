"""The known heads: one small file with the newest head that each board is known to have had.

An older copy of a board's file looks like any other file, and so does an older archive beside it.
Only something that was not put back with them can notice. This file is written once a second,
never by a commit. It lies in the data directory, or apart from it, where it also notices that the
whole directory was put back.

Invariants
- A head in it was durable in the file of its board before it was written here.
- It is replaced as a whole, and synced. After a failure the next attempt writes another draft.
- One process writes it: the owner of the data directory, and with a file apart, of its lock.
- Nothing that happens to it reaches a commit. A failure is logged once, and is in `warnings` until
  a later attempt succeeds.
- A file that cannot be read is never replaced by one that knows less: a damaged one is set aside,
  one of a newer version stays, and one that is out of reach is read before it is written.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Collection, Mapping
from errno import ENOENT
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout
from msgspec import DecodeError, Struct, ValidationError, json

from blackboard.core.commit import Head
from blackboard.core.history import jump
from blackboard.engines.disk import replace_file
from blackboard.errors import BlackboardError, Corrupt, NewerFormat, Unavailable
from blackboard.integrity.private_files import FILE_MODE, NotOrdinaryError, read_bytes
from blackboard.units import Milliseconds, Revision

log = logging.getLogger(__name__)
FILE_NAME: Final = "heads.json"
FORMAT: Final = "blackboard heads"
VERSION: Final = 1
DAMAGED: Final = ".damaged"


class KnownHead(Struct, frozen=True, array_like=True):
    """The head of a board as it was known last: the number of its epoch, its revision, and when
    that was committed."""

    epoch: int
    revision: Revision
    time_ms: Milliseconds

    def above(self, now_ms: Milliseconds) -> Revision:
        """A revision above all that the board can have given out since."""
        return jump(self.revision, self.time_ms, now_ms)


class _HeadsFile(Struct, frozen=True):
    format: str
    version: int
    boards: dict[str, KnownHead]


class _FileMark(Struct, frozen=True):
    format: str
    version: int


def encode(boards: Mapping[str, KnownHead]) -> bytes:
    """The content of the file: a line of JSON, and its SHA-256."""
    body = json.encode(_HeadsFile(FORMAT, VERSION, dict(boards)))
    return body + b"\n" + hashlib.sha256(body).hexdigest().encode() + b"\n"


def decode(path: Path, data: bytes) -> dict[str, KnownHead]:
    """The heads in a file. Errors: Corrupt; NewerFormat."""
    body, _, seal = data.partition(b"\n")
    try:
        if hashlib.sha256(body).hexdigest().encode() != seal.strip():
            raise ValueError("it is not what was written")
        # Before the rest, which a newer version may write in another form.
        mark = json.decode(body, type=_FileMark)
        if mark.format != FORMAT:
            raise ValueError(f"it is {mark.format!r}")
        if mark.version > VERSION:
            raise NewerFormat(str(path), mark.version, VERSION)
        return json.decode(body, type=_HeadsFile).boards
    except (ValueError, DecodeError, ValidationError) as error:
        raise Corrupt(what=str(path), reason=str(error)) from error


def _newest(one: Mapping[str, KnownHead], other: Mapping[str, KnownHead]) -> dict[str, KnownHead]:
    """The newest head of each board of two maps."""
    both = {**one, **other}
    for name in one.keys() & other.keys():
        both[name] = max(one[name], other[name], key=lambda head: (head.epoch, head.revision))
    return both


class KnownHeads:
    """The known heads of the boards of one directory. `read` it first; `release` it in the end.

    `write` and `read` block, and are not called at the same time.
    """

    def __init__(self, path: Path, *, apart: bool, heads_max: int) -> None:
        """`apart`: it does not lie in the data directory, which one process owns."""
        self.path = path
        self._lock = FileLock(f"{path}.lock", mode=FILE_MODE, thread_local=False) if apart else None
        self._heads_max = heads_max
        self._known: Mapping[str, KnownHead] = {}  # never changed in place: other threads read it
        self._is_read = False
        self._is_newer = False
        self._failure = ""
        self._damage = ""

    @property
    def warnings(self) -> tuple[str, ...]:
        """Why it is not kept, and that it was damaged."""
        return tuple(text for text in (self._damage, self._failure) if text)

    @property
    def is_failing(self) -> bool:
        """Whether the file could not be read or written, and another attempt may succeed."""
        return bool(self._failure) and not self._is_newer

    # --- what is known ----------------------------------------------------------------------------

    def get(self, board: str) -> KnownHead | None:
        """What is known of a board."""
        return self._known.get(board)

    def ahead(self, board: str, epoch: int, revision: Revision) -> KnownHead | None:
        """The known head, if a board with that epoch and revision has less than it had."""
        known = self._known.get(board)
        if known is None or (epoch >= known.epoch and revision >= known.revision):
            return None
        return known

    def forget(self, board: str) -> None:
        """Forget a board whose file is removed on purpose, to begin another one."""
        self._known = {name: head for name, head in self._known.items() if name != board}

    def newer(self, heads: Mapping[str, Head]) -> dict[str, KnownHead]:
        """Those of `heads` that say more than is known."""
        found: dict[str, KnownHead] = {}
        for name, head in heads.items():
            known = self._known.get(name)
            if known is None or (head.epoch.number, head.revision) > (known.epoch, known.revision):
                found[name] = KnownHead(head.epoch.number, head.revision, head.time_ms)
        return found

    # --- the file ---------------------------------------------------------------------------------

    def read(self) -> None:
        """Read what an earlier process wrote. Errors: Unavailable while another process writes it;
        every other failure is logged, and nothing is known then."""
        try:
            self._take()
            self._read()
        except (NewerFormat, OSError) as error:
            self._fail(error)

    def write(
        self, newer: Mapping[str, KnownHead], existing: Callable[[], Collection[str]]
    ) -> None:
        """Add heads, and replace the file. Of more boards than it may have, those that are not
        `existing` go, the oldest first. Errors: none; see `warnings`."""
        if self._is_newer:
            return
        try:
            self._take()
            self._read()
            known = self._bounded(_newest(self._known, newer), existing)
            replace_file(self.path, encode(known))
            # Only now: what could not be written counts as new the next time.
            self._known = known
            self._went_well()
        except (BlackboardError, OSError) as error:
            self._fail(error)

    def release(self) -> None:
        """Let another process write it."""
        if self._lock is not None:
            self._lock.release()

    def _take(self) -> None:
        """Errors: Unavailable; OSError when its directory is not there, which nothing makes: it may
        be a disk that is not mounted yet."""
        if not self.path.parent.is_dir():
            raise FileNotFoundError(ENOENT, os.strerror(ENOENT), str(self.path.parent))
        if self._lock is None or self._lock.is_locked:
            return
        try:
            self._lock.acquire(timeout=0)
        except Timeout as error:
            reason = "another process writes it: give each data directory a file of its own"
            raise Unavailable(what=f"known heads {self.path}", reason=reason) from error

    def _read(self) -> None:
        """Know what the file says, once. Errors: NewerFormat; OSError."""
        if self._is_read:
            return
        try:
            found = decode(self.path, read_bytes(self.path))
        except NewerFormat:
            self._is_newer = True
            raise
        except FileNotFoundError:
            found = {}
        except (Corrupt, NotOrdinaryError) as error:
            found = {}
            self._set_aside(error)
        self._known = _newest(found, self._known)
        self._is_read = True

    def _bounded(
        self, known: dict[str, KnownHead], existing: Callable[[], Collection[str]]
    ) -> dict[str, KnownHead]:
        excess = len(known) - self._heads_max
        if excess <= 0:
            return known
        there = frozenset(existing())
        by_age = sorted(known, key=lambda name: (name in there, known[name].time_ms))
        log.warning("the known heads of %d removed boards are forgotten: there are many", excess)
        gone = set(by_age[:excess])
        return {name: head for name, head in known.items() if name not in gone}

    def _set_aside(self, error: Exception) -> None:
        """Errors: OSError, and nothing was changed."""
        aside = self.path.with_name(f"{self.path.name}{DAMAGED}")
        self.path.replace(aside)
        text = f"the known heads were damaged, and are now in {aside} ({error})"
        self._damage = f"{text}: whether older copies of boards were put back is not known"
        log.error("%s", self._damage)

    def _fail(self, error: Exception) -> None:
        text = f"the known heads are not kept: {error}"
        if not self._failure:
            log.error("%s", text)
        self._failure = text

    def _went_well(self) -> None:
        if self._failure:
            log.warning("the known heads are kept again in %s", self.path)
        self._failure = ""


class HeadsTimer:
    """Writes the heads of the open boards once every interval, from `start` until `aclose`.

    `durable` says what they are, `existing` which boards there are (called in a thread). Boards
    that turn out to have less than is known go to `behind`: the file was out of reach when they
    were opened.
    """

    def __init__(
        self,
        heads: KnownHeads,
        durable: Callable[[], Mapping[str, Head]],
        existing: Callable[[], Collection[str]],
        behind: Callable[[str], None],
        interval_ms: Milliseconds,
    ) -> None:
        self._heads = heads
        self._durable = durable
        self._existing = existing
        self._behind = behind
        self._interval_s = interval_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None

    def start(self) -> None:
        """Begin."""
        self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._look)

    def _look(self) -> None:
        # The next look does not depend on how this one ends.
        self.start()
        # One at a time: a disk that hangs must not collect waiting threads.
        if self._writing is not None and not self._writing.done():
            return
        now = self._durable()
        for name, head in now.items():
            if self._heads.ahead(name, head.epoch.number, head.revision) is not None:
                self._behind(name)
        self._writing = self._written(now)

    def _written(self, now: Mapping[str, Head]) -> "asyncio.Future[None] | None":
        newer = self._heads.newer(now)
        # After a failure it is tried even if nothing is new, to notice that it works again.
        if not newer and not self._heads.is_failing:
            return None
        # Not in the threads of the boards: no commit waits for this file.
        run = asyncio.get_running_loop().run_in_executor
        return run(None, self._heads.write, newer, self._existing)

    async def aclose(self) -> None:
        """Write the last heads, of boards that are closed by now, and let go of the file."""
        if self._timer is not None:
            self._timer.cancel()
        if self._writing is not None:
            await asyncio.wait([self._writing])
        last = self._written(self._durable())
        if last is not None:
            await asyncio.wait([last])
        self._heads.release()
