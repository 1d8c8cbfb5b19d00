"""How many commits each agent made, and which were refused: as much as the reader may know."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

import blackboard
from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.core import access
from blackboard.core.access import AccessGrant, Principal, Right, operator
from blackboard.core.checkpoints import Activity, RetentionPolicy
from blackboard.core.commit import Append, Commit, CommitId, KeyAt, PrefixUnchanged, Put
from blackboard.core.history import Tally
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Conflict, StaleEpoch, Unavailable
from blackboard.limits import (
    ACTIVITY_AUTHORS_MAX,
    ACTIVITY_LOG_MAX,
    ACTIVITY_PARTS_MAX,
    REFUSAL_KEYS_MAX,
    REFUSALS_KEPT,
)
from blackboard.server.security.refusals import Refusals
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value
from tests.unit.server.hooked import client_of, service_over

ONE = encode_value(1)
KIM = access.agent("kim")
IN_BETWEEN = Principal("ben", (AccessGrant("private/*/shared/**", frozenset({Right.READ})),))


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service without an archive: what is counted comes from the log."""
    async with service_over(tmp_path) as (found, _):
        yield found


@pytest.fixture
def board(service: Service) -> Board:
    """The board as the operator sees it."""
    return client_of(service).board("main")


def counts(activity: Activity) -> dict[str, tuple[int, ...]]:
    """The commits by author."""
    return {each.author: each.commits for each in activity.authors}


async def told(service: Service, who: Principal, parts: int = 4) -> Activity:
    """What a principal is told of the whole board."""
    return await service.link(who).activity("main", after=0, until=None, parts=parts)


async def test_commits_are_counted_where_they_may_be_seen(service: Service, board: Board) -> None:
    """By author and part of the span, with the time of each part's newest."""
    for number in range(8):
        await board.as_agent(f"a{number % 2}").put("public/k", number)
    await board.as_agent("zoe").put("private/zoe/diary", 1)
    await board.as_agent("zoe").put("private/zoe/shared/plan", 1)
    whole = await told(service, operator(), parts=5)
    assert (whole.after, whole.until, whole.step) == (0, 10, 2)
    assert counts(whole) == {"a0": (1, 1, 1, 1, 0), "a1": (1, 1, 1, 1, 0), "zoe": (0, 0, 0, 0, 2)}
    assert sorted(whole.times_ms) == [*whole.times_ms]
    assert counts(await told(service, KIM)) == {"a0": (2, 1, 1, 0), "a1": (1, 2, 1, 0)}
    assert counts(await told(service, IN_BETWEEN, parts=1)) == {"zoe": (1,)}
    assert (await service.link(KIM).activity("none", after=0, until=None, parts=3)).until == 0
    part = await service.link(KIM).activity("main", after=2, until=4, parts=ACTIVITY_PARTS_MAX)
    assert counts(part) == {"a0": (1, 0), "a1": (0, 1)}


async def test_the_archive_and_the_log_count_the_same(tmp_path: Path) -> None:
    """With restores and a branch; whatever is archived already."""
    async with blackboard.open(tmp_path) as client:
        board = client.board("main")
        for number in range(9):
            await board.as_agent(f"a{number % 2}").put("public/k", number)
        await board.restore(5)
        branch = await board.branch("other", 7)
        await branch.put("public/k", "else")
        for name, at in (("main", board), ("other", branch)):
            log, head = await at.log(), await at.head()
            found = await at._link.activity(name, after=0, until=None, parts=3)
            assert found.until == head.revision
            assert sum(map(sum, counts(found).values())) == len(
                [each for each in log if any(c.kind in ("put", "delete") for c in each.changes)]
            )
        assert [epoch.cause for epoch in found.epochs] == ["branch"]


async def test_what_was_pruned_is_left_out(tmp_path: Path) -> None:
    """Also for a reader with a wildcard in the middle, for whom the log is scanned."""
    store = await SqliteStore.at(tmp_path, "memory")
    async with Service(store, archive=await archive_beside(tmp_path)) as service:
        zoe = client_of(service, "zoe").board("main")
        for number in range(3):
            await zoe.put("private/zoe/shared/plan", number)
        board = client_of(service).board("main")
        await board.checkpoint()
        await board.prune(RetentionPolicy(last=0, days=0, named=False, history_ms=0))
        await store.compact("main", (await board.head()).revision)
        assert sum(map(sum, counts(await told(service, IN_BETWEEN)).values())) == 0
        head = (await zoe.put("private/zoe/shared/plan", 4)).revision
        found = await told(service, IN_BETWEEN, parts=1)
        assert found.until == head
        assert counts(found) == {"zoe": (1,)}


def test_only_the_most_active_are_listed() -> None:
    """ACTIVITY_AUTHORS_MAX of them, by name, and whether there are more."""
    tally = Tally(0, 10, 1)
    for number in range(ACTIVITY_AUTHORS_MAX):
        tally.add(f"a{number:03}", 0, 2, 7)
    assert not tally.activity(10).more_authors
    tally.add("zoe", 0, 1, 9)
    found = tally.activity(10)
    assert found.more_authors
    assert len(found.authors) == ACTIVITY_AUTHORS_MAX
    assert "zoe" not in counts(found)


def test_a_span_is_cut_into_parts() -> None:
    """All of one length, and never more than there are revisions."""
    for after, until, parts in ((0, 0, 5), (3, 4, 5), (0, 100, 7), (0, ACTIVITY_LOG_MAX, 512)):
        tally = Tally(after, until, parts)
        found = tally.activity(until)
        assert len(found.times_ms) <= parts
        assert len(found.times_ms) * found.step >= until - after


async def test_refusals_are_remembered(service: Service, board: Board) -> None:
    """Who was in the way, and what was said; for those who may read all that the commit named."""
    await board.as_agent("ada").put("public/plan", 1)
    with pytest.raises(Conflict):
        await board.as_agent("bob").put("public/plan", 2, expected=0, note="too late")
    with pytest.raises(Conflict):
        await board.as_agent("bob").put("private/bob/diary", 2, expected=7)
    first, second = await service.link(operator()).refusals("main", after=0)
    assert (first.author, first.code, first.key, first.by) == (
        "bob",
        "conflict",
        "public/plan",
        "ada",
    )
    assert "revision 1" in first.message
    assert first.note == "too late"
    assert [*await service.link(operator()).refusals("main", after=first.number)] == [second]
    assert [*await service.link(KIM).refusals("main", after=0)] == [first]
    assert [*await service.link(access.agent("bob")).refusals("main", after=0)] == [first, second]
    assert [*await service.link(KIM).refusals("none", after=0)] == []


def commit_of(keys: int) -> Commit:
    """A commit of ada that names that many keys."""
    ops = tuple(Put(f"public/{number}", ONE) for number in range(keys))
    return Commit(CommitId("ada", 0, "x", 1), "e", ops, (KeyAt("public/0", 3),))


def test_what_is_remembered_is_bounded() -> None:
    """REFUSALS_KEPT of them; of REFUSAL_KEYS_MAX keys each, or only the author may see it."""
    clock = iter(range(10**6))
    refusals = Refusals(lambda: next(clock))
    refusals.note(commit_of(1), Unavailable(what="engine", reason="down"))
    for _ in range(REFUSALS_KEPT + 1):
        refusals.note(commit_of(1), StaleEpoch("a", "b", 2, "restore", 3, 4))
    found = refusals.shown(operator(), lambda key: True, 0)
    assert len(found) == REFUSALS_KEPT
    assert found[0].number == 2
    for keys, is_shown in ((REFUSAL_KEYS_MAX, True), (REFUSAL_KEYS_MAX + 1, False)):
        refusals.note(commit_of(keys), Conflict("public/0", 3, 4))
        [*_, newest] = refusals.shown(operator(), lambda key: True, 0)
        assert newest.code == "conflict"
        seen = refusals.shown(KIM, lambda key: key.startswith("public/"), 0)
        assert (newest in seen) is is_shown
    assert refusals.shown(access.agent("ada"), lambda key: False, 0)[-1].code == "conflict"
    credential = access.Credential("ada", ("narrowed", "whole"), 0)
    narrowed = replace(access.agent("ada"), name="ada.helper", credential=credential)
    assert refusals.shown(narrowed, lambda key: False, 0) == []


async def test_a_prefix_that_was_in_the_way_names_what_is_below_it(
    service: Service, board: Board
) -> None:
    """The key is shown only to readers of all that is below the prefix."""
    await board.put("public/plan/secret", 1)
    ada, epoch = service.link(access.agent("ada")), (await board.head()).epoch.id
    for step, prefix in enumerate(("public/plan", "public")):
        name, ops = CommitId("ada", 0, "x", step), (Put("public/other", ONE),)
        with pytest.raises(Conflict, match="secret"):
            await ada.commit("main", Commit(name, epoch, ops, (PrefixUnchanged(prefix, 0),)))
    for patterns, count in (
        (["public/**"], 2),
        (["public/other", "public/plan/**"], 1),
        (["public/*"], 0),
        (["public/*", "public/*/*"], 0),
        (["public/other", "public/plan", "public/p/**"], 0),
    ):
        grants = tuple(access.parse_grant(f"{pattern}=read") for pattern in patterns)
        seen = await service.link(Principal("eve", grants)).refusals("main", after=0)
        assert len(seen) == count, patterns


def test_a_token_of_the_same_name_with_fewer_rights_sees_less() -> None:
    """It may have been given to a tool."""
    refusals, own = Refusals(), ("private/ada/diary", "public/report/1", "inbox/bob/messages")
    for step, key in enumerate(own):
        op = Append(key, ONE) if key.startswith("inbox") else Put(key, ONE)
        refusals.note(Commit(CommitId("ada", 0, "x", step), "e", (op,)), Conflict(key, 0, 4))
    credential = access.Credential("ada", ("whole",), 0)
    whole = replace(access.agent("ada"), credential=credential)
    tool = replace(whole, grants=(access.parse_grant("public/report/**=write"),))
    told = [
        [each.key for each in refusals.shown(reader, lambda _: False, 0)]
        for reader in (whole, tool)
    ]
    assert told == [[*own], ["public/report/1"]]
