"""A restore while others commit: how often it is tried before they have to wait, and what rests."""

import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from blackboard.archive.sql import archive_beside
from blackboard.cli.render import print_restored
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.checkpoints import (
    CHECKPOINTS,
    CheckpointRequest,
    Mark,
    Restored,
    RestoreRequest,
)
from blackboard.core.commit import Commit, Grant, Head, Op, Put, Reading
from blackboard.core.model import Outcome
from blackboard.core.path import document_of
from blackboard.engines.base import BatchAnswer
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import LimitExceeded, OutcomeUnknown, Unavailable
from blackboard.limits import Limits
from blackboard.server.checkpoints import restore
from blackboard.server.requests import RequestHandler
from blackboard.server.service import Service
from blackboard.units import Key, Milliseconds, Revision
from blackboard.wire.codec import Prepared, prepare
from tests.conformance.writer import Writer
from tests.lowered import lowered
from tests.unit.core.trial import packed

BOARD = "main"
REQUEST = "0123456789abcdef"
HOUR_MS = 3_600_000


class BusyStore(SqliteStore):
    """Somebody else commits just before each restore, unless the board is held."""

    tries = 0
    held = False
    bob: Writer | None = None

    async def hold(self, board: str, hold_ms: Milliseconds) -> None:
        """As `Store.hold`."""
        await super().hold(board, hold_ms)
        self.held = hold_ms > 0

    async def commit(self, board: str, batch: Sequence[Prepared]) -> list[Outcome]:
        """As `Store.commit`, counting restores."""
        if batch[0].commit.begins is not None:
            self.tries += 1
            if not self.held:
                self.bob = self.bob or await Writer.open(self, board, "bob")
                await self.bob.commit(self.meanwhile())
        return await super().commit(board, batch)

    def meanwhile(self) -> Op:
        """What somebody else commits."""
        return Put("public/bob", packed(self.tries))


class LeasingStore(BusyStore):
    """Somebody else asks for the lease of a key just before each restore."""

    def meanwhile(self) -> Op:
        """As `BusyStore.meanwhile`."""
        return Grant("public/same", f"bob~{self.tries}", HOUR_MS, wait=True)


SMALL, LARGE = (lowered(restore_large_changes=count) for count in (10, 1))
"""Limits for which a restore is a small one, or a large one, which is not tried without a hold."""


class RacingStore(SqliteStore):
    """The same request arrives a second time just before the restore is committed."""

    again: Callable[[], Awaitable[Restored]] | None = None
    first: Restored | None = None

    async def commit(self, board: str, batch: Sequence[Prepared]) -> list[Outcome]:
        """As `Store.commit`."""
        if batch[0].commit.begins is not None and self.again is not None:
            again, self.again = self.again, None
            self.first = await again()
        return await super().commit(board, batch)


class AwayAfterRestore(RequestHandler):
    """A service that cannot be asked anything any more once it has answered a restore."""

    is_away = False

    async def restore(self, board: str, spec: RestoreRequest) -> Restored:
        """As `Link.restore`."""
        restored = await super().restore(board, spec)
        self.is_away = True
        return restored

    async def head(self, board: str) -> Head:
        """As `Link.head`, while it is there."""
        if self.is_away:
            raise Unavailable("service", "away")
        return await super().head(board)


async def test_a_restore_that_was_answered_took_effect_whatever_comes_then(tmp_path: Path) -> None:
    """Nothing is asked after its answer, which could fail: that would read as not done."""
    store = await SqliteStore.at(tmp_path)
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        link = AwayAfterRestore(service.boards, access.operator())
        board = Board(link, BOARD)
        await board.put("public/a", 1)
        restored = await board.restore(0)
        link.is_away = False
        assert (await board.put("public/a", 2)).revision == restored.revision + 1


class ForgetfulStore(SqliteStore):
    """An engine that can make others wait, and is away when they are to go on."""

    async def hold(self, board: str, hold_ms: Milliseconds) -> None:
        """As `Store.hold`."""
        if hold_ms == 0:
            raise Unavailable("engine", "away")
        await super().hold(board, hold_ms)


class DoubtfulStore(SqliteStore):
    """An engine that does not know what became of a restore, or of a checkpoint, and cannot be
    asked either."""

    in_doubt = is_away = False
    about = "restore"

    def begin(self, board: str, batch: Sequence[Prepared], answer: BatchAnswer) -> bool:
        """As `Begins.begin`, but `commit` is called."""
        return False

    def is_meant(self, commit: Commit) -> bool:
        """Whether a commit makes that about which there is doubt."""
        if self.about == "restore":
            return commit.begins is not None
        return any(isinstance(op, Put) and op.key.startswith(CHECKPOINTS) for op in commit.ops)

    async def commit(self, board: str, batch: Sequence[Prepared]) -> list[Outcome]:
        """As `Store.commit`."""
        outcomes = await super().commit(board, batch)
        if self.in_doubt and self.is_meant(batch[0].commit):
            self.is_away = True
            name = batch[0].commit.id
            return [OutcomeUnknown(name.agent, name.lane, name.incarnation, name.step, "lost")]
        return outcomes

    async def read(self, board: str, keys: Sequence[Key]) -> Reading:
        """As `Store.read`, while it is there."""
        if self.is_away:
            raise Unavailable("engine", "away")
        return await super().read(board, keys)

    async def hold(self, board: str, hold_ms: Milliseconds) -> None:
        """As `Store.hold`, while it is there."""
        if self.is_away:
            raise Unavailable("engine", "away")
        await super().hold(board, hold_ms)


@pytest.mark.parametrize("limits", [SMALL, LARGE])
async def test_a_restore_of_which_the_engine_knows_nothing_is_unknown(
    tmp_path: Path, limits: Limits
) -> None:
    """Also one for which others had to wait: that they go on cannot be told the engine either."""
    store = await DoubtfulStore.at(tmp_path, level="memory")
    archive = await archive_beside(tmp_path)
    async with Service(store, archive=archive, limits=limits) as service:
        link = service.link(access.operator())
        await Board(link, BOARD).put("public/a", 1)
        store.in_doubt = True
        spec = RestoreRequest(0, REQUEST)
        with pytest.raises(OutcomeUnknown) as unknown:
            await link.restore(BOARD, spec)
        told = unknown.value
        assert (told.method, told.agent, told.request) == ("restore", "operator", REQUEST)
        store.in_doubt = store.is_away = False
        assert (await link.restore(BOARD, spec)).epoch.number == 2
        assert await Board(link, BOARD).get("public/a") is None


async def test_a_checkpoint_of_which_the_engine_knows_nothing_is_unknown(tmp_path: Path) -> None:
    """That it cannot be looked for does not mean that it was not taken."""
    store = await DoubtfulStore.at(tmp_path, level="memory")
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        link = service.link(access.operator())
        await Board(link, BOARD).put("public/a", 1)
        store.in_doubt, store.about = True, "checkpoint"
        spec = CheckpointRequest("one", REQUEST)
        with pytest.raises(OutcomeUnknown):
            await link.checkpoint(BOARD, spec)
        store.in_doubt = store.is_away = False
        taken = await link.checkpoint(BOARD, spec)
        assert await Board(link, BOARD).checkpoints() == (taken,)


async def test_a_restore_is_done_even_if_the_hold_cannot_be_ended(
    tmp_path: Path,
) -> None:
    """They go on by themselves."""
    store = await ForgetfulStore.at(tmp_path, level="memory")
    archive = await archive_beside(tmp_path)
    async with Service(store, archive=archive, limits=LARGE) as service:
        board = Client(service.link(access.operator())).board(BOARD)
        await board.put("public/a", 1)
        assert (await board.restore(0)).epoch.number == 2


@pytest.mark.parametrize(
    ("limits", "tries"), [(SMALL, SMALL.checkpoints.restore_attempts_max), (LARGE, 0)]
)
async def test_only_a_small_restore_is_tried_without_a_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limits: Limits, tries: int
) -> None:
    """Of a large one each try takes long; held, the first is the last, and encoded in a thread."""
    threads = []

    def noted(commit: Commit) -> Prepared:
        threads.append(threading.current_thread())
        return prepare(commit)

    monkeypatch.setattr(restore, "prepare", noted)
    store = await BusyStore.at(tmp_path, level="memory")
    archive = await archive_beside(tmp_path)
    async with Service(store, archive=archive, limits=limits) as service:
        board = Client(service.link(access.operator())).board(BOARD)
        before = await board.put("public/plan", 1)
        await board.put("public/plan", 2)
        await board.restore(before.revision)
        assert store.tries == tries + 1
        assert await board.get("public/bob") is None
    assert [thread is threading.main_thread() for thread in threads] == [tries > 0] * (tries + 1)


async def test_a_lease_that_changes_meanwhile_is_no_change_of_its_key(tmp_path: Path) -> None:
    """The key holds what it held: nothing puts it back."""
    store = await LeasingStore.at(tmp_path, level="memory")
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        board = Client(service.link(access.operator())).board(BOARD)
        await board.put("public/same", 1)
        before = await board.put("public/plan", 1)
        await board.put("public/plan", 2)
        restored = await board.restore(before.revision)
        assert store.tries > 1
        assert (restored.put_back, restored.removed) == (1, 0)
        entry = await board.entry("public/same")
        assert entry is not None
        assert entry.mod_revision == 1


async def test_the_abandoned_revisions_end_just_before_the_restore(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Commits that others make until the switch belong to them, and the command line says so."""
    store = await BusyStore.at(tmp_path, level="memory")
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        board = Client(service.link(access.operator())).board(BOARD)
        before = await board.put("public/plan", 1)
        restored = await board.restore(before.revision)
        last = restored.revision - 1
        assert (await board.show(restored.before)).checkpoint.revision < last
        assert await board.get("public/bob", at=restored.before) is None
        assert await board.get("public/bob", at=last) is not None
    print_restored(restored, as_json=False)
    assert f"the abandoned revisions end at {last}," in capsys.readouterr().err


async def test_the_same_request_that_was_faster_answers_when_no_try_is_left(
    tmp_path: Path,
) -> None:
    """It is done, though every try of this one found the head moved."""
    store = await RacingStore.at(tmp_path, level="memory")
    archive, once = await archive_beside(tmp_path), lowered(LARGE, restore_holds_max=1)
    async with Service(store, archive=archive, limits=once) as service:
        link, spec = service.link(access.operator()), RestoreRequest(1, REQUEST)
        for value in (1, 2):
            await Board(link, BOARD).put("public/plan", value)
        store.again = lambda: link.restore(BOARD, spec)
        restored = await link.restore(BOARD, spec)
        assert restored == store.first
        assert restored.epoch.number == 2


@pytest.mark.parametrize("changes_max", [2, 0])
async def test_the_archiver_rests_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes_max: int
) -> None:
    """From the comparison to the answer, be it a refusal; not before, nor after."""
    monkeypatch.setattr(restore, "RESTORE_CHANGES_MAX", changes_max)
    store = await SqliteStore.at(tmp_path, level="memory")
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        archiver, during = service.host.archiver, []
        assert archiver is not None
        reach = archiver.reached

        async def noted(board: str, revision: Revision) -> Mark:
            during.append(archiver._boards[BOARD].restores)
            return await reach(board, revision)

        monkeypatch.setattr(archiver, "reached", noted)
        board = Client(service.link(access.operator())).board(BOARD)
        before = await board.put("public/plan", 1)
        await board.put("public/plan", 2)
        refused = nullcontext() if changes_max else pytest.raises(LimitExceeded)
        with refused:
            await board.restore(before.revision)
        assert during == [0, 1]
        assert archiver._boards[BOARD].restores == 0


async def test_each_part_of_a_document_is_looked_at_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many documents changed: counted, not timed."""
    count, seen = 20, Counter[Key]()

    def counting(key: Key) -> Key | None:
        seen[key] += 1
        return document_of(key)

    store = await SqliteStore.at(tmp_path, "memory")
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        board = Client(service.link(access.operator())).board(BOARD)
        for number in range(count):
            async with board.document(f"public/{number}") as document:
                document.text("body").insert(0, "x")
        monkeypatch.setattr(restore, "document_of", counting)
        restored = await board.restore(0)
    assert restored.put_back + restored.removed >= count
    assert len(seen) >= count
    assert max(seen.values()) <= 3
