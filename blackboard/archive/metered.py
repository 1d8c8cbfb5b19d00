"""SQLite connections that measure the processor time of their statements.

A connection runs in a thread of its own, which SQLAlchemy and aiosqlite hide. So each connection
has a number, which an SQL function returns; the number leads to its meter.
"""

import sqlite3
from functools import partial
from itertools import count
from typing import Any, Final
from weakref import WeakValueDictionary

from blackboard.engines.payer import timed

METER_FUNCTION: Final = "blackboard_meter"
_NUMBERS: Final = count(1)


class ConnectionMeter:
    """The processor time of one connection's thread, in nanoseconds."""

    __slots__ = ("__weakref__", "spent_ns")

    def __init__(self) -> None:
        self.spent_ns = 0

    def add(self, spent_ns: int) -> None:
        """Note so much more."""
        self.spent_ns += spent_ns


_METERS: Final[WeakValueDictionary[int, ConnectionMeter]] = WeakValueDictionary()


def meter_of(number: int) -> ConnectionMeter:
    """The meter of an open connection, by the result of METER_FUNCTION on it."""
    return _METERS[number]


class MeteredConnection(sqlite3.Connection):
    """A connection whose cursors are metered."""

    _meter: ConnectionMeter | None = None

    @property
    def meter(self) -> ConnectionMeter:
        """The meter. It is registered with SQL on first use, by the first cursor."""
        if self._meter is None:
            self._meter = ConnectionMeter()
            number = next(_NUMBERS)
            _METERS[number] = self._meter
            self.create_function(METER_FUNCTION, 0, lambda: number)
        return self._meter

    def cursor(self, *_: Any) -> Any:
        """As sqlite3 does."""
        found = super().cursor(_MeteredCursor)
        found.meter = self.meter
        return found


class _MeteredCursor(sqlite3.Cursor):
    meter: ConnectionMeter

    def execute(self, statement: str, given: Any = (), /) -> Any:
        return timed(partial(super().execute, statement, given), self.meter.add)

    def fetchall(self) -> list[Any]:
        return timed(super().fetchall, self.meter.add)
