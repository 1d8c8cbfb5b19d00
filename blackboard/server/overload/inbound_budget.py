"""Limits the bytes of incoming messages of all connections together.

A message is in memory from its first byte until it has been processed, for a while in several
copies, and each connection may send one of FRAME_BYTES_MAX. Above INTAKE_ACCOUNT_BYTES_MAX of one
account, or INTAKE_BYTES_MAX of all, a connection is closed, and its client reconnects. Senders are
not made to wait instead, because a waiting connection keeps its memory.

The newest connection is closed: if it were the one with the most bytes, many concurrent senders
would never complete a message. It is one of the account with the most bytes, counted in whole
messages of the largest size, so a crowd on one account closes no other connections.

Invariants
- `bytes_held` is the sum of the last reports of the connections.
- After `note` the total is within both limits, or no connection can release more: the rest is being
  processed, at most one message of each connection.
"""

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Final, Protocol

from blackboard.limits import DEFAULT, FRAME_BYTES_MAX, ServiceLimits

log = logging.getLogger(__name__)
PIECE_BYTES: Final = 256
"""Memory of a message, or of a fragment, besides its content; it may be empty."""


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes of one connection of `account`: those that wait, whole or not, and those of the message
    that is being looked at."""

    account: str
    waiting: int
    shown: int


class Holder(Protocol):
    """A connection."""

    def let_go(self) -> None:
        """Close, and report that nothing is held any more."""


_NOTHING: Final = Held("", 0, 0)


class Intake:
    """The inbound budget of one process."""

    def __init__(self, limits: ServiceLimits = DEFAULT.service) -> None:
        self._limits = limits
        self.bytes_held = 0
        self.ended = 0
        """Connections that were closed."""
        self._held: dict[Holder, Held] = {}  # in the order of arrival
        self._per_account: Counter[str] = Counter()

    def counted(self, held: Held) -> int:
        """What counts of a connection: small messages do not, they come and go too often."""
        size = held.waiting + held.shown
        return size if size >= self._limits.intake_small_bytes else 0

    def note(self, holder: Holder, held: Held) -> None:
        """Record how much a connection holds now; it may be closed at once."""
        before, counted = self._held.get(holder, _NOTHING), self.counted(held)
        self._count(before, -self.counted(before))
        self._count(held, counted)
        if counted:
            self._held[holder] = held
        else:
            self._held.pop(holder, None)
        while (doomed := self._doomed(held.account)) is not None:
            self.ended += 1
            is_tenfold = str(self.ended).rstrip("0") == "1"  # 1, 10, 100: a log can be flooded too
            level = logging.WARNING if is_tenfold else logging.DEBUG
            account = self._held[doomed].account or "strangers"
            said = "%d bytes are on their way in: connection number %d had to end, of %s"
            log.log(level, said, self.bytes_held, self.ended, account)
            doomed.let_go()

    def _count(self, held: Held, size: int) -> None:
        self.bytes_held += size
        self._per_account[held.account] += size
        if not self._per_account[held.account]:
            del self._per_account[held.account]

    def _doomed(self, account: str) -> Holder | None:
        """The connection to close after a report of `account`; None if there is none to close."""
        is_over = self._per_account[account] > self._limits.intake_account_bytes_max
        found = self._newest(account) if is_over else None
        if found is None and self.bytes_held > self._limits.intake_bytes_max:
            found = self._newest()
        return found

    def _newest(self, account: str | None = None) -> Holder | None:
        """Choose a connection that can let go of something, of one account or of the one with the
        most."""
        able = [
            holder
            for holder in reversed(self._held)
            if self._held[holder].waiting and account in (None, self._held[holder].account)
        ]
        size_of = self._per_account
        return max(
            able, key=lambda h: size_of[self._held[h].account] // FRAME_BYTES_MAX, default=None
        )
