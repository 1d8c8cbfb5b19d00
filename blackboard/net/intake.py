"""How much of one account is on its way into the process at once.

A message is in memory from its first byte until it has been looked at, for a while several times
over. Small ones are taken in as they come. Of large ones an account has LARGE_MESSAGES_MAX at once,
on however many connections; the others wait with the sender, in the order of coming: TCP tells it.

Invariants
- who was let in counts until he leaves, and whoever waits is let in when somebody leaves.
- what is kept of an account ends with its last connection.
"""

import asyncio
from typing import Protocol
from weakref import WeakValueDictionary

from blackboard.types import LARGE_MESSAGES_MAX


class Taker(Protocol):
    """A connection that may have to wait."""

    def go_on(self) -> None:
        """Its turn has come."""


class Intake:
    """The large messages of one account."""

    def __init__(self) -> None:
        self._taking: set[Taker] = set()
        self._waiting: dict[Taker, None] = {}

    def enter(self, taker: Taker) -> bool:
        """Whether `taker` may take in the rest of its message now; else it is told when."""
        if taker not in self._taking and len(self._taking) >= LARGE_MESSAGES_MAX:
            self._waiting[taker] = None
            return False
        self._taking.add(taker)
        return True

    def leave(self, taker: Taker) -> None:
        """Its message was looked at, or it is gone."""
        self._waiting.pop(taker, None)
        if taker not in self._taking:
            return
        self._taking.discard(taker)
        if self._waiting:
            first = next(iter(self._waiting))
            del self._waiting[first]
            self._taking.add(first)
            asyncio.get_running_loop().call_soon(first.go_on)


class Intakes:
    """Those of one process."""

    def __init__(self) -> None:
        self._found: WeakValueDictionary[str, Intake] = WeakValueDictionary()

    def of(self, account: str) -> Intake:
        """The one of `account`."""
        found = self._found.get(account)
        if found is None:
            found = self._found[account] = Intake()
        return found
