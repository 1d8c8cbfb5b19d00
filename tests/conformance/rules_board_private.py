"""Private namespaces and inboxes: nobody else sees them, by any method, nor by what is refused."""

from collections.abc import Awaitable, Callable

import anyio
import pytest
from msgspec.structs import replace

from blackboard.client.board import Board
from blackboard.core import log_entry
from blackboard.core.commit import (
    Append,
    Commit,
    CommitId,
    Delete,
    DeletePrefix,
    Expire,
    Grant,
    HeldFence,
    Increment,
    KeyAt,
    PrefixUnchanged,
    Put,
    Release,
    Renew,
)
from blackboard.core.log_entry import SALT_BYTES
from blackboard.errors import AccessDenied, BlackboardError, Conflict, InvalidRequest, LeaseHeld
from blackboard.wire.codec import encode_value, prepare
from tests.conformance.team import PATIENCE_S, Team, take

ONE = encode_value(1)
SECRET = "private/ada/secret"
HIDDEN = "swordfish"

Probe = Callable[[Board, str], Awaitable[object]]

PROBES: dict[str, Probe] = {
    "get": lambda board, key: board.get(key),
    "entry": lambda board, key: board.entry(key),
    "entries": lambda board, key: board.entries(["public/plan", key]),
    "why": lambda board, key: board.why(key),
    "put": lambda board, key: board.put(key, 1),
    "put if absent": lambda board, key: board.put(key, 1, expected=0),
    "delete": lambda board, key: board.delete(key),
    "delete prefix": lambda board, key: board.delete_prefix(key.rpartition("/")[0]),
    "append": lambda board, key: board.append(key, 1),
    "increment": lambda board, key: board.increment(key),
    "merge": lambda board, key: board.merge(key, {"a": 1}),
    "condition": lambda board, key: board.commit(
        [Put("public/probe", ONE)], conditions=[KeyAt(key, 0)]
    ),
    "prefix condition": lambda board, key: board.commit(
        [Put("public/probe", ONE)], conditions=[PrefixUnchanged(key.rpartition("/")[0], 0)]
    ),
    "fence": lambda board, key: board.commit(
        [Put("public/probe", ONE)], fences=[HeldFence(key, "ada", 1)]
    ),
    "ground": lambda board, key: board.commit([Put("public/probe", ONE)], based_on=[(key, 1)]),
    "grant": lambda board, key: board.commit([Grant(key, board.agent, 1_000)]),
    "renew": lambda board, key: board.commit([Renew(key, "ada", 1, 1_000)]),
    "release": lambda board, key: board.commit([Release(key, "ada", 1)]),
    "mixed": lambda board, key: board.commit([Put("public/probe", ONE), Delete(key)]),
    "mixed prefix": lambda board, key: board.commit(
        [Increment("public/n", 1), DeletePrefix(key.rpartition("/")[0])]
    ),
}


class PrivateRules:
    """What belongs to one agent, and what everybody may do with it: nothing."""

    async def test_an_agent_uses_its_own_namespace_freely(self, ada: Board) -> None:
        await ada.put(SECRET, 1)
        assert await ada.get(SECRET) == 1
        assert await ada.increment(SECRET) == 2
        assert [e.key for e in (await ada.list("private/**")).entries] == [SECRET]
        assert await ada.delete_prefix("private/ada") == (SECRET,)

    @pytest.mark.parametrize("probe", PROBES)
    async def test_a_probe_is_refused_and_tells_nothing(
        self, ada: Board, bob: Board, probe: str
    ) -> None:
        """The answer for a key that exists and for one that does not are the same, but the key."""
        await ada.put(SECRET, HIDDEN)
        await ada.commit([Grant(SECRET, "ada", 60_000)])
        head = await ada.head()
        told: list[dict[str, object]] = []
        for key in (SECRET, "private/ada/absent", "private/nobody/at-all"):
            with pytest.raises(AccessDenied) as refused:
                await PROBES[probe](bob, key)
            named = str(refused.value.fields().pop("key"))
            assert named.startswith(key.rpartition("/")[0])
            told.append(refused.value.fields() | {"key": ""})
            assert HIDDEN not in str(refused.value)
        assert told[0] == told[1] == told[2]
        assert (await ada.head()).revision == head.revision
        assert await ada.get(SECRET) == HIDDEN

    async def test_a_probe_that_is_not_refused_would_do_something(self, ada: Board) -> None:
        """So that the test above does not pass because probes are broken: the owner may."""
        for name, probe in PROBES.items():
            try:
                await probe(ada, "private/ada/mine")
            except AccessDenied:
                raise AssertionError(f"the owner may not {name}") from None
            except BlackboardError:
                continue

    @pytest.mark.parametrize(
        "pattern", ["**", "private/**", "private/ada/**", "private/*/*", "*/*/secret", SECRET]
    )
    async def test_patterns_find_nothing_of_others(
        self, ada: Board, bob: Board, pattern: str
    ) -> None:
        """By listing, scanning, watching, or a snapshot."""
        await ada.put(SECRET, HIDDEN)
        assert (await bob.list(pattern)).entries == ()
        assert [entry async for entry in bob.scan(pattern)] == []
        async with (
            bob.watch(pattern, after=0) as watch,
            bob.watch(pattern, snapshot=True) as other,
        ):
            await ada.put(SECRET, HIDDEN)
            await ada.delete(SECRET)
            with anyio.fail_after(PATIENCE_S):
                assert await watch.wait_for(3) == []
                assert await other.wait_for(3) == []
        assert other.state == {}

    async def test_a_commit_of_both_shows_only_its_public_part(
        self, ada: Board, bob: Board
    ) -> None:
        await ada.put(SECRET, 1)
        async with bob.watch("**") as watch:
            async with ada.step() as step:
                step.put("public/plan", await step.get(SECRET))
                step.put("private/ada/thought", HIDDEN)
                step.append("private/ada/log", HIDDEN)
            [told] = await take(watch, 1)
        [logged] = await bob.log(after=1)
        for revised in (told, logged):
            assert [change.key for change in revised.changes] == ["public/plan"]
            assert revised.based_on == ()
            assert HIDDEN not in repr(revised)
        [cause] = await bob.why("public/plan")
        assert (cause.based_on, cause.author) == ((), "ada")

    async def test_a_digest_tells_nothing_of_what_is_hidden(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        """Not even if everything else is known: here the commit's id, and all but four digits."""
        epoch = (await ada.head()).epoch.id
        ops = (Put("public/plan", ONE), Put("private/ada/pin", encode_value(7391)))
        commit = Commit(CommitId("ada", 0, "a1", 1), epoch, ops)
        await (await team.client_of(ada)).link.commit(team.name, commit)
        await ada.put("public/plan", 2)
        [seen] = (await (await team.client_of(bob)).link.log(team.name, 0, limit=1)).entries
        kept, other = (await team.service.host.store.log(team.name, 0, limit=2)).entries
        assert (seen.digest, seen.salt) == (kept.digest, b"")
        assert len(kept.salt) == len(other.salt) == SALT_BYTES
        assert kept.salt != other.salt
        guessed = prepare(commit).digest
        assert seen.digest not in (guessed, log_entry.digest_of(replace(kept, salt=b"")))

    async def test_a_reader_verifies_the_part_that_is_shown(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        """Each another part of the same revision, and the digest is the same; what was changed on
        the way is found. Sealed values count as they are kept."""
        await ada.commit([Put("public/plan", ONE), Put(SECRET, encode_value("x" * 5_000))])
        await ada.commit([Append("inbox/bob/messages", ONE), Grant("public/lock", "ada~1", 60_000)])
        for board, changes in ((ada, [2, 1]), (bob, [1, 2]), (await team.operator(), [2, 2])):
            log = await board.log(verify=True)
            assert [len(revised.changes) for revised in log] == changes
            assert all(revised.verified for revised in log)
        assert not any(revised.verified for revised in await bob.log())
        link = (await team.client_of(bob)).link
        page = await link.log(team.name, 0, limit=9, proofs=True)
        for entry, proof in zip(page.entries, page.proofs, strict=True):
            assert proof is not None
            assert log_entry.is_proved(entry, proof)
            assert not log_entry.is_proved(replace(entry, note="another"), proof)
            moved = replace(entry.changes[0], key="public/another")
            changed = replace(entry, changes=(moved, *entry.changes[1:]))
            assert not log_entry.is_proved(changed, proof)
            assert not log_entry.is_proved(replace(entry, changes=()), proof)

    async def test_revisions_of_others_are_left_out_of_the_log(
        self, ada: Board, bob: Board
    ) -> None:
        for number in range(3):
            await ada.put(SECRET, number)
            await bob.put("public/a", number)
        assert [r.revision for r in await bob.log()] == [2, 4, 6]
        assert [r.revision for r in await bob.log(limit=2)] == [2, 4]
        assert [r.revision for r in await ada.log()] == [1, 2, 3, 4, 5, 6]

    async def test_a_filtered_log_tells_no_more_of_others_than_the_whole_one(
        self, ada: Board, bob: Board
    ) -> None:
        """Neither that they committed, nor which keys of theirs match; of a commit that touches
        both, the readable part."""
        await ada.put(SECRET, HIDDEN)
        await ada.commit([Put(SECRET, ONE), Put("public/a", ONE)], note="both")
        await bob.put("public/b", 1)
        assert await bob.log(pattern=SECRET) == ()
        assert await bob.log(pattern="private/**") == ()
        [both] = await bob.log(author="ada")
        assert (both.revision, [change.key for change in both.changes]) == (2, ["public/a"])
        assert await bob.log(pattern="**") == await bob.log()
        assert [r.revision for r in await ada.log(pattern=SECRET, author="ada")] == [1, 2]
        assert await ada.log(pattern=SECRET, author="bob") == ()

    async def test_a_revision_that_changed_nothing_is_in_its_authors_log_only(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        """So the log of who may read everything has every revision.

        Only a removal that is sent again makes such a revision.
        """
        link = (await team.client_of(ada)).link
        for step, key in enumerate(("public/a", SECRET), 1):
            head = await ada.head()
            again = Commit(CommitId("ada", 7, "again", step), head.epoch.id, (Delete(key),))
            await link.commit(ada.name, replace(again, retry_since=head.revision))
        await bob.put("public/a", 1)
        for board in (ada, await team.operator()):
            assert [(r.revision, len(r.changes)) for r in await board.log()] == [
                (1, 0),
                (2, 0),
                (3, 1),
            ]
        assert [r.revision for r in await bob.log()] == [3]

    async def test_the_operator_sees_everything(self, team: Team, ada: Board) -> None:
        await ada.put(SECRET, HIDDEN)
        operator = await team.operator()
        assert await operator.get(SECRET) == HIDDEN
        assert [e.key for e in (await operator.list("**")).entries] == [SECRET]
        assert [c.key for r in await operator.log() for c in r.changes] == [SECRET]
        assert len(await operator.why(SECRET)) == 1

    async def test_acting_for_an_agent_has_the_rights_of_that_agent_only(self, team: Team) -> None:
        operator = await team.operator()
        ada, bob = operator.as_agent("ada"), operator.as_agent("bob")
        await ada.put(SECRET, HIDDEN)
        assert (ada.agent, await ada.get(SECRET)) == ("ada", HIDDEN)
        with pytest.raises(AccessDenied):
            await bob.get(SECRET)
        assert (await bob.list("private/**")).entries == ()

    @pytest.mark.parametrize("name", ["ada", "operator"])
    async def test_an_agent_does_not_act_for_others(self, bob: Board, name: str) -> None:
        with pytest.raises(AccessDenied):
            await bob.as_agent(name).put(f"private/{name}/a", 1)
        with pytest.raises(AccessDenied):
            async with bob.step(name) as step:
                step.put("public/a", 1)
        assert bob.as_agent("bob") is bob

    async def test_nobody_acts_for_the_service(self, team: Team) -> None:
        operator = await team.operator()
        with pytest.raises(InvalidRequest):
            await operator.as_agent("~system").put("public/a", 1)

    # --- inboxes ----------------------------------------------------------------------------------

    async def test_messages_are_appended_by_all_and_read_by_their_receiver(
        self, ada: Board, bob: Board
    ) -> None:
        async with ada.watch("inbox/ada/**") as watch:
            async with bob.step() as step:
                step.send("ada", "hello")
            [told] = await take(watch, 1)
        assert (told.author, told.changes[0].value) == ("bob", "hello")
        [message] = (await ada.list("inbox/ada/**")).entries
        assert (message.value, message.author) == ("hello", "bob")
        await ada.delete(message.key)

    async def test_an_inbox_is_append_only_for_others(self, ada: Board, bob: Board) -> None:
        key = await bob.append("inbox/ada/messages", "hello")
        attempts = [
            bob.get(key),
            bob.put(key, "forged"),
            bob.delete(key),
            bob.delete_prefix("inbox/ada/messages"),
            bob.increment("inbox/ada/count"),
            bob.commit([Grant("inbox/ada/messages", "bob", 1_000)]),
            bob.commit([Append("inbox/ada/messages", ONE)], conditions=[KeyAt(key, 0)]),
        ]
        for attempt in attempts:
            with pytest.raises(AccessDenied):
                await attempt
        assert (await bob.list("inbox/**")).entries == ()
        assert await bob.log() == ()
        assert await ada.get(key) == "hello"

    async def test_an_appender_does_not_learn_what_is_in_the_way(
        self, ada: Board, bob: Board
    ) -> None:
        await ada.put("inbox/ada/messages/0000000000", HIDDEN)
        with pytest.raises(Conflict) as refused:
            await bob.append("inbox/ada/messages", 1)
        told = refused.value
        assert (told.by, told.at_revision, told.actual, told.current) == (None, 0, -1, None)

    async def test_a_lease_in_public_is_no_secret(self, ada: Board, bob: Board) -> None:
        await ada.commit([Grant("public/lock", "ada", 60_000)])
        with pytest.raises(LeaseHeld) as refused:
            await bob.commit([Grant("public/lock", "bob", 1_000)])
        assert refused.value.holder == "ada"

    async def test_nobody_holds_a_lease_in_the_name_of_another(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        """Who may lock a key neither ends nor keeps the lease of another there, nor takes it for
        him; an admin may."""
        fence = (await ada.commit([Grant("public/lock", "ada~1", 60_000)])).revision
        await ada.commit([Grant("public/lock", "ada~2", 60_000, wait=True)])
        head = await ada.head()
        for op in (
            Grant("public/free", "ada~3", 1_000),
            Grant("public/free", "ada", 1_000),
            Grant("public/lock", "ada~3", 1_000, wait=True),
            Renew("public/lock", "ada~1", fence, 1_000),
            Renew("public/lock", "ada~2", 0, 1_000),
            Release("public/lock", "ada~1", fence),
            Release("public/lock", "ada~2", 0),
        ):
            with pytest.raises(AccessDenied) as refused:
                await bob.commit([op])
            assert (refused.value.right, refused.value.key) == ("hold as", op.holder)
        with pytest.raises(LeaseHeld):
            await bob.commit([Expire("public/lock", "ada~1", fence)])
        assert (await ada.head()).revision == head.revision
        operator = await team.operator()
        await operator.commit([Release("public/lock", "ada~1", fence)])
        assert [lease.holder for lease in await ada.leases()] == ["ada~2"]
