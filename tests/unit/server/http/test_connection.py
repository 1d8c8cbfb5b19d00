"""One WebSocket of the server, spoken to directly."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosed

from blackboard.core import access
from blackboard.core.access import Narrowing
from blackboard.errors import NoSuchBoard, Overloaded
from blackboard.integrity.tokens import attenuate, unverified
from blackboard.limits import DEFAULT, REQUESTS_IN_FLIGHT_MAX, WATCHES_PER_CONNECTION_MAX
from blackboard.server.http import connection
from blackboard.server.overload import charges as shares
from blackboard.server.overload.admission import Admission
from blackboard.server.requests import RequestHandler
from blackboard.wire.frames import JSON, MSGPACK, Encoding
from tests.serving import Served
from tests.unit.server.http.conversation import PATIENCE_S, Talk, talking
from tests.waiting import wait_until

both = pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda e: e.name)


async def put(talk: Talk, number: int, key: str, value: Any) -> Any:
    """Commit one value to board b; the answer."""
    head = (await talk.ask(number * 1000, "head", {"board": "b"}))["result"]
    commit = {
        "board": "b",
        "id": {"lane": 0, "incarnation": f"i{number}", "step": 1},
        "epoch": head["epoch"]["id"],
        "ops": [{"kind": "put", "key": key, "value": value}],
    }
    await talk.send({"id": number, "method": "commit", "params": commit})
    while True:
        answer = await talk.receive()
        if answer.get("id") == number:
            return answer


# --- hello ----------------------------------------------------------------------------------------


@both
async def test_hello_has_the_principal_and_the_limits(served: Served, encoding: Encoding) -> None:
    """By a token in the header or in the message."""
    async with talking(served.url, None, encoding=encoding) as talk:
        params = {"token": served.token(), "agent": "ada"}
        result = (await talk.ask(1, "hello", params))["result"]
    assert (result["principal"], result["agent"], result["engine"]) == ("operator", "ada", "sqlite")
    assert result["limits"]["REQUESTS_IN_FLIGHT_MAX"] == REQUESTS_IN_FLIGHT_MAX
    token = served.token(access.agent("bob"))
    async with talking(served.url, token, encoding=encoding) as talk:
        result = (await talk.ask(1, "hello", {}))["result"]
    assert (result["principal"], result["agent"]) == ("bob", "bob")


@pytest.mark.parametrize(
    ("params", "code", "close"),
    [
        ({}, "unauthenticated", 4401),
        ({"token": "x"}, "unauthenticated", 4401),
        ({"token": "BOB", "agent": "ada"}, "access_denied", 4403),
    ],
)
async def test_a_hello_without_the_right_to_it(
    served: Served, params: dict[str, str], code: str, close: int
) -> None:
    """It is answered, then the connection is closed."""
    if params.get("token") == "BOB":
        params = {**params, "token": served.token(access.agent("bob"))}
    async with talking(served.url, None) as talk:
        answer = await talk.ask(1, "hello", params)
        assert answer["error"]["data"]["code"] == code
        assert await talk.closed() == close


@pytest.mark.limits(handshake_timeout_ms=40)
async def test_a_connection_has_to_greet_in_time(served: Served) -> None:
    """Otherwise it is closed, even if it sends other messages."""
    async with talking(served.url, served.token()) as talk:
        assert await talk.closed() == 4401


@pytest.mark.parametrize("later", [False, True])
async def test_a_token_that_expires_closes_its_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    """The one that it came with, or the one that it went on with; not before its end."""
    token = served.token(access.agent("ada"))
    end_ms = unverified(token).expires_at_ms
    assert end_ms is not None
    if not later:
        monkeypatch.setattr(connection, "date_ms", lambda: end_ms - 50)
    async with talking(served.url, token, greeting={}) as talk:
        if later:
            assert (await talk.ask(1, "boards", {}))["result"] == []
            monkeypatch.setattr(connection, "date_ms", lambda: end_ms - 50)
            await talk.send({"id": 2, "method": "refresh", "params": {"token": token}})
        assert await talk.closed() == 4401
        assert talk.socket.close_reason == "the token has expired"


async def test_a_refused_refresh_changes_nothing(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old token stays, with its rights, and the watches go on."""
    token = served.token(access.agent("ada"))
    narrow = attenuate(token, Narrowing(grants=(access.parse_grant("public/x=read"),)))

    def refuse(_: access.Principal) -> Admission:
        raise Overloaded("accounts", "too many are at their rates", 100)

    async with talking(served.url, token, greeting={}) as talk:
        watch = {"board": "b", "watch": 1, "patterns": ["public/**"]}
        assert "result" in await talk.ask(1, "watch", watch)
        monkeypatch.setattr(served.gate, "admission", refuse)
        answer = await talk.ask(2, "refresh", {"token": narrow})
        assert answer["error"]["data"]["code"] == "overloaded"
        answer = await talk.ask(3, "whoami", {})
        assert len(answer["result"]["grants"]) == len(access.agent("ada").grants)
        assert "error" in await talk.ask(4, "watch", watch)


# --- requests -------------------------------------------------------------------------------------


@both
async def test_requests_of_all_kinds(served: Served, encoding: Encoding) -> None:
    """In both encodings."""
    async with talking(served.url, served.token(), encoding=encoding, greeting={}) as talk:
        value = encoding.value_out(b"\x81\xa1n\x01")
        receipt = (await put(talk, 1, "public/a", value))["result"]
        assert (receipt["revision"], receipt["results"]) == (1, [None])
        read = (await talk.ask(2, "read", {"board": "b", "keys": ["public/a"]}))["result"]
        assert read["entries"][0]["value"] == value
        listed = (await talk.ask(3, "list", {"board": "b", "pattern": "public/*"}))["result"]
        assert listed["entries"] == read["entries"]
        log = (await talk.ask(4, "log", {"board": "b"}))["result"]
        assert [r["revision"] for r in log["revisions"]] == [1] == [log["through"]]
        (cause,) = (await talk.ask(5, "why", {"board": "b", "key": "public/a"}))["result"]
        assert (cause["key"], cause["revision"]) == ("public/a", 1)
        assert (await talk.ask(6, "boards", {}))["result"] == ["b"]
        assert (await talk.ask(7, "whoami", {}))["result"]["principal"] == "operator"


async def test_acting_for_others_is_checked_each_time(served: Served) -> None:
    """An operator has an agent's rights then; an agent has nobody else's."""
    private = {"board": "b", "keys": ["private/ada/x"]}
    async with talking(served.url, served.token(), greeting={}) as talk:
        await talk.ask(1, "head", {"board": "b"})
        assert "result" in await talk.ask(2, "read", {**private, "agent": "ada"})
        for number in (3, 4):
            answer = await talk.ask(number, "read", {**private, "agent": "bob"})
            assert answer["error"]["data"]["code"] == "access_denied"
    async with talking(served.url, served.token(access.agent("bob")), greeting={}) as talk:
        for method, params in (("read", private), ("whoami", {}), ("boards", {})):
            answer = await talk.ask(1, method, {**params, "agent": "ada"})
            assert answer["error"]["data"]["code"] == "access_denied"


async def test_answers_do_not_wait_for_each_other(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow request is overtaken by those behind it."""
    release = asyncio.Event()
    boards = RequestHandler.boards

    async def slow(link: RequestHandler) -> Any:
        await release.wait()
        return await boards(link)

    monkeypatch.setattr(RequestHandler, "boards", slow)
    async with talking(served.url, served.token(), greeting={}) as talk:
        await talk.send({"id": 1, "method": "boards"})
        assert (await talk.ask(2, "whoami", {}))["result"]["agent"] == "operator"
        release.set()
        assert (await talk.receive())["id"] == 1


async def test_what_is_in_flight_is_answered_before_the_end(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stopping service says so, takes nothing new, and waits for what it has begun."""
    release = asyncio.Event()

    async def slow(_: RequestHandler) -> Any:
        await release.wait()
        return ["b"]

    monkeypatch.setattr(RequestHandler, "boards", slow)
    async with talking(served.url, served.token(), greeting={}) as talk:
        await talk.send({"id": 1, "method": "boards"})
        await talk.ask(2, "whoami", {})
        draining = asyncio.create_task(served.gate.drain())
        assert (await talk.receive())["method"] == "draining"
        answer = await talk.ask(3, "whoami", {})
        assert answer["error"]["data"]["code"] == "unavailable"
        release.set()
        assert await talk.receive() == {"id": 1, "result": ["b"]}
        assert await talk.closed() == 1012
        await draining


async def test_a_service_that_stops_while_a_connection_ends(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has waited for the requests that it cancelled, and has not let go of its parts yet."""
    begun: asyncio.Future[asyncio.Task[Any] | None] = asyncio.get_running_loop().create_future()
    cancelled, release = asyncio.Event(), asyncio.Event()

    async def stubborn(_: RequestHandler) -> Any:
        begun.set_result(asyncio.current_task())
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            cancelled.set()
            await release.wait()

    monkeypatch.setattr(RequestHandler, "boards", stubborn)
    async with talking(served.url, served.token(), greeting={}) as talk:
        await talk.send({"id": 1, "method": "boards"})
        serving = await begun
    await cancelled.wait()
    (ending,) = served.gate._open
    assert serving is not None
    serving.add_done_callback(lambda _: ending.drain())
    release.set()

    async def is_gone() -> bool:
        return not served.gate.connections

    await wait_until(is_gone)
    assert "a connection failed" not in caplog.text


async def test_a_bug_ends_one_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With code 1011 and a traceback in the log. Other connections continue."""

    async def broken(_: RequestHandler) -> Any:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(RequestHandler, "boards", broken)
    async with (
        talking(served.url, served.token(), greeting={}) as victim,
        talking(served.url, served.token(), greeting={}) as other,
    ):
        await victim.send({"id": 1, "method": "boards"})
        assert await victim.closed() == 1011
        assert "a bug" in caplog.text
        assert "result" in await other.ask(1, "whoami", {})


async def test_requests_in_flight_are_limited(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next ones are not even read; when there is room they are, and all are answered."""
    monkeypatch.setattr(connection, "REQUESTS_IN_FLIGHT_MAX", 4)
    running, most = 0, 0
    release = asyncio.Event()

    async def counted(_: RequestHandler) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await release.wait()
        running -= 1
        return []

    monkeypatch.setattr(RequestHandler, "boards", counted)
    async with talking(served.url, served.token(), greeting={}) as talk:
        for number in range(1, 21, 2):
            await talk.send(*({"id": n, "method": "boards"} for n in (number, number + 1)))
        await wait_until(lambda: _true(running == 4))
        release.set()
        assert {(await talk.receive())["id"] for _ in range(20)} == set(range(1, 21))
    assert most == 4


@pytest.mark.limits(reads_waiting_max=4)
async def test_reads_that_wait_are_limited(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """READS_WAITING_MAX of them, however they come; then the connection is not read from, and all
    are answered in the end."""
    most, release = 0, asyncio.Event()
    (parts, whole), board = (5, 4), {"board": "b"}

    async def held(_: RequestHandler, name: str) -> Any:
        nonlocal most
        (peer,) = served.gate._open
        most = max(most, len(peer._reads))
        await release.wait()
        raise NoSuchBoard(name)

    monkeypatch.setattr(RequestHandler, "head", held)
    async with talking(served.url, served.token(), greeting={}) as talk:
        for first in range(1, parts * whole, whole):
            numbers = range(first, first + whole)
            await talk.send(*({"id": n, "method": "head", "params": board} for n in numbers))
        (peer,) = served.gate._open
        await wait_until(lambda: _true(len(peer._reads) == 4))
        release.set()
        assert {(await talk.receive())["id"] for _ in range(20)} == set(range(1, 21))
    assert most == 4


async def test_reads_that_wait_end_with_their_connection(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No read is started for a client that is gone, and none of its tasks is left."""
    begun, never, board = 0, asyncio.Event(), {"board": "b"}

    async def held(_: RequestHandler, name: str) -> Any:
        nonlocal begun
        begun += 1
        await never.wait()
        raise NoSuchBoard(name)

    monkeypatch.setattr(RequestHandler, "head", held)
    async with talking(served.url, served.token(), greeting={}) as talk:
        await talk.send(*({"id": n, "method": "head", "params": board} for n in range(1, 21)))
        (peer,) = served.gate._open
        await wait_until(lambda: _true(begun == 4 and len(peer._reads) == 20))
    await wait_until(lambda: _true(not served.gate._open))
    assert begun == 4
    assert not peer._tasks


@pytest.mark.parametrize("in_header", [False, True])
async def test_who_came_with_a_token_does_not_wait_with_strangers(
    served: Served, monkeypatch: pytest.MonkeyPatch, in_header: bool
) -> None:
    """Not even with its `hello`. A client without a token in the header counts as unauthenticated
    until it has sent one."""
    accounts, at_once = set(), shares.Shares.at_once

    def noted(self: shares.Shares, account: str, cost_us: float) -> bool:
        accounts.add(account)
        return at_once(self, account, cost_us)

    monkeypatch.setattr(shares.Shares, "at_once", noted)
    token, greeting = served.token(access.agent("ada")), dict[str, Any]()
    if not in_header:
        greeting["token"] = token
    async with talking(served.url, token if in_header else None, greeting=greeting) as talk:
        assert "result" in await talk.ask(1, "boards", {})
    assert accounts == ({"ada"} if in_header else {shares.STRANGERS, "ada"})


@pytest.mark.limits(round_us=1, shared_ms=3_600_000)
async def test_one_request_is_not_behind_all_those_of_another(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is carried out while most of the other client's earlier requests still wait.

    A round of the loop takes on one thing, however long it takes that bob comes.
    """
    of_bob, left = asyncio.Semaphore(0), list[int]()

    async def noted(link: RequestHandler, name: str) -> Any:
        if link.agent == "ada":
            left.append(served.service.host.shares.waiting)
        else:
            of_bob.release()
        raise NoSuchBoard(name)

    monkeypatch.setattr(RequestHandler, "head", noted)
    head = {"method": "head", "params": {"board": "b"}}
    bob, ada = (served.token(access.agent(name)) for name in ("bob", "ada"))
    async with AsyncExitStack() as stack:
        quiet = await stack.enter_async_context(talking(served.url, ada, greeting={}))
        many = [
            await stack.enter_async_context(talking(served.url, bob, greeting={}))
            for _ in range(200)
        ]
        for talk in many:
            await talk.send(*({"id": number, **head} for number in range(1, 5)))
        async with asyncio.timeout(PATIENCE_S):
            await of_bob.acquire()
        await quiet.ask(1, "head", {"board": "b"})
        for talk in many:
            assert {(await talk.receive())["id"] for _ in range(4)} == {1, 2, 3, 4}
    assert left[0] > 100


async def _true(condition: bool) -> bool:
    return condition


@both
async def test_frames_of_the_other_kind_close_with_1003(served: Served, encoding: Encoding) -> None:
    """Text on the binary subprotocol, or the reverse."""
    async with talking(served.url, served.token(), encoding=encoding, greeting={}) as talk:
        await talk.socket.send("[]" if encoding.binary else b"\x90")
        assert await talk.closed() == 1003


# --- watches --------------------------------------------------------------------------------------


@both
async def test_a_watch_tells_what_changes(served: Served, encoding: Encoding) -> None:
    """From its position on, with a mark when it is asked for one, until it is ended."""
    async with talking(served.url, served.token(), encoding=encoding, greeting={}) as talk:
        one, two = encoding.value_out(b"\x01"), encoding.value_out(b"\x02")
        await put(talk, 1, "public/a", one)
        params = {"board": "b", "watch": 9, "patterns": ["public/**"]}
        start = (await talk.ask(2, "watch", params))["result"]["position"]
        await put(talk, 3, "public/b", two)
        changes = talk.waiting.pop(0) if talk.waiting else await talk.receive()
        assert (changes["method"], changes["params"]["watch"]) == ("changes", 9)
        (revision,) = changes["params"]["revisions"]
        assert (revision["revision"], revision["changes"][0]["value"]) == (2, two)
        position = changes["params"]["position"]
        assert start.split(":")[1] == "1"
        assert position.startswith(start.split(":")[0] + ":2:")
        await talk.send({"id": 4, "method": "progress", "params": {"watch": 9}})
        found = {"method" in m: m for m in (await talk.receive(), await talk.receive())}
        assert found[True]["params"] == {"watch": 9, "position": position, "revisions": []}
        assert (await talk.ask(5, "unwatch", {"watch": 9}))["result"] is None
        await put(talk, 6, "public/c", one)
        params = {**params, "watch": 9, "after": start}
        await talk.send({"id": 7, "method": "watch", "params": params})
        assert (await talk.receive())["id"] == 7
        changes = await talk.receive()
        assert [r["revision"] for r in changes["params"]["revisions"]] == [2, 3]


async def test_a_watch_that_cannot_begin_is_refused(served: Served) -> None:
    """A number in use, a position of another board, patterns that are none, a board of others."""
    async with talking(served.url, served.token(), greeting={}) as talk:
        params = {"board": "b", "watch": 1, "patterns": ["public/**"]}
        assert "result" in await talk.ask(1, "watch", params)
        for changed, code in (
            ({}, "invalid_request"),
            ({"watch": 2, "after": "e:99:"}, "rolled_back"),
            ({"watch": 2, "patterns": ["//"]}, "invalid_request"),
        ):
            answer = await talk.ask(2, "watch", {**params, **changed})
            assert answer["error"]["data"]["code"] == code
        for method in ("unwatch", "progress"):
            answer = await talk.ask(3, method, {"watch": 2})
            assert answer["error"]["data"]["fields"]["field"] == "watch"


async def test_a_watch_that_is_ended_before_it_is_live_is_answered(served: Served) -> None:
    """Else its number would be in flight for ever, here and at the client."""
    params = {"board": "b", "watch": 1, "patterns": ["public/**"]}
    async with talking(served.url, served.token(), greeting={}) as talk:
        for number in range(1, 41, 2):
            await talk.send(
                {"id": number, "method": "watch", "params": params},
                {"id": number + 1, "method": "unwatch", "params": {"watch": 1}},
            )
            answers = {found["id"]: found for found in (await talk.receive(), await talk.receive())}
            assert answers[number]["error"]["data"]["code"] == "unavailable"
            assert answers[number + 1]["result"] is None
        assert "result" in await talk.ask(99, "watch", params)


async def test_watches_are_limited(served: Served) -> None:
    """WATCHES_PER_CONNECTION_MAX may be open at once."""
    async with talking(served.url, served.token(), greeting={}) as talk:
        params = {"board": "b", "patterns": ["public/**"]}
        for number in range(WATCHES_PER_CONNECTION_MAX):
            assert "result" in await talk.ask(number, "watch", {**params, "watch": number})
        last = WATCHES_PER_CONNECTION_MAX
        error = (await talk.ask(last, "watch", {**params, "watch": last}))["error"]
        assert error["data"]["fields"]["limit"] == "WATCHES_PER_CONNECTION_MAX"
        await talk.ask(last, "unwatch", {"watch": 0})
        assert "result" in await talk.ask(last, "watch", {**params, "watch": last})


# --- slow peers -----------------------------------------------------------------------------------


@pytest.mark.limits(send_timeout_ms=400, close_timeout_ms=int(PATIENCE_S * 1000))
async def test_a_peer_that_does_not_read_is_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 4408 if it reads again in time; what it did read before is whole."""

    async with talking(served.url, served.token(), greeting={}) as stalled:
        await put(stalled, 1, "public/a", "x" * 1_000_000)
        (held,) = served.gate._open
        stalled.socket.transport.pause_reading()
        reading = {"board": "b", "keys": ["public/a"]}
        for number in range(60):
            await stalled.send({"id": number, "method": "read", "params": reading})
        # Nothing waits now and then before the socket is full, too: that says nothing.
        await wait_until(lambda: _true(held._ended.done()))
        stalled.socket.transport.resume_reading()
        numbers = await _numbers(stalled)
        assert 0 < len(numbers) < 60
        assert stalled.socket.close_code == 4408
        assert "resume" in (stalled.socket.close_reason or "")


@pytest.mark.limits(send_timeout_ms=40)
async def test_a_connection_keeps_no_timer_that_is_over(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks every few seconds whether its peer reads, for as long as it lives."""
    looks, look = list[None](), connection.Connection._check_stalled

    def counted(self: connection.Connection) -> None:
        looks.append(None)
        look(self)

    monkeypatch.setattr(connection.Connection, "_check_stalled", counted)
    async with talking(served.url, served.token(), greeting={}):
        (held,) = served.gate._open
        await wait_until(lambda: _true(len(looks) > 20))
        assert len(held._timers) <= 2


async def _numbers(talk: Talk) -> list[int]:
    """The ids of all answers that come before the connection is closed."""
    found: list[int] = []
    while True:
        try:
            found.append((await talk.receive())["id"])
        except ConnectionClosed:
            return found


async def test_little_waits_for_a_peer_that_does_not_read(served: Served) -> None:
    """Its requests are no longer read, and other connections are served as usual."""
    async with (
        talking(served.url, served.token(), greeting={}) as stalled,
        talking(served.url, served.token(), greeting={}) as other,
    ):
        await put(other, 1, "public/a", "x" * 1_000_000)
        stalled.socket.transport.pause_reading()
        reading = {"board": "b", "keys": ["public/a"]}
        for number in range(200):
            await stalled.send({"id": number, "method": "read", "params": reading})
        await wait_until(lambda: _true(served.gate.waiting_bytes >= 1_000_000))
        for number in range(100):
            assert "result" in await other.ask(number + 2, "head", {"board": "b"})
        assert served.gate.waiting_bytes < 4 * DEFAULT.service.outgoing_bytes_max
        stalled.socket.transport.resume_reading()
