"""What is promised about whose work something is: the account is recorded, not only the name."""

import pytest

from blackboard.client.board import Board
from blackboard.core.commit import ABSENT, KeyAt, Put
from blackboard.errors import Conflict
from blackboard.wire.codec import encode_value
from tests.conformance.team import Team, take


class AccountRules:
    """A name that was narrowed from an account says so wherever its author is told."""

    async def test_the_account_is_told_beside_the_name(self, team: Team, ada: Board) -> None:
        """By reads, listings, watches, the log and the history."""
        kid = await team.account("ada", "ada.kid.x")
        async with ada.watch("public/**", after=0) as watch:
            await kid.put("public/plan", 1)
            [revised] = await take(watch, 1)
        entry = await ada.entry("public/plan")
        assert entry is not None
        assert (entry.author, entry.account, entry.owner) == ("ada.kid.x", "ada", "ada")
        [listed] = [one async for one in ada.scan("public/plan")]
        assert listed == entry
        assert (revised.author, revised.account) == ("ada.kid.x", "ada")
        [logged] = [one for one in await ada.log() if one.changes]
        assert (logged.author, logged.account) == ("ada.kid.x", "ada")
        await kid.delete("public/plan")
        versions = await ada.history("public/plan")
        assert {(version.author, version.account) for version in versions} == {("ada.kid.x", "ada")}
        assert versions[-1].entry == entry

    async def test_an_account_in_its_own_name_is_told_once(self, team: Team, ada: Board) -> None:
        """Also if the name has a dot: it was given out like that."""
        for name in ("ada", "ada.kid"):
            board = await team.account(name)
            await board.put("public/plan", name)
            entry = await ada.entry("public/plan")
            assert entry is not None
            assert (entry.author, entry.account, entry.owner) == (name, "", name)

    async def test_a_moment_and_a_branch_keep_the_account(self, team: Team, ada: Board) -> None:
        kid, root = await team.account("ada", "ada.kid"), await team.operator()
        written = await kid.put("public/plan", 1)
        await root.checkpoint("then")
        await ada.put("public/plan", 2)
        [then] = [one async for one in ada.scan("public/plan", at=written.revision)]
        assert (then.author, then.account) == ("ada.kid", "ada")
        found = await (await root.branch(f"{team.name}-branch", "then")).entry("public/plan")
        assert found is not None
        assert (found.author, found.account) == ("ada.kid", "ada")

    async def test_names_that_are_alike_push_out_no_answers_of_each_other(
        self, team: Team, ada: Board
    ) -> None:
        """Two accounts may have a sub-agent and an agent of one name: their steps are counted
        apart, and a conflict names the name alone."""
        narrowed, own = await team.account("ada", "ada.kid"), await team.account("ada.kid")
        for number in range(4):
            await narrowed.put("public/a", number)
            await own.put("public/b", number)
        with pytest.raises(Conflict) as caught:
            await ada.commit(
                [Put("public/a", encode_value(0))], conditions=[KeyAt("public/a", ABSENT)]
            )
        assert caught.value.by == "ada.kid"
