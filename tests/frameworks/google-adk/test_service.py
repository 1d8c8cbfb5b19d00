"""Our session service with the real kit: beside its own services, colliding workers, bad input."""

import asyncio
import random
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import BaseAgent, InvocationContext
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events import Event, EventActions
from google.adk.runners import Runner
from google.adk.sessions import BaseSessionService, Session
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

import blackboard
from blackboard import Board
from blackboard.errors import AccessDenied, LimitExceeded, Unavailable
from blackboard.integrations.google_adk import BlackboardSessionService
from blackboard.limits import OPERATIONS_MAX, VALUE_BYTES_MAX
from tests.frameworks.conftest import Service
from tests.frameworks.shared import collide, examples_run, losses, redact_and_restore, removals

WHERE: dict[str, Any] = {"app_name": "app", "user_id": "u", "session_id": "s"}


def event(text: str = "hi", at: float = 0.0, **delta: Any) -> Event:
    """An event that changes state."""
    content = types.Content(role="model", parts=[types.Part(text=text)])
    when = {"timestamp": at} if at else {}
    return Event(author="a", content=content, actions=EventActions(state_delta=delta), **when)


async def read(service: BaseSessionService) -> Session:
    """The session of the tests."""
    found = await service.get_session(**WHERE)
    assert found is not None
    return found


class Parrot(BaseAgent):
    """An agent that repeats what it is asked, and counts."""

    async def _run_async_impl(self, ctx: InvocationContext) -> AsyncGenerator[Event, None]:
        asked = ctx.user_content
        assert asked is not None
        delta = {"turns": ctx.session.state.get("turns", 0) + 1, "temp:seen": True}
        yield Event(author=self.name, content=asked, actions=EventActions(state_delta=delta))


async def test_the_kits_runner_remembers(board: Board) -> None:
    """Two turns, each by a Runner and a service of its own; `temp:` is not stored."""
    for _ in range(2):
        service = BlackboardSessionService(board)
        runner = Runner(
            app_name="app",
            agent=Parrot(name="parrot"),
            session_service=service,
            auto_create_session=True,
        )
        asked = types.Content(role="user", parts=[types.Part(text="hello")])
        said = [
            one async for one in runner.run_async(user_id="u", session_id="s", new_message=asked)
        ]
        assert len(said) == 1
    session = await read(BlackboardSessionService(board))
    assert session.state == {"turns": 2}
    assert [one.author for one in session.events] == ["user", "parrot"] * 2


async def test_an_event_is_kept_whole(board: Board) -> None:
    """Bytes, floats, Unicode and state of any plain kind."""
    service = BlackboardSessionService(board)
    session = await service.create_session(**WHERE)
    blob = types.Part(inline_data=types.Blob(data=b"\x00\xff", mime_type="image/png"))
    given = Event(author="a", content=types.Content(role="user", parts=[blob]), branch="x.y")
    given.actions = EventActions(state_delta={"a/b @ ü": {"deep": [1, None, 2.5]}, "none": None})
    await service.append_event(session, given)
    found = await read(service)
    assert found.events == [given]
    assert found.state == {"a/b @ ü": {"deep": [1, None, 2.5]}, "none": None}


async def test_events_are_chosen(board: Board) -> None:
    """By number, by time, and both."""
    service = BlackboardSessionService(board)
    session = await service.create_session(**WHERE)
    for number in range(1, 6):
        await service.append_event(session, event(at=float(number)))
    for config, times in (
        (GetSessionConfig(num_recent_events=2), [4, 5]),
        (GetSessionConfig(num_recent_events=0), []),
        (GetSessionConfig(after_timestamp=3), [3, 4, 5]),
        (GetSessionConfig(after_timestamp=3, num_recent_events=1), [5]),
    ):
        found = await service.get_session(**WHERE, config=config)
        assert found is not None
        assert [one.timestamp for one in found.events] == times


# --- beside the kit's own service -----------------------------------------------------------------


class Walk:
    """The same random calls on two services; each answer is compared."""

    def __init__(self, services: list[BaseSessionService], seed: int) -> None:
        self.services = services
        self.random = random.Random(seed)
        self.held: list[dict[tuple[str, str], Session]] = [{} for _ in services]
        self.now = 1_000.0

    async def step(self) -> None:
        """One call, with the same arguments."""
        kind = self.random.choice(["create", "append", "append", "append", "get", "delete"])
        where = (self.random.choice(["ann", "b@c"]), self.random.choice(["s", "t t"]))
        key = self.random.choice(["k", "user:k", "app:k", "temp:k", "user:l"])
        delta = {key: self.random.randrange(100)}
        self.now += 1
        answers = [await self._answer(number, kind, where, delta) for number in (0, 1)]
        assert answers[0] == answers[1], (kind, where, delta)

    async def _answer(
        self, number: int, kind: str, where: tuple[str, str], delta: dict[str, Any]
    ) -> Any:
        service, held = self.services[number], self.held[number]
        names: dict[str, Any] = {"app_name": "app", "user_id": where[0], "session_id": where[1]}
        try:
            match kind:
                case "create":
                    held[where] = await service.create_session(**names, state=delta)
                case "get":
                    found = await service.get_session(**names)
                    if found is not None:
                        held[where] = found
                case "delete":
                    await service.delete_session(**names)
                case "append" if where in held:
                    await service.append_event(held[where], event(at=self.now, **delta))
        except (AlreadyExistsError, ValueError) as error:
            return type(error)
        return await self._shown(service)

    async def _shown(self, service: BaseSessionService) -> Any:
        listed = (await service.list_sessions(app_name="app")).sessions
        shown = []
        for one in sorted(listed, key=lambda session: (session.user_id, session.id)):
            found = await service.get_session(
                app_name="app", user_id=one.user_id, session_id=one.id
            )
            assert found is not None
            states = one.state, found.state
            users = await service.get_user_state(app_name="app", user_id=one.user_id)
            shown.append((one.user_id, one.id, states, users, len(found.events), one.events))
        return shown


@pytest.mark.parametrize("seed", range(4))
async def test_it_answers_as_the_kits_own(tmp_path: Path, seed: int) -> None:
    """Forty calls, drawn from `seed`, here and on SqliteSessionService."""
    async with blackboard.open(tmp_path / "board", level="memory") as client:
        ours = BlackboardSessionService(client.board("main"))
        walk = Walk([ours, SqliteSessionService(str(tmp_path / "theirs.db"))], seed)
        for _ in range(40):
            await walk.step()


# --- several workers ------------------------------------------------------------------------------


async def test_two_workers_collide(board: Board, service: Service) -> None:
    """No event and no increment is lost: a stale one is refused whole."""
    ours = BlackboardSessionService(board)
    await ours.create_session(**WHERE, state={"count": 0})
    refused = await collide(Path(__file__).with_name("worker.py"), service.url, service.token)
    session = await read(ours)
    assert session.state["count"] == len(session.events) == 16
    assert (session.state["app:of-0"], session.state["app:of-1"]) == (7, 7)
    assert sum(refused) > 0, "they never met"


async def test_a_refused_event_changes_nothing(board: Board) -> None:
    """Neither what is stored nor the caller's session, which is read again."""
    service = BlackboardSessionService(board)
    mine = await service.create_session(**WHERE)
    await service.append_event(await read(service), event(k=1))
    with pytest.raises(StaleSessionError):
        await service.append_event(mine, event(k=2))
    assert (mine.state, mine.events) == ({}, [])
    await service.append_event(mine := await read(service), sent := event(k=3))
    await service.append_event(mine, sent)  # delivered again
    found = await read(service)
    assert (found.state, len(found.events)) == ({"k": 3}, 2)


async def test_a_restore_takes_sessions_back(board: Board) -> None:
    """State of the user, too; a session from before it is stale."""
    service = BlackboardSessionService(board)
    session = await service.create_session(**WHERE, state={"user:k": 1})
    await board.checkpoint("before")
    actions = EventActions(state_delta={"user:k": 2})
    await service.append_event(session, Event(author="a", actions=actions))
    await board.restore("before")
    found = await read(service)
    assert (found.state, found.events) == ({"user:k": 1}, [])
    with pytest.raises(StaleSessionError):
        await service.append_event(session, event())


async def test_what_is_redacted_ends_no_list(board: Board, service: Service) -> None:
    """Though a restore brings its marker back: of a session, of an event, of a state."""
    sessions = BlackboardSessionService(board)
    for name in "st":
        session = await sessions.create_session(**{**WHERE, "session_id": name}, state={"k": 1})
        await sessions.append_event(session, event("kept"))
        await sessions.append_event(session, event("gone"))
    place = "public/adk/app/sessions/u"
    [_, gone] = (await board.list(f"{place}/s/events/*")).entries
    marked = (f"{place}/t/about", gone.key, f"{place}/s/state/k")
    await redact_and_restore(service.url, service.token, *marked)
    await board.refresh()
    found = await sessions.list_sessions(app_name="app", user_id="u")
    assert [session.id for session in found.sessions] == ["s"]
    session = await read(sessions)
    assert (session.state, len(session.events)) == ({}, 1)
    assert await sessions.get_session(**{**WHERE, "session_id": "t"}) is None
    await sessions.append_event(session, event("more", k=2))
    assert (await read(sessions)).state == {"k": 2}


# --- bad input ------------------------------------------------------------------------------------


async def test_a_missing_session_is_none(board: Board) -> None:
    """One that is there already, or deleted, is named by the kit's own errors."""
    service = BlackboardSessionService(board)
    assert await service.get_session(**WHERE) is None
    session = await service.create_session(**WHERE)
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**WHERE)
    await service.delete_session(**WHERE)
    await service.delete_session(**WHERE)
    with pytest.raises(SessionNotFoundError):
        await service.append_event(session, event())


async def test_half_a_deletion_is_done_again(board: Board) -> None:
    """A session of more events than one commit removes, and a connection that breaks meanwhile: no
    other session of that id begins with what is left."""
    service = BlackboardSessionService(board)
    session = await service.create_session(**WHERE, state={"a": 1})
    await service.append_event(session, event())
    place = service._place(*WHERE.values())
    [stored] = await service._records.all(f"{place}/events/*")
    for _ in range(2):
        more = [service._records.append(f"{place}/events", stored.value)] * (OPERATIONS_MAX - 1)
        await board.commit(more)
    with removals(board, 1), pytest.raises(RuntimeError):
        await service.delete_session(**WHERE)
    assert (await read(service)).state == {"a": 1}
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**WHERE)
    await service.delete_session(**WHERE)
    assert (await service.create_session(**WHERE)).events == []


async def test_a_foreign_namespace_is_refused(stranger: Board) -> None:
    """Read or written."""
    service = BlackboardSessionService(stranger, prefix="private/alice/adk")
    with pytest.raises(ValueError, match="private/alice") as read_:
        await service.list_sessions(app_name="app")
    with pytest.raises(ValueError, match="private/alice") as written:
        await service.create_session(**WHERE)
    assert all(isinstance(one.value.__cause__, AccessDenied) for one in (read_, written))


async def test_what_cannot_be_stored_is_refused(board: Board) -> None:
    """An event that is too large, and state that is no plain data; nothing changes."""
    service = BlackboardSessionService(board)
    session = await service.create_session(**WHERE)
    with pytest.raises(ValueError, match="VALUE_BYTES_MAX") as caught:
        await service.append_event(session, event("x" * VALUE_BYTES_MAX, k=1))
    assert isinstance(caught.value.__cause__, LimitExceeded)
    with pytest.raises(ValueError, match="plain data"):
        await service.append_event(session, event(k=object()))
    assert ((await read(service)).events, session.events, session.state) == ([], [], {})


async def test_a_dead_service_is_reported(tmp_path: Path) -> None:
    """RuntimeError: the caller did nothing wrong."""
    async with blackboard.open(tmp_path) as client:
        service = BlackboardSessionService(client.board("main"))
    with pytest.raises(RuntimeError) as caught:
        await service.create_session(**WHERE)
    assert isinstance(caught.value.__cause__, Unavailable)


async def test_a_board_of_another_loop_is_refused(board: Board) -> None:
    """It would wait for ever."""
    service = BlackboardSessionService(board)
    with pytest.raises(RuntimeError, match=r"blackboard\.sync"):
        await asyncio.to_thread(lambda: asyncio.run(service.list_sessions(app_name="app")))


async def test_the_examples_of_its_page_run(tmp_path: Path) -> None:
    """docs/howto/google_adk.md."""
    assert await examples_run("google_adk", tmp_path) > 0


async def test_the_benchmark_measures_every_store(tmp_path: Path) -> None:
    """bench/sessions.py measures each store; ours loses nothing when two workers collide."""
    found = await losses("google-adk", tmp_path)
    assert found["google-adk-board"] == 0
    assert len(found) == 3
