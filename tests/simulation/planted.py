"""Faults that are planted in the product, each of the kind that a hurried edit makes.

Those of the embedded engine and of what lies in front of both engines replace a function; those of
the script are the ones of tests/conformance/mutants.py. Each runs on the engine that it is in.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from msgspec.structs import replace

from blackboard.archive.sql import SqlArchive
from blackboard.client.remote.link import RemoteTransport
from blackboard.client.remote.stream import RemoteStream
from blackboard.client.views import Receipt
from blackboard.client.writer import Writer
from blackboard.core import lease, model
from blackboard.core.checkpoints import RedactedRows
from blackboard.core.commit import Commit, HeldFence, KeyAt, Lease, LogEntry
from blackboard.core.state import State
from blackboard.core.view import View
from blackboard.core.watch import Position
from blackboard.engines.sqlite.file import BoardFile, WriteError, Written
from blackboard.engines.sqlite.rows import Taken
from blackboard.engines.sqlite.tablets import Changes
from blackboard.errors import Fenced, StaleEpoch
from blackboard.server.checkpoints.redact import _Running
from blackboard.server.checkpoints.restore import _Attempt
from blackboard.server.feed import Feed, Watcher
from blackboard.server.host import Host
from blackboard.server.sweeper import Sweeper
from blackboard.wire.session import Changed
from tests.conformance.mutants import MUTANTS
from tests.simulation import engines
from tests.simulation.nature import replaced

_SOME: Final = 2
Replacement = tuple[Any, str, object]


@dataclass(frozen=True, slots=True)
class Planted:
    """A fault: what it replaces, on which engine it shows, and whether only with an archive."""

    name: str
    replacement: Callable[[], Replacement]
    engine: str | None = None
    has_past: bool | None = None
    first: int = 0
    """From which seed on it is looked for."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The product has the fault in this block."""
        with replaced(*self.replacement()):
            yield


def _new_id() -> Replacement:
    original = RemoteTransport.commit

    async def commit(link: RemoteTransport, board: str, sent: Commit) -> Receipt:
        if sent.retry_since is not None:
            name = replace(sent.id, incarnation=f"{sent.id.incarnation}again")
            sent = replace(sent, id=name, retry_since=None)
        return await original(link, board, sent)

    return RemoteTransport, "commit", commit


def _newer_fence() -> Replacement:
    original = lease.check_fence

    def check_fence(held: Lease | None, fence: HeldFence) -> Lease:
        try:
            return original(held, fence)
        except Fenced:
            if held is not None and held.fence >= fence.fence:
                return held
            raise

    return lease, "check_fence", check_fence


def _no_memory() -> Replacement:
    def known(_: State, __: Commit) -> None:
        return None

    return model, "_known", known


def _any_revision() -> Replacement:
    def check_key(_: State, __: KeyAt) -> None:
        return None

    return model, "_check_key", check_key


def _dropped() -> Replacement:
    original = RemoteStream.push

    def push(stream: RemoteStream, changed: Changed) -> None:
        if len(stream._buffer) < _SOME:
            original(stream, changed)

    return RemoteStream, "push", push


def _one_too_late() -> Replacement:
    original = Watcher.__init__

    def begin(
        watcher: Watcher, feed: Feed, view: View, start: Position, readable: Callable[[str], bool]
    ) -> None:
        if start.digest:
            start = Position(start.epoch, start.revision + 1)
        original(watcher, feed, view, start, readable)

    return Watcher, "__init__", begin


def _torn() -> Replacement:
    original = View.show

    def show(view: View, entry: LogEntry) -> LogEntry | None:
        shown = original(view, entry)
        if shown is None or len(shown.changes) < _SOME:
            return shown
        return replace(shown, changes=shown.changes[:-1])

    return View, "show", show


def _swallowed_sync() -> Replacement:
    original = BoardFile.write

    def write(file: BoardFile, taken: Taken) -> Written:
        try:
            return original(file, taken)
        except WriteError as error:
            if not error.is_last:
                raise
            return Written(log_remains=False, tablets=Changes([], [], []))

    return BoardFile, "write", write


def _silent_loss() -> Replacement:
    original = Writer._adopt

    def adopt(writer: Writer, error: StaleEpoch, number: int) -> str:
        writer.seen = min(writer.seen, error.from_revision)
        return original(writer, error, number)

    return Writer, "_adopt", adopt


def _only_next() -> Replacement:
    """As it was before a simulation found it: see docs/track_record.md."""
    original = Writer._adopt

    def adopt(writer: Writer, error: StaleEpoch, _: int) -> str:
        return original(writer, error, error.number - 1)

    return Writer, "_adopt", adopt


def _never_swept() -> Replacement:
    async def end(*_: object) -> None:
        pass

    return Sweeper, "_end", end


def _inboxes_stay() -> Replacement:
    original = _Attempt._compare

    def compare(attempt: _Attempt, key: str) -> None:
        if not key.startswith("inbox/"):
            original(attempt, key)

    return _Attempt, "_compare", compare


def _uncut() -> Replacement:
    async def cut(_: _Running, __: str) -> None:
        pass

    return _Running, "_cut", cut


def _unwritten() -> Replacement:
    async def redact(*_: object) -> RedactedRows:
        return RedactedRows(0, 0)

    return SqlArchive, "redact", redact


def _thawed() -> Replacement:
    return model, "_passes_freeze", lambda _: True


def _left_behind() -> Replacement:
    async def finish(_: Host, __: str) -> None:
        pass

    return Host, "clear_past", finish


def _script(name: str) -> Callable[[], Replacement]:
    [mutant] = [one for one in MUTANTS if one.name == name]
    return lambda: (engines, "commit_script", mutant.script())


PLANTED: Final = (
    Planted("a retry has a new id", _new_id),
    Planted("a fence is compared by >=", _newer_fence, "sqlite", first=41),
    Planted("a commit is not remembered", _no_memory, "sqlite"),
    Planted("a stale write passes", _any_revision, "sqlite"),
    Planted("a full buffer drops in silence", _dropped),
    Planted("a watch is resumed one revision too late", _one_too_late),
    Planted("the last change of a revision is not told", _torn),
    Planted("a loss is not told", _silent_loss),
    Planted("epochs in between are passed over", _only_next, "sqlite", first=217),
    Planted("leases are not swept", _never_swept, "sqlite"),
    Planted("a failed sync is taken for a success", _swallowed_sync, "sqlite", has_past=False),
    Planted("a restore leaves inboxes as they are", _inboxes_stay, has_past=True),
    Planted("a redaction leaves the log", _uncut, "sqlite", has_past=True, first=75),
    Planted("a redaction leaves the archive", _unwritten, has_past=True, first=75),
    Planted("a frozen board takes commits", _thawed, "sqlite"),
    Planted("a removal leaves the archive", _left_behind, has_past=True, first=75),
    *(
        Planted(f"commit.lua: {name}", _script(name), "redis")
        for name in (
            "a duplicate is applied again",
            "fences are not checked",
            "a freeze is not checked",
        )
    ),
    Planted("commit.lua: an epoch goes on", _script("the old epoch goes on"), "redis", True),
)
