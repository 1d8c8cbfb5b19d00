"""A real service whose fsync and fdatasync fail, by a library that is laid before the C library."""

import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.core import access
from blackboard.core.commit import ENGINE
from blackboard.errors import BlackboardError, OutcomeUnknown, Unavailable
from tests.faults.preloaded import built
from tests.guarantees.processes import ServiceProcess
from tests.lowered import lowered
from tests.waiting import wait_until

SOON_S = 120.0
"""What a hang would exceed."""
SHORT_MS = 3_000
"""How long a writer insists here, instead of half a minute."""
BOARD = "main"
SOURCE = Path(__file__).with_name("failing_sync.c")


@dataclass
class Disk:
    """What decides which syncs of the processes that are started in this test fail."""

    flag: Path

    def breaks(self, part: str) -> None:
        """From now on, those of files whose path contains `part`; with a "!" before it, each kills
        the process."""
        draft = self.flag.with_suffix(".new")
        draft.write_text(part)
        draft.replace(self.flag)

    def is_mended(self) -> None:
        """From now on none."""
        self.flag.unlink()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is laid before the C library."""
    return built(SOURCE, tmp_path_factory.mktemp("library"))


@pytest.fixture
def disk(library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """A disk that works until the test breaks it."""
    made = Disk(tmp_path / "flag")
    monkeypatch.setenv("LD_PRELOAD", str(library))
    monkeypatch.setenv("FAILING_SYNC", str(made.flag))
    return made


@pytest.fixture
def service(disk: Disk, tmp_path: Path) -> ServiceProcess:
    """A service on that disk, not started."""
    assert not disk.flag.exists()
    return ServiceProcess(
        "sqlite",
        tmp_path / "data",
        log=tmp_path / "log",
        limits=lowered(commit_timeout_ms=SHORT_MS, request_timeout_ms=SHORT_MS),
    )


def cut_power(data: Path) -> None:
    """Let each journal be as long as it was when it was synced last. No process may run."""
    for journal in (data / "boards").glob("*-wal"):
        beside = journal.with_name(f"{journal.name}.synced")
        synced = int(beside.read_text()) if beside.exists() else 0
        os.truncate(journal, min(journal.stat().st_size, synced))
    forget_syncs(data)


def forget_syncs(data: Path) -> None:
    """What was synced before a power cut says nothing of what comes after it."""
    for beside in data.rglob("*.synced"):
        beside.unlink()


async def try_to_write(board: Board, revisions: dict[str, int], count: int = 3) -> list[str]:
    """Note at which revisions commits were acknowledged; returns the codes of those that failed."""
    failed = []
    for number in range(count):
        key = f"public/failing/{number}"
        try:
            revisions[key] = (await board.put(key, number)).revision
        except (Unavailable, OutcomeUnknown) as error:
            failed.append(error.code)
    return failed


def readiness(service: ServiceProcess) -> tuple[int, str]:
    """What /readyz says."""
    url = f"http{service.url.removeprefix('ws')}/readyz"
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


async def is_unready(service: ServiceProcess) -> bool:
    """Whether the service says that it is not ready, and why."""
    status, text = await anyio.to_thread.run_sync(readiness, service)
    return status == 503 and "a sync of its file failed" in json.loads(text)["reason"]


FATES = ("killed", "killed and the power cut", "stopped")


@pytest.mark.parametrize("fate", FATES)
async def test_nothing_is_acknowledged_while_syncs_fail(
    disk: Disk, service: ServiceProcess, fate: str
) -> None:
    """Not by a retry either; the service says so, and the next one begins an epoch."""
    revisions: dict[str, int] = {}
    with anyio.fail_after(SOON_S):
        async with service:
            async with service.connect(access.agent("ada")) as client:
                board = client.board(BOARD)
                revisions["public/before"] = (await board.put("public/before", 0)).revision
                disk.breaks("main.db")
                failed = await try_to_write(board, revisions)
                assert len(failed) == 3, revisions
                await wait_until(lambda: is_unready(service), timeout_s=SOON_S)
            await (service.stop() if fate == "stopped" else service.kill())
            disk.is_mended()
            if "power" in fate:
                cut_power(service.data)
            await service.start()
            async with service.connect(access.agent("ada")) as client:
                board = client.board(BOARD)
                assert await board.get("public/before") == 0
                head = await board.head()
                if "power" not in fate:
                    assert (head.epoch.cause, head.epoch.number) == (ENGINE, 2)
                found = {key: (await board.put(key, "again")).revision for key in revisions}
                assert min(found.values()) > max(revisions.values())
    assert service.log is not None
    said = [line for line in service.log.read_text().splitlines() if "ERROR" in line]
    assert sum("a sync of" in line for line in said) == 1, said


async def test_what_the_page_cache_said_is_on_the_disk_before_it_is_answered(
    disk: Disk, service: ServiceProcess
) -> None:
    """The process is killed by the very sync that fails, before it can leave a mark. What was found
    in the journal afterwards outlives the next power cut, if anybody was shown it."""
    seen: dict[str, object] = {}
    with anyio.fail_after(SOON_S):
        async with service:
            async with service.connect(access.agent("ada")) as client:
                await client.board(BOARD).put("public/before", 0)
                disk.breaks("!main.db")
                assert await try_to_write(client.board(BOARD), {}, 1)
            await service.kill()
            disk.is_mended()
            assert not [*service.data.rglob("*.suspect")]
            await service.start()
            async with service.connect(access.agent("ada")) as client:
                board = client.board(BOARD)
                seen = {key: await board.get(key) for key in ("public/before", "public/failing/0")}
            await service.kill()
            cut_power(service.data)
            await service.start()
            async with service.connect(access.agent("ada")) as client:
                board = client.board(BOARD)
                assert {key: await board.get(key) for key in seen} == seen
    assert seen["public/before"] == 0


async def test_other_boards_go_on(disk: Disk, service: ServiceProcess) -> None:
    """Only the board whose file could not be synced has ended; it can be removed."""
    with anyio.fail_after(SOON_S):
        async with service, service.connect() as client:
            await client.board("other").put("public/a", 1)
            await client.board(BOARD).put("public/a", 1)
            disk.breaks("main.db")
            assert await try_to_write(client.board(BOARD), {}, 1)
            await client.board("other").put("public/a", 2)
            with pytest.raises(BlackboardError, match="a sync of its file failed"):
                await client.board(BOARD).get("public/a")
            disk.is_mended()
            with pytest.raises(BlackboardError, match="a sync of its file failed"):
                await client.board(BOARD).get("public/a")
