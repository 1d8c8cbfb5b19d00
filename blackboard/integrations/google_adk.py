"""Sessions of Google's Agent Development Kit on a board.

    service = BlackboardSessionService(board)
    runner = Runner(app_name="travel", agent=agent, session_service=service)

Below `<prefix>/<app>` are the state of the app (`app`), that of each user (`users/<user>`), one
entry per key, and the sessions (`sessions/<user>/<id>`): their state, their events in order, and
one entry `about` each of them, which changes with every event.
"""

import json
import time
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from blackboard.errors import BlackboardError, Rejected
from blackboard.integrations.framework import framework
from blackboard.integrations.sessions import AnyBoard, Op, Records, readable
from blackboard.ops import ABSENT, PRESENT, KeyAt
from blackboard.types import Entry

with framework("google-adk"):
    from google.adk.errors import StaleSessionError
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events import Event
    from google.adk.sessions import BaseSessionService, Session, State
    from google.adk.sessions.base_session_service import GetSessionConfig, ListSessionsResponse
    from pydantic_core import PydanticSerializationError, to_jsonable_python


class BlackboardSessionService(BaseSessionService):
    """A `BaseSessionService` on `board` (asynchronous, or of `blackboard.sync`), below `prefix`.

    An event, and the state that it changes, is one commit. As with DatabaseSessionService, one that
    is appended to a session that others have appended to since it was read is a StaleSessionError:
    read the session again. State of an app or user is shared by its sessions; writers of different
    keys do not disturb each other.

    Errors of every method: ValueError (and its kinds above) for what the board refuses;
    RuntimeError when it cannot be reached or the outcome is unknown. Their `__cause__` is the
    board's error.
    """

    def __init__(self, board: AnyBoard, *, prefix: str = "public/adk") -> None:
        self._records = Records(board, prefix, _translate)

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """A new session. Errors: AlreadyExistsError."""
        id_ = (session_id or "").strip() or str(uuid.uuid4())
        place = self._place(app_name, user_id, id_)
        ops = self._changes(app_name, user_id, place, state or {})
        ops.append(self._about(place, app_name, user_id, id_, time.time()))
        if not await self._records.accepted(ops, KeyAt(f"{place}/about", ABSENT)):
            raise AlreadyExistsError(f"Session with id {id_} already exists.")
        made = await self.get_session(app_name=app_name, user_id=user_id, session_id=id_)
        if made is None:
            raise SessionNotFoundError(f"Session {id_} not found.")  # deleted in between
        return made

    async def get_session(
        self,
        *,
        app_name: str,
        user_id: str,
        session_id: str,
        config: GetSessionConfig | None = None,
    ) -> Session | None:
        """The session with its state and events, or None."""
        place = self._place(app_name, user_id, session_id.strip())
        # First: what is newer is found stale.
        about = readable(await self._records.entry(f"{place}/about"))
        if about is None:
            return None
        newest = config.num_recent_events if config else None
        found = await self._records.all(f"{place}/events/*", newest=newest)
        # By way of JSON, as they were dumped: bytes are base64 in JSON only.
        events = [Event.model_validate_json(json.dumps(entry.value)) for entry in found]
        if config and config.after_timestamp is not None:
            events = [event for event in events if event.timestamp >= config.after_timestamp]
        return await self._session(about, events)

    async def list_sessions(
        self, *, app_name: str, user_id: str | None = None
    ) -> ListSessionsResponse:
        """The sessions of a user, or of all users, without events, the last updated last."""
        users = self._records.key(app_name, "sessions", *([] if user_id is None else [user_id]))
        pattern = f"{users}/*/about" if user_id is not None else f"{users}/*/*/about"
        sessions = [await self._session(entry, []) for entry in await self._records.all(pattern)]
        sessions.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=sessions)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Remove a session with its events and its own state."""
        place = self._place(app_name, user_id, session_id.strip())
        await self._records.drop(place, f"{place}/events", f"{place}/state")

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """The state of a user, without the prefix `user:`."""
        return await self._state(self._records.key(app_name, "users", user_id))

    async def append_event(self, session: Session, event: Event) -> Event:
        """Add `event` and what it changes. Errors: SessionNotFoundError; StaleSessionError."""
        if event.partial or any(one.id == event.id and one == event for one in session.events):
            return event
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        place = self._place(session.app_name, session.user_id, session.id)
        ops = self._changes(session.app_name, session.user_id, place, event.actions.state_delta)
        plain = event.model_dump(mode="json", exclude_none=True)
        ops.append(self._records.append(f"{place}/events", plain))
        names = (session.app_name, session.user_id, session.id)
        ops.append(self._about(place, *names, event.timestamp))
        # A session that was not read here has no marker: then it only has to exist.
        seen = int(session._storage_update_marker or PRESENT)
        receipt = await self._records.accepted(ops, KeyAt(f"{place}/about", seen))
        if receipt is None:
            if await self._records.entry(f"{place}/about") is None:
                raise SessionNotFoundError(f"Session {session.id} not found.")
            raise StaleSessionError(f"Others have appended to session {session.id}: read it again.")
        self._commit_event_to_session(session, event)
        session.last_update_time = event.timestamp
        session._storage_update_marker = str(receipt.revision)
        return event

    # --- what is stored ---------------------------------------------------------------------------

    def _place(self, app_name: str, user_id: str, session_id: str) -> str:
        return self._records.key(app_name, "sessions", user_id, session_id)

    def _about(self, place: str, app: str, user: str, session: str, updated: float) -> Op:
        about = {"app": app, "user": user, "session": session, "updated": updated}
        return self._records.put(f"{place}/about", about)

    def _changes(self, app: str, user: str, place: str, state: Mapping[str, Any]) -> list[Op]:
        """What sets `state` (with the prefixes `app:` and `user:`): an entry for each key."""
        scopes = {
            State.APP_PREFIX: self._records.key(app, "app"),
            State.USER_PREFIX: self._records.key(app, "users", user),
        }
        ops: list[Op] = []
        for key, value in state.items():
            if key.startswith(State.TEMP_PREFIX):
                continue
            scope = next((prefix for prefix in scopes if key.startswith(prefix)), "")
            name = key.removeprefix(scope)
            at = self._records.below(scopes.get(scope, f"{place}/state"), name)
            ops.append(self._records.put(at, [name, _plain(name, value)]))
        return ops

    async def _state(self, place: str) -> dict[str, Any]:
        return dict(entry.value for entry in await self._records.all(f"{place}/*"))

    async def _session(self, about: Entry, events: Iterable[Event]) -> Session:
        app, user, id_ = (about.value[name] for name in ("app", "user", "session"))
        state = await self._state(f"{self._place(app, user, id_)}/state")
        shared = await self._state(self._records.key(app, "app"))
        own = await self._state(self._records.key(app, "users", user))
        state |= {State.APP_PREFIX + name: value for name, value in shared.items()}
        state |= {State.USER_PREFIX + name: value for name, value in own.items()}
        updated = about.value["updated"]
        found = Session(app_name=app, user_id=user, id=id_, state=state, last_update_time=updated)
        found.events.extend(events)
        found._storage_update_marker = str(about.mod_revision)
        return found


def _plain(name: str, value: Any) -> Any:
    try:
        return to_jsonable_python(value)
    except PydanticSerializationError as error:
        raise ValueError(f"state {name!r} is no plain data: {error}") from error


def _translate(error: BlackboardError) -> Exception:
    return (ValueError if isinstance(error, Rejected) else RuntimeError)(str(error))
