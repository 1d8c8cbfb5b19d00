"""The rules of the board that are tried on the JavaScript client, over a real WebSocket."""

# ruff: noqa: PT012 - what is tried is the whole block

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import pytest
from anyio.lowlevel import checkpoint

from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.core.access import Principal, operator
from blackboard.engines.base import Store
from blackboard.errors import BoardFrozen, Fenced, InvalidRequest
from blackboard.limits import Limits
from blackboard.server.service import Service
from tests.conformance.board_suite import BoardAgents
from tests.conformance.edge import serving
from tests.conformance.js.client import JsClaim, JsClient, JsLock
from tests.conformance.js.process import node
from tests.conformance.rules_board_branch import BranchRules
from tests.conformance.rules_board_checkpoint import CheckpointRules
from tests.conformance.rules_board_claim import HOUR_MS, ClaimRules, steal
from tests.conformance.rules_board_lock import LockRules
from tests.conformance.rules_board_past import PastRules
from tests.conformance.rules_board_read import BoardReadRules
from tests.conformance.rules_board_restore import RestoreRules
from tests.conformance.rules_board_step import StepRules
from tests.conformance.rules_board_watch import WatchRules
from tests.conformance.rules_board_write import BoardWriteRules
from tests.conformance.shared import Running
from tests.conformance.team import PATIENCE_S, Team
from tests.conformance.workers import Block
from tests.waiting import wait_until

CHOSEN = (
    "commit_pauses_ms connect_pauses_ms renewals_per_ttl request_timeout_ms commit_timeout_ms"
).split()
"""Limits of the client that a test may lower, and that both clients have."""


def chosen(limits: Limits) -> dict[str, Any]:
    """What of `limits` the JavaScript client takes."""
    groups = (limits.client, limits.connection)
    known = {one.name: getattr(group, one.name) for group in groups for one in fields(group)}
    return {name: known[name] for name in CHOSEN}


HELD = "public/lock"
LONG_MS = (2**31, 30 * 24 * 3_600_000)
"""Longer than a timer of JavaScript can run."""
NOT_HERE = {
    "a watch is opened by its call, a step made for its body: see clients/js/test": """
        test_what_is_no_token_is_refused_at_once test_a_watch_is_used_inside_its_block_only
        test_a_step_is_used_inside_its_block_only""",
    "it speaks to what is below the client": """
        test_a_commit_sent_again_is_applied_once_and_answered_as_at_first
        test_a_commit_of_another_epoch_is_refused_with_all_that_is_to_know
        test_the_same_request_gets_the_same_answer test_names_that_would_be_misread_are_refused
        test_pages_of_checkpoints_are_put_together test_the_same_request_restores_once
        test_the_same_request_branches_once test_one_of_many_concurrent_checkpoints_gets_the_name
        test_a_filtered_log_is_looked_through_page_by_page
        test_a_request_id_is_any_text test_a_request_id_that_is_none_is_refused""",
    "files are read and written by Python": """
        test_a_file_becomes_a_board_again test_many_entries_go_in_pages
        test_a_file_that_was_changed_is_refused test_a_bit_that_flips_anywhere_in_a_file_is_noticed
        test_a_value_that_was_exchanged_is_found_by_the_sealed_digest
        test_what_is_no_file_is_refused test_files_are_for_the_operator
        test_an_import_does_not_replace_a_board""",
    "it uses what only Python has: attach, names by time, a step of another agent, documents": """
        test_who_is_there_has_done_nothing_by_deleting_nothing
        test_who_may_only_read_begins_no_board test_without_a_name_it_gets_one_from_the_time
        test_pruning_keeps_what_the_policy_says test_what_a_branch_needs_is_not_pruned
        test_an_operator_goes_on_as_agents_once_the_board_is_refreshed
        test_the_restoring_operator_acts_as_agents_at_once
        test_a_step_of_before_a_restore_is_refused_after_its_board_was_refreshed
        test_a_board_of_as_agent_gets_the_error_though_its_parent_was_refreshed
        test_long_diffs_come_page_by_page test_moments_of_all_kinds_are_restored
        test_leases_end_and_their_blocks_are_cancelled test_a_branch_begins_as_the_board_was
        test_who_waits_for_a_lease_does_not_wait_for_ever
        test_moments_that_are_none_are_refused""",
    "it looks at manifests, which are passed on as they came": """
        test_its_manifest_tells_what_was_sealed test_its_manifest_shows_each_what_it_may_read
        test_an_unknown_name_is_reported test_the_abandoned_future_stays_and_can_come_back
        test_restoring_under_writers_and_watchers
        test_the_past_of_others_is_as_private_as_their_present""",
    "its functions cannot be called from another process": """
        test_a_large_delete_tells_how_far_it_is""",
    "a claim is made and run by one call: the refusals are tried in test_board_javascript.py": """
        test_a_claim_is_of_one_namespace test_a_claim_is_for_one_block
        test_a_number_of_tries_that_is_none_is_refused""",
    "its body is not cancelled, and commits through `task.board` only carry its fence": """
        test_the_commits_of_the_block_carry_the_fence test_losing_a_task_is_reported_at_once
        test_a_cancelled_block_returns_its_task test_a_claim_can_be_cancelled_at_any_moment""",
    "they act within the reads of a Python client": """
        test_a_dead_task_that_changes_meanwhile_is_not_removed
        test_an_attempt_that_began_and_ended_meanwhile_is_counted""",
    "it takes plain values and encodes them itself": """
        test_bytes_that_are_the_form_of_no_value_are_refused
        test_a_value_in_a_longer_form_is_kept_in_its_only_one""",
    "it depends on the archive being slower than the client": """
        test_why_says_what_it_cannot_show""",
}
"""Rules that speak of something else than what both clients have, by the reason."""


@asynccontextmanager
async def from_node(store: Store, directory: Path, limits: Limits) -> AsyncIterator[Running]:
    """A service over `store`, with an archive in an empty directory; a socket before it, and a Node
    process with the clients.

    Each principal has a connection and a token of its own.
    """
    archive = await archive_beside(directory)
    async with (
        Service(store, archive=archive, limits=limits) as service,
        serving(service) as edge,
        node() as driver,
    ):

        @asynccontextmanager
        async def connect(principal: Principal) -> AsyncIterator[Client]:
            given = {"token": edge.token(principal), "limits": chosen(limits)}
            client = await JsClient.connect(driver, edge.url, **given)
            try:
                yield cast(Client, client)
            finally:
                await client.aclose()

        yield Running(service, connect)


class OwnRules:
    """What is said in another way than in Python."""

    @pytest.mark.parametrize("pattern", ["**", "*/tasks", "private/**", "public", "other/*"])
    async def test_a_claim_beyond_one_namespace_is_refused(self, ada: Board, pattern: str) -> None:
        with pytest.raises(InvalidRequest, match="pattern"):
            await ada.claim(pattern).__aenter__()

    @pytest.mark.parametrize("tries_max", [0, -1, 1.5, "2"])
    async def test_tries_that_are_none_are_refused(self, ada: Board, tries_max: Any) -> None:
        with pytest.raises(InvalidRequest, match="tries_max"):
            await ada.claim("public/tasks/*", tries_max=tries_max).__aenter__()

    async def test_an_aborted_wait_for_a_task_leaves_nothing(self, ada: Board) -> None:
        await ada.put("public/other", 1)
        waiting = asyncio.create_task(ada.claim("public/tasks/*").__aenter__())
        await checkpoint()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        await ada.put("public/tasks/1", 1)
        assert (await ada.claims(), await ada.leases()) == ([], ())

    async def test_the_board_of_a_task_relies_on_its_claim(self, ada: Board, team: Team) -> None:
        await ada.put("public/tasks/1", 1)
        claim = cast(JsClaim, ada.claim("public/tasks/*", ttl_ms=HOUR_MS))
        with pytest.raises(Fenced):
            async with claim as task:
                board = await task.board()
                await board.put("public/work", "mine")
                await steal(await team.operator())
                await board.put("public/work", "late")
        assert await ada.get("public/work") == "mine"
        [lease] = await ada.leases()
        assert lease.holder == "thief~1"

    @pytest.mark.parametrize(("tries_max", "state"), [(5, "returned"), (1, "dead")])
    async def test_a_task_is_given_back_though_a_lock_was_lost(
        self, ada: Board, team: Team, tries_max: int, state: str
    ) -> None:
        await ada.put("public/tasks/1", 1)
        lock = cast(JsLock, ada.lock(HELD, ttl_ms=HOUR_MS))
        with pytest.raises(Fenced) as refused:
            async with lock:
                board = await lock.board()
                task = board.claim("public/tasks/*", ttl_ms=HOUR_MS, tries_max=tries_max)
                async with task:
                    await steal(await team.operator(), HELD)
                    await board.put("public/work", "late")
        assert refused.value.key == HELD
        assert [(task.key, task.state) for task in await ada.claims()] == [
            ("public/tasks/1" if state == "returned" else "public/~dead/tasks/1", state)
        ]

    async def test_what_is_done_under_a_lock_in_another_name_relies_on_it(
        self, team: Team, ada: Board
    ) -> None:
        boss = await team.operator()
        lock = cast(JsLock, boss.lock(HELD, ttl_ms=HOUR_MS))
        with pytest.raises(Fenced):
            async with lock:
                as_ada = (await lock.board()).as_agent("ada")
                await as_ada.put("public/work", "mine")
                await steal(boss, HELD)
                await as_ada.put("public/work", "late")
        assert await ada.get("public/work") == "mine"

    async def test_the_lock_of_a_private_key_is_not_told_in_another_name(self, team: Team) -> None:
        boss = await team.operator()
        lock = cast(JsLock, boss.lock(f"private/{boss.agent}/turn"))
        async with lock:
            as_ada = (await lock.board()).as_agent("ada")
            await as_ada.put("public/work", "mine")
        assert await boss.get("public/work") == "mine"

    @pytest.mark.parametrize("timeout_ms", LONG_MS)
    async def test_a_lock_may_be_waited_for_longer_than_a_timer_runs(
        self, ada: Board, bob: Board, timeout_ms: int
    ) -> None:
        async def is_in_the_queue() -> bool:
            return waiting.task.done() or any(lease.waiters for lease in await ada.leases(HELD))

        async with ada.lock(HELD):
            waiting = Block(bob.lock(HELD, timeout_ms=timeout_ms))
            await wait_until(is_in_the_queue, timeout_s=PATIENCE_S)
        await waiting.entered()
        await waiting.end()

    async def test_a_board_is_rewound_to_a_revision_or_before_one(self, team: Team) -> None:
        board = await team.operator()
        for number in (1, 2, 3):
            await board.put("public/a", number)
        assert (await board.rewind(before=3, note="three was wrong")).revision > 3
        assert await board.get("public/a") == 2
        await board.rewind(to=1)
        assert await board.get("public/a") == 1
        wrong: list[dict[str, Any]] = [{}, {"to": 1, "before": 2}, {"before": 0}]
        for moments in wrong:
            with pytest.raises(InvalidRequest):
                await board.rewind(**moments)

    async def test_a_board_is_frozen_and_thawed(self, team: Team, ada: Board) -> None:
        admin = await team.client(operator())
        await ada.put("public/a", 1)
        freeze = await admin.freeze(team.name, note="nonsense in the plan")
        assert await admin.freeze(team.name, note="again") == freeze
        with pytest.raises(BoardFrozen) as refused:
            await ada.put("public/a", 2)
        assert refused.value.note == freeze.note == "nonsense in the plan"
        assert await admin.thaw(team.name) == freeze
        assert await admin.thaw(team.name) is None
        await ada.put("public/a", 2)
        await (await team.operator()).restore(1)
        assert (await admin.freeze(team.name)).revision > freeze.revision


class JavaScriptRules(
    OwnRules,
    BoardAgents,
    BoardWriteRules,
    BoardReadRules,
    StepRules,
    WatchRules,
    LockRules,
    ClaimRules,
    CheckpointRules,
    PastRules,
    RestoreRules,
    BranchRules,
):
    """What the client has, except what is named above."""


for _name in " ".join(NOT_HERE.values()).split():
    assert hasattr(JavaScriptRules, _name), f"{_name} is no rule"
    setattr(JavaScriptRules, _name, None)
