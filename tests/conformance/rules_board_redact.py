"""Redaction as people see it: one key's values go, and work goes on."""

import asyncio
import dataclasses

import pytest

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.checkpoints import RedactRequest
from blackboard.errors import AccessDenied, Conflict, StaleEpoch
from blackboard.server.checkpoints.redact import Redactions
from tests.conformance.team import Team

KEY = "public/plan/notes"
OWN = "private/ada/token"
MARKER = {"$redacted": True}


class RedactRules:
    """What `Client.redact` promises on each board."""

    async def redactor(self, team: Team) -> Client:
        """Who may redact."""
        return await team.client(access.operator())

    async def test_a_redacted_key_is_gone_and_its_past_is_marked(
        self, team: Team, ada: Board
    ) -> None:
        first = (await ada.put(KEY, "hush")).revision
        await ada.put(OWN, "hers")
        second = (await ada.put(KEY, "hush 2")).revision
        steps: list[str] = []
        client = await self.redactor(team)
        done = await client.redact(KEY, board=team.name, why="pasted", progress=steps.append)
        assert (done.boards, done.versions, done.guessable) == ((team.name,), 2, 0)
        assert await ada.get(KEY) is None
        assert [await ada.get(KEY, at=at) for at in (first, second)] == [MARKER, MARKER]
        history = await ada.history(KEY)
        assert [v.entry and v.entry.value for v in history] == [None, MARKER, MARKER]
        assert await ada.get(OWN) == "hers"
        told = [r for r in await ada.log(verify=True) if any(c.key == KEY for c in r.changes)]
        assert [r.changes[0].value for r in told] == [MARKER, MARKER, None]
        assert (await (await team.operator()).verify()).findings == ()

    async def test_a_redacted_private_key(self, team: Team, ada: Board) -> None:
        """Sealed or not: its owner sees the marker, and may write it again."""
        revision = (await ada.put(OWN, "hush")).revision
        client, operator = await self.redactor(team), await team.operator()
        await operator.checkpoint("before")
        assert (await client.redact(OWN, board=team.name)).versions == 1
        assert await ada.get(OWN, at=revision) == MARKER
        await operator.restore("before")
        await ada.refresh()
        assert await ada.get(OWN) == MARKER
        await ada.put(OWN, "another")
        assert await ada.get(OWN) == "another"
        assert (await operator.verify()).findings == ()

    async def test_a_redacted_document(self, team: Team, ada: Board) -> None:
        """It can begin again, as an empty one."""
        document = await ada.document(KEY)
        document.text().append("hush")
        await document.synced()
        await document.aclose()
        operator = await team.operator()
        await operator.checkpoint("before")
        await (await self.redactor(team)).redact(KEY, board=team.name)
        await operator.restore("before")
        again = await ada.document(KEY)
        try:
            assert str(again.text()) == ""
            again.text().append("new")
            await again.synced()
        finally:
            await again.aclose()
        assert (await operator.verify()).findings == ()

    async def test_commits_and_conditions_go_on(self, team: Team, ada: Board, bob: Board) -> None:
        """Who relies on the key is refused as ever, and all others are not."""
        read = (await ada.put(KEY, "hush")).revision
        await bob.put("public/n", 0)
        client = await self.redactor(team)

        async def work() -> None:
            for number in range(20):
                await bob.put("public/n", number)

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(work())
            tasks.create_task(client.redact(KEY, board=team.name))
        assert await ada.get("public/n") == 19
        with pytest.raises(Conflict):
            await ada.put(KEY, "new", expected=read)
        await ada.put(KEY, "new", expected=0)
        assert (await (await team.operator()).verify()).findings == ()

    async def test_agents_redact_nothing(self, team: Team, ada: Board) -> None:
        """Not even what is theirs: it is an act of who answers for the whole board."""
        await ada.put(OWN, "hush")
        client = await team.client_of(ada)
        with pytest.raises(AccessDenied):
            await client.redact(OWN, board=team.name)
        assert await ada.get(OWN) == "hush"

    async def test_a_request_that_comes_late_removes_nothing_new(
        self, team: Team, ada: Board
    ) -> None:
        """A service that was stopped carries it out after another one did."""
        await ada.put(KEY, "hush")
        link, spec = (await self.redactor(team)).link, RedactRequest(KEY, "pasted", "once")
        while not (await link.redact(team.name, spec)).done:
            pass
        await ada.put(KEY, "harmless")
        late = Redactions(team.service.boards)
        assert (await late.redact(team.name, spec, "operator")).done
        assert await ada.get(KEY) == "harmless"
        again = RedactRequest(KEY, "pasted", "twice")
        while not (await late.redact(team.name, again, "operator")).done:
            pass
        assert await ada.get(KEY) is None

    async def test_an_older_request_that_comes_late_removes_nothing_new(
        self, team: Team, ada: Board
    ) -> None:
        """After another redaction of the key, which is the only one that is on record."""
        client = await self.redactor(team)
        link = client.link
        specs = []
        for request in ("once", "twice"):
            known = (await ada.put(KEY, "hush")).revision
            specs.append(RedactRequest(KEY, "pasted", request, known))
            while not (await link.redact(team.name, specs[-1])).done:
                pass
        await ada.put(KEY, "harmless")
        late = Redactions(team.service.boards)
        for spec in specs:
            assert (await late.redact(team.name, spec, "operator")).done
        assert await ada.get(KEY) == "harmless"
        await client.redact(KEY, board=team.name)
        assert await ada.get(KEY) is None

    async def test_a_request_of_before_a_restore_removes_nothing(
        self, team: Team, ada: Board
    ) -> None:
        link = (await self.redactor(team)).link
        known = (await ada.put(KEY, "harmless")).revision
        await (await team.operator()).restore(known)
        with pytest.raises(StaleEpoch):
            await link.redact(team.name, RedactRequest(KEY, "pasted", "late", known))
        assert await ada.get(KEY) == "harmless"

    async def test_who_may_not_use_all_that_shares_the_history_redacts_nothing(
        self, team: Team, ada: Board
    ) -> None:
        await ada.put(KEY, "hush")
        operator = await team.operator()
        branch = await operator.branch(f"{team.name}-other", "now")
        only = dataclasses.replace(access.operator("limited"), boards=frozenset({team.name}))
        client = await team.client(only)
        with pytest.raises(AccessDenied, match=branch.name):
            await client.redact(KEY, board=team.name)
        assert await ada.get(KEY) == await branch.get(KEY) == "hush"
