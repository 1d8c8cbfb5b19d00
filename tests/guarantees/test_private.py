"""Nothing of what an agent keeps to itself reaches anybody else, by any way out of the service.

Every agent has a canary in every place that is its own. What the service sends to each principal is
recorded at the socket, byte by byte, and searched; so are /metrics and everything that it logs.
"""

import urllib.request
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx
from anyio.to_thread import run_sync

import blackboard
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.remote.link import RemoteTransport
from blackboard.client.watch import Watch
from blackboard.core import access
from blackboard.core.access import Principal
from blackboard.errors import BlackboardError, InvalidRequest
from blackboard.integrity.tokens import issue
from blackboard.wire.methods import RIGHTS
from tests.guarantees import secrets_of
from tests.guarantees.processes import HOUR_MS, ServiceProcess
from tests.guarantees.recorder import Recorder
from tests.guarantees.secrets_of import BOARD, OWNERS, PLACES, canary, keeper, reader

PATIENCE_S = 240
FORK = "fork-keeper"
NEVER_ANSWERED = {
    "freeze",
    "thaw",
    "import_begin",
    "import_page",
    "import_end",
    "erase",
    "rewrap",
    "recover",
    "remove",
}
"""Without an export, a master key and the board that is to go, not even the operator gets an answer
to these; and what they are asked with holds nothing of anybody."""


async def _ask(link: RemoteTransport, method: str, params: dict[str, Any]) -> Any:
    """Ask as the client would, with params of any kind."""
    channel = link._channel
    return await channel.insist(lambda: channel.ask(method, dict(params)))


@dataclass
class Visitor:
    """A principal with a connection whose replies are recorded."""

    name: str
    principal: Principal
    may_see: frozenset[str]
    client: Client
    board: Board
    tap: Recorder
    watches: list[Watch] = field(default_factory=list)
    posted: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Answers to what was asked by HTTP, by method and code."""

    async def ask(self, service: ServiceProcess, board: str) -> dict[str, list[Any]]:
        """Ask for everything about `board`, by every method; how each was answered."""
        link = self.client.link
        assert isinstance(link, RemoteTransport)
        token = issue(service.secret, self.principal, HOUR_MS)
        asked = secrets_of.requests(self.name.replace(" ", "-"), token, board)
        found = {
            method: await secrets_of.outcomes([partial(_ask, link, method, p) for p in several])
            for method, several in asked.items()
        }
        there = self.client.board(board)
        found["document"] = await secrets_of.outcomes(
            [partial(_open_document, there, owner) for owner in OWNERS]
        )
        patterns = ("**", "private/*/notes", "inbox/**")
        found["watch"] = await secrets_of.outcomes([partial(_watch, there, p) for p in patterns])
        found["commit"] = await secrets_of.outcomes(secrets_of.of_a_key(there))
        if board == BOARD:
            await self._post(token, asked)
        return found

    async def _post(self, token: str, asked: secrets_of.Asked) -> None:
        """Ask the same by HTTP, a batch for each method; what comes back is recorded as well."""
        headers = {"Authorization": f"Bearer {token}"}
        url = f"http://127.0.0.1:{self.tap.port}/v1/rpc"
        agent = {"agent": self.client.link.agent}
        async with httpx.AsyncClient(trust_env=False, timeout=PATIENCE_S) as http:
            for method, several in asked.items():
                batch = [
                    {"jsonrpc": "2.0", "id": number, "method": method, "params": params | agent}
                    for number, params in enumerate(several)
                ]
                response = await http.post(url, json=batch, headers=headers)
                answers = response.json()
                assert [answer["id"] for answer in answers] == list(range(len(batch))), method
                for answer in answers:
                    self.posted[method, _code(answer)] += 1

    def leaked(self) -> list[str]:
        """The canaries of others in what was received."""
        return [
            canary(owner, place)
            for owner in OWNERS
            for place in PLACES
            if owner not in self.may_see and canary(owner, place).encode() in self.tap.received
        ]

    def missing(self) -> list[str]:
        """The canaries that it could have seen, and did not."""
        return [
            canary(owner, place)
            for owner in sorted(self.may_see)
            for place in PLACES
            if canary(owner, place).encode() not in self.tap.received
        ]


def _code(answer: dict[str, Any]) -> str:
    return str(answer["error"]["data"]["code"]) if "error" in answer else "ok"


async def _open_document(board: Board, owner: str) -> None:
    document = await board.document(f"private/{owner}/memo")
    await document.aclose()


async def _watch(board: Board, pattern: str) -> None:
    head = await board.head()
    async with (
        board.watch(pattern, after=head.oldest - 1 if head.oldest else 0) as changes,
        board.watch(pattern, snapshot=True) as state,
    ):
        await changes.wait_for(head.revision)
        await state.wait_for(head.revision)


class Visitors:
    """Everybody who comes to one service."""

    def __init__(self, service: ServiceProcess, stack: AsyncExitStack) -> None:
        self.service = service
        self._stack = stack
        self.all: list[Visitor] = []

    async def begin(self) -> None:
        """Begin the board: those who may only read could not even watch one that there is not."""
        token = issue(self.service.secret, access.operator(), HOUR_MS)
        async with blackboard.connect(self.service.url, token=token) as client:
            await client.board(BOARD).head()

    async def come(
        self, name: str, principal: Principal, *may_see: str, agent: str | None = None
    ) -> Visitor:
        """Connect, and watch everything from now on."""
        tap = await self._stack.enter_async_context(Recorder(self.service.port))
        token = issue(self.service.secret, principal, HOUR_MS)
        url = f"ws://127.0.0.1:{tap.port}"
        client = await self._stack.enter_async_context(
            blackboard.connect(url, token=token, agent=agent)
        )
        board = client.board(BOARD)
        visitor = Visitor(name, principal, frozenset(may_see), client, board, tap)
        for coalesce in (False, True):
            watch = board.watch("**", "private/*/notes", coalesce=coalesce)
            visitor.watches.append(await self._stack.enter_async_context(watch))
        self.all.append(visitor)
        return visitor


@asynccontextmanager
async def visitors(service: ServiceProcess) -> AsyncIterator[Visitors]:
    """When the block has ended, all clients are gone, and everything sent is recorded."""
    async with AsyncExitStack() as stack:
        yield Visitors(service, stack)


async def _scrape(service: ServiceProcess) -> bytes:
    def get() -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{service.port}/metrics") as response:
            found: bytes = response.read()
            return found

    return await run_sync(get)


def _all_canaries() -> list[str]:
    return [canary(owner, place) for owner in OWNERS for place in PLACES]


def _is_probe(error: BlackboardError | None) -> bool:
    """Whether a request was understood: one that is malformed would try nothing."""
    return not (isinstance(error, InvalidRequest) and error.field in ("params", "method"))


async def test_no_way_out_leads_from_one_agent_to_another(tmp_path: Path) -> None:
    """Agents, a reader, an operator who acts as an agent, and somebody who may restore everything
    and read nothing call every method; each receives what is its own and nothing of others."""
    log = tmp_path / "log"
    with anyio.fail_after(PATIENCE_S):
        async with ServiceProcess("sqlite", tmp_path / "data", log=log) as service:
            async with visitors(service) as team:
                answers = await _visit(team)
            metrics = await _scrape(service)
            await service.stop()
    for visitor in team.all:
        assert visitor.leaked() == [], visitor.name
    for visitor in team.all:
        assert visitor.missing() == [], visitor.name
    _check_answers(answers)
    _check_posted(team.all)
    told = log.read_bytes()
    assert b"blackboard_" in metrics
    assert [text for text in _all_canaries() if text.encode() in metrics + told] == []


async def _visit(team: Visitors) -> list[dict[str, list[Any]]]:
    """Everybody is there while it happens, and asks about it afterwards; the operator comes last,
    for it changes what the others look for. Returns how each was answered."""
    await team.begin()
    await team.come("reader", reader)
    await team.come("keeper", keeper)
    await team.come("operator as bob", access.operator(), "bob", agent="bob")
    ada = await team.come("ada", access.agent("ada"), "ada")
    bob = await team.come("bob", access.agent("bob"), "bob")
    operator = await team.come("operator", access.operator(), *OWNERS)
    for owner in (ada, bob):
        await secrets_of.hide(owner.board)
        await secrets_of.write_to(operator.board, owner.name)
    await operator.board.checkpoint("one")
    for owner in (ada, bob):
        await secrets_of.change(owner.board)
    answers = [await visitor.ask(team.service, BOARD) for visitor in team.all[:-1]]
    answers += [await visitor.ask(team.service, FORK) for visitor in team.all[:-1]]
    answers.append(await operator.ask(team.service, BOARD))
    head = await operator.board.head()
    for visitor in team.all:
        for watch in visitor.watches:
            await watch.wait_for(head.revision)
    return answers


def _check_answers(answers: list[dict[str, list[Any]]]) -> None:
    """That the probes are probes: none is malformed, none is left out, and the operator, who may do
    everything, is answered by each method."""
    for answered in answers:
        assert set(answered) == set(RIGHTS)
        for method, found in answered.items():
            assert all(map(_is_probe, found)), (method, found)
    *_, of_operator = answers
    refused = {method for method, found in of_operator.items() if None not in found}
    assert refused == NEVER_ANSWERED, {m: of_operator[m] for m in refused - NEVER_ANSWERED}


def _check_posted(visitors: list[Visitor]) -> None:
    """That what was posted was understood, too: the operator was answered, the others refused."""
    *others, operator = visitors
    asked = {method for method, _ in operator.posted}
    assert asked == set(RIGHTS) - {"commit", "watch", "document"}
    answered = {method for method, code in operator.posted if code == "ok"}
    assert asked - answered == NEVER_ANSWERED | {"refresh"}, operator.posted
    for visitor in others:
        assert ("audit", "access_denied") in visitor.posted, visitor.name
