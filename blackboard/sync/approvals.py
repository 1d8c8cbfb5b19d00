"""Approvals without async: see `blackboard.ask`, `blackboard.pending` and `blackboard.answer`."""

from collections.abc import Sequence
from typing import Any

from blackboard.client.views import Receipt
from blackboard.runtime import approvals
from blackboard.runtime.approvals import Decision, Pending
from blackboard.sync.board import Board
from blackboard.units import Key


def pending(board: Board, agent: str = "*") -> tuple[Pending, ...]:
    """The requests that may be seen, of `agent` or of all, by agent and id."""
    return board._portal.run(lambda: approvals.pending(board._inner, agent))


def answer(board: Board, asked: Pending, *, approved: bool, reason: str = "") -> Receipt:
    """Answer a request. Errors: as of `blackboard.answer`."""
    return board._portal.run(
        lambda: approvals.answer(board._inner, asked, approved=approved, reason=reason)
    )


def ask(
    board: Board,
    name: str,
    question: str,
    *,
    facts: Sequence[Key] = (),
    details: Any = None,
    approvers: Sequence[str] = (),
) -> Decision | None:
    """Ask people; the decision, or None. Errors: as of `blackboard.ask`."""
    return board._portal.run(
        lambda: approvals.ask(
            board._inner, name, question, facts=facts, details=details, approvers=approvers
        )
    )
