"""SQLite connections that tell how much processor time their statements took.

A connection works in a thread of its own, which SQLAlchemy and aiosqlite keep out of sight. So each
has a number, which a function of SQL tells, and under it lies its meter.
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
    """What one connection took, in nanoseconds of its thread."""

    __slots__ = ("__weakref__", "spent_ns")

    def __init__(self) -> None:
        self.spent_ns = 0

    def add(self, spent_ns: int) -> None:
        """Note so much more."""
        self.spent_ns += spent_ns


_METERS: Final[WeakValueDictionary[int, ConnectionMeter]] = WeakValueDictionary()


def meter_of(number: int) -> ConnectionMeter:
    """The meter of an open connection, by what METER_FUNCTION tells there."""
    return _METERS[number]


class MeteredConnection(sqlite3.Connection):
    """A connection whose cursors are metered."""

    _meter: ConnectionMeter | None = None

    @property
    def meter(self) -> ConnectionMeter:
        """What it took. It is known to SQL from the first look on, which the first cursor takes."""
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
