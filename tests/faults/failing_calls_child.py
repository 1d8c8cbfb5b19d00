"""Uses a data directory while one call on one of its files fails for lack of room:
`failing_calls_child.py DIRECTORY PART TIMES`. PART is in the path of that file. As many failures
as TIMES says are spread over its calls. Prints what should not have happened, and nothing else.
"""

import asyncio
import ctypes
import logging
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import blackboard
from blackboard.client.client import Client
from blackboard.errors import BlackboardError

KEPT = ("lock", "signing_key", "archive.db.lock", "heads.json")
LARGE = "L" * 200_000
SOON_S = 60.0
"""What a hang would exceed."""


class Use:
    """One use of a directory, and which of its calls succeeded."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.done: dict[str, bool] = {}

    async def run(self) -> None:
        """Use it. Any error but ours is raised."""
        async with asyncio.timeout(SOON_S):
            try:
                async with blackboard.open(self.data) as client:
                    for name, call in self._calls(client).items():
                        await self._try(name, call)
            except BlackboardError:
                self.done["all"] = False

    async def _try(self, name: str, call: Callable[[], Awaitable[Any]]) -> None:
        try:
            await call()
        except BlackboardError:
            self.done[name] = False
        else:
            self.done[name] = True

    def _calls(self, client: Client) -> dict[str, Callable[[], Awaitable[Any]]]:
        board, file = client.board("main"), self.data / "one.zip"
        return {
            "first": lambda: board.put("public/a", 1),
            "large": lambda: board.put("public/large", LARGE),
            "secret": lambda: board.put("public/secret", "s"),
            "checkpoint": lambda: board.checkpoint("one"),
            "second": lambda: board.put("public/a", 2),
            "export": lambda: board.export("one", file),
            "import": lambda: client.import_board(file, "imported"),
            "branch": lambda: board.branch("branched", "one"),
            "restore": lambda: board.restore("one"),
            "redact": lambda: client.redact("public/secret", board="main"),
            "remove": lambda: client.remove_board("branched"),
            "last": lambda: board.put("public/last", 1),
        }

    async def check(self) -> None:
        """What succeeded is there, what did not can be done, and nothing is half there."""
        async with asyncio.timeout(SOON_S), blackboard.open(self.data) as client:
            board, boards = client.board("main"), await client.boards()
            if self.done.get("last"):
                assert await board.get("public/last") == 1
            if self.done.get("large"):
                assert await board.get("public/large") == LARGE
            if self.done.get("redact"):
                assert await board.get("public/secret") is None
            if self.done.get("restore"):
                assert await board.get("public/a") == (1 if self.done["first"] else None)
            elif self.done.get("second"):
                assert await board.get("public/a") in (1, 2)
            if self.done.get("import"):
                assert "imported" in boards
            if self.done.get("remove"):
                assert "branched" not in boards
            await board.put("public/more", 1)
            await board.checkpoint("two")
            await board.branch("again", "two")
            for name in await client.boards():
                assert (await client.board(name).verify()).findings == (), name
        self._check_files()

    def _check_files(self) -> None:
        files = [path.relative_to(self.data) for path in self.data.rglob("*") if path.is_file()]
        ends = (".db", ".zip", ".removed")
        left = [
            path
            for path in files
            if not path.name.endswith(ends)
            and path.name not in KEPT
            and not (path.parts[0] == "blobs" and len(path.name) == 64)
        ]
        assert left == []


async def main(top: Path, part: str, times: int) -> None:
    """Let none of the calls fail, then so many of them, one in each use."""
    logging.disable(logging.CRITICAL)
    library: Any = ctypes.CDLL(None)
    library.calls_seen.restype = ctypes.c_long
    count = 0
    for number in range(times + 1):
        at = -1 if not number else (number - 1) * max(1, count // times)
        if at >= count > 0:
            break
        use = Use(top / str(number))
        library.fail_call(f"{use.data}/{part}".encode(), ctypes.c_long(at))
        try:
            await use.run()
            count = count or library.calls_seen()
            library.fail_call(b"", ctypes.c_long(-1))
            await use.check()
        except Exception as error:  # noqa: BLE001 - it is the finding
            sys.stdout.write(f"call {at} of {count} on {part}: {error!r} {use.done}\n")
        shutil.rmtree(use.data)
    if not count:
        sys.stdout.write(f"there was no call on {part}\n")


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
