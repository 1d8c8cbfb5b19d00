"""Write a board whose process is killed: `python write_killed.py DIRECTORY > facts.json`.

The journal is not copied into the file then, and a large restore is still on its way to its place.
Run with the code of a release, it makes what `test_old_data.py` opens with the code of today.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import blackboard

KEYS = 600
"""More than a version moves at once."""
OF_A_STEP = 100


async def main(path: Path) -> None:
    """One board, written to and rewound; prints what it holds, and ends itself."""
    async with blackboard.open(path) as client:
        board = client.board("team")
        await fill(board, "first")
        await board.checkpoint("before")
        await fill(board, "spoiled")
        await board.restore("before")
        for number in range(19):
            await board.put(f"public/after/{number}", number)
        await board.put("public/k/0599", "later")
        await board.delete("public/k/0598")
        found = {entry.key: entry.value async for entry in board.scan("public/**")}
        facts = {"head": (await board.head()).revision, "now": found}
        sys.stdout.write(json.dumps(facts, sort_keys=True) + "\n")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)


async def fill(board: Any, text: str) -> None:
    """Every key, some at a time."""
    for first in range(0, KEYS, OF_A_STEP):
        async with board.as_agent("ada").step(note=text) as step:
            for number in range(first, first + OF_A_STEP):
                step.put(f"public/k/{number:04d}", [text, number])


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
