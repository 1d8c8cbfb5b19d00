"""Charges on a real service: heavy readers wait behind light ones, and some requests never wait."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from blackboard.archive.sql import SqlArchive
from blackboard.core import access
from blackboard.core.access import Narrowing
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.integrity.signing import Seal
from blackboard.integrity.tokens import attenuate
from blackboard.limits import DEFAULT
from blackboard.server.overload.charges import AccountCharge, Charges
from blackboard.server.service import Service
from tests.lowered import NO_MARKS_BY_THE_CLOCK, lowered
from tests.serving import Served, serving
from tests.unit.server.http.conversation import Talk, talking
from tests.waiting import TIMEOUT_S, wait_until

LIMITS = lowered(NO_MARKS_BY_THE_CLOCK, credit_ms_max=5_000, loop_lag_ms_max=3_600_000)
"""What ann's requests cost on a busy machine is no debt while the clock is stopped, and a late
event loop is no reason to refuse them."""
LOAD = LIMITS.load
ANN, RITA = access.agent("ann"), access.agent("rita")
MAIN = {"board": "main"}
LIST = {**MAIN, "pattern": "public/**"}
READS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("read", {**MAIN, "keys": ["public/k/0001"]}),
    ("read", {**MAIN, "keys": ["public/k/0001"], "at": 2}),
    ("list", LIST),
    ("list", {**LIST, "at": 2}),
    ("leases", {**MAIN, "pattern": "**"}),
    ("log", {**MAIN, "after": 0}),
    ("why", {**MAIN, "key": "public/k/0001"}),
    ("history", {**MAIN, "key": "public/k/0001"}),
    ("differences", {**MAIN, "a": 0, "b": "now", "pattern": "public/**"}),
    ("checkpoints", MAIN),
    ("activity", MAIN),
    ("head", MAIN),
    ("boards", {}),
)


@asynccontextmanager
async def archiving(path: Path) -> AsyncIterator[Served]:
    """A service with an archive, whose clock of charges is stopped."""
    store = await SqliteStore.at(path, "memory")
    blobs = str(path / "blobs")
    archive = await SqlArchive.open(
        f"sqlite:///{path / 'archive.db'}", blobs=blobs, sealer=Seal(bytes(32))
    )
    service = Service(store, archive=archive, limits=LIMITS)
    async with service, serving(service) as served:
        stop_the_clock(served)
        yield served


def stop_the_clock(served: Served) -> None:
    """Stop the clock: debts stay and accounts stay active, however long the test takes."""
    now_s = served.service.host.charges._clock()
    served.service.host.charges._clock = lambda: now_s


def pass_time(served: Served, seconds: float) -> None:
    """Let the clock of the charges run again."""
    later_s = served.service.host.charges._clock() + seconds
    served.service.host.charges._clock = lambda: later_s


def account(served: Served, name: str) -> AccountCharge:
    """The statistics of an account."""
    told = served.service.statistics().charges.accounts
    return next(each for each in told if each.name == name)


def waiting(served: Served) -> int:
    """The number of requests that wait for the repayment of a debt."""
    return served.service.statistics().charges.waiting


async def epoch_of(talk: Talk) -> str:
    """The epoch of the board, which this creates."""
    answer = await talk.ask(900, "head", MAIN)
    epoch: str = answer["result"]["epoch"]["id"]
    return epoch


async def committed(
    talk: Talk, number: int, ops: list[dict[str, Any]], epoch: str, lane: int = 0
) -> Any:
    """The answer to a commit."""
    name = {"lane": lane, "incarnation": "i", "step": number}
    params = {**MAIN, "id": name, "epoch": epoch, "ops": ops}
    return await talk.ask(number, "commit", params)


async def filled(talk: Talk) -> str:
    """A board with some keys, in two revisions; its epoch."""
    epoch = await epoch_of(talk)
    for number in (1, 2):
        ops = [
            {"kind": "put", "key": f"public/k/{place:04d}", "value": number} for place in range(300)
        ]
        assert "result" in await committed(talk, number, ops, epoch)
    return epoch


def be_active(served: Served, name: str) -> None:
    """Let others share with an account now, however much time had to pass before."""
    served.service.host.charges.charge(name, 0)


async def until_in_debt(served: Served, talk: Talk, name: str = "rita") -> None:
    """Read until the account is in debt."""
    served.service.host.charges.charge(name, (LOAD.credit_ms_max - 5) * 1_000)
    number = 1_000
    while account(served, name).balance_ms >= 0:
        number += 1
        asking = asyncio.create_task(talk.ask(number, "list", LIST))
        while not (await asyncio.wait([asking], timeout=0.01))[0]:
            if waiting(served):  # it reserves what the last one cost, on a busy machine too much
                pass_time(served, 0.1)
        assert "result" in asking.result()


@pytest.mark.parametrize(("method", "params"), READS)
async def test_every_read_is_charged(tmp_path: Path, method: str, params: dict[str, Any]) -> None:
    """To the account, in processor time, including the work of the archive's threads."""
    async with (
        archiving(tmp_path) as served,
        talking(served.url, served.token(ANN), greeting={}) as ann,
        talking(served.url, served.token(RITA), greeting={}) as rita,
    ):
        await filled(ann)
        served.service.host.charges.charge("rita", 0)
        before = account(served, "rita")
        answer = await rita.ask(1, method, params)
        assert "result" in answer, answer
        await wait_until(lambda: _true(account(served, "rita").charged_ms > before.charged_ms))
        assert account(served, "rita").balance_ms < before.balance_ms
        [price] = [
            account.prices_us
            for name, account in served.service.host.charges._accounts.items()
            if name == "rita"
        ]
        assert price[method] > 0


async def test_heavy_readers_wait_behind_light_ones(tmp_path: Path) -> None:
    """A debtor's read is answered when its debt is repaid, the others' meanwhile."""
    async with (
        archiving(tmp_path) as served,
        talking(served.url, served.token(ANN), greeting={}) as ann,
        talking(served.url, served.token(RITA), greeting={}) as rita,
    ):
        epoch = await filled(ann)
        await until_in_debt(served, rita)
        assert account(served, "rita").balance_ms < 0 < account(served, "ann").balance_ms
        be_active(served, "ann")
        asking = asyncio.create_task(rita.ask(1, "list", LIST))
        await wait_until(lambda: _true(waiting(served)))
        put = [{"kind": "put", "key": "public/a", "value": 1}]
        for number in range(10, 20):
            assert "result" in await ann.ask(number + 100, "list", LIST)
            assert "result" in await committed(ann, number, put, epoch)
        assert not asking.done()
        pass_time(served, 4 * LOAD.debt_ms_max / 1_000)
        assert "result" in await asyncio.wait_for(asking, TIMEOUT_S)


async def test_over_http_it_is_the_same(tmp_path: Path) -> None:
    """Requests of one account share one debt over every transport."""
    async with (
        archiving(tmp_path) as served,
        talking(served.url, served.token(ANN), greeting={}) as ann,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{served.port}") as http,
    ):
        await filled(ann)
        headers = {"Authorization": f"Bearer {served.token(RITA)}"}
        body = {"jsonrpc": "2.0", "id": 1, "method": "list", "params": LIST}
        assert "result" in (await http.post("/v1/rpc", json=body, headers=headers)).json()
        assert account(served, "rita").charged_ms > 0
        served.service.host.charges.charge("rita", 10 * LOAD.debt_ms_max * 1_000)
        assert "result" in await ann.ask(1, "list", LIST)
        asking = asyncio.create_task(http.post("/v1/rpc", json=body, headers=headers))
        await wait_until(lambda: _true(waiting(served)))
        ready = await http.get("/readyz")
        assert ready.status_code == 200
        assert (await http.get("/healthz")).status_code == 200
        assert b"blackboard_requests_in_debt 1.0" in (await http.get("/metrics")).content
        pass_time(served, 4 * LOAD.debt_ms_max / 1_000)
        assert "result" in (await asyncio.wait_for(asking, TIMEOUT_S)).json()


async def test_what_is_handed_on_is_paid_by_its_account(tmp_path: Path) -> None:
    """By the account at the root of a narrowed token, not by the name it acts under."""
    token = ""
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(archiving(tmp_path))
        token = attenuate(served.token(RITA), Narrowing("rita.helper"))
        ann = await stack.enter_async_context(talking(served.url, served.token(ANN), greeting={}))
        helper = await stack.enter_async_context(talking(served.url, token, greeting={}))
        rita = await stack.enter_async_context(talking(served.url, served.token(RITA), greeting={}))
        await filled(ann)
        await until_in_debt(served, helper)
        assert {each.name for each in served.service.statistics().charges.accounts} == {
            "ann",
            "rita",
        }
        await ann.ask(1, "list", LIST)
        asking = asyncio.create_task(rita.ask(1, "list", LIST))
        await wait_until(lambda: _true(waiting(served)))
        asking.cancel()
        await asyncio.wait([asking])


async def test_a_debtor_keeps_its_leases_and_can_end_everything(tmp_path: Path) -> None:
    """Renewals, releases, all other commits, `unwatch`, progress marks, refreshes and pings."""
    async with (
        archiving(tmp_path) as served,
        talking(served.url, served.token(ANN), greeting={}) as ann,
        talking(served.url, served.token(RITA), greeting={}) as rita,
    ):
        epoch = await filled(ann)
        lease = {"key": "public/l", "holder": "rita"}
        grant = {"kind": "grant", **lease, "ttl_ms": 60_000}
        answer = await committed(rita, 1, [grant], epoch)
        fence = answer["result"]["results"][0][1]
        watched = await rita.ask(2, "watch", {**MAIN, "watch": 1, "patterns": ["public/nobody"]})
        assert "result" in watched
        served.service.host.charges.charge("rita", 10 * LOAD.debt_ms_max * 1_000)
        assert "result" in await ann.ask(1, "list", LIST)
        await rita.send({"id": 50, "method": "list", "params": LIST})
        await wait_until(lambda: _true(waiting(served)))
        renew = {"kind": "renew", **lease, "fence": fence, "ttl_ms": 60_000}
        assert "result" in await committed(rita, 3, [renew], epoch)
        release = {"kind": "release", **lease, "fence": fence}
        assert "result" in await committed(rita, 4, [release], epoch)
        put = {"kind": "put", "key": "public/r", "value": 1}
        assert "result" in await committed(rita, 5, [put], epoch)
        assert "result" in await rita.ask(6, "whoami", {})
        assert "result" in await rita.ask(7, "refresh", {"token": served.token(RITA)})
        assert "result" in await rita.ask(8, "unwatch", {"watch": 1})
        await asyncio.wait_for(await rita.socket.ping(), TIMEOUT_S)
        assert waiting(served) == 1
        await rita.socket.close()
        await wait_until(lambda: _true(not waiting(served)))


async def test_a_renewal_is_not_behind_the_reads_of_its_connection(tmp_path: Path) -> None:
    """With any number of waiting reads: those beyond the limit are refused, and the connection is
    still read."""
    async with (
        archiving(tmp_path) as served,
        talking(served.url, served.token(ANN), greeting={}) as ann,
        talking(served.url, served.token(RITA), greeting={}) as rita,
    ):
        epoch = await filled(ann)
        lease = {"key": "public/l", "holder": "rita", "ttl_ms": 60_000}
        answer = await committed(rita, 1, [{"kind": "grant", **lease}], epoch)
        fence = answer["result"]["results"][0][1]
        served.service.host.charges.charge("rita", 10 * LOAD.debt_ms_max * 1_000)
        assert "result" in await ann.ask(1, "list", LIST)
        numbers = range(100, 100 + 3 * DEFAULT.service.reads_waiting_max)
        for number in numbers:
            await rita.send({"id": number, "method": "list", "params": LIST})
        name = {"lane": 0, "incarnation": "i", "step": 2}
        ops = [{"kind": "renew", **lease, "fence": fence}]
        renew = {**MAIN, "id": name, "epoch": epoch, "ops": ops}
        await rita.send({"id": 2, "method": "commit", "params": renew})
        answers = [await rita.receive() for _ in range(2 * DEFAULT.service.reads_waiting_max + 1)]
        assert "result" in answers.pop(), "the renewal was asked for last"
        assert {each["error"]["data"]["code"] for each in answers} == {"overloaded"}
        assert {each["id"] for each in answers} == set(numbers[DEFAULT.service.reads_waiting_max :])
        pass_time(served, 3_600)
        for _ in range(DEFAULT.service.reads_waiting_max):
            assert "result" in await rita.receive()


async def test_an_account_that_is_alone_does_not_wait(tmp_path: Path) -> None:
    """Regardless of its debt."""
    async with (
        archiving(tmp_path) as served,
        talking(served.url, served.token(ANN), greeting={}) as ann,
    ):
        await filled(ann)
        pass_time(served, 1)  # strangers who said hello are no company
        served.service.host.charges.charge("ann", 10 * LOAD.debt_ms_max * 1_000)
        for number in range(10, 20):
            assert "result" in await ann.ask(number, "list", LIST)
        assert account(served, "ann").balance_ms < 0


async def test_a_client_that_would_wait_too_long_learns_when_to_retry(tmp_path: Path) -> None:
    """With Overloaded, which is retryable."""
    async with (
        archiving(tmp_path) as served,
        talking(served.url, served.token(ANN), greeting={}) as ann,
        talking(served.url, served.token(RITA), greeting={}) as rita,
    ):
        await filled(ann)
        charges = served.service.host.charges
        charges.learn("rita", "list", 1_000)
        charges.charge("rita", 10 * LOAD.debt_ms_max * 1_000)
        charges.charge("ann", 10_000_000)  # and next to nothing is left to repay it with
        await rita.send({"id": 50, "method": "list", "params": LIST})
        await wait_until(lambda: _true(waiting(served)))
        answer = await rita.ask(1, "list", LIST)
        error = answer["error"]["data"]
        assert error["code"] == "overloaded"
        assert error["fields"]["retry_after_ms"] > 0
        assert "rita" in error["fields"]["reason"]
        assert served.service.statistics().charges.refused == 1
        assert "result" in await rita.ask(2, "whoami", {})


async def test_what_is_made_for_a_watch_is_paid_by_its_account(tmp_path: Path) -> None:
    """Not by the account that commits."""
    reader = replace(RITA, grants=(access.parse_grant("public/**=read"),))
    async with (
        archiving(tmp_path) as served,
        talking(served.url, served.token(ANN), greeting={}) as ann,
        talking(served.url, served.token(reader), greeting={}) as rita,
    ):
        epoch = await filled(ann)
        watched = await rita.ask(1, "watch", {**MAIN, "watch": 1, "patterns": ["public/**"]})
        assert "result" in watched
        before = account(served, "rita").charged_ms
        ops = [{"kind": "put", "key": f"public/k/{place:04d}", "value": 3} for place in range(300)]
        assert "result" in await committed(ann, 3, ops, epoch)
        news = await rita.receive()
        assert len(news["params"]["revisions"][0]["changes"]) == 300
        assert "result" in await rita.ask(2, "unwatch", {"watch": 1})
        await wait_until(lambda: _true(account(served, "rita").charged_ms > before + 0.1))


async def test_to_open_a_watch_is_paid_by_its_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its patterns are checked, and compared with the grants, before anything is delivered."""
    noted, aside = list[tuple[str, float]](), Charges.charge_aside

    def noting(self: Charges, name: str, spent_us: float) -> None:
        noted.append((name, spent_us))
        aside(self, name, spent_us)

    monkeypatch.setattr(Charges, "charge_aside", noting)
    async with (
        archiving(tmp_path) as served,
        talking(served.url, served.token(RITA), greeting={}) as rita,
    ):
        await epoch_of(rita)
        patterns = [f"public/*/{number}/*" for number in range(64)]
        opened = await rita.ask(1, "watch", {**MAIN, "watch": 1, "patterns": patterns})
        assert "result" in opened
        assert "result" in await rita.ask(2, "unwatch", {"watch": 1})
        await wait_until(lambda: _true(noted))
    assert {name for name, _ in noted} == {"rita"}
    assert sum(spent_us for _, spent_us in noted) > 0


async def _true(value: object) -> bool:
    return bool(value)
