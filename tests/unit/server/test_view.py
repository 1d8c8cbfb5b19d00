"""Watchers with different rights share a view, and each gets exactly what its own grants allow."""

import itertools
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import anyio
import pytest
from hypothesis import HealthCheck, event, given, settings, strategies as st

from blackboard.client.link import Delivery, Stream, WatchRequest
from blackboard.core import access, history
from blackboard.core.access import AccessGrant, Principal, Right
from blackboard.core.commit import (
    RESTORE,
    Change,
    ChangeKind,
    CommitId,
    Epoch,
    LogEntry,
    Put,
)
from blackboard.core.history import LARGE_CHANGES
from blackboard.core.path import parse_patterns
from blackboard.core.view import View
from blackboard.limits import KEY_BYTES_MAX, PATTERNS_MAX
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value
from tests.unit.server.hooked import HookedStore, client_of, service_over

PATIENCE_S = 60.0
ONE = encode_value(1)
ANN, BOB, CY = map(access.agent, ("ann", "bob", "cy"))
KEYS = st.builds(
    lambda namespace, rest: "/".join([namespace, *rest]),
    st.sampled_from(("public", "private/ann", "private/bob", "inbox/ann")),
    st.lists(st.sampled_from(("a", "b")), min_size=1, max_size=3),
)
PATTERNS = st.builds(
    lambda start, middle, last: "/".join([start, *middle, last]),
    st.sampled_from(("public", "private/ann", "private/*", "inbox/*", "*", "*/*")),
    st.lists(st.sampled_from(("a", "b", "*")), max_size=2),
    st.sampled_from(("a", "b", "*", "**")),
)
RIGHTS = st.frozensets(st.sampled_from((Right.READ, Right.WRITE)), min_size=1)
GRANTS = st.lists(st.builds(AccessGrant, PATTERNS, RIGHTS), max_size=4).map(tuple)
TEAMS = st.lists(
    st.tuples(
        GRANTS | st.sampled_from([ANN.grants, BOB.grants, access.operator().grants]),
        st.lists(PATTERNS | st.sampled_from(["public/**", "**"]), min_size=1, max_size=2),
    ),
    min_size=1,
    max_size=6,
)
COMMITS = st.lists(
    st.tuples(
        st.lists(KEYS, min_size=1, max_size=4, unique=True),
        st.lists(KEYS, max_size=3, unique=True),
    ),
    min_size=1,
    max_size=4,
)
_numbers = itertools.count()


@pytest.fixture
async def parts(tmp_path: Path) -> AsyncIterator[tuple[Service, HookedStore]]:
    """A service, and its engine."""
    async with service_over(tmp_path) as parts:
        yield parts


async def told(stream: Stream, until: int) -> list[LogEntry]:
    """What a watcher gets up to revision `until`."""
    found: list[LogEntry] = []
    with anyio.fail_after(PATIENCE_S):
        await stream.request_progress()
        while stream.position.revision < until:
            found += (await anext(aiter(stream))).revisions
    return found


@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(team=TEAMS, commits=COMMITS)
async def test_each_watcher_of_a_team_gets_what_its_own_grants_allow(
    parts: tuple[Service, HookedStore],
    team: list[tuple[tuple[AccessGrant, ...], list[str]]],
    commits: list[tuple[list[str], list[str]]],
) -> None:
    """Changes, and what they are based on; compared with the definition, entry by entry."""
    service, store = parts
    name = f"board{next(_numbers)}"
    board = client_of(service).board(name)
    await board.put("public/begun", 1)
    async with AsyncExitStack() as stack:
        streams = []
        for number, (grants, patterns) in enumerate(team):
            link = service.link(Principal(f"agent{number}", grants))
            request = WatchRequest(tuple(patterns))
            streams.append(await stack.enter_async_context(link.watch(name, request)))
        for keys, grounds in commits:
            based_on = [(key, 1) for key in grounds]
            receipt = await board.commit([Put(key, ONE) for key in keys], based_on=based_on)
        head = receipt.revision
        found = [await told(stream, head) for stream in streams]
    log = (await store.log(name, 1, limit=100)).entries
    for (grants, patterns), entries in zip(team, found, strict=True):
        wanted, readable = parse_patterns(patterns), access.readable(grants)
        shown = [history.visible(entry, wanted, readable) for entry in log]
        assert entries == [entry for entry in shown if entry is not None]
    event(f"{len({View.of(parse_patterns(p), g, coalesce=False) for g, p in team})} views")


async def test_agents_that_may_read_the_same_share_their_deliveries(
    parts: tuple[Service, HookedStore],
) -> None:
    """Each agent has grants of its own name, which say nothing about `public`. Only the agent whose
    private key a revision is based on gets to know that."""
    service, _ = parts
    board = client_of(service).board("main")
    await board.put("private/ann/plan", 1)
    async with AsyncExitStack() as stack:
        watching = [
            await stack.enter_async_context(
                service.link(agent).watch("main", WatchRequest(("public/**",)))
            )
            for agent in (ANN, BOB, CY)
        ]

        async def next_of_each() -> list[Delivery]:
            with anyio.fail_after(PATIENCE_S):
                return [await anext(aiter(stream)) for stream in watching]

        await board.put("public/a", 1)
        ann, bob, cy = await next_of_each()
        assert ann is bob is cy
        grounds = [("public/a", 2), ("private/ann/plan", 1)]
        await board.commit([Put("public/a", ONE)], based_on=grounds)
        ann, bob, cy = await next_of_each()
    assert ann.revisions[0].based_on == tuple(grounds)
    assert bob.revisions[0].based_on == (("public/a", 2),)
    assert bob is cy


def view_of(grants: tuple[AccessGrant, ...], *patterns: str) -> View:
    """The view of a watcher."""
    return View.of(parse_patterns(patterns), grants, coalesce=False)


@given(GRANTS, st.lists(PATTERNS, min_size=1, max_size=3), st.lists(KEYS, min_size=1, max_size=8))
def test_a_view_shows_the_keys_that_match_and_may_be_read(
    grants: tuple[AccessGrant, ...], patterns: list[str], keys: list[str]
) -> None:
    view, readable = view_of(grants, *patterns), access.readable(grants)
    wanted = parse_patterns(patterns)
    for key in keys:
        matches = any(pattern.matches(key) for pattern in wanted)
        assert view.shows(key) == (matches and readable(key))


def test_equal_views_have_equal_parts_in_any_order() -> None:
    one = view_of(ANN.grants, "public/a/**", "system/checkpoints/**", "private/bob/**")
    assert one == view_of(BOB.grants, "system/checkpoints/**", "public/a/**", "private/ann/**")
    assert one != view_of(BOB.grants, "public/a/**")
    assert view_of(ANN.grants, "private/**") != view_of(BOB.grants, "private/**")
    assert view_of(ANN.grants, "**") != view_of(BOB.grants, "**")


@pytest.mark.parametrize("more", [0, 1])
def test_a_view_of_too_many_parts_keeps_the_patterns_and_the_grants(more: int) -> None:
    """At the edge: PATTERNS_MAX parts, and one more."""
    reading = frozenset({Right.READ})
    grants = tuple(AccessGrant(f"public/{n}/**", reading) for n in range(PATTERNS_MAX // 2))
    patterns = ["public/*/a", "public/*/b", *["public/0/c"] * more]
    view = view_of(grants, *patterns)
    assert (view.grants == grants) == bool(more)
    assert len(view.patterns) == (len(patterns) if more else PATTERNS_MAX)
    assert view.shows("public/1/a")
    assert not view.shows("public/99/a")


def test_a_part_that_is_longer_than_a_key_leaves_the_view_as_it_is() -> None:
    segments = ["a" * 100] * 6
    stars = ["*"] * len(segments)
    grants = (AccessGrant("/".join(["public", *segments, *stars]), frozenset({Right.READ})),)
    pattern = "/".join(["public", *stars, *segments])
    view = view_of(grants, pattern)
    assert len("/".join(["public", *segments, *segments])) > KEY_BYTES_MAX
    assert (view.patterns, view.grants) == (parse_patterns([pattern]), grants)


@pytest.mark.parametrize("count", [1, LARGE_CHANGES])
async def test_what_a_restore_is_based_on_is_shown_by_the_same_rule(
    parts: tuple[Service, HookedStore], count: int
) -> None:
    """A large one, whose part of each watcher is found by bisection, as a small one."""
    service, _ = parts
    feed = (await service.boards.use("main")).feed
    keys = [f"public/{number:04d}" for number in range(count)]
    entry = LogEntry(
        revision=9,
        time_ms=0,
        id=CommitId("ann", 0, "", 0),
        changes=tuple(Change(ChangeKind.PUT, key, ONE) for key in keys),
        digest=bytes(32),
        based_on=(("public/a", 1), ("private/ann/plan", 1)),
        epoch=Epoch(2, "new", RESTORE, 1, 9),
    )
    shown = feed.show(view_of(BOB.grants, "public/**"), entry)
    assert shown is not None
    assert (len(shown.changes), shown.based_on) == (count, (("public/a", 1),))
