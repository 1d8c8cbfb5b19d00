"""Two coding agents, a failing test: the board and their files go back to before the mistake.

    python -m blackboard.demos.two_coders

Ada writes a function and its test, Bob uses it; each has a directory of its own. Then Ada's
"simplification" breaks the test. One restore takes the board back, and each agent's files follow.
"""

import asyncio
import subprocess
import sys
import tempfile
from pathlib import Path

import blackboard
from blackboard import Board

GOOD = "def price(cents):\n    return f'{cents // 100}.{cents % 100:02}'\n"
BAD = "def price(cents):\n    return f'{cents / 100}'\n"
TEST = "from price import price\n\nassert price(1250) == '12.50', price(1250)\n"
BILL = "from price import price\n\nprint('to pay:', price(1250))\n"


async def passes(directory: Path) -> bool:
    """Whether the test of a directory passes, in a process of its own."""
    command = [sys.executable, "-B", "test_price.py"]
    done = await asyncio.to_thread(subprocess.run, command, cwd=directory, capture_output=True)
    return done.returncode == 0


def write(directory: Path, **files: str) -> None:
    """Write files of Python."""
    directory.mkdir(exist_ok=True)
    for name, text in files.items():
        (directory / f"{name}.py").write_text(text, encoding="utf-8")


def shown(directory: Path) -> dict[str, str]:
    """What is in a directory."""
    return {path.name: path.read_text(encoding="utf-8") for path in directory.iterdir()}


async def story(board: Board, home: Path) -> None:
    """Work, go wrong, go back, go on."""
    ada, bob = board.as_agent("ada"), board.as_agent("bob")
    adas, bobs = ada.workspace(home / "ada"), bob.workspace(home / "bob")
    write(adas.path, price=GOOD, test_price=TEST)
    write(bobs.path, price=GOOD, bill=BILL)
    for agent, files in ((ada, adas), (bob, bobs)):
        taken = await files.snapshot(note="it works")
        await agent.put(f"public/status/{agent.agent}", {"tests": "pass", "files": taken.root})
    assert await passes(adas.path)
    checkpoint = await board.checkpoint("it-works")
    print(f"checkpoint {checkpoint.name!r}: the board, and the files of ada and bob")
    before = shown(adas.path), shown(bobs.path)

    write(adas.path, price=BAD)
    write(bobs.path, price=BAD, total="from bill import *\n")
    await adas.snapshot(note="simplify")
    await bobs.snapshot(note="follow ada")
    await ada.put("public/status/ada", {"tests": "simplified"})
    assert not await passes(adas.path)
    print("the test fails:", ", ".join(map(str, await adas.diff("it-works"))))

    await board.restore("it-works", note="the test failed")
    for agent, files in ((ada, adas), (bob, bobs)):
        await agent.refresh()
        await files.restore()
    assert (shown(adas.path), shown(bobs.path)) == before
    assert await passes(adas.path)
    assert (await board.get("public/status/ada"))["tests"] == "pass"
    print("rewound: the test passes, and the board says so, too")
    await _on_another_way(board, home)


async def _on_another_way(board: Board, home: Path) -> None:
    """A branch of the board has a second directory; the first one is not touched."""
    other = (await board.branch("another-way")).as_agent("ada")
    second = await board.as_agent("ada").workspace(home / "ada").branch(other, home / "second")
    write(second.path, price=GOOD.replace("//", "// 1 //"))
    await second.snapshot(note="another way")
    assert await passes(second.path)
    assert shown(home / "ada")["price.py"] == GOOD
    print("a branch went another way, in a directory of its own")


async def main() -> None:
    """Tell the story."""
    with tempfile.TemporaryDirectory() as folder:
        async with blackboard.open(Path(folder) / "data") as client:
            await story(client.board(), Path(folder))
    print("ok: board and files went back together")


if __name__ == "__main__":
    asyncio.run(main())
