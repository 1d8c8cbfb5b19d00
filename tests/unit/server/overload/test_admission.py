"""Rates and overload as clients see them: which requests are refused and how, and which are not
affected."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest

import blackboard
from blackboard.core import access
from blackboard.core.access import Narrowing
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import RateLimited, Unavailable
from blackboard.integrity.tokens import attenuate
from blackboard.limits import DEFAULT
from blackboard.server import commit_queue as load
from blackboard.server.overload.admission import Admission
from blackboard.server.overload.charges import Charges, Shares
from blackboard.server.overload.rate_limits import Rates, clock_ms
from blackboard.server.service import Service
from blackboard.wire.methods import FREE
from tests.lowered import NO_MARKS_BY_THE_CLOCK
from tests.serving import Served, serving
from tests.unit.server.http.conversation import Talk, talking
from tests.waiting import wait_until

ADA, BOB = access.agent("ada"), access.agent("bob")
HEAD = {"board": "main"}


@asynccontextmanager
async def rated(path: Path, rates: Rates) -> AsyncIterator[Served]:
    """A service with those rates."""
    store = await SqliteStore.at(path, "memory")
    service = Service(store, rates=rates, limits=NO_MARKS_BY_THE_CLOCK)
    async with service, serving(service) as served:
        yield served


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop the clock of rates: used capacity does not come back, however long the test takes."""
    now_ms = clock_ms()
    monkeypatch.setattr("blackboard.server.overload.admission.clock_ms", lambda: now_ms)


def few(count: int) -> Rates:
    """A rate that allows this many requests, and the next one a second later."""
    return Rates(requests_per_second=1, burst_ms=count * 1_000)


def refusal_of(answer: Any) -> dict[str, Any]:
    """The fields of an error with the time to retry."""
    data: dict[str, Any] = answer["error"]["data"]
    assert data["code"] in ("rate_limited", "overloaded"), data
    return {"code": data["code"], **data["fields"]}


async def codes_of(talk: Talk, count: int) -> list[str]:
    """Send this many requests in one frame; returns the answers."""
    asked = [{"id": n, "method": "head", "params": HEAD} for n in range(1, count + 1)]
    await talk.send(*asked)
    answers = [await talk.receive() for _ in asked]
    assert sorted(answer["id"] for answer in answers) == list(range(1, count + 1))
    answers.sort(key=lambda answer: int(answer["id"]))
    return ["ok" if "result" in a else str(a["error"]["data"]["code"]) for a in answers]


# --- rates ----------------------------------------------------------------------------------------


async def test_beyond_its_rate_a_principal_learns_when_to_come_back(tmp_path: Path) -> None:
    """Each request of a frame separately. Then the connection continues."""
    async with (
        rated(tmp_path, Rates(requests_per_second=20, burst_ms=500)) as served,
        talking(served.url, served.token(ADA), greeting={}) as talk,
    ):
        codes = await codes_of(talk, 200)
        assert codes[:10] == ["ok"] * 10
        assert codes.count("rate_limited") > 100
        answer = await talk.ask(1_000, "head", HEAD)
        assert "result" in answer, "what was refused was read on after the time to wait"
        assert served.gate.traffic.requests["head", "rate_limited"] == codes.count("rate_limited")


@pytest.mark.usefixtures("still")
async def test_the_refusal_names_the_rate_and_the_time(tmp_path: Path) -> None:
    async with (
        rated(tmp_path, few(1)) as served,
        talking(served.url, served.token(ADA), greeting={}) as talk,
    ):
        assert await codes_of(talk, 1) == ["ok"]
        told = refusal_of(await talk.ask(2, "head", HEAD))
    assert told["what"] == "1 requests a second"
    assert "ada" in told["reason"]
    assert 0 < told["retry_after_ms"] <= 1_001


@pytest.mark.usefixtures("still")
async def test_connections_and_narrowed_tokens_share_the_rate(tmp_path: Path) -> None:
    """Others have their own; an admin has none."""
    async with rated(tmp_path, few(5)) as served:
        token = served.token(ADA)
        narrow = attenuate(token, Narrowing("ada.helper"))
        async with (
            talking(served.url, token, greeting={}) as one,
            talking(served.url, narrow, greeting={}) as two,
            talking(served.url, served.token(BOB), greeting={}) as bob,
            talking(served.url, served.token(), greeting={}) as admin,
        ):
            assert await codes_of(one, 5) == ["ok"] * 5
            assert (await codes_of(two, 9)).count("rate_limited") >= 7
            assert await codes_of(bob, 5) == ["ok"] * 5
            assert await codes_of(admin, 50) == ["ok"] * 50


@pytest.mark.usefixtures("still")
async def test_bytes_have_a_rate_too(tmp_path: Path) -> None:
    """A frame may be as large as it likes, once; the next one waits."""
    rates = Rates(bytes_per_second=1_000, burst_ms=1_000)
    async with (
        rated(tmp_path, rates) as served,
        talking(served.url, served.token(ADA), greeting={}) as talk,
    ):
        params = {"board": "main", "keys": ["public/" + "a/" * 400 + "a"] * 4}
        assert "result" in await talk.ask(1, "read", params)
        told = refusal_of(await talk.ask(2, "head", HEAD))
    assert told["what"] == "1000 bytes a second"
    assert told["retry_after_ms"] > 1_000


async def test_the_growth_of_the_logs_has_a_rate(tmp_path: Path) -> None:
    """Commits are refused, live or not what they wrote; reading goes on, and so do others."""
    async with rated(tmp_path, Rates(log_bytes_per_hour=100_000)) as served:
        ada = blackboard.connect(served.url, token=served.token(ADA))
        bob = blackboard.connect(served.url, token=served.token(BOB))
        async with ada as mine, bob as other:
            board = mine.board("main")
            await board.put("public/a", "x" * 60_000)
            with pytest.raises(RateLimited) as refused:
                await board.put("public/a", "x" * 60_000)
            assert refused.value.what == "100000 bytes of log an hour"
            assert refused.value.retry_after_ms > 60_000
            await board.put("public/b", "what still fits")
            assert len(await board.get("public/a")) == 60_000
            await other.board("main").put("public/a", "x" * 60_000)


async def test_edits_of_documents_count_for_the_growth_of_the_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They wait, and are neither refused nor lost; another account edits the same document."""
    now_ms = [clock_ms()]
    monkeypatch.setattr("blackboard.server.requests.clock_ms", lambda: now_ms[0])
    async with rated(tmp_path, Rates(log_bytes_per_hour=100_000)) as served:
        ada = blackboard.connect(served.url, token=served.token(ADA))
        bob = blackboard.connect(served.url, token=served.token(BOB))
        async with ada as mine, bob as other:
            async with mine.board("main").document("public/d") as one:
                one.text().append("a" * 60_000)
                await one.synced()
                one.text().append("b" * 60_000)
                with pytest.raises(Unavailable):
                    await one.synced(timeout_ms=200)
                with pytest.raises(RateLimited):
                    await mine.board("main").put("public/a", "x" * 60_000)
                async with other.board("main").document("public/d") as two:
                    two.text().append("c" * 30_000)
                    await two.synced()
                    assert str(two.text()) == "a" * 60_000 + "c" * 30_000
                now_ms[0] += 3_600_000
                await one.synced()
            async with other.board("main").document("public/d") as again:
                assert "b" * 60_000 in str(again.text())


async def test_our_client_returns_at_the_given_time(tmp_path: Path) -> None:
    """The caller only sees that it takes longer. Each commit happens once."""
    async with rated(tmp_path, Rates(requests_per_second=100, burst_ms=100)) as served:
        async with blackboard.connect(served.url, token=served.token(ADA)) as client:
            begun_s = time.monotonic()
            for _ in range(40):
                await client.board("main").increment("public/n", 1)
            # Those of one frame are too many at once also where each takes long.
            await asyncio.gather(*(client.board("main").head() for _ in range(40)))
            assert await client.board("main").get("public/n") == 40
            assert time.monotonic() - begun_s > 0.5, "81 requests, ten at once, then 100 a second"
        refused = served.gate.traffic.requests
        assert sum(count for (_, code), count in refused.items() if code == "rate_limited") > 0


@pytest.mark.usefixtures("still")
async def test_our_client_does_not_wait_for_ever(tmp_path: Path) -> None:
    """When the time is longer than its patience it says so, with the time."""
    async with (
        rated(tmp_path, Rates(bytes_per_second=1, burst_ms=1_000)) as served,
        blackboard.connect(served.url, token=served.token(ADA), patience_ms=20_000) as client,
    ):
        await client.board("main").get("public/a")  # larger than a burst: it passes once
        with pytest.raises(RateLimited) as refused:
            await client.board("main").get("public/a")
        assert isinstance(refused.value, Unavailable)
        assert refused.value.retryable
        assert refused.value.retry_after_ms > 20_000


@pytest.mark.usefixtures("still")
async def test_programs_that_know_only_http_get_the_reason_too(tmp_path: Path) -> None:
    """429 and Retry-After for a body that is not taken; an error for each request of a batch."""
    async with (
        rated(
            tmp_path, Rates(requests_per_second=1, bytes_per_second=100, burst_ms=2_000)
        ) as served,
        httpx.AsyncClient(trust_env=False) as http,
    ):
        headers = {"Authorization": f"Bearer {served.token(ADA)}"}
        url = f"http://127.0.0.1:{served.port}/v1/rpc"
        batch = [{"jsonrpc": "2.0", "id": n, "method": "head", "params": HEAD} for n in range(9)]
        first = await http.post(url, content=json.dumps(batch), headers=headers)
        assert first.status_code == 200
        codes = [a["error"]["data"]["code"] for a in first.json() if "error" in a]
        assert len(codes) >= 5
        assert set(codes) == {"rate_limited"}
        second = await http.post(url, content=json.dumps(batch), headers=headers)
        assert second.status_code == 429
        assert int(second.headers["Retry-After"]) >= 1
        assert refusal_of(second.json())["what"] == "100 bytes a second"


async def test_peers_of_documents_are_read_more_slowly(tmp_path: Path) -> None:
    """Their protocol cannot tell them to wait: everything arrives, later."""
    async with (
        rated(tmp_path, Rates(requests_per_second=50, burst_ms=100)) as served,
        blackboard.connect(served.url, token=served.token(ADA)) as client,
    ):
        document = await client.board("main").document("public/memo")
        for number in range(20):
            document.text().append(f"{number} ")
            await document.synced()
        other = await client.board("main").document("public/memo")
        await other.synced()
        assert str(other.text()) == "".join(f"{n} " for n in range(20))
        await document.aclose()
        await other.aclose()


async def test_a_pause_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is read again after a maximum time, even if the wait should be longer."""
    rested: list[float] = []

    async def rest(seconds: float) -> None:
        rested.append(seconds)

    monkeypatch.setattr("blackboard.server.overload.admission.asyncio.sleep", rest)
    found = Admission(
        load.Load(), Shares(), Charges(), "ada", None, is_admin=False, pause_ms=10.0**9
    )
    await found.pause()
    await found.pause()
    assert rested == [DEFAULT.load.rate_pause_ms_max / 1000, 0]


# --- overload -------------------------------------------------------------------------------------


@pytest.fixture
def late(served: Served) -> Served:
    """A service whose event loop has been late for a while, as far as it knows."""
    state = served.service.host.load
    state.stop()
    for _ in range(3):
        state.note(DEFAULT.load.loop_lag_ms_max + 1)
    return served


async def test_an_overloaded_service_refuses_what_costs(late: Served) -> None:
    """The refusal has the time to retry. Requests that end something are answered, and so are
    admins."""
    async with (
        talking(late.url, late.token(ADA), greeting={}) as talk,
        talking(late.url, late.token(), greeting={}) as admin,
    ):
        told = refusal_of(await talk.ask(1, "head", HEAD))
        assert told["code"] == "overloaded"
        assert told["retry_after_ms"] == DEFAULT.load.overload_retry_ms
        assert {"whoami", "refresh", "unwatch", "progress"} == FREE
        assert "result" in await talk.ask(2, "whoami", {})
        assert "result" in await admin.ask(3, "head", HEAD)
        late.service.host.load.note(0)
        assert "result" in await talk.ask(4, "head", HEAD)


async def test_an_overloaded_service_still_says_how_it_is(late: Served) -> None:
    """Health, readiness and metrics answer. POST requests of admins are served, others are
    refused."""
    base = f"http://127.0.0.1:{late.port}"
    async with httpx.AsyncClient(base_url=base, trust_env=False) as http:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await http.get(path)).status_code == 200
        assert "blackboard_loop_lag_seconds 1.001" in (await http.get("/metrics")).text
        request = {"jsonrpc": "2.0", "id": 1, "method": "head", "params": HEAD}
        for principal, code in ((ADA, "overloaded"), (access.operator(), None)):
            headers = {"Authorization": f"Bearer {late.token(principal)}"}
            answer = (await http.post("/v1/rpc", json=request, headers=headers)).json()
            assert answer.get("error", {}).get("data", {}).get("code") == code


async def test_our_client_gets_through_when_the_overload_is_over(late: Served) -> None:
    """It retries at the given time, and its callers do not notice."""
    async with blackboard.connect(late.url, token=late.token(ADA)) as client:

        async def was_refused() -> bool:
            if late.gate.traffic.requests["head", "overloaded"]:
                late.service.host.load.note(0)
                return True
            return False

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.board("main").put, "public/a", 1)
            await wait_until(was_refused)
        assert await client.board("main").get("public/a") == 1


@pytest.mark.usefixtures("still")
async def test_messages_of_a_document_are_accepted_together_up_to_the_rate(tmp_path: Path) -> None:
    """Those behind one that has to wait are not held up with it."""
    async with rated(tmp_path, few(5)) as served:
        await served.gate.ready()
        admission = served.gate.admission(served.gate.authenticate(served.token(ADA)))
        assert await admission.turn([10] * 3) == 3
        assert await admission.turn([10] * 2) == 2
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await admission.turn([10])


async def test_none_is_accepted_behind_one_that_had_to_wait(tmp_path: Path) -> None:
    async with rated(tmp_path, Rates(requests_per_second=50, burst_ms=100)) as served:
        await served.gate.ready()
        admission = served.gate.admission(served.gate.authenticate(served.token(ADA)))
        left = 40
        while left:
            count = await admission.turn([10] * left)
            assert 1 <= count < 40
            left -= count
