"""The second act: a team is taken back, whole, to the moment before somebody spoiled the board.

Both agents write, as processes; a checkpoint is taken meanwhile; one is killed, the other spoils
what all of them stand on and is frozen in the middle. After the restore new processes go on from
their own private drafts of that moment, and the frozen one wakes up in a future that no longer is.
"""

import asyncio
import contextlib
import hashlib
import json
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from blackboard.demos.drafter import REFUSED

from blackboard import Board

CHECKPOINT = "before-the-slip"
AGENTS = ("researcher", "architect")
SLIP = {"usd_bn": 28.6, "note": "a decimal point in the wrong place"}

Launch = Callable[[str], Awaitable[asyncio.subprocess.Process]]
"""Starts the drafter of an agent, with that agent's own token."""
Say = Callable[[str, str], None]
"""Shows a line of the one who is named."""


@dataclass
class Drafter:
    """A process that writes pages, and what it printed; what nobody waits for is not shown."""

    name: str
    process: asyncio.subprocess.Process
    say: Say
    lines: list[str] = field(default_factory=list)

    async def wrote(self, count: int, *, unseen: int = 0) -> None:
        """Wait until it printed so many lines in all, and show those after the first `unseen`."""
        while len(self.lines) < count:
            if not await self._line():
                raise RuntimeError(f"{self.name} ended before it wrote {count} pages")
            if len(self.lines) > unseen:
                self.say(self.name, self.lines[-1])

    async def ended(self) -> int:
        """Wait until it ends; returns its exit code."""
        while await self._line():
            pass
        return await self.process.wait()

    async def _line(self) -> bool:
        assert self.process.stdout is not None
        line = (await self.process.stdout.readline()).decode().rstrip()
        self.lines += [line] if line else []
        return bool(line)


@contextlib.asynccontextmanager
async def drafters(launch: Launch, say: Say) -> AsyncIterator[list[Drafter]]:
    """Both agents at work; at the end, those that still run are stopped."""
    team: list[Drafter] = []
    try:
        for name in AGENTS:
            team.append(Drafter(name, await launch(name), say))
        yield team
    finally:
        for drafter in team:
            if drafter.process.returncode is None:
                drafter.process.kill()  # which ends a frozen one too
            await drafter.ended()


async def fingerprint(board: Board, at: int | None = None) -> str:
    """SHA-256 over every key and value but the service's own, at a revision or now."""
    digest, after = hashlib.sha256(), None
    while True:
        page = await board.list("**", after=after, at=at)
        for entry in page.entries:
            if not entry.key.startswith("system/"):
                digest.update(json.dumps([entry.key, entry.value], sort_keys=True).encode())
        after = page.next_key
        if after is None:
            return digest.hexdigest()


async def drafts(board: Board, at: int | None = None) -> dict[str, int]:
    """How many pages each agent's private draft has."""
    found = await board.list("private/*/draft", at=at)
    return {entry.key.split("/")[1]: len(entry.value) for entry in found.entries}


async def play(board: Board, launch: Launch, say: Say) -> dict[str, bool]:
    """Tell the story; returns what must have happened, and whether it did."""
    async with drafters(launch, say) as (researcher, architect):
        await asyncio.gather(researcher.wrote(3), architect.wrote(3))
        taken = await board.checkpoint(CHECKPOINT, note="while both write")
        say("", f"checkpoint {taken.name!r} is revision {taken.revision}; nobody was stopped")
        then = await drafts(board, taken.revision)
        held = ", ".join(f"{then[name]} pages of the {name}" for name in AGENTS)
        say("", f"in it, as private drafts: {held}")
        for drafter in (researcher, architect):
            await drafter.wrote(then[drafter.name] + 2, unseen=then[drafter.name])
        architect.process.kill()
        say("", "the architect is killed (-9) in the middle of its work")
        await _spoil(board, researcher, say)
        kept = await _take_back(board, taken.revision, say)
        kept |= await _go_on(board, launch, say, taken.revision)
        researcher.process.send_signal(signal.SIGCONT)
        say("", "the frozen process wakes up and wants to commit:")
        code = await researcher.ended()
        say("researcher", researcher.lines[-1])
    kept["the process of the abandoned future was refused"] = code == REFUSED
    return kept | await _branch(board, say)


async def _spoil(board: Board, researcher: Drafter, say: Say) -> None:
    """Let the researcher write nonsense, then freeze it."""
    await board.append("inbox/researcher/orders", SLIP)
    async with board.watch("public/valuation", snapshot=True) as watch:
        if watch.state["public/valuation"].value["usd_bn"] != SLIP["usd_bn"]:
            await anext(aiter(watch))
    researcher.process.send_signal(signal.SIGSTOP)
    say("", "the researcher has spoiled the valuation, and the plan is gone; it is frozen (STOP)")


async def _take_back(board: Board, revision: int, say: Say) -> dict[str, bool]:
    was = await fingerprint(board, revision)
    spoiled = await fingerprint(board)
    for change in await board.diff(CHECKPOINT, pattern="public/*"):
        say("", str(change))
    restored = await board.restore(CHECKPOINT, note="a decimal point")
    now = await fingerprint(board, restored.revision)
    changed = restored.put_back + restored.removed
    say("", f"restored: {changed} keys changed in revision {restored.revision}, a new epoch begins")
    say("", f"sha256 at the checkpoint {was[:12]}, spoiled {spoiled[:12]}, restored {now[:12]}")
    abandoned = await board.get("public/valuation", at=restored.revision - 1)
    return {
        "the restored board is the checkpoint's, byte for byte": was == now != spoiled,
        "the abandoned future is still readable": abandoned["usd_bn"] == SLIP["usd_bn"],
    }


async def _go_on(board: Board, launch: Launch, say: Say, revision: int) -> dict[str, bool]:
    """New processes of both agents: each must go on with the page after its draft of then."""
    then = await drafts(board, revision)
    async with drafters(launch, say) as team:
        await asyncio.gather(*(drafter.wrote(2) for drafter in team))
        first = {drafter.name: drafter.lines[0] for drafter in team}
    expected = all(f"page {then[name] + 1} of" in first[name] for name in AGENTS)
    return {"both go on from their own private drafts of that moment": expected}


async def _branch(board: Board, say: Say) -> dict[str, bool]:
    """The same team under another assumption, beside the first one."""
    other = await board.branch("expansion-cheaper", CHECKPOINT, note="growth of 4 percent")
    before = await board.get("public/valuation")
    await other.merge("public/valuation", {"usd_bn": 1990.4, "growth_rate": 0.04})
    say("", "a branch at the checkpoint, with growth of 4 percent; how the two boards differ:")
    difference = await board.diff("now", "now", other=other.name, pattern="public/valuation")
    for change in difference:
        say("", str(change))
    return {
        "the branch differs in what was assumed": bool(difference),
        "the first board did not notice": await board.get("public/valuation") == before,
    }
