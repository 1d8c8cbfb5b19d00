"""Limits log lines that any client can cause: the first ones are written, the others counted.

Any client can send any number of bad requests. So that they cannot fill the disk, at most
AUDIT_ALIKE_MAX similar lines are written in AUDIT_WINDOW_MS, like refusals in the audit; after
that, one line says how many more there were.
"""

import asyncio
import logging
from collections import Counter
from typing import Final

from blackboard.limits import AUDIT_ALIKE_MAX, AUDIT_KINDS_MAX, AUDIT_WINDOW_MS

_OTHERS: Final = "(several)"


class Thinned(logging.Filter):
    """A filter of one logger, for as long as `attached`."""

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__()
        self._logger = logger
        self._seen: Counter[str] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        self._logger.addFilter(self)

    def __exit__(self, *_: object) -> None:
        self._logger.removeFilter(self)
        if self._timer is not None:
            self._timer.cancel()
            self.tell()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written. An exception with its traceback always is."""
        if record.exc_info or isinstance(record.msg, _SuppressedCount):
            return True
        kind = str(record.msg)  # without its arguments, which the client chooses
        if kind not in self._seen and len(self._seen) >= AUDIT_KINDS_MAX:
            kind = _OTHERS
        self._seen[kind] += 1
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(AUDIT_WINDOW_MS / 1000, self.tell)
        return kind != _OTHERS and self._seen[kind] <= AUDIT_ALIKE_MAX

    def tell(self) -> None:
        """Write how many lines were left out, and reset the counts."""
        self._timer = None
        seen, self._seen = self._seen, Counter()
        for kind, count in seen.items():
            more = count if kind == _OTHERS else count - AUDIT_ALIKE_MAX
            if more > 0:
                self._logger.warning(_SuppressedCount("%d more in a minute: %s"), more, kind)


class _SuppressedCount(str):
    """The text of a line of this filter, which is not counted."""

    __slots__ = ()
