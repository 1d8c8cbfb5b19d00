"""What a connection is made of on its outer side: the WebSocket, its close codes and its clocks."""

import time
from dataclasses import dataclass
from typing import Final, Protocol

from blackboard.errors import BlackboardError, LimitExceeded, Unauthenticated, Unavailable
from blackboard.types import Milliseconds

CLOSE_INTERNAL_ERROR: Final = 1011
CLOSE_RESTART: Final = 1012
CLOSE_TRY_LATER: Final = 1013
CLOSE_UNAUTHENTICATED: Final = 4401
CLOSE_FORBIDDEN: Final = 4403
CLOSE_TOO_SLOW: Final = 4408


class Socket(Protocol):
    """An accepted WebSocket."""

    async def receive(self) -> str | bytes | None:
        """The next message; None when the peer is gone."""

    async def send(self, frame: bytes) -> None:
        """Send one frame, when there is room for it. OSError when the peer is gone."""

    def trust(self, account: str) -> None:
        """Take in messages of every size, on this account: it is known who the peer is."""

    async def close(self, code: int, reason: str) -> None:
        """Close with a code and a reason."""


@dataclass(frozen=True, slots=True)
class End:
    """How a connection ends: `code` None = the peer is gone; `flush` = send what waits first."""

    code: int | None
    reason: str = ""
    flush: bool = False


def close_code(error: BlackboardError) -> int:
    """The code for a connection that is refused with `error`."""
    if isinstance(error, Unauthenticated):
        return CLOSE_UNAUTHENTICATED
    return CLOSE_TRY_LATER if isinstance(error, LimitExceeded | Unavailable) else CLOSE_FORBIDDEN


def clock_ms() -> Milliseconds:
    """The clock of sessions: it never jumps, and says nothing of the date."""
    return time.monotonic_ns() // 1_000_000


def date_ms() -> Milliseconds:
    """The date, which tokens go by."""
    return time.time_ns() // 1_000_000
