"""Refusals that repeat: the first are recorded one by one, the others are counted.

Whoever is refused may try again as often as he likes, and has each refusal recorded. So that this
fills no disk, what is alike (principal, token, verb, board, outcome) is recorded at most
AUDIT_ALIKE_MAX times in a window of AUDIT_WINDOW_MS, and AUDIT_REFUSALS_MAX refusals in all; the
others become one record for each kind, with their count, when the window is over. There are at most
AUDIT_KINDS_MAX kinds in a window, and one for the rest of them.

Time is an argument: that of the records.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from blackboard.client.audit_record import AuditRecord
from blackboard.types import (
    AUDIT_ALIKE_MAX,
    AUDIT_KINDS_MAX,
    AUDIT_REFUSALS_MAX,
    AUDIT_WINDOW_MS,
    Milliseconds,
)

OTHERS: Final = "(several)"
"""The verb of refusals of more kinds than are told apart."""


@dataclass(slots=True)
class _Alike:
    """Refusals of one kind: how many were recorded, how many only counted, the last of those."""

    recorded: int = 0
    counted: int = 0
    last: AuditRecord | None = None


class Repeats:
    """The refusals of the window that runs."""

    def __init__(self) -> None:
        self._window = 0
        self._recorded = 0
        self._kinds: dict[tuple[str, ...], _Alike] = {}

    def take(self, record: AuditRecord) -> Sequence[AuditRecord]:
        """What is to be written now: what was counted before, `record` itself, or nothing."""
        found = self.ended(record.time_ms)
        kind: tuple[str, ...] = (
            record.principal,
            record.token,
            record.verb,
            record.board,
            record.outcome,
        )
        if kind not in self._kinds and len(self._kinds) >= AUDIT_KINDS_MAX:
            record = replace(record, principal="", token="", verb=OTHERS, board="", what="")
            kind = _kind_of(record)
        alike = self._kinds.setdefault(kind, _Alike())
        if (
            alike.recorded < AUDIT_ALIKE_MAX
            and self._recorded < AUDIT_REFUSALS_MAX
            and record.verb != OTHERS
        ):
            alike.recorded += 1
            self._recorded += 1
            return [*found, record]
        alike.counted += 1
        alike.last = record
        return found

    def ended(self, now_ms: Milliseconds) -> Sequence[AuditRecord]:
        """What was counted in a window that is over at `now_ms`."""
        window = now_ms // AUDIT_WINDOW_MS
        if window == self._window:
            return []
        found = self.counted()
        self._window, self._recorded = window, 0
        self._kinds.clear()
        return found

    def counted(self) -> Sequence[AuditRecord]:
        """What was counted until now, a record for each kind; it is counted no longer."""
        found = []
        for alike in self._kinds.values():
            if alike.last is not None:
                found.append(replace(alike.last, count=alike.counted))
                alike.counted, alike.last = 0, None
        return found


def _kind_of(record: AuditRecord) -> tuple[str, ...]:
    return (record.principal, record.token, record.verb, record.board, record.outcome)
