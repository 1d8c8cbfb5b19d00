"""Uses a data directory while every read of one of its files fails: `failing_reads_child.py
DIRECTORY PART ROUNDS`. PART is in the path of that file; each of its first ROUNDS reads of a page
also fails alone, in turn. Prints what should not have happened, and nothing else.
"""

import asyncio
import errno
import logging
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import blackboard
from blackboard.client.client import Client
from blackboard.errors import BlackboardError
from blackboard.limits import DEFAULT
from tests.lowered import COPIED, lowered

LARGE = "L" * 200_000
KEYS = 40
SOON_S = 120.0
"""What a hang would exceed."""
TEMPORARY = ("unavailable", "outcome_unknown")
CODES = {"signing_key": ("invalid_request",)}
"""Expected error codes, by file. A key that cannot be read is an error in the settings."""


class Disk:
    """What decides which reads fail."""

    def __init__(self, flag: Path, part: str) -> None:
        self._flag = flag
        self._part = part

    def break_reads(self, how: str = "read") -> None:
        """From now on, those of the file; with "read-once", the next one."""
        draft = self._flag.with_suffix(".new")
        draft.write_text(f"{how} {errno.EIO} {self._part}")
        draft.replace(self._flag)

    def mend(self) -> None:
        """From now on none."""
        self._flag.unlink(missing_ok=True)


class Use:
    """Calls on a directory, and what each must answer if it answers."""

    def __init__(self, data: Path, part: str) -> None:
        self.data = data
        self.part = part
        # Only if the archive copies every value, there are blobs.
        base = COPIED if part == "blobs/" else DEFAULT
        self.limits = lowered(base, commit_timeout_ms=300)
        self.large_at = 0
        self.acknowledged: dict[str, Any] = {}
        self.problems: list[str] = []
        self.failed: list[str] = []

    async def fill(self) -> None:
        """Two boards, with a history."""
        async with blackboard.open(self.data, limits=self.limits) as client:
            for name in ("main", "other"):
                board = client.board(name)
                for number in range(KEYS):
                    await board.put(f"public/k{number}", number)
                self.large_at = (await board.put("public/large", LARGE)).revision
                await board.put("public/large", "small")
                await board.checkpoint("one")

    async def broken(self, client: Client, phase: str) -> None:
        """Everything that reads, and a commit: right, or an error of ours."""
        for name in ("main", "other"):
            for what, call, right in self._calls(client, name, phase):
                await self._try(f"{phase} {name} {what}", call, right)

    async def _try(
        self, name: str, call: Callable[[], Awaitable[Any]], right: Callable[[Any], bool]
    ) -> None:
        try:
            answer = await call()
        except BlackboardError as error:
            self.note(name, error)
        else:
            if not right(answer):
                self.problems.append(f"{name}: wrong: {str(answer)[:200]}")

    def note(self, name: str, error: BlackboardError) -> None:
        """An error must be temporary, and say which file it is."""
        self.failed.append(name)
        said = str(error)
        if error.code not in CODES.get(self.part, TEMPORARY):
            self.problems.append(f"{name}: {said}")
        if f"{self.data}/{self.part}" not in said:
            self.problems.append(f"{name}: it does not name the file: {said}")

    def _calls(
        self, client: Client, name: str, phase: str
    ) -> list[tuple[str, Callable[[], Awaitable[Any]], Callable[[Any], bool]]]:
        board = client.board(name)
        number = len(self.acknowledged)
        new = f"public/new{number}"

        async def put() -> None:
            await board.put(new, number)
            self.acknowledged[f"{name} {new}"] = number

        async def history() -> Any:
            events = await board.log(after=0)
            return [entry.revision for entry in events]

        return [
            ("get", lambda: board.get("public/k1"), lambda found: found == 1),
            ("log", history, lambda found: found[:KEYS] == list(range(1, KEYS + 1))),
            (
                "get at",
                lambda: board.get("public/large", at=self.large_at),
                lambda found: found == LARGE,
            ),
            ("get at 5", lambda: board.get("public/k1", at=5), lambda found: found == 1),
            ("verify", board.verify, lambda found: found.findings == ()),
            (
                "export",
                lambda: board.export("one", self.data / f"{name}{phase}.zip"),
                lambda f: True,
            ),
            ("put", put, lambda found: True),
        ]

    async def fails_in_use(self, disk: Disk) -> None:
        """Break the reads of open files, and mend them."""
        async with blackboard.open(self.data, limits=self.limits) as client:
            await client.board("main").get("public/k1")
            await client.board("other").get("public/k1")
            disk.break_reads()
            await self.broken(client, "in use")
            disk.mend()
            await self.check(client, "used")

    async def fails_at_the_start(self, disk: Disk) -> None:
        """Break the reads before anything is opened, and mend them."""
        disk.break_reads()
        try:
            async with blackboard.open(self.data, limits=self.limits) as client:
                await self.broken(client, "opened")
                disk.mend()
                await self.broken(client, "mended")
        except BlackboardError as error:
            self.note("open", error)
        disk.mend()

    async def fails_once(self, disk: Disk, rounds: int) -> None:
        """Let one read fail, and no other, while the directory is opened and used."""
        for turn in range(rounds):
            disk.break_reads(f"read-once{turn}")
            try:
                async with blackboard.open(self.data, limits=self.limits) as client:
                    await self.broken(client, f"once{turn}")
                    disk.mend()
                    await self.check(client, f"once{turn}")
            except BlackboardError as error:
                self.note(f"once{turn} open", error)
            disk.mend()

    def findings(self) -> list[str]:
        """What should not have happened."""
        found = list(self.problems)
        if not self.failed:
            found.append("nothing failed")
        if any(name.startswith("mended") for name in self.failed):
            found.append(f"it was not mended: {self.failed}")
        if self.part == "boards/main.db" and any(" other " in name for name in self.failed):
            found.append(f"another board failed: {self.failed}")
        return found

    async def check(self, client: Client, phase: str) -> None:
        """Everything is there."""
        for name in ("main", "other"):
            board = client.board(name)
            for number in range(KEYS):
                assert await board.get(f"public/k{number}") == number
            assert await board.get("public/large", at=self.large_at) == LARGE
            assert (await board.verify()).findings == (), name
            await board.checkpoint(phase)
        for place, value in self.acknowledged.items():
            name, key = place.split()
            assert await client.board(name).get(key) == value


async def main(top: Path, part: str, rounds: int) -> None:
    """Break the reads while the directory is in use, and when it is opened; then mend them."""
    logging.disable(logging.CRITICAL)
    use = Use(top / "data", part)
    disk = Disk(Path(os.environ["FAILING_FILES"]), str(use.data / part))
    async with asyncio.timeout(SOON_S):
        await use.fill()
        await use.fails_in_use(disk)
        await use.fails_at_the_start(disk)
        await use.fails_once(disk, rounds)
        async with blackboard.open(use.data, limits=use.limits) as client:
            await use.check(client, "again")
    sys.stdout.writelines(f"{problem}\n" for problem in use.findings())


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
