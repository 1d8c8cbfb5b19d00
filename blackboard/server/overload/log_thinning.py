"""Limits log lines that any client can cause: the first ones are written, the others counted.

Any client can send any number of bad requests. So that they cannot fill the disk, at most
AUDIT_ALIKE_MAX similar lines are written in AUDIT_WINDOW_MS, like refusals in the audit; after
that, one line says how many more there were.
"""

import asyncio
import logging
from collections import Counter
from typing import Final

from blackboard.limits import DEFAULT, Limits

_OTHERS: Final = "(several)"


class Thinned(logging.Filter):
    """A filter of one logger, for as long as `attached`."""

    def __init__(self, logger: logging.Logger, limits: Limits = DEFAULT) -> None:
        super().__init__()
        self._limits = limits.security
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
        if kind not in self._seen and len(self._seen) >= self._limits.audit_kinds_max:
            kind = _OTHERS
        self._seen[kind] += 1
        if self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._limits.audit_window_ms / 1000, self.tell)
        return kind != _OTHERS and self._seen[kind] <= self._limits.audit_alike_max

    def tell(self) -> None:
        """Write how many lines were left out, and reset the counts."""
        self._timer = None
        seen, self._seen = self._seen, Counter()
        for kind, count in seen.items():
            more = count if kind == _OTHERS else count - self._limits.audit_alike_max
            if more > 0:
                self._logger.warning(_SuppressedCount("%d more in a minute: %s"), more, kind)


class _SuppressedCount(str):
    """The text of a line of this filter, which is not counted."""

    __slots__ = ()
