"""Two agents, two processes, one board: a valuation, a plan on it, and a refusal in between.

Starts the service on the embedded engine in a new directory, runs the researcher and the architect
(agents/) as processes of their own with tokens of their own, and shows the live stream of the board
while they work. Then the same team is taken back to a checkpoint (rewind.py), and writes a memo
together (memo.py). Ends with 0 only if everything that is promised below was seen to happen.

`--keep` is for people with the page of the service open beside it: there are pauses between the
acts, and afterwards the team works on until Ctrl-C.
"""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from itertools import count
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
PATIENCE_S = 300.0
INTERRUPTED = 128 + signal.SIGINT
"""Exit code after Ctrl-C; with --keep it is how the story ends."""
INDENT, KEY_INDENT = 6, 24
"""Where what agents say begins, and where keys, values and notes do."""
PAUSE_S, STEP_S = 4.0, 3.0
"""With --keep: before an act, as long as its sentence takes to read; and between two steps of the
team that works on."""
ACTS = (
    "A researcher and an architect, two processes, are asked what a company is worth and what to"
    " plan on it. Notice: the architect's first plan is refused, because the number that it rests"
    " on is corrected meanwhile.",
    "A checkpoint names what both have; then a decimal point slips, one of them builds on it and is"
    " frozen, and the whole team is taken back at once. Notice: the frozen process wakes up in an"
    " abandoned future, and is refused.",
    "Both write one memo at the same time. Notice: nothing that either wrote is lost, and where"
    " both rewrote one sentence, the board says so.",
)
"""What happens in each act, and what to notice."""
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
    """Start this Python on a module, as a process of its own.

    Without settings of yours: those may name a service that has nothing to do with this. And
    without Ctrl-C, which a terminal sends to all of its processes: this one ends the others.
    """
    kept = {name: text for name, text in os.environ.items() if not name.startswith("BLACKBOARD_")}
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *arguments),
        env=kept | env,
        stdout=asyncio.subprocess.PIPE,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_IGN),
    )


@contextlib.asynccontextmanager
async def service(folder: Path) -> AsyncIterator[tuple[str, str]]:
    """The service as a process; yields its URL and its page's once it answers, stops it at the
    end."""
    private = {"BLACKBOARD_CONFIG_DIR": str(folder / "config")}
    serve = ("blackboard", "serve", "--data", str(folder / "data"), "--port", "0")
    process = await python(*serve, env=private)
    rest = asyncio.create_task(asyncio.sleep(0, b""))
    try:
        url, page, rest = await banner(process)
        yield url, page
    finally:
        await end(process, signal.SIGTERM)
        await rest


async def end(process: asyncio.subprocess.Process, number: signal.Signals) -> None:
    """Stop it, if it runs, and wait until it has ended."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            # Not process.kill(): before Python 3.13 it may take the exit code from the event loop.
            os.kill(process.pid, number)
    await process.wait()


async def banner(process: asyncio.subprocess.Process) -> tuple[str, str, asyncio.Task[bytes]]:
    """Wait until the service says where it and its page are; the rest is read and dropped."""
    assert process.stdout is not None
    said: dict[str, str] = {}
    async for line in process.stdout:
        words = line.decode().split()
        said |= {words[0]: words[1]} if len(words) > 1 else {}
        if "page" in said:
            rest = asyncio.create_task(process.stdout.read())
            return said["url"], said["page"], rest
    raise RuntimeError("the service ended before it was ready")


async def token_for(agent: str, folder: Path) -> str:
    """A token of the agent's own, as an operator makes it."""
    create = ("blackboard", "token", "create", agent, "--data", str(folder / "data"), "--json")
    process = await python(*create, env={})
    try:
        output, _ = await process.communicate()
    finally:
        await end(process, signal.SIGKILL)
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
    try:
        async for line in process.stdout:
            say(line.decode().rstrip(), f"bold {COLOURS[name]}")
        return await process.wait()
    finally:
        await end(process, signal.SIGKILL)  # it would finish its step, for which nobody waits


async def play(client: Client, url: str, folder: Path) -> tuple[Story, list[int]]:
    """Run both agents under the eyes of a watcher."""
    board, story, ready = client.board(BOARD), Story([]), asyncio.Event()
    async with asyncio.TaskGroup() as watching:
        watching.create_task(follow(board, story, ready))
        await ready.wait()
        console.print(Text(" rev  agent      change key, value", style="bold"))
        agents = (run_agent(name, url, folder) for name in ("architect", "researcher"))
        codes = await asyncio.gather(*agents)
        await board.put(CURTAIN, "falls")
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


async def introduce(act: int, *, keeps: bool) -> None:
    """Say what happens next; with `keeps`, give a person the time to read it and look."""
    console.print()
    say(ACTS[act], "bold", indent=1)
    await asyncio.sleep(PAUSE_S if keeps else 0)


async def acts(client: Client, url: str, folder: Path, *, keeps: bool) -> dict[str, bool]:
    """The three acts; returns what was promised, and whether it was kept."""
    board = client.board(BOARD)
    await introduce(0, keeps=keeps)
    story, codes = await play(client, url, folder)
    kept = await promises(board, story, list(codes))
    await introduce(1, keeps=keeps)
    kept |= await take_back(board, url, folder)
    await introduce(2, keeps=keeps)
    return kept | await write_together(board, url, folder)


def judge(kept: dict[str, bool]) -> int:
    """Print what was promised, and whether it was kept; returns the exit code."""
    console.print()
    for promise, is_kept in kept.items():
        mark, style = ("ok", "green") if is_kept else ("FAILED", "bold red")
        console.print(Text(f"  {mark:<7}{promise}", style=style))
    return 0 if all(kept.values()) else 1


async def work_on(board: Board) -> None:
    """Let the team revise its number and its plan, and name an agreed state now and then, until
    somebody ends it."""
    for number in count(1):
        usd_bn = 2900 + 10 * (number % 7)
        async with board.step("researcher", note=f"estimate {number}") as step:
            step.put("public/valuation", {"usd_bn": usd_bn, "estimate": number})
        await asyncio.sleep(STEP_S)
        async with board.step("architect", note="plan on the newest estimate") as step:
            found = await step.get("public/valuation")
            step.put("public/plan", {"budget_usd_bn": round(found["usd_bn"] * 0.01, 2)})
        await asyncio.sleep(STEP_S)
        if number % 5 == 0:
            await board.checkpoint(f"estimate-{number}-{secrets.token_hex(2)}", note="both agree")


async def stay(board: Board, page: str, *, keeps: bool) -> None:
    """Say where to look; with `keeps` the team works on, at a terminal the service waits for Enter,
    and otherwise this ends at once."""
    waits = keeps or sys.stdin.isatty()
    how = "Ctrl-C" if keeps else "Enter"
    text = f"look at it: {page}  ({how} ends it)" if waits else "look at it: blackboard demo --keep"
    console.print(Text(f"\n{text}", style="bold"), soft_wrap=True)
    if keeps:
        await work_on(board)
    elif waits:
        await enter()


async def enter() -> None:
    """Wait for a line of standard input. A thread that reads it would hold up Ctrl-C."""
    typed, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(sys.stdin, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(sys.stdin)


async def main(*, keeps: bool = False) -> int:
    """Tell the story; returns the exit code."""
    with tempfile.TemporaryDirectory(prefix="blackboard-demo-") as name:
        folder = Path(name)
        async with service(folder) as (url, page):
            token = (folder / "data" / "token").read_text().strip()
            console.print(Text(f"service at {url}, embedded engine, two agents", style="bold"))
            if keeps:
                text = Text(f"open its page beside this: {page}", style="bold")
                console.print(text, soft_wrap=True)
                await asyncio.sleep(PAUSE_S)
            async with blackboard.connect(url, token=token) as client:
                async with asyncio.timeout(None if keeps else PATIENCE_S):
                    code = judge(await acts(client, url, folder, keeps=keeps))
                await stay(client.board(BOARD), page, keeps=keeps)
    return code


def as_ctrl_c(number: int, _: object) -> None:
    """End the story in order: the service is a process of its own, and would go on alone."""
    signal.raise_signal(signal.SIGINT)


if __name__ == "__main__":
    for ending in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(ending) == signal.SIG_DFL:  # not under nohup
            signal.signal(ending, as_ctrl_c)
    keeps = "--keep" in sys.argv[1:]
    try:
        sys.exit(asyncio.run(main(keeps=keeps)))
    except KeyboardInterrupt:
        sys.exit(0 if keeps else INTERRUPTED)
