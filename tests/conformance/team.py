"""A team for tests: one service, and a board as its operator and its agents see it."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import count

import anyio
import pytest

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.views import RevisionEvent
from blackboard.client.watch import Watch
from blackboard.core import access
from blackboard.core.access import AccessGrant, Narrowing, Principal
from blackboard.integrity.tokens import attenuate, issue, new_secret, unverified
from blackboard.server.service import Service

RENEWED_MS = 60_000
"""How long a lease lasts whose renewals a test awaits: with `renewed_often`, they do come."""
renewed_often = pytest.mark.limits(renewals_per_ttl=RENEWED_MS // 400)
"""What has RENEWED_MS is renewed more than twice a second, and lasts for a minute."""
PATIENCE_S = 60.0
"""How long a test waits for what must come; a machine under load is slow now and then."""
_numbers = count()


@dataclass
class Team:
    """One board that no other test uses, and ways to it.

    `connect` opens a client of a principal; it is closed with the test.
    """

    service: Service
    connect: Callable[[Principal], Awaitable[Client]]
    name: str = field(default_factory=lambda: f"team-{next(_numbers)}")
    _clients: dict[str, Client] = field(default_factory=dict)

    async def client(self, principal: Principal) -> Client:
        """The client of `principal`."""
        if principal.name not in self._clients:
            self._clients[principal.name] = await self.connect(principal)
        return self._clients[principal.name]

    async def board(self, agent: str) -> Board:
        """The board as `agent` sees it, with the default rights of an agent."""
        return (await self.client(access.agent(agent))).board(self.name)

    async def account(
        self, account: str, name: str = "", *, grants: tuple[AccessGrant, ...] | None = None
    ) -> Board:
        """The board under a token of `account` that was narrowed to `name`, with those grants."""
        whole = replace(access.agent(account), grants=grants or access.agent(account).grants)
        token = issue(new_secret(), whole, 3_600_000)
        if name and name != account:
            token = attenuate(token, Narrowing(name=name))
        await self.service.host.revocations.ready()
        client = await self.connect(unverified(token))
        return client.board(self.name)

    async def client_of(self, board: Board) -> Client:
        """The client that `board` was made by."""
        return await self.client(access.agent(board.agent))

    async def operator(self) -> Board:
        """The board as the operator sees it."""
        return (await self.client(access.operator())).board(self.name)


async def take(watch: Watch, count: int) -> list[RevisionEvent]:
    """The next `count` revisions of a watch. Errors: TimeoutError when they do not come."""
    found: list[RevisionEvent] = []
    with anyio.fail_after(PATIENCE_S):
        while len(found) < count:
            found.append(await anext(watch))
    return found
