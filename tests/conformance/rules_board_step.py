"""Steps: tracked reads, gathered writes, one commit; and running them again."""
# ruff: noqa: PT012 - a step is a block, and it is the end of the block that is refused

import pytest

from blackboard.client.board import Board
from blackboard.client.step import Step
from blackboard.core.commit import ABSENT, Grant, HeldFence, KeyAt
from blackboard.errors import Conflict, Fenced, InvalidRequest, LocalProtocolError, TypeMismatch
from tests.conformance.team import Team


class StepRules:
    """What a step promises its agent."""

    async def test_a_step_is_one_commit_of_public_and_private_keys(self, ada: Board) -> None:
        async with ada.step(note="valued") as step:
            step.put("public/value", 1)
            step.put("private/ada/notes", "guessed")
            step.append("public/log", "done")
            step.increment("public/n", 5)
            step.send("bob", {"see": "public/value"})
            assert (await ada.head()).revision == 0
        assert step.receipt is not None
        assert step.receipt.results == (
            None,
            None,
            "public/log/0000000000",
            5,
            "inbox/bob/messages/0000000000",
        )
        [revised] = await ada.log()
        assert (revised.revision, revised.note, len(revised.changes)) == (1, "valued", 4)

    async def test_a_step_that_wants_nothing_commits_nothing(self, ada: Board) -> None:
        async with ada.step() as step:
            await step.get("public/a")
        assert step.receipt is None
        assert (await ada.head()).revision == 0

    async def test_a_block_that_raises_commits_nothing(self, ada: Board) -> None:
        with pytest.raises(ZeroDivisionError):
            async with ada.step() as step:
                step.put("public/a", 1)
                step.put("public/b", 1 // 0)
        assert step.receipt is None
        assert (await ada.head()).revision == 0

    async def test_a_step_is_used_inside_its_block_only(self, ada: Board) -> None:
        step = ada.step()
        with pytest.raises(LocalProtocolError):
            step.put("public/a", 1)
        async with step:
            step.put("public/a", 1)
        with pytest.raises(LocalProtocolError):
            step.put("public/a", 2)
        with pytest.raises(LocalProtocolError):
            step.delete("public/a")
        with pytest.raises(LocalProtocolError):
            await step.get("public/a")

    # --- what it sees -----------------------------------------------------------------------------

    async def test_a_step_sees_its_own_writes(self, ada: Board) -> None:
        await ada.put("public/old", 1)
        await ada.put("public/n", 40)
        async with ada.step() as step:
            step.put("public/a", {"x": 1})
            assert await step.get("public/a") == {"x": 1}
            assert await step.merge("public/a", {"y": 2}) == {"x": 1, "y": 2}
            assert await step.get("public/a") == {"x": 1, "y": 2}
            step.increment("public/n", 2)
            assert await step.get("public/n") == 42
            step.increment("public/fresh")
            assert await step.get("public/fresh") == 1
            step.delete("public/a")
            assert await step.get("public/a", default="gone") == "gone"
            step.delete_prefix("public")
            assert await step.get("public/old") is None
            step.increment("public/n", 7)
            assert await step.get("public/n") == 7
        listing = await ada.list("public/**")
        assert {e.key: e.value for e in listing.entries} == {"public/n": 7}

    async def test_a_step_tells_early_that_a_text_cannot_be_counted(self, ada: Board) -> None:
        await ada.put("public/text", "x")
        seen: list[int] = []
        with pytest.raises(TypeMismatch):
            async with ada.step() as step:
                step.increment("public/text")
                seen.append(await step.get("public/text"))
        assert (seen, (await ada.head()).revision) == ([], 1)

    async def test_none_that_was_put_is_not_absent(self, ada: Board) -> None:
        async with ada.step() as step:
            step.put("public/a", None)
            assert await step.get("public/a", default="absent") is None

    # --- what it is conditioned on ----------------------------------------------------------------

    async def test_a_step_is_refused_if_what_it_read_changed(self, ada: Board, bob: Board) -> None:
        await ada.put("public/a", 1)
        with pytest.raises(Conflict) as refused:
            async with ada.step() as step:
                step.put("public/b", await step.get("public/a"))
                await bob.put("public/a", 2)
        assert (refused.value.key, refused.value.current) == ("public/a", 2)
        assert await ada.get("public/b") is None

    async def test_a_step_is_refused_if_what_was_absent_came(self, ada: Board, bob: Board) -> None:
        with pytest.raises(Conflict) as refused:
            async with ada.step() as step:
                assert await step.get("public/a") is None
                step.put("public/a", 1)
                await bob.put("public/a", 2)
        assert (refused.value.expected, refused.value.by) == (ABSENT, "bob")

    async def test_a_step_that_validates_nothing_wins(self, ada: Board, bob: Board) -> None:
        async with ada.step(validate=False) as step:
            await step.get("public/a")
            step.put("public/a", 1)
            await bob.put("public/a", 2)
        assert await ada.get("public/a") == 1

    async def test_what_a_step_did_not_read_may_change(self, ada: Board, bob: Board) -> None:
        async with ada.step() as step:
            await step.get("public/a")
            step.put("public/b", 1)
            await bob.put("public/c", 2)
        assert step.receipt is not None

    @pytest.mark.parametrize("change", ["new", "other", "removed"])
    async def test_a_listed_subtree_is_noticed_as_a_whole(
        self, ada: Board, bob: Board, change: str
    ) -> None:
        await ada.put("public/tasks/1", "a")
        await ada.put("public/tasks/2", "b")
        with pytest.raises(Conflict):
            async with ada.step() as step:
                step.put("public/count", len((await step.list("public/tasks/**")).entries))
                match change:
                    case "new":
                        await bob.put("public/tasks/3", "c")
                    case "other":
                        await bob.put("public/tasks/2", "z")
                    case _:
                        await bob.delete("public/tasks/1")
        assert await ada.get("public/count") is None

    async def test_what_matches_another_pattern_is_noticed_by_key(
        self, ada: Board, bob: Board
    ) -> None:
        await ada.put("public/1/task", "a")
        with pytest.raises(Conflict):
            async with ada.step() as step:
                await step.list("public/*/task")
                step.put("public/count", 1)
                await bob.put("public/1/task", "z")

    async def test_a_listing_over_several_namespaces_is_noticed_by_key(
        self, ada: Board, bob: Board
    ) -> None:
        """`private` holds nothing itself, so it is no prefix that a condition could name."""
        await ada.put("private/ada/task", "a")
        async with ada.step() as step:
            await step.list("private/**")
            await step.list("**")
            step.put("public/count", 1)
        await ada.put("public/1/task", "a")
        with pytest.raises(Conflict):
            async with ada.step() as step:
                await step.list("**")
                step.put("public/count", 2)
                await bob.put("public/1/task", "z")

    @pytest.mark.parametrize("pattern", ["public/**", "public/*/*", "**"])
    async def test_writes_in_books_do_not_conflict_with_a_full_listing(
        self, ada: Board, bob: Board, pattern: str
    ) -> None:
        await bob.put("public/~agents/bob", 1)
        async with ada.step() as step:
            await step.list(pattern)
            await bob.put("public/~agents/bob", 2)
            await bob.put("public/~declared/bob", 1)
            step.put("public/copy", 1)
        assert step.receipt is not None

    @pytest.mark.parametrize("order", ["list get", "get list", "get", "list saw"])
    @pytest.mark.parametrize("pattern", ["public/**", "**"])
    async def test_a_book_that_is_named_counts_whatever_is_listed_too(
        self, ada: Board, bob: Board, order: str, pattern: str
    ) -> None:
        """A listing of everything is not about books, so it stands for no read of one."""
        book = "public/~desk/plan"
        await bob.put(book, "old")
        with pytest.raises(Conflict) as refused:
            async with ada.step() as step:
                for read in order.split():
                    if read == "list":
                        entries = (await step.list(pattern)).entries
                    elif read == "saw":
                        step.saw(next(entry for entry in entries if entry.key == book))
                    else:
                        await step.get(book)
                await bob.put(book, "new")
                step.put("public/copy", "of the old one")
        assert refused.value.key == book

    @pytest.mark.parametrize("pattern", ["public/~agents/**", "public/~agents/*"])
    async def test_a_listing_of_a_book_conflicts_when_it_changed(
        self, ada: Board, bob: Board, pattern: str
    ) -> None:
        await bob.put("public/~agents/bob", 1)
        with pytest.raises(Conflict) as refused:
            async with ada.step() as step:
                await step.list(pattern)
                await bob.put("public/~agents/bob", 2)
                step.put("public/copy", 1)
        assert refused.value.key == "public/~agents/bob"

    @pytest.mark.parametrize("key", ["public/zz", "public/plan/~draft", "public/a~"])
    async def test_a_full_listing_conflicts_with_every_other_change(
        self, ada: Board, bob: Board, key: str
    ) -> None:
        with pytest.raises(Conflict) as refused:
            async with ada.step() as step:
                await step.list("public/**")
                await bob.put("public/~agents/bob", 1)
                await bob.put(key, 1)
                step.put("public/copy", 1)
        assert refused.value.key == key

    async def test_a_key_that_changed_between_reading_and_listing_it_is_noticed(
        self, ada: Board, bob: Board
    ) -> None:
        """The listing as a whole did not change since: only the earlier read tells."""
        await ada.put("public/tasks/1", "a")
        with pytest.raises(Conflict) as refused:
            async with ada.step() as step:
                before = await step.get("public/tasks/1")
                await bob.put("public/tasks/1", "z")
                listing = await step.list("public/tasks/**")
                step.put("public/copy", [before, listing.entries[0].value])
        assert refused.value.key == "public/tasks/1"

    async def test_a_key_that_vanished_between_reading_and_listing_it_is_noticed(
        self, ada: Board, bob: Board
    ) -> None:
        await ada.put("public/tasks/1", "a")
        with pytest.raises(Conflict):
            async with ada.step() as step:
                await step.get("public/tasks/1")
                await bob.delete("public/tasks/1")
                await step.list("public/tasks/**")
                step.put("public/copy", 1)

    async def test_a_step_may_write_what_it_listed(self, ada: Board) -> None:
        await ada.put("public/tasks/1", "a")
        async with ada.step() as step:
            for entry in (await step.list("public/tasks/**")).entries:
                await step.get(entry.key)
                step.put(entry.key, "done")
        assert await ada.get("public/tasks/1") == "done"

    async def test_own_conditions_and_leases_count(self, ada: Board) -> None:
        fence = (await ada.commit([Grant("public/lock", "ada", 60_000)])).revision
        with pytest.raises(Conflict):
            async with ada.step() as step:
                step.expect(KeyAt("public/a", 7))
                step.put("public/b", 1)
        with pytest.raises(Fenced):
            async with ada.step() as step:
                step.rely_on(HeldFence("public/lock", "ada", fence + 1))
                step.put("public/b", 1)
        async with ada.step() as step:
            step.rely_on(HeldFence("public/lock", "ada", fence))
            step.put("public/b", 1)
        assert step.receipt is not None

    # --- running it again -------------------------------------------------------------------------

    async def test_a_step_runs_again_on_fresh_state(self, ada: Board, bob: Board) -> None:
        runs: list[int] = []

        async def add_one(step: Step) -> int:
            number: int = await step.get("public/n", 0)
            runs.append(number)
            if len(runs) < 3:
                await bob.put("public/n", 10 * len(runs))
            step.put("public/n", number + 1)
            return number + 1

        assert await ada.run_step("ada", add_one) == 21
        assert runs == [0, 10, 20]
        assert await ada.get("public/n") == 21

    async def test_a_step_that_never_fits_gives_up(self, ada: Board, bob: Board) -> None:
        runs = 0

        async def unlucky(step: Step) -> None:
            nonlocal runs
            runs += 1
            await step.get("public/n")
            await bob.increment("public/n")
            step.put("public/n", 0)

        with pytest.raises(Conflict):
            await ada.run_step("ada", unlucky, attempts=3)
        assert (runs, await ada.get("public/n")) == (3, 3)

    async def test_what_a_step_raises_is_raised_once(self, ada: Board) -> None:
        runs = 0

        async def broken(step: Step) -> None:
            nonlocal runs
            runs += 1
            step.put("public/a", 1)
            raise KeyError("mine")

        with pytest.raises(KeyError):
            await ada.run_step("ada", broken)
        assert (runs, (await ada.head()).revision) == (1, 0)
        with pytest.raises(InvalidRequest, match="attempts"):
            await ada.run_step("ada", broken, attempts=0)

    async def test_an_operator_takes_steps_for_agents_with_their_names_and_rights(
        self, team: Team
    ) -> None:
        operator = await team.operator()
        async with operator.step("ada") as step:
            step.put("private/ada/a", 1)
        assert step.agent == "ada"
        entry = await operator.entry("private/ada/a")
        assert entry is not None
        assert entry.author == "ada"
