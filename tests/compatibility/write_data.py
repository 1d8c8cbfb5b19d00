"""Write data in which every kind of record occurs: `python write_data.py [DIRECTORY]`.

With a directory, embedded; otherwise through the service of which the environment tells. Run with
the code of a release, it makes what `test_old_data.py` opens with the code of today. It uses only
calls that have not changed since the first version, and prints facts about what it wrote as JSON,
which the test expects.
"""

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import blackboard

MASTER_KEY = "5f" * 32
"""Encrypts the private values of the directory `encrypted`."""
LARGE = "0123456789abcdef" * 6_000
"""Larger than what the archive keeps in its rows: it becomes a blob."""


async def main(path: Path) -> dict[str, Any]:
    """Write one directory in plain text and one encrypted, below `path`."""
    async with blackboard.open(path / "plain") as client:
        facts = await write(client)
    async with blackboard.open(path / "encrypted", master_key=MASTER_KEY) as client:
        return {"plain": facts, "encrypted": await write(client)}


async def write(client: Any) -> dict[str, Any]:
    """One board with a branch, and what is true of them."""
    board = client.board("team")
    await agents_work(board)
    before = await board.checkpoint("before", note="all is well")
    await board.put("public/plan", {"budget": 99}, note="a mistake")
    await board.delete("public/valuation")
    spoiled = (await board.head()).revision
    restored = await board.restore("before", note="undo the mistake")
    await board.put("public/later", [1, 2.5, None, True, "é😀"])
    await client.board("team").branch("what-if", at="before")
    await client.board("what-if").put("public/plan", {"budget": 1})
    return {
        "head": (await board.head()).revision,
        "now": await contents(board),
        "branch": await contents(client.board("what-if")),
        "moments": [
            {"revision": before.revision, "values": await contents(board, before.revision)},
            {"revision": spoiled, "values": await contents(board, spoiled)},
        ],
        "restored": restored.revision,
        "authors": [[event.author, event.note] for event in await board.log(limit=100)],
        "text": str((await board.document("public/memo")).text()),
    }


async def agents_work(board: Any) -> None:
    """Values of each kind, private ones, a message, a task, a counter, a lock and a document."""
    researcher, architect = board.as_agent("researcher"), board.as_agent("architect")
    await researcher.put("public/valuation", {"usd_bn": 2900})
    await researcher.put("private/researcher/notes", {"source": "filing", "page": 12})
    await researcher.put("public/report", LARGE)
    await architect.put("private/architect/draft", ["one", "two"])
    await architect.append("public/log", "begun")
    await architect.append("public/log", "done")
    await architect.increment("public/count", 7)
    await researcher.append("inbox/architect/messages", {"text": "see the valuation"})
    async with architect.step(note="plan from the valuation") as step:
        found = await step.get("public/valuation")
        step.put("public/plan", {"budget": found["usd_bn"] // 100})
    async with architect.lock("public/door"):
        await architect.put("public/inside", True)
    async with architect.document("public/memo") as memo:
        memo.text().append("Buy what is cheap.")
        await memo.synced()


async def contents(board: Any, at: int | None = None) -> dict[str, Any]:
    """Every value below `public/` and `private/`, apart from the parts of documents."""
    found = {}
    for pattern in ("public/**", "private/**", "inbox/**"):
        async for entry in board.scan(pattern, at=at):
            if "memo" not in entry.key:
                text = isinstance(entry.value, str)
                found[entry.key] = short(entry.value) if text else entry.value
    return found


def short(text: str) -> str:
    """The text, or a digest of a long one."""
    return text if len(text) < 100 else hashlib.sha256(text.encode()).hexdigest()


async def connected() -> dict[str, Any]:
    """The same through the service that BLACKBOARD_URL and BLACKBOARD_TOKEN name."""
    async with blackboard.connect() as client:
        return {"redis": await write(client)}


if __name__ == "__main__":
    written = main(Path(sys.argv[1])) if len(sys.argv) > 1 else connected()
    sys.stdout.write(json.dumps(asyncio.run(written), indent=1, sort_keys=True) + "\n")
