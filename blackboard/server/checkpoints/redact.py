"""Redaction: removes every value that a key ever had from a board and all that share its history.

First an ordinary commit removes the key and records the redaction: from then on no reader gets the
value, and if this service is killed, the next one continues. Then the engine's log is cut up to the
archived revision, so that only the archive has the history, and the values are removed from it
(archive/redact.py). Last, the files are scrubbed.

Invariants
- A recorded redaction is finished, by this service or by the next one.
- No commit is refused: each board is held for a moment while its log is cut, as for a restore.
- A repeated redaction does only what is left to do.
"""

import asyncio
import logging
import secrets
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, Self

from blackboard.archive.base import Archive
from blackboard.client.cancellation import heed_cancellation
from blackboard.core.access import is_reserved
from blackboard.core.checkpoints import RedactedRows, Redaction, RedactRequest, check_request
from blackboard.core.commit import Delete, DeletePrefix, Entry, Op, Put
from blackboard.core.fields import check_note
from blackboard.core.path import check_key
from blackboard.core.redaction import NOTE, RECORDS, check_redactable, parts_prefixes, record_key
from blackboard.encryption.store import SealedStore
from blackboard.engines.base import Scrubs, check_since, pages_of
from blackboard.errors import BlackboardError, Corrupt, InvalidRequest, Unavailable
from blackboard.limits import HOLD_MS_MAX, OPERATIONS_MAX
from blackboard.server.boards import Boards
from blackboard.server.checkpoints.branch import alone
from blackboard.server.host import Host
from blackboard.units import Key, Revision
from blackboard.wire.codec import decode_value, encode_value

log = logging.getLogger(__name__)

_NOTE_DONE: Final = "a redaction is done"
_DELETES: Final = OPERATIONS_MAX // 2
"""Parts of a document per commit. The rest is removed together with the key, in a commit that has
other operations as well."""
_KEPT: Final = 64
"""Redactions whose results a process caches: a client that lost the answer repeats the request
within seconds."""
_BEGUN: Final = "begun"
_DONE: Final = "done"
_PART: Final = "part"
"""The state of a redaction whose record is on another board."""
_LOOKING: Final = "cannot look for redactions"
"""Stands for all boards, as long as it is not known which there are."""
_TRIES: Final = 10
"""Attempts, when a board was restored or a branch was made in the meantime."""

_NO_ARCHIVE: Final = "this service keeps no archive: the log was cut, and there is no other history"


class Redactions:
    """The redactions of one process."""

    def __init__(self, boards: Boards) -> None:
        self._boards = boards
        self._host = boards.host
        self._running: dict[tuple[str, Key, str], _Running] = {}
        self._resuming: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, boards: Boards) -> Self:
        """The redactions of the process that serves `boards`."""
        if boards.redactions is None:
            boards.redactions = cls(boards)
        assert isinstance(boards.redactions, cls)
        return boards.redactions

    async def boards(self, board: str) -> Sequence[str]:
        """The boards that a redaction on `board` reaches, as far as they have a name."""
        return await _family(self._host, board)

    def check(self, spec: RedactRequest) -> None:
        """Errors: InvalidRequest for a malformed request, or a key that cannot be redacted."""
        check_redactable(check_key(spec.key))
        check_note(spec.why)
        check_request(spec.request)

    async def redact(self, board: str, spec: RedactRequest, by: str) -> Redaction:
        """Begin a redaction, or report its progress; waits RECOVER_WAIT_MS for the end.

        A repeated request gets the same answer, as long as it is among the newest _KEPT of this
        process. If a redaction of the key began since the request was made, that one is continued
        or reported. Errors: InvalidRequest, Unavailable, Corrupt; a repeated request continues it;
        StaleEpoch when the board was restored, or another one began, since the request was made.
        Cancellation: it continues.
        """
        running = self._running.get((board, spec.key, spec.request))
        if running is None or running.has_failed:
            said = await self._recorded(board, spec)
            if said is not None and said["state"] == _DONE:
                return Redaction(True, _DONE, (board,))
            if said is not None:
                board, spec, by = said["board"], _asked(said), said["by"]
            running = self._running.get((board, spec.key, spec.request))
        if running is None or running.has_failed:
            running = self._begin(board, spec, by)
        wait_ms = self._host.limits.checkpoints.recover_wait_ms
        await asyncio.wait([running.task], timeout=wait_ms / 1000)
        return running.task.result() if running.task.done() else running.so_far

    async def _recorded(self, board: str, spec: RedactRequest) -> dict[str, Any] | None:
        """The record of the last redaction of the key, if it is this request's, or if it began
        since this request was made; else None. A copy of a request that comes late must not remove
        what was put there since.

        Errors: StaleEpoch.
        """
        found = await self._host.store.read(board, [record_key(spec.key)])
        for said in map(_read, found.entries):
            is_later = spec.known is not None and said.get("known", -1) >= spec.known
            if said.get("request") == spec.request or is_later:
                return await self._leading(said)
        if spec.known is not None:
            check_since(await self._host.store.open(board), spec.known)
        return None

    async def _leading(self, said: dict[str, Any]) -> dict[str, Any] | None:
        """The record on the board where a redaction was begun, which says whether it is done; None
        if that board is gone."""
        if said["state"] != _PART:
            return said
        found = await self._host.store.read(said["board"], [record_key(said["key"])])
        return _read(found.entries[0]) if found.entries else None

    def _begin(self, board: str, spec: RedactRequest, by: str) -> "_Running":
        old = [name for name, each in self._running.items() if each.task.done()]
        for name in old[: max(0, len(old) - _KEPT + 1)]:
            del self._running[name]
        running = _Running(self._boards, board, spec, by)
        self._running[board, spec.key, spec.request] = running
        return running

    def resume(self) -> None:
        """Start to finish the redactions that an earlier service began."""
        if self._resuming is None:
            self._resuming = asyncio.create_task(self._resume(), name="redactions")

    async def _resume(self) -> None:
        """A board that fails delays no other one, and is tried again. A failure is logged once."""
        failed: dict[str, str] = {_LOOKING: ""}
        while True:
            before, failed = failed, await self._finish_all(failed)
            for board, failure in failed.items():
                if before.get(board) != failure:
                    log.warning("%s: %s", board if board == _LOOKING else f"board {board}", failure)
            if not failed:
                return
            await asyncio.sleep(self._host.limits.boards.engine_check_interval_ms / 1000)
            heed_cancellation()

    async def _finish_all(self, names: Collection[str]) -> dict[str, str]:
        """Finish what was begun on boards, all of them with _LOOKING; returns why not, by board."""
        failed: dict[str, str] = {}
        if _LOOKING in names:
            try:
                names = [each for each in await self._host.store.boards() if not is_reserved(each)]
            except BlackboardError as error:
                return {_LOOKING: str(error)}
        for board in names:
            try:
                begun = await self._begun(board)
            except BlackboardError as error:
                failed[board] = f"it cannot be read, nor what is to be redacted on it: {error}"
                continue
            try:
                for spec, by in begun:
                    running = self._begin(board, spec, by)
                    await asyncio.wait([running.task])
                    running.task.result()
            except BlackboardError as error:
                failed[board] = f"a redaction that was begun is not finished: {error}"
        return failed

    async def _begun(self, board: str) -> list[tuple[RedactRequest, str]]:
        """The redactions that were recorded on a board and not finished, and who requested them."""
        return [
            (_asked(said), said["by"])
            async for page in pages_of(self._host.store, board, RECORDS)
            for said in map(_read, page.entries)
            if said.get("state") == _BEGUN
        ]

    async def aclose(self) -> None:
        """Give up the redactions in progress; the next service continues them."""
        tasks: list[asyncio.Task[Any]] = [running.task for running in self._running.values()]
        tasks += [] if self._resuming is None else [self._resuming]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Running:
    """One redaction and its progress."""

    def __init__(self, boards: Boards, board: str, spec: RedactRequest, by: str) -> None:
        self._boards = boards
        self._host = boards.host
        self._board = board
        self._spec = spec
        self._by = by
        self._known: dict[str, Revision] = {}
        self._removed: dict[str, Revision] = {}
        self._epochs: dict[str, str] = {}
        self.so_far = Redaction(False, "it is being recorded")
        self.task = asyncio.create_task(self._run(), name=f"redaction on {board}")
        self.task.add_done_callback(lambda task: task.cancelled() or task.exception())

    @property
    def has_failed(self) -> bool:
        """Whether it ended with an error."""
        task = self.task
        return task.done() and (task.cancelled() or task.exception() is not None)

    async def _run(self) -> Redaction:
        rows = RedactedRows(0, 0)
        for _ in range(_TRIES):
            found = await self._pass()
            guessable = max(found.guessable, rows.guessable)
            rows = RedactedRows(rows.versions + found.versions, guessable)
            if await self._is_stable():
                break
        else:
            raise Unavailable(f"board {self._board}", "it is restored again and again")
        self._tell("its files are scrubbed")
        left = tuple(dict.fromkeys([*await self._scrub(), *self._left()]))
        boards = tuple(sorted(self._removed))
        done = Redaction(True, _DONE, boards, rows.versions, rows.guessable, left)
        # Last: without this record the next service does it all again.
        await self._record(_DONE)
        what = f"{self._spec.key} by {self._by}: {self._spec.why}".removesuffix(": ")
        self._host.audit.note_service("redact", self._board, what)
        return done

    def _tell(self, step: str) -> None:
        boards = tuple(sorted(self._removed))
        self.so_far = Redaction(False, step, boards)

    async def _pass(self) -> RedactedRows:
        """Remove the key everywhere, and then its values from the history."""
        for board in await _family(self._host, self._board):
            await self._remove(board)
            self._tell(f"removed from board {board}")
        for board in list(self._removed):
            self._tell(f"the log of board {board} is cut")
            await self._cut(board)
        archive = self._host.archive
        if archive is None:
            return RedactedRows(0, 0)
        self._tell("the archive is rewritten")
        return await archive.redact(self._board, self._spec.key, self._removed)

    async def _is_stable(self) -> bool:
        """Whether nothing brought the values back in the meantime."""
        # A branch may have begun with the values since, and a restore may have put them back.
        if not set(await _family(self._host, self._board)) <= self._removed.keys():
            return False
        heads = {name: await self._host.store.open(name) for name in self._removed}
        return all(head.epoch.id == self._epochs[name] for name, head in heads.items())

    # --- the present ------------------------------------------------------------------------------

    async def _remove(self, board: str) -> None:
        """Remove the key from a board, and record why, in one commit (more for a large
        document)."""
        key = self._spec.key
        opened = await self._boards.use(board)
        state = _BEGUN if board == self._board else _PART
        self._known[board] = (await opened.head()).revision
        # The record comes first: what cannot be recorded is not begun, and what is begun is ended
        # by the next service.
        ops: list[Op] = [self._put_record(board, state)]
        below = parts_prefixes(key)
        for prefix in below:
            async for entry in opened.entries(prefix):
                ops.append(Delete(entry.key))
                if len(ops) == _DELETES:
                    await opened.commit_as_system(ops)
                    ops.clear()
        # The record once more: by that and the note, the feed recognises a redaction.
        ops = [self._put_record(board, state), Delete(key), *map(DeletePrefix, below)]
        committed = await opened.commit_as_system(ops, note=NOTE)
        self._removed[board] = committed.revision
        self._epochs[board] = (await opened.head()).epoch.id

    async def _record(self, state: str) -> None:
        opened = await self._boards.use(self._board)
        await opened.commit_as_system([self._put_record(self._board, state)], note=_NOTE_DONE)

    def _put_record(self, board: str, state: str) -> Op:
        """The record on `board`, with the revision before the key was removed there: a request that
        was made at that revision or before needs no redaction of its own."""
        spec = self._spec
        said: dict[str, Any] = {"key": spec.key, "why": spec.why, "by": self._by, "state": state}
        said |= {"board": self._board, "request": spec.request, "known": self._known[board]}
        return Put(record_key(spec.key), encode_value(said))

    # --- the engine's log -------------------------------------------------------------------------

    async def _cut(self, board: str) -> None:
        """Cut the log of a board up to its archived revision, so that no old value is in it."""
        store = self._host.store
        for _ in range(_TRIES):
            # Before the hold as well, which then lasts only for what came since.
            await self._archived(board)
            await self._copied(board)
            await store.hold(board, HOLD_MS_MAX)
            try:
                revision = await self._archived(board, HOLD_MS_MAX)
                await self._copied(board)
                head = await store.compact(board, revision + 1)
                # It must be empty: Redis keeps trimmed entries while others of their node stay.
                if head.revision == revision:
                    return
            except Unavailable as error:
                log.info("the log of board %s is not cut yet: %s", board, error)
            finally:
                with suppress(BlackboardError):  # a hold ends by itself
                    await store.hold(board, 0)
        raise Unavailable(f"board {board}", "its archive does not keep up")

    async def _archived(self, board: str, timeout_ms: int | None = None) -> Revision:
        """The head of a board, once its archive durably has all of it. Errors: Unavailable."""
        revision = (await self._host.store.open(board)).revision
        archiver = self._host.archiver
        if archiver is not None:
            await archiver.reached(board, revision, timeout_ms or archiver.takeover_ms)
            if await archiver.settled(board) < revision:
                raise Unavailable(f"archive of board {board}", "its engine lost revisions")
        return revision

    async def _copied(self, board: str) -> None:
        """Copy into the archive what it has only in the log of a board. Errors: Unavailable."""
        if self._host.archive is not None:
            await self._host.archive.copy_values(board)

    # --- the files --------------------------------------------------------------------------------

    async def _scrub(self) -> list[str]:
        """Overwrite deleted data; returns what is left to do by hand."""
        left = []
        store = self._host.store
        raw = store.raw if isinstance(store, SealedStore) else store
        if isinstance(raw, Scrubs):
            left += [await raw.scrub(board) for board in self._removed]
        if self._host.archive is not None:
            left.append(await self._host.archive.scrub())
        return [each for each in left if each]

    def _left(self) -> list[str]:
        return [_NO_ARCHIVE] if self._host.archive is None else []


async def _family(host: Host, board: str) -> Sequence[str]:
    """The boards that share history with `board` and are in the engine."""
    archive = host.archive
    if archive is None:
        return [board]
    found = []
    for name in dict.fromkeys([board, *await archive.family(board)]):
        if name == board or await _is_there(host, archive, name):
            found.append(name)
    return found


async def _is_there(host: Host, archive: Archive, board: str) -> bool:
    """Whether the engine has a board, once no call is making one of that name."""
    if await host.store.exists(board):
        return True
    async with alone(archive, board):
        return await host.store.exists(board)


def _asked(said: Mapping[str, Any]) -> RedactRequest:
    """The request that a record is of; an older version recorded no name of it."""
    return RedactRequest(said["key"], said["why"], said.get("request") or secrets.token_hex(8))


def _read(entry: Entry) -> dict[str, Any]:
    """Parse a record; empty if it cannot be read."""
    try:
        said = decode_value(entry.value)
    except (Corrupt, InvalidRequest):
        return {}
    return said if isinstance(said, dict) else {}
