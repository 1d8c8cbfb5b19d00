"""Runs the scripts of `scripts/` on one board, and repeats them where necessary.

Every script begins with `prelude.lua` and gets the same KEYS; `commit.lua` has three more parts. A
script that finds that the board was opened on another run of the server replies with nothing: then
`open.lua` runs, and the script again. A script that finds the board held replies for how long, and
runs again afterwards.
"""

import hashlib
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from itertools import count
from typing import Any, Final

import anyio

from blackboard.core.commit import Head
from blackboard.engines.redis.driver import (
    Argument,
    Driver,
    RetryBudget,
    ScriptMissingError,
    repeated,
)
from blackboard.engines.redis.layout import FORMAT, board_keys, read_head
from blackboard.errors import Corrupt, NewerFormat, NoSuchBoard, Unavailable
from blackboard.limits import EPOCH_JUMP, EPOCH_SPREAD, LEASE_TTL_MS
from blackboard.units import Revision

log = logging.getLogger(__name__)
_EPOCH_ID_BYTES: Final = 12


@dataclass(frozen=True, slots=True)
class Script:
    """A script's text, and the SHA-1 by which servers cache it."""

    text: str
    sha: str


def make_script(text: str) -> Script:
    """A script from its whole text."""
    return Script(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


def script_text(*names: str) -> str:
    """Files of `scripts/`, concatenated, after the prelude."""
    folder = files("blackboard.engines.redis").joinpath("scripts")
    return "".join(
        folder.joinpath(f"{name}.lua").read_text("utf-8") for name in ("prelude", *names)
    )


COMMIT_PARTS: Final = ("board", "batch", "lease", "commit")
"""The files that make up commit.lua."""
COMMIT = make_script(script_text(*COMMIT_PARTS))
OPEN, READ, LEASES, LOG, COMPACT, HOLD, SEED, ACCESS, REMOVE = (
    make_script(script_text(name))
    for name in ("open", "read", "leases", "log", "compact", "hold", "seed", "access", "remove")
)
_HELD_PAUSE_S: Final = 0.02
"""Interval of checks whether a board is still held: a restore, which ends the hold, takes
longer."""


_TORN: Final = (
    "the server executed a part of a commit that it had lost ({revision}), because its append-only "
    "file was not rewritten after a crash: `blackboard recover {board}` puts back what is archived"
)


class Scripts:
    """Runs scripts, and records the highest revision of each board that a reply contained.

    That revision is a lower bound of the board's head: a retried commit names it, and if a server
    comes back without the board, the board continues above it.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._seen: dict[str, Revision] = {}
        self.torn: dict[str, Revision] = {}
        """Boards that could not be opened, because the server executed a part of a script, and the
        last revision of each."""

    def seen(self, board: str) -> Revision:
        """The highest revision of `board` that was seen here; 0 if none was."""
        return self._seen.get(board, 0)

    def note(self, board: str, revision: Revision) -> None:
        """Remember that `board` has reached `revision`."""
        if revision > self._seen.get(board, 0):
            self._seen[board] = revision

    async def open(self, board: str, *, again: bool = False) -> Head:
        """Run open.lua; a board that was removed begins `again`, or NoSuchBoard.

        Errors: NewerFormat; Corrupt, of a board that is then in `torn`; Unavailable.
        """
        budget = RetryBudget(self._driver.limits)
        return await repeated(lambda: self._open(budget, board, again=again), budget)

    async def remove(self, board: str, above: Revision, epoch: str | None) -> bool:
        """Run remove.lua; returns whether the board was in `epoch` (None = any), or not there.

        Errors: Unavailable: perhaps removed.
        """
        budget = RetryBudget(self._driver.limits)
        wanted: list[Argument] = [above, *(() if epoch is None else (epoch,))]
        attempts = count(1)

        async def attempt() -> bool:
            number = next(attempts)
            is_other = await self._once(budget, board, REMOVE, wanted) == b"stale"
            if is_other and number > 1:  # the first attempt may have removed the one that was meant
                raise Unavailable(f"board {board}", "another board may have taken its name by now")
            return not is_other

        removed = await repeated(attempt, budget)
        if removed:
            self.forget(board)
        return removed

    async def begin_epoch(self, board: str, head: Head, above: Revision) -> Head:
        """Run open.lua so that an epoch begins above `above`, if the board stands at `head`.

        Errors: Unavailable.
        """
        budget = RetryBudget(self._driver.limits)
        stands: list[Argument] = [head.epoch.id, head.revision]
        return await repeated(lambda: self._open(budget, board, above, stands), budget)

    async def run(self, board: str, script: Script, arguments: Sequence[Argument]) -> Any:
        """Run an idempotent `script` until it answers. Errors: Unavailable."""
        budget = RetryBudget(self._driver.limits)
        return await self.run_again(board, script, lambda: arguments, budget)

    async def make(self, board: str, arguments: Sequence[Argument]) -> bytes:
        """Run one step of seed.lua, which does not need an open board. Errors: Unavailable."""
        budget = RetryBudget(self._driver.limits)
        reply: bytes = await repeated(lambda: self._once(budget, board, SEED, arguments), budget)
        return reply

    def forget(self, board: str) -> None:
        """Forget what is known of `board`, which was removed."""
        self._seen.pop(board, None)
        self.torn.pop(board, None)

    async def run_again(
        self,
        board: str,
        script: Script,
        arguments: Callable[[], Sequence[Argument]],
        budget: RetryBudget,
    ) -> Any:
        """Run `script` until it answers; `arguments` is called again for each attempt.

        Errors: Unavailable; `budget.maybe_executed` then tells whether it may have run.
        """

        async def attempt() -> Any:
            while True:
                reply = await self._once(budget, board, script, arguments())
                if len(reply) > 1:
                    return reply
                if reply:
                    await anyio.sleep(min(reply[0] / 1000, _HELD_PAUSE_S))
                else:
                    # With a budget of its own: a lost answer of open.lua makes no retry of the
                    # commit.
                    await self._open(RetryBudget(self._driver.limits), board)

        return await repeated(attempt, budget)

    async def _open(
        self,
        budget: RetryBudget,
        board: str,
        above: Revision = 0,
        ends: Sequence[Argument] = ("", 0),
        *,
        again: bool = False,
    ) -> Head:
        name = secrets.token_urlsafe(_EPOCH_ID_BYTES)
        # Random: a primary that comes back and its promoted replica must not skip to the same one.
        jump = EPOCH_JUMP + secrets.randbelow(EPOCH_SPREAD)
        # A server that lost the board knows no revision of it, but this process may.
        seen = max(above, self.seen(board))
        arguments = [name, jump, seen, *ends, LEASE_TTL_MS, int(again), FORMAT]
        reply = await self._once(budget, board, OPEN, arguments)
        if not reply:
            raise Unavailable(what=f"board {board}", reason="it is being made")
        if len(reply) == 1:  # it was removed
            self.forget(board)
            raise NoSuchBoard(board)
        if reply[0] == b"torn":
            reason = _TORN.format(revision=reply[1], board=board)
            if board not in self.torn:
                log.error("board %s: %s", board, reason)
            self.torn[board] = reply[2]
            raise Corrupt(f"board {board}", reason)
        if len(reply) == 2:
            raise NewerFormat(f"board {board}", reply[1], FORMAT)
        self.torn.pop(board, None)
        head = read_head(reply)
        self.note(board, head.revision)
        return head

    async def _once(
        self, budget: RetryBudget, board: str, script: Script, arguments: Sequence[Argument]
    ) -> Any:
        keys = board_keys(board)
        rest = (len(keys), *keys, *arguments)
        try:
            return await self._driver.send(budget, keys[0], "EVALSHA", script.sha, *rest)
        except ScriptMissingError:  # a new or emptied server: nothing was executed
            return await self._driver.send(budget, keys[0], "EVAL", script.text, *rest)
