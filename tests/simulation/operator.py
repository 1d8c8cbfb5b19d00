"""An operator of a simulated run, who freezes the board, redacts a secret and removes branches.

Each act is repeated until it is acknowledged: kills and lost messages may interrupt it anywhere.
Then the judge knows what must be true. A frozen board has accepted nothing but what a freeze lets
pass; a redacted secret is in no byte that is stored, and the chain of digests is intact; a removed
board has left nothing but its mark.
"""

import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

from blackboard.archive.base import Archive
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core.commit import SERVICE, Change, ChangeKind, LogEntry
from blackboard.core.freeze import FROZEN_KEY
from blackboard.core.lease import holder_prefix
from blackboard.errors import BlackboardError, BoardFrozen, OutcomeUnknown, StaleEpoch, Unavailable
from tests.canary import files_with
from tests.simulation.actors import PAUSE_S, Stage
from tests.simulation.engines import BOARD, Engine, RedisEngine
from tests.simulation.loop import rest
from tests.simulation.team import SECRET
from tests.simulation.witness import Witness

_MARKER: Final = {"$redacted": True}
_FROZEN_S: Final = 1.0
_PASSES: Final = (ChangeKind.RENEW, ChangeKind.RELEASE, ChangeKind.WAIT)
Findings = dict[str, list[str]]
T = TypeVar("T")


@dataclass(slots=True)
class Acts:
    """What was acknowledged: revisions of freezes, secrets that were redacted, boards that were
    removed."""

    freezes: list[int] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    @property
    def any(self) -> bool:
        """Whether there was any."""
        return bool(self.freezes or self.secrets or self.removed)


class Operator:
    """Does each kind of act that the plan has, once, at random times."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._dice = stage.dice("operator")
        self.acts = Acts()

    async def run(self) -> None:
        """One act after the other; the board is thawed in the end."""
        acts = {"freeze": self._freeze, "redact": self._redact, "remove": self._remove}
        chosen = sorted(self._stage.plan.acts)
        self._dice.shuffle(chosen)
        for name in chosen:
            await rest(self._dice.random() * PAUSE_S * 4)
            self._stage.trace.note(name)
            async with self._stage.board("operator") as board:
                await acts[name](board)
            self._stage.told("operator", name)

    async def _freeze(self, board: Board) -> None:
        client = Client(board._link)
        freeze = await self._done(lambda: client.freeze(BOARD, note="an incident"))
        self.acts.freezes.append(freeze.revision)
        await rest(self._dice.random() * _FROZEN_S)
        await self._done(lambda: client.thaw(BOARD))

    async def _redact(self, board: Board) -> None:
        secret = f"hush-{self._dice.getrandbits(80):020x}"
        for _ in range(self._dice.randint(1, 3)):
            with contextlib.suppress(BoardFrozen):
                await self._done(lambda: self._put(board, secret))
            await rest(self._dice.random() * PAUSE_S)
        client = Client(board._link)
        found = await self._done(lambda: client.redact(SECRET, board=BOARD, why="pasted"))
        if not found.left:
            self.acts.secrets.append(secret)

    async def _put(self, board: Board, secret: str) -> None:
        try:
            await board.put(SECRET, secret)
        except StaleEpoch:
            await board.refresh()
            raise Unavailable("board", "it was taken back") from None

    async def _remove(self, board: Board) -> None:
        name = f"gone-{self._dice.getrandbits(40):010x}"
        try:
            await board.branch(name, (await board.head()).revision)
        except BlackboardError as error:
            self._stage.told("operator", error.code)
            return
        await self._done(lambda: Client(board._link).remove_board(name))
        self.acts.removed.append(name)

    async def _done(self, act: Callable[[], Awaitable[T]]) -> T:
        """Repeat `act` until it is acknowledged."""
        while True:
            try:
                return await act()
            except (Unavailable, OutcomeUnknown) as error:
                self._stage.told("operator", error.code)
                await rest(PAUSE_S)


# --- the verdict ----------------------------------------------------------------------------------


def judge_freezes(acts: Acts, witness: Witness, refused: list[str]) -> list[str]:
    """Commits that a frozen board accepted, acknowledged freezes that it does not have, and those
    who waited for a thaw in vain."""
    stays = bool(witness.lost)  # the thaw may be among what was lost
    found, frozen, began = [] if stays else list(refused), False, set[int]()
    for entry in witness.log():
        if frozen and not _passes(entry):
            kinds = ", ".join(f"{change.kind} of {change.key}" for change in entry.changes)
            found.append(f"{entry.revision}: {entry.author} committed {kinds} while it was frozen")
        for change in entry.changes:
            if change.key == FROZEN_KEY:
                frozen = change.kind is ChangeKind.PUT
                began |= {entry.revision} if frozen else set()
    if frozen and not stays:
        found.append("a thaw was acknowledged, and the board is frozen")
    kept = [revision for revision in acts.freezes if witness.loss_of(revision) is None]
    return found + [f"the freeze at {one} is lost" for one in kept if one not in began]


def _passes(entry: LogEntry) -> bool:
    """Whether a frozen board takes this commit."""
    return (
        entry.epoch is not None
        or entry.author == SERVICE
        or all(_keeps(change, entry.author) for change in entry.changes)
    )


def _keeps(change: Change, author: str) -> bool:
    """Whether a change only keeps a lease or gives it up, perhaps to the next one who waits."""
    if change.kind is ChangeKind.GRANT:
        return change.lease is not None and not change.lease.holder.startswith(
            holder_prefix(author)
        )
    return change.kind in _PASSES


async def judge_history(acts: Acts, board: Board, archive: Archive) -> Findings:
    """What readers are shown of a secret, whether the chain is whole, and what a removal left."""
    findings: Findings = {}
    if acts.secrets:
        shown = [version.value for version in await board.history(SECRET)]
        listed = [one for one in shown if one is not None and one != _MARKER]
        held = await board.get(SECRET)
        if listed or held not in (None, _MARKER):
            findings["Redacted"] = [f"readers are shown {listed} and {held!r}"]
    whole = await board.verify()
    if whole.findings:
        findings["Verified"] = [str(one) for one in whole.findings]
    there = {*await Client(board._link).boards(), *await archive.boards()}
    left = [f"{name} is there again" for name in acts.removed if name in there]
    return findings | ({"Removed": left} if left else {})


def judge_bytes(acts: Acts, folder: Path, engine: Engine) -> Findings:
    """Where a redacted secret, or the content of a removed board, is still stored."""
    found = [
        f"{file.relative_to(folder)} has {secret}"
        for secret in acts.secrets
        for file in files_with(folder, secret.encode())
    ]
    if isinstance(engine, RedisEngine):
        kept = repr(engine.server.snapshot())
        found += [f"Redis has {secret}" for secret in acts.secrets if secret in kept]
    left = [
        str(file.relative_to(folder))
        for name in acts.removed
        for file in (folder / "data" / "boards").glob(f"{name}.db*")
        if not file.name.endswith(".removed")
    ]
    findings = {"Redacted": found, "Removed": left}
    return {name: sentences for name, sentences in findings.items() if sentences}
