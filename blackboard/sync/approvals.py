"""Approvals without async: see `blackboard.pending` and `blackboard.answer`."""

from blackboard.client.views import Receipt
from blackboard.runtime import approvals
from blackboard.runtime.approvals import Pending
from blackboard.sync.board import Board


def pending(board: Board, agent: str = "*") -> tuple[Pending, ...]:
    """The requests that may be seen, of `agent` or of all, by agent and id."""
    return board._portal.run(lambda: approvals.pending(board._inner, agent))


def answer(board: Board, asked: Pending, *, approved: bool, reason: str = "") -> Receipt:
    """Answer a request. Errors: as of `blackboard.answer`."""
    return board._portal.run(
        lambda: approvals.answer(board._inner, asked, approved=approved, reason=reason)
    )
