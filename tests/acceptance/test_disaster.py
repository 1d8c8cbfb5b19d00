"""The drill: a running team, a backup that follows, a machine that is lost, a recovery."""

import asyncio
import json
import shutil
import signal
import urllib.request
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest

import blackboard
from blackboard.backup import manifest as manifests
from blackboard.backup.place import BackupPlace
from blackboard.errors import BlackboardError
from tests.acceptance.shell import Running, Shell
from tests.waiting import wait_until

BOARD = "main"
WRITERS = 4
KEPT = ("secret", "token", "signing_key")
"""What an operator keeps in another place: docs/operations.md."""


@dataclass
class Team:
    """Agents that write until the service is gone; `acknowledged` has each commit that was
    answered: its revision, key and value."""

    url: str
    token: str
    acknowledged: list[tuple[int, str, int]] = field(default_factory=list)
    sent: dict[str, int] = field(default_factory=dict)
    """The newest value that was sent for each key."""

    async def work(self, name: str) -> None:
        """Commit one value after the other."""
        patience = blackboard.connect(self.url, token=self.token, patience_ms=1000, agent=name)
        async with patience as client:
            board = client.board(BOARD)
            for number in range(10**6):
                key = f"public/{name}/{number % 50}"
                self.sent[key] = number
                try:
                    receipt = await board.put(key, number)
                except BlackboardError:
                    return
                self.acknowledged.append((receipt.revision, key, number))

    @property
    def last(self) -> int:
        """The newest revision that was acknowledged."""
        return max((revision for revision, _, _ in self.acknowledged), default=0)

    def state(self, through: int) -> dict[str, int]:
        """What the keys hold after the acknowledged commits up to a revision."""
        return {
            key: value for revision, key, value in sorted(self.acknowledged) if revision <= through
        }


async def in_backup(backup: Path) -> int:
    """The newest revision in the backup."""
    place = BackupPlace.at(str(backup))
    found = await manifests.read(place, await place.id(), BOARD)
    return (found.last if found is not None else None) or 0


async def has(team: Team, revision: int) -> bool:
    """Whether a revision was acknowledged."""
    return team.last >= revision


async def is_shipped(backup: Path, revision: int) -> bool:
    """Whether the backup has a revision."""
    return await in_backup(backup) >= revision


def wipe(data: Path) -> None:
    """Lose the disk, but for what is kept elsewhere."""
    for path in data.iterdir():
        if path.name not in KEPT:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def ready(running: Running) -> dict[str, dict[str, int]]:
    """What /readyz says."""
    with urllib.request.urlopen(f"http://127.0.0.1:{running.port}/readyz") as answer:
        found: dict[str, dict[str, int]] = json.load(answer)
        return found


async def values(running: Running, token: str) -> dict[str, int]:
    """Everything public on the board."""
    async with blackboard.connect(running.url, token=token) as client:
        found: dict[str, int] = {}
        async for entry in client.board(BOARD).scan("public/*/*"):
            if "~" not in entry.key:
                found[entry.key] = entry.value
        return found


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
async def test_a_lost_machine_is_recovered(
    shell: Shell, tmp_path: Path, end: signal.Signals
) -> None:
    data, backup = tmp_path / "data", tmp_path / "backup"
    with shell.service("--backup", str(backup)) as running:
        token = (data / "token").read_text().strip()
        team = Team(running.url, token)
        workers = [asyncio.create_task(team.work(f"w{n}")) for n in range(WRITERS)]
        await wait_until(partial(has, team, 200))
        before = team.last
        await wait_until(partial(is_shipped, backup, before))
        assert ready(running)["backup"]["failing"] is False
        running.end(end)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
    wipe(data)
    [found] = shell.json("recover", "--from", str(backup))
    through = found["from_revision"]
    assert through >= (team.last if end is signal.SIGTERM else before)
    assert found["revision"] > team.last
    with shell.service("--backup", str(backup)) as running:
        found, acknowledged = await values(running, token), team.state(through)
        # The last commit of an agent may have been carried out, and not been answered.
        late = {key for key, value in found.items() if value != acknowledged.get(key)}
        assert len(late) <= WRITERS
        assert all(found[key] == team.sent[key] for key in late)
        assert found.keys() >= acknowledged.keys()
        assert shell.json("checkpoint", "verify", "now")["findings"] == []
