"""Whether this process has more to do than it can, and then takes no more.

Two things are measured: by how much the event loop is late, and how many bytes of commits wait for
their engines. Only a loop that is late all through _LOOKS looks counts, as in CoDel (Nichols and
Jacobson, 2012): the least delay of an interval tells a queue that stands from one that passes.

Refused is then whatever would be done for others than admins, but for what ends something.
"""

import asyncio
from collections import deque
from typing import Final

from blackboard.errors import Overloaded
from blackboard.types import (
    BACKLOG_BYTES_MAX,
    LOOP_LAG_MS_MAX,
    LOOP_LOOK_MS,
    OVERLOAD_RETRY_MS,
)

_LOOKS: Final = 3
FREE_METHODS: Final = frozenset({"whoami", "refresh", "unwatch", "progress"})
"""Methods that are answered all the same: they cost nothing, or end something."""


class Load:
    """The load of one process, looked at every LOOP_LOOK_MS from `start` to `stop`."""

    def __init__(self) -> None:
        self.backlog_bytes = 0
        """Bytes of the commits that wait, for all boards."""
        self.is_late = False
        self._lags_ms: deque[float] = deque([0.0] * _LOOKS, maxlen=_LOOKS)
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    @property
    def lag_ms(self) -> float:
        """By how much the event loop was late at the last look."""
        return self._lags_ms[-1]

    def start(self) -> None:
        """Begin to look."""
        loop = asyncio.get_running_loop()
        self._due_s = loop.time() + LOOP_LOOK_MS / 1000
        self._timer = loop.call_at(self._due_s, self._look)

    def stop(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self.note((asyncio.get_running_loop().time() - self._due_s) * 1000)
        self.start()

    def note(self, lag_ms: float) -> None:
        """Take in by how much the loop was late."""
        self._lags_ms.append(lag_ms)
        self.is_late = min(self._lags_ms) > LOOP_LAG_MS_MAX

    def lateness(self) -> Overloaded | None:
        """Why nothing more is begun; None if all is well."""
        if not self.is_late:
            return None
        reason = f"its event loop is {self.lag_ms:.0f} ms late"
        return Overloaded("service", reason, OVERLOAD_RETRY_MS)

    def check_backlog(self) -> None:
        """Errors: Overloaded when BACKLOG_BYTES_MAX of commits wait."""
        if self.backlog_bytes >= BACKLOG_BYTES_MAX:
            reason = f"{self.backlog_bytes} bytes of commits are waiting"
            raise Overloaded("service", reason, OVERLOAD_RETRY_MS)
