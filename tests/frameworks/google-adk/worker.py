"""One of several processes that append to one session at once."""

from typing import Any

from google.adk.errors import StaleSessionError
from google.adk.events import Event, EventActions

from blackboard import Board
from blackboard.integrations.google_adk import BlackboardSessionService
from tests.frameworks.shared import worker

EVENTS = 8


async def work(board: Board, number: int) -> Any:
    """Count up a key of the session, read again after a refusal; returns how many there were."""
    service, refused = BlackboardSessionService(board), 0
    for index in range(EVENTS):
        while True:
            session = await service.get_session(app_name="app", user_id="u", session_id="s")
            assert session is not None
            delta = {"count": session.state["count"] + 1, f"app:of-{number}": index}
            changed = EventActions(state_delta=delta)
            try:
                await service.append_event(session, Event(author=str(number), actions=changed))
                break
            except StaleSessionError:
                refused += 1
    return refused


if __name__ == "__main__":
    worker(work)
