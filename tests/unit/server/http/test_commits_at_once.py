"""Frames of commits that are taken in the turn of the event loop in which they arrive."""

from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

import blackboard
from blackboard.core.access import agent, operator
from blackboard.core.commit import Commit, CommitId, Increment
from blackboard.errors import Overloaded
from blackboard.limits import DEFAULT
from blackboard.server.gates import CommitGates
from blackboard.server.http import connection
from blackboard.server.http.connection import Connection
from blackboard.server.overload.admission import Admission
from blackboard.server.overload.rate_limits import Rates
from blackboard.server.requests import RequestHandler
from blackboard.server.service import Service
from blackboard.wire.frames import MSGPACK
from blackboard.wire.requests import may_be_commits, write_commit
from tests.serving import Served, serving
from tests.unit.server.hooked import HookedStore
from tests.unit.server.http.conversation import Talk, talking
from tests.waiting import wait_until


class Writer:
    """Commits increments to board main over one connection, without waiting for the answers."""

    def __init__(self, talk: Talk, epoch: str) -> None:
        self._talk = talk
        self._epoch = epoch
        self._number = 0

    @classmethod
    async def of(cls, talk: Talk) -> "Writer":
        """A writer; makes the board."""
        head = await talk.ask(10_000, "head", {"board": "main"})
        return cls(talk, head["result"]["epoch"]["id"])

    def _made(
        self, key: str = "public/n", *, board: str = "main", agent: str | None = None
    ) -> dict[str, Any]:
        self._number += 1
        name = CommitId("operator", 0, f"i{self._number}", 1)
        commit = Commit(name, self._epoch, (Increment(key, 1),))
        params = write_commit(board, commit, MSGPACK)
        if agent is not None:
            params["agent"] = agent
        return {"id": self._number, "method": "commit", "params": params}

    async def send(self, count: int) -> bytes:
        """Send so many commits as one frame; returns it."""
        frame = MSGPACK.join([MSGPACK.pack(self._made()) for _ in range(count)])
        await self._talk.send_raw(frame)
        return frame

    async def answers(self, count: int) -> list[Any]:
        """So many answers, in the order in which they come."""
        return [await self._talk.receive() for _ in range(count)]


def only_connection(served: Served) -> Connection:
    """The only open one."""
    [found] = served.gate._open
    return found


async def true(holds: bool) -> bool:
    return holds


@pytest.fixture
async def held(tmp_path: Path) -> AsyncIterator[tuple[Served, HookedStore]]:
    """A served service over an engine that can make commits wait."""
    store = await HookedStore.at(tmp_path, "memory")
    async with Service(store) as service, serving(service) as served:
        yield served, store


async def test_a_frame_of_commits_wakes_no_task_of_its_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the reader, nor a worker of the queue, nor the writer."""
    async with blackboard.connect(served.url, token=served.token()) as client:
        board = client.board("main")
        await board.put("public/a", 0)
        peer, woken = only_connection(served), list[str]()

        async def noted(name: str, call: Any, *given: Any) -> Any:
            woken.append(name)
            return await call(*given)

        opened = served.service.boards.get("main")
        assert opened is not None
        for owner, name in (
            (peer._socket, "receive"),
            (peer._socket, "send"),
            (opened.queue, "_work"),
        ):
            call = getattr(owner, name)
            monkeypatch.setattr(owner, name, lambda *given, n=name, c=call: noted(n, c, *given))
        for number in range(20):
            await board.put("public/a", number)
        assert woken == []
        await client.boards()
        assert "receive" in woken


async def test_commits_in_flight_are_limited(
    held: tuple[Served, HookedStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame for which there is no room is left to the reader, and those behind it wait."""
    served, store = held
    monkeypatch.setattr(connection, "REQUESTS_IN_FLIGHT_MAX", 4)
    async with talking(served.url, served.token(), encoding=MSGPACK, greeting={}) as talk:
        writer = await Writer.of(talk)
        gate = anyio.Event()
        store.hook("before commit", gate.wait)
        for _ in range(7):
            await writer.send(3)
        peer = only_connection(served)
        await wait_until(lambda: true(peer._serving >= 4))
        for _ in range(100):
            await checkpoint()
            assert peer._serving == 4
        gate.set()
        found = await writer.answers(21)
    assert [answer["id"] for answer in found] == list(range(1, 22))
    assert [answer["result"]["revision"] for answer in found] == list(range(1, 22))


async def test_a_peer_at_its_rate_is_not_read_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Commits above the rate are refused, and the next frame waits for the pause."""
    happened: list[str] = []
    over, pause = Admission.over, Admission.pause

    def noted_over(admission: Admission, size: int) -> Overloaded | None:
        happened.append("frame")
        return over(admission, size)

    async def noted_pause(admission: Admission) -> None:
        happened.append("pause")
        await pause(admission)

    monkeypatch.setattr(Admission, "over", noted_over)
    monkeypatch.setattr(Admission, "pause", noted_pause)
    store = await HookedStore.at(tmp_path, "memory")
    rates = Rates(requests_per_second=5, burst_ms=1_000)
    async with Service(store, rates=rates) as service, serving(service) as served:
        token = served.token(agent("operator"))
        async with talking(served.url, token, encoding=MSGPACK, greeting={}) as talk:
            writer = await Writer.of(talk)
            happened.clear()
            await writer.send(8)
            found = await writer.answers(8)
            assert {answer["error"]["data"]["code"] for answer in found if "error" in answer} == {
                "rate_limited"
            }
            await writer.send(1)
            await writer.answers(1)
    assert happened[:3] == ["frame", "pause", "frame"]


async def test_a_bug_in_a_frame_that_is_taken_ends_one_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With code 1011 and a traceback in the log, as everywhere."""

    def broken(*_given: Any) -> None:
        raise ZeroDivisionError("a bug")

    async with (
        talking(served.url, served.token(), encoding=MSGPACK, greeting={}) as victim,
        talking(served.url, served.token(), greeting={}) as other,
    ):
        writer = await Writer.of(victim)
        monkeypatch.setattr(RequestHandler, "start", broken)
        await writer.send(2)
        assert await victim.closed() == 1011
        assert "a bug" in caplog.text
        assert "result" in await other.ask(1, "whoami", {})


async def test_commits_of_several_agents_and_boards_share_a_frame(served: Served) -> None:
    """Each is signed by its agent and decided on its board, in the order of the frame; one that is
    refused refuses no other."""
    async with talking(served.url, served.token(), encoding=MSGPACK, greeting={}) as talk:
        writer = await Writer.of(talk)
        other = (await talk.ask(10_001, "head", {"board": "other"}))["result"]["epoch"]["id"]
        made = [
            writer._made(),
            writer._made(agent="ada"),
            writer._made(agent="ada"),
            writer._made("private/bob/n", agent="ada"),
            writer._made("public/m", agent="ada"),
            writer._made(board="other"),
            writer._made(board="~audit"),
            writer._made(),
        ]
        made[5]["params"]["epoch"] = other
        await talk.send_raw(MSGPACK.join([MSGPACK.pack(each) for each in made]))
        found = {answer["id"]: answer for answer in await writer.answers(8)}
        refused = {number for number, answer in found.items() if "error" in answer}
        assert refused == {4, 7}
        assert {found[number]["error"]["data"]["code"] for number in refused} == {"access_denied"}
        assert [found[number]["result"]["results"] for number in (1, 2, 3, 8)] == [
            [1],
            [2],
            [3],
            [4],
        ]
        log = (await talk.ask(10_002, "log", {"board": "main", "after": 0}))["result"]["revisions"]
        assert [entry["author"] for entry in log] == ["operator", "ada", "ada", "ada", "operator"]


async def test_a_frame_of_commits_passes_the_gates_of_its_board_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And each of its commits the others. What an engine call decided is answered together."""
    async with talking(served.url, served.token(), encoding=MSGPACK, greeting={}) as talk:
        writer = await Writer.of(talk)
        called: Counter[str] = Counter()

        def count(owner: Any, name: str) -> None:
            call = getattr(owner, name)

            def counted(*given: Any, **named: Any) -> Any:
                called[name] += 1
                return call(*given, **named)

            monkeypatch.setattr(owner, name, counted)

        count(served.service.host, "check_serving")
        count(served.service.host.revocations, "check")
        count(CommitGates, "passed")
        count(Connection, "_committed")
        await writer.send(20)
        await writer.answers(20)
        assert called.pop("_committed") <= DEFAULT.commits.calls_in_flight_max
        assert called == {"check_serving": 1, "check": 1, "passed": 20}


async def test_commits_that_are_decided_together_are_answered_at_once_in_one_frame(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of several frames, too: in the turn in which the engine's outcomes are known."""
    async with talking(served.url, served.token(), encoding=MSGPACK, greeting={}) as talk:
        writer = await Writer.of(talk)
        peer = only_connection(served)
        opened = served.service.boards.get("main")
        assert opened is not None
        batches, written = list[int](), list[bytes]()
        answer, write = opened.queue._answer, peer._socket.write

        def answering(call: Any, outcomes: Any) -> None:
            answer(call, outcomes)
            batches.append(len(call.batch))
            assert not peer._session.outgoing_bytes

        def writing(frame: bytes) -> bool:
            written.append(frame)
            return write(frame)

        monkeypatch.setattr(opened.queue, "_answer", answering)
        monkeypatch.setattr(peer._socket, "write", writing)
        for count in (3, 2):
            made = [MSGPACK.pack(writer._made()) for _ in range(count)]
            assert peer._offered(MSGPACK.join(made))
        found = await writer.answers(5)
        assert [answer["result"]["revision"] for answer in found] == [1, 2, 3, 4, 5]
        assert (batches, len(written)) == ([5], 1)


async def test_each_commit_of_a_refused_frame_is_audited(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame that the gates of its board refuse counts as many refusals as it has commits."""
    token, noted = (
        served.token(replace(operator(), boards=frozenset({"main"}))),
        list[tuple[str, str, str]](),
    )
    audit = served.service.host.audit

    def note(_principal: object, verb: str, board: str, _what: str, outcome: str) -> None:
        noted.append((verb, board, outcome))

    async with talking(served.url, token, encoding=MSGPACK, greeting={}) as talk:
        writer = await Writer.of(talk)
        await served.service.boards.use("secret")
        monkeypatch.setattr(audit, "note", note)
        made = [writer._made(board="secret") for _ in range(5)]
        await talk.send_raw(MSGPACK.join([MSGPACK.pack(each) for each in made]))
        found = await writer.answers(5)
    assert {answer["error"]["data"]["code"] for answer in found} == {"access_denied"}
    assert noted == [("commit", "secret", "access_denied")] * 5


async def test_a_bug_while_answering_ends_one_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Its peer is not left waiting for the rest of the frame."""

    def broken(*_given: Any) -> None:
        raise ZeroDivisionError("a bug")

    async with talking(served.url, served.token(), encoding=MSGPACK, greeting={}) as victim:
        writer = await Writer.of(victim)
        monkeypatch.setattr(RequestHandler, "finish", broken)
        await writer.send(2)
        assert await victim.closed() == 1011
        assert "a bug" in caplog.text


async def test_the_beginning_of_a_frame_tells_commits_from_others(served: Served) -> None:
    """Whatever the number of messages and the first id; what it does not tell is read all the
    same."""
    async with talking(served.url, served.token(), encoding=MSGPACK, greeting={}) as talk:
        writer = await Writer.of(talk)
        for count in (1, 15, 16, 300):
            assert may_be_commits(await writer.send(count))
            await writer.answers(count)
        writer._number = 2**53 - 2
        assert may_be_commits(await writer.send(1))
        assert "result" in (await writer.answers(1))[0]
        assert not may_be_commits(MSGPACK.join([MSGPACK.pack({"id": 1, "method": "boards"})]))
        # It begins like a frame of commits, and has something else.
        mixed = [MSGPACK.pack(writer._made()), MSGPACK.pack({"id": 1, "method": "boards"})]
        assert may_be_commits(MSGPACK.join(mixed))
        await talk.send_raw(MSGPACK.join(mixed))
        assert len(await writer.answers(2)) == 2
