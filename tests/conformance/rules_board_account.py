"""What is promised about whose work something is: the account is recorded, not only the name."""

import pytest

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.documents.document import Document
from blackboard.core import access
from blackboard.core.commit import ABSENT, Grant, KeyAt, Put, Release, Renew
from blackboard.errors import AccessDenied, BoardFrozen, Conflict, LeaseHeld
from blackboard.wire.codec import encode_value
from tests.conformance.team import Team, take
from tests.waiting import wait_until


class AccountRules:
    """A name that was narrowed from an account says so wherever its author is shown."""

    async def test_the_account_is_shown_beside_the_name(self, team: Team, ada: Board) -> None:
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

    async def test_an_account_in_its_own_name_is_shown_once(self, team: Team, ada: Board) -> None:
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

    async def test_a_lease_is_its_accounts(self, team: Team, ada: Board) -> None:
        """Under the same name on another account nobody keeps, ends or takes it."""
        own, kid = await team.account("ada.kid"), await team.account("ada", "ada.kid")
        prefixes = {own: "ada.kid@", kid: "ada@kid"}
        for mine, other in ((own, kid), (kid, own)):
            async with mine.lock("public/x", ttl_ms=60_000) as lock:
                [lease] = await ada.leases("public/x")
                assert lease.holder == lock.holder
                assert lease.holder.startswith(prefixes[mine] + "~")
                for op in (
                    Renew("public/x", lease.holder, lease.fence, 60_000),
                    Release("public/x", lease.holder, lease.fence),
                    Grant("public/y", lease.holder, 60_000),
                    Grant("public/y", "ada.kid~1", 60_000),
                ):
                    with pytest.raises(AccessDenied):
                        await other.commit([op])
                with pytest.raises(LeaseHeld):
                    await other.commit([Grant("public/x", f"{prefixes[other]}~1", 60_000)])
                assert await ada.leases("public/x") == (lease,)
                await mine.put("public/x", "done")
            assert await ada.leases("public/x") == ()

    async def test_a_place_in_a_queue_is_its_accounts(self, team: Team, ada: Board) -> None:
        own, kid = await team.account("ada.kid"), await team.account("ada", "ada.kid")
        async with ada.lock("public/x", ttl_ms=60_000):
            await own.commit([Grant("public/x", "ada.kid@~1", 60_000, wait=True)])
            for op in (
                Renew("public/x", "ada.kid@~1", 0, 60_000),
                Release("public/x", "ada.kid@~1", 0),
            ):
                with pytest.raises(AccessDenied):
                    await kid.commit([op])
        [lease] = await ada.leases("public/x")
        await own.commit([Release("public/x", "ada.kid@~1", lease.fence)])

    async def test_what_was_held_by_name_is_kept_by_name(self, team: Team) -> None:
        """A lease from before holders told their account."""
        root = await team.operator()
        for board in (await team.account("ada.kid"), await team.account("ada", "ada.kid")):
            granted = await root.commit([Grant("public/x", "ada.kid~1", 60_000)])
            fence = granted.revision
            await board.commit([Renew("public/x", "ada.kid~1", fence, 60_000)])
            await board.commit([Release("public/x", "ada.kid~1", fence)])
        assert await root.leases("public/x") == ()

    async def test_a_presence_tells_the_account(self, team: Team, ada: Board) -> None:
        may = access.agent("ada.kid").grants
        kid = await team.account("ada", "ada.kid", grants=may)
        own, root = await team.account("ada.kid"), await team.operator()
        async with kid.attach(ttl_ms=60_000):
            [seen] = await root.agents()
            assert (seen.agent, seen.account, seen.alive) == ("ada.kid", "ada", True)
            told = await root.get("public/~agents/ada.kid")
            for forger in (own, ada):
                await forger.put("public/~agents/ada.kid", {**told, "note": "forged"})
                [seen] = await root.agents()
                assert (seen.account, seen.alive) == ("", False)
            [lease] = await own.leases("private/ada.kid/~identity")
            with pytest.raises(AccessDenied):
                await own.commit([Release(lease.key, lease.holder, lease.fence)])

    async def test_the_services_own_records_tell_the_account(self, team: Team, ada: Board) -> None:
        """Of a checkpoint, of a restore and of what it is based on, of a freeze and a
        redaction."""
        whole = (access.AccessGrant("**", access.ALL_RIGHTS),)
        kid, root = await team.account("ada", "ada.kid", grants=whole), await team.operator()
        await kid.put("public/a", 1)
        await kid.checkpoint("mine")
        done = await kid.restore("mine")
        assert {point.by for point in await root.checkpoints()} == {"ada@kid"}
        told = [e.value["by"] async for e in root.scan("system/restores/*")]
        assert (told, done.from_revision) == (["ada@kid"], 2)
        branch = await kid.branch(f"{team.name}-kid", "mine")
        there = (await team.client_of(ada)).board(branch.name)
        assert (await there.get("system/origin"))["by"] == "ada@kid"
        await kid.put("public/b", 2)
        [cause] = await ada.why("public/b")
        assert (cause.author, cause.account) == ("ada.kid", "ada")
        freeze = await kid._link.freeze(kid.name, "look")
        with pytest.raises(BoardFrozen) as caught:
            await ada.put("public/c", 1)
        await kid._link.thaw(kid.name, "")
        assert (freeze.by, caught.value.by) == ("ada@kid", "ada@kid")
        notes = [logged.note for logged in await root.log()]
        assert {"frozen by ada@kid: look", "thawed by ada@kid"} <= set(notes)
        await Client(kid._link).redact("public/b", board=kid.name, why="pasted")
        records = [e.value async for e in root.scan("system/redactions/**")]
        told = [(record["key"], record["by"], record["why"]) for record in records]
        assert told == [("public/b", "ada@kid", "pasted")]

    async def test_a_document_tells_the_account(self, team: Team, ada: Board) -> None:
        """And what is known of a peer is known of its account, not of its name."""
        own, kid = await team.account("ada.kid"), await team.account("ada", "ada.kid")
        async with kid.document("public/memo") as memo, ada.document("public/memo") as hers:
            memo.text("body").insert(0, "hello")
            await memo.synced()
            await hers.synced()
            entries = [e async for e in ada.scan("public/memo/**")]
            assert {(e.author, e.account) for e in entries} == {("ada.kid", "ada")}
            memo.tell({"hue": 3, "account": "root"})
            await wait_until(
                lambda: _is_told(hers, {"agent": "ada.kid", "account": "ada", "hue": 3})
            )
        async with own.document("public/memo") as memo, ada.document("public/memo") as hers:
            await wait_until(lambda: _is_told(hers, {"agent": "ada.kid"}))


async def _is_told(document: Document, state: dict[str, object]) -> bool:
    """Whether another replica tells exactly that of itself."""
    return state in document.others().values()
