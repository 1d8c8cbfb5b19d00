"""Two agents, two processes, one board: a valuation, a plan on it, and a refusal in between.

Starts the service on the embedded engine in a new directory, runs the researcher and the architect
(agents/) as processes of their own with tokens of their own, and shows the live stream of the board
while they work. Then the same team is taken back to a checkpoint (rewind.py), and writes a memo
together (memo.py). Ends with 0 only if everything that is promised below was seen to happen.
"""

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blackboard.demos.memo import play as write_one_memo
from blackboard.demos.rewind import play as take_back_and_branch
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

import blackboard
from blackboard import Board, Client
from blackboard.types import Change, RevisionEvent

BOARD = "expansion"
CURTAIN = "public/curtain"
PATIENCE_S = 60.0
INDENT, KEY_INDENT = 6, 24
"""Where what agents say begins, and where keys, values and notes do."""
COLOURS = {"researcher": "cyan", "architect": "magenta"}
console = Console(highlight=False)


@dataclass
class Story:
    """What was seen on the live stream."""

    seen: list[RevisionEvent]

    def revisions_of(self, key: str) -> list[int]:
        """The revisions that wrote `key`."""
        return [r.revision for r in self.seen if any(c.key == key for c in r.changes)]


async def python(*arguments: str, env: dict[str, str]) -> asyncio.subprocess.Process:
    """Start this Python on a module, as a process of its own."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", *arguments, env=os.environ | env, stdout=pipe
    )


def free_port() -> int:
    """A TCP port on loopback that nobody uses at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def service(folder: Path) -> AsyncIterator[str]:
    """The service as a process; yields its URL once it answers, stops it at the end."""
    port = str(free_port())
    private = {"BLACKBOARD_CONFIG_DIR": str(folder / "config")}
    serve = ("blackboard", "serve", "--data", str(folder / "data"), "--port", port)
    process = await python(*serve, env=private)
    rest = asyncio.create_task(asyncio.sleep(0, b""))
    try:
        rest = await banner(process, port)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.gather(process.wait(), rest)


async def banner(process: asyncio.subprocess.Process, port: str) -> asyncio.Task[bytes]:
    """Wait until the service says where it is; what else it says is read and dropped."""
    assert process.stdout is not None
    async for line in process.stdout:
        if port.encode() in line:
            return asyncio.create_task(process.stdout.read())
    raise RuntimeError("the service ended before it was ready")


async def token_for(agent: str, folder: Path) -> str:
    """A token of the agent's own, as an operator makes it."""
    create = ("blackboard", "token", "create", agent, "--data", str(folder / "data"), "--json")
    output, _ = await (await python(*create, env={})).communicate()
    token: str = json.loads(output)["token"]
    return token


def say(words: str, style: str, *, indent: int = INDENT) -> None:
    """Print words below the stream; what does not fit in one line goes on at the same indent."""
    console.print(Padding(Text(words, style=style), (0, 0, 0, indent)))


def told(change: Change) -> tuple[str, str, Any] | None:
    """What is shown of a change: kind, key, value. Of the runtime's books only states and calls."""
    key, value = change.key, change.value
    if "/~journal/" in key and change.kind == "put":
        arguments = ", ".join(map(json.dumps, value["arguments"]))
        return "call", f"{value['name'].rpartition('.')[2]}({arguments})", value["result"]
    if key.endswith("/~state"):
        return change.kind, key, value["state"]
    return None if "/~" in key else (change.kind, key, value)


def show(revised: RevisionEvent) -> None:
    """Print one revision of the live stream."""
    shown = [found for change in revised.changes if (found := told(change)) is not None]
    for kind, key, content in shown:
        line = Text(f"{revised.revision:>4}  ", style="dim")
        line.append(f"{revised.author:<11}", style=COLOURS.get(revised.author, "white"))
        line.append(f"{kind:<7}", style={"delete": "red", "call": "yellow"}.get(kind, "green"))
        line.append(key)
        line.truncate(console.width, overflow="ellipsis")
        console.print(line)
        if kind != "delete":
            value = Text(" " * KEY_INDENT + json.dumps(content), style="dim")
            value.truncate(console.width, overflow="ellipsis")
            console.print(value)
    if shown and revised.note and shown[0][0] != "call":
        say(f"why: {revised.note}", "italic dim", indent=KEY_INDENT)


async def follow(board: Board, story: Story, ready: asyncio.Event) -> None:
    """Show the stream until the curtain falls."""
    async with board.watch("**") as watch:
        ready.set()
        async for revised in watch:
            story.seen.append(revised)
            if story.revisions_of(CURTAIN):
                return
            show(revised)


async def surroundings(name: str, url: str, folder: Path) -> dict[str, str]:
    """The environment in which an agent finds the board, and who it is."""
    return {
        "BLACKBOARD_URL": url,
        "BLACKBOARD_TOKEN": await token_for(name, folder),
        "BLACKBOARD_BOARD": BOARD,
    }


async def run_agent(name: str, url: str, folder: Path) -> int:
    """Run an agent to its end and show what it says; returns its exit code."""
    env = await surroundings(name, url, folder)
    process = await python(f"blackboard.agents.{name}", env=env)
    assert process.stdout is not None
    async for line in process.stdout:
        say(line.decode().rstrip(), f"bold {COLOURS[name]}")
    return await process.wait()


async def play(client: Client, url: str, folder: Path) -> tuple[Story, list[int]]:
    """Run both agents under the eyes of a watcher."""
    board, story, ready = client.board(BOARD), Story([]), asyncio.Event()
    watching = asyncio.create_task(follow(board, story, ready))
    await ready.wait()
    console.print(Text(" rev  agent      change key, value", style="bold"))
    agents = (run_agent(name, url, folder) for name in ("architect", "researcher"))
    codes = await asyncio.gather(*agents)
    await board.put(CURTAIN, "falls")
    await watching
    return story, codes


async def take_back(board: Board, url: str, folder: Path) -> dict[str, bool]:
    """The second act: a checkpoint, a spoiled board, a restore, a branch."""
    console.print(Text("\n checkpoint, kill, spoil, restore, branch", style="bold"))

    async def launch(name: str) -> asyncio.subprocess.Process:
        return await python(
            "blackboard.demos.drafter", name, env=await surroundings(name, url, folder)
        )

    kept: dict[str, bool] = await take_back_and_branch(board, launch, tell)
    return kept


async def write_together(board: Board, url: str, folder: Path) -> dict[str, bool]:
    """The third act: one memo, two authors at once."""
    console.print(Text("\n one memo, written by both at the same time", style="bold"))
    tokens = {name: await token_for(name, folder) for name in COLOURS}
    kept: dict[str, bool] = await write_one_memo(url, board, tokens, tell)
    return kept


def tell(name: str, line: str) -> None:
    """Show what an agent, or the one who runs it all, says."""
    say(line, COLOURS.get(name, "bold"))


async def is_denied(board: Board, key: str) -> bool:
    """Whether the architect is refused `key`."""
    try:
        await board.as_agent("architect").get(key)
    except blackboard.errors.AccessDenied:
        return True
    return False


async def promises(board: Board, story: Story, codes: list[int]) -> dict[str, bool]:
    """What must have happened, and whether it did."""
    valuations = story.revisions_of("public/valuation") or [0]
    plans = story.revisions_of("public/plan") or [0]
    architect = await board.get("private/architect/~state")
    refused = (architect["state"]["refused"] or [{}])[0]
    why = {(cause.key, cause.revision) for cause in await board.why("public/plan")}
    numbers = [revised.revision for revised in story.seen]
    secret = "private/researcher/~state"
    asked = [c for r in story.seen for c in r.changes if c.key.startswith("inbox/researcher/")]
    return {
        "both agents finished": codes == [0, 0],
        "the researcher published, then revised its valuation": len(valuations) == 2,
        "the plan on the stale valuation was refused": refused.get("by") == "researcher",
        "the refusal named the revision that was missed": refused.get("at_revision")
        == max(valuations),
        "one plan was accepted, after the revision": len(plans) == 1
        and min(plans) > max(valuations),
        "the step ran twice, its question was asked once": sum(c.kind == "put" for c in asked) == 1,
        "the board knows what the plan is based on": ("public/valuation", max(valuations)) in why,
        "the architect may not read the researcher's notes": await is_denied(board, secret),
        "the live stream had every revision once": numbers
        == list(range(numbers[0], numbers[0] + len(numbers))),
    }


async def main() -> int:
    """Tell the story; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="blackboard-demo-") as name:
        folder = Path(name)
        async with asyncio.timeout(PATIENCE_S), service(folder) as url:
            token = (folder / "data" / "token").read_text().strip()
            console.print(Text(f"service at {url}, embedded engine, two agents\n", style="bold"))
            async with blackboard.connect(url, token=token) as client:
                story, codes = await play(client, url, folder)
                board = client.board(BOARD)
                kept = await promises(board, story, list(codes))
                kept |= await take_back(board, url, folder)
                kept |= await write_together(board, url, folder)
    console.print()
    for promise, is_kept in kept.items():
        mark, style = ("ok", "green") if is_kept else ("FAILED", "bold red")
        console.print(Text(f"  {mark:<7}{promise}", style=style))
    return 0 if all(kept.values()) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
