"""Access control: grants, the table of methods, and every method tried by three principals."""

import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import example, given, strategies as st

from blackboard.archive.sql import archive_beside
from blackboard.client.client import Client
from blackboard.client.link import Transport, WatchRequest
from blackboard.core import access
from blackboard.core.access import Checked, Principal, Right, TokenRequest
from blackboard.core.commit import (
    Append,
    Commit,
    CommitId,
    Condition,
    Delete,
    DeletePrefix,
    Expire,
    Grant,
    HeldFence,
    Increment,
    KeyAt,
    Op,
    PrefixUnchanged,
    Put,
    Release,
    Renew,
)
from blackboard.core.path import parse_pattern
from blackboard.core.watch import Position
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import AccessDenied, Conflict, InvalidRequest, LimitExceeded
from blackboard.integrity.tokens import issue, new_secret
from blackboard.limits import PATTERNS_MAX
from blackboard.server.requests import RequestHandler
from blackboard.server.service import Service
from blackboard.wire.codec import encode_value
from blackboard.wire.methods import RIGHTS
from tests.unit.server.past_attempts import PAST

SECRET = "private/ada/secret"
PUBLIC = "public/plan"
ADA, BOB, OPERATOR = access.agent("ada"), access.agent("bob"), access.operator()
STRANGER = Principal("stranger", ())
NO_BOARDS = Principal("elsewhere", OPERATOR.grants, boards=frozenset({"another"}))

# --- grants ---------------------------------------------------------------------------------------

SEGMENTS = st.sampled_from(["ada", "bob", "a", "b"])


def paths(first: list[str], least: int) -> st.SearchStrategy[str]:
    """Paths that begin with one of `first` and have `least` to three more segments."""
    rest = st.lists(SEGMENTS, min_size=least, max_size=3)
    return st.builds(lambda head, tail: "/".join([head, *tail]), st.sampled_from(first), rest)


KEYS = paths(["public"], 1) | paths(["private", "inbox"], 2)
PREFIXES = paths(["public"], 0) | paths(["private", "inbox"], 1)
BELOW = st.lists(SEGMENTS, min_size=1, max_size=3).map("/".join)
PATHS = st.lists(st.sampled_from(["public", "private", "inbox", "*", "ada", "a"]), min_size=1).map(
    lambda segments: "/".join(segments[:4])
)
PATTERNS = st.just("**") | PATHS | PATHS.map(lambda path: path + "/**")
GRANTS = st.lists(
    st.builds(access.AccessGrant, PATTERNS, st.sets(st.sampled_from(Right)).map(frozenset)),
    max_size=4,
).map(tuple)


@pytest.mark.parametrize(
    ("principal", "is_admin"),
    [
        (OPERATOR, True),
        (NO_BOARDS, False),
        (Principal("half", (access.AccessGrant("public/**", frozenset({Right.ADMIN})),)), False),
        (Principal("reader", (access.AccessGrant("**", frozenset({Right.READ})),)), False),
    ],
    ids=["operator", "of-one-board", "of-public", "reader"],
)
def test_an_admin_has_everything_on_every_board(principal: Principal, is_admin: bool) -> None:
    """What concerns all boards, such as the audit, is for nobody else."""
    assert access.is_admin(principal) is is_admin


@given(GRANTS, st.sampled_from(Right), PREFIXES, BELOW)
@example((access.AccessGrant("public/*", access.ALL_RIGHTS),), Right.READ, "public", "a/b")
@example((access.AccessGrant("*/*", access.ALL_RIGHTS),), Right.WRITE, "private/ada", "a")
def test_a_right_below_a_prefix_is_a_right_on_every_key_there(
    grants: tuple[access.AccessGrant, ...], right: Right, prefix: str, below: str
) -> None:
    if access.allows_below(grants, right, prefix):
        assert access.allows(grants, right, f"{prefix}/{below}")


@given(PATTERNS, PREFIXES)
@example("public/*", "public")
@example("*/ada/**", "private/ada")
@example("private/**", "private/ada")
def test_a_pattern_with_an_open_end_covers_what_lies_below_its_matches(
    pattern: str, prefix: str
) -> None:
    """The other direction, so that nobody is refused without a reason."""
    grants = (access.AccessGrant(pattern, frozenset({Right.READ})),)
    deep = all(access.allows(grants, Right.READ, f"{prefix}/{x}") for x in ("zz", "zz/zz", "z/z/z"))
    assert access.allows_below(grants, Right.READ, prefix) == deep


@given(GRANTS, GRANTS, st.sampled_from(Right), KEYS)
def test_grants_only_add_up(
    some: tuple[access.AccessGrant, ...],
    more: tuple[access.AccessGrant, ...],
    right: Right,
    key: str,
) -> None:
    either = access.allows(some, right, key) or access.allows(more, right, key)
    assert access.allows(some + more, right, key) == either


@given(GRANTS, PATTERNS, KEYS)
@example((access.AccessGrant("**", frozenset({Right.READ})),), "**", SECRET)
@example(
    (access.AccessGrant("private/*/a", frozenset({Right.READ})),), "private/**", "private/ada/a"
)
@example((access.AccessGrant("private/*/a", frozenset({Right.READ})),), "*/ada/**", "private/ada/a")
def test_what_is_reached_holds_all_that_may_be_read(
    grants: tuple[access.AccessGrant, ...], pattern: str, key: str
) -> None:
    """And nothing else, unless it says so."""
    reach = access.reach(grants, pattern)
    is_reached = any(first <= key < last for first, last in reach.ranges)
    may_read = access.allows(grants, Right.READ, key)
    assert reach.readable(key) == may_read
    if may_read and parse_pattern(pattern).matches(key):
        assert is_reached
    if is_reached and reach.is_exact:
        assert may_read


@given(GRANTS, PATTERNS)
def test_what_is_reached_is_in_order_and_apart(
    grants: tuple[access.AccessGrant, ...], pattern: str
) -> None:
    bounds = [bound for pair in access.reach(grants, pattern).ranges for bound in pair]
    assert bounds == sorted(set(bounds))


@pytest.mark.parametrize(
    ("pattern", "ranges"),
    [
        ("public/plan/*", (("public/plan/", "public/plan0"),)),
        ("private/**", (("private/bob/", "private/bob0"),)),
        ("*/ada/**", (("public/ada/", "public/ada0"),)),
        ("private/ada/**", ()),
        ("inbox/*/messages/*", (("inbox/bob/messages/", "inbox/bob/messages0"),)),
        ("system/*/bob", (("system/barriers/bob", "system/barriers/bob\x01"),)),
    ],
)
def test_an_agent_reaches_its_own(pattern: str, ranges: tuple[tuple[str, str], ...]) -> None:
    found = access.reach(BOB.grants, pattern)
    others = [each for each in found.ranges if not each[0].startswith("system/checkpoints/")]
    assert (tuple(others), found.is_exact) == (ranges, True)


@pytest.mark.parametrize("op", [Delete(PUBLIC), Increment(PUBLIC, 0), DeletePrefix("public")])
def test_what_answers_with_what_was_there_needs_the_right_to_read(op: Op) -> None:
    """Else `increment` by 0 would tell the counter, and a removal which keys there are."""
    for rights, expected in (("write", Right.READ), ("read", Right.WRITE)):
        principal = Principal("bob", (access.parse_grant(f"public/**={rights}"),))
        with pytest.raises(AccessDenied) as refused:
            access.require_commit(principal, a_commit(op))
        assert refused.value.right == expected
    both = Principal("bob", (access.parse_grant("public/**=read,write"),))
    access.require_commit(both, a_commit(op))


@given(KEYS)
def test_an_agent_has_its_own_namespaces_the_public_one_and_may_append_to_inboxes(key: str) -> None:
    rights = {right for right in Right if access.allows(ADA.grants, right, key)}
    first, second = key.split("/")[:2]
    shared = {Right.READ, Right.WRITE, Right.APPEND, Right.LOCK}
    if first == "public" or second == "ada":
        assert rights == shared
    else:
        assert rights == ({Right.APPEND} if first == "inbox" else set())


@given(KEYS, st.sampled_from(Right))
def test_an_operator_has_every_right_on_every_key(key: str, right: Right) -> None:
    assert access.allows(OPERATOR.grants, right, key)


@pytest.mark.parametrize("name", ["~system", "~", "", "a/b", ".", "..", "a b", "x" * 129])
def test_names_that_no_agent_may_have(name: str) -> None:
    with pytest.raises(InvalidRequest):
        access.agent(name)


def test_grants_are_checked_when_they_are_made() -> None:
    good = access.AccessGrant("public/**", frozenset())
    assert access.check_grants([good] * PATTERNS_MAX) == (good,) * PATTERNS_MAX
    with pytest.raises(LimitExceeded):
        access.check_grants([good] * (PATTERNS_MAX + 1))
    with pytest.raises(InvalidRequest):
        access.check_grants([access.AccessGrant("public/**/x", frozenset())])


def test_only_an_operator_acts_for_others_and_then_with_their_rights_and_its_own_limits() -> None:
    limited = Principal("root", OPERATOR.grants, frozenset({"x"}), 5, acts_for_any=True)
    acting = access.acting_as(limited, "ada")
    assert (acting.name, acting.grants, acting.acts_for_any) == ("ada", ADA.grants, False)
    assert (acting.boards, acting.expires_at_ms) == (frozenset({"x"}), 5)
    assert access.acting_as(ADA, None) is access.acting_as(ADA, "ada") is ADA
    with pytest.raises(AccessDenied):
        access.acting_as(ADA, "bob")
    with pytest.raises(InvalidRequest):
        access.acting_as(OPERATOR, "~system")


# --- commits --------------------------------------------------------------------------------------

ONE = encode_value(1)


def a_commit(
    *ops: Op,
    conditions: tuple[Condition, ...] = (),
    fences: tuple[HeldFence, ...] = (),
    based_on: tuple[tuple[str, int], ...] = (),
    agent: str = "bob",
) -> Commit:
    """A commit by bob."""
    return Commit(CommitId(agent, 0, "i", 1), "e", ops, conditions, fences, based_on)


FORBIDDEN = [
    a_commit(Put(SECRET, ONE)),
    a_commit(Put(PUBLIC, ONE), Delete(SECRET)),
    a_commit(DeletePrefix("private/ada")),
    a_commit(DeletePrefix("inbox/ada/messages")),
    a_commit(Append("private/ada/log", ONE)),
    a_commit(Increment(SECRET, 1)),
    a_commit(Put("inbox/ada/messages/0000000000", ONE)),
    a_commit(Grant(SECRET, "bob", 1_000)),
    a_commit(Renew(SECRET, "bob", 1, 1_000)),
    a_commit(Release(SECRET, "bob", 1)),
    a_commit(Expire(SECRET, "bob", 1)),
    a_commit(Put(PUBLIC, ONE), conditions=(KeyAt(SECRET, 0),)),
    a_commit(Put(PUBLIC, ONE), conditions=(PrefixUnchanged("private/ada", 0),)),
    a_commit(Put(PUBLIC, ONE), fences=(HeldFence(SECRET, "bob", 1),)),
    a_commit(Put(PUBLIC, ONE), based_on=((SECRET, 1),)),
    a_commit(Put(PUBLIC, ONE), agent="ada"),
    a_commit(Put(PUBLIC, ONE), agent="~system"),
]
ALLOWED = [
    a_commit(Put(PUBLIC, ONE), Delete(PUBLIC), DeletePrefix("public"), Append("public", ONE)),
    a_commit(Put("private/bob/x", ONE), DeletePrefix("private/bob"), DeletePrefix("inbox/bob")),
    a_commit(Append("inbox/ada/messages", ONE), Append("inbox/ada", ONE)),
    a_commit(Grant(PUBLIC, "bob", 1_000), conditions=(PrefixUnchanged("public", 0),)),
]


@pytest.mark.parametrize("commit", FORBIDDEN)
def test_each_part_of_a_commit_is_checked_by_itself(commit: Commit) -> None:
    with pytest.raises(AccessDenied):
        access.require_commit(BOB, commit)


@pytest.mark.parametrize("commit", ALLOWED)
def test_what_an_agent_may_do(commit: Commit) -> None:
    access.require_commit(BOB, commit)


def test_a_delivery_is_reported_by_who_may_attach_as_the_agent() -> None:
    """A token of its name that may only read says of nobody's memory that it is on the board."""
    report = a_commit(Delete("system/barriers/bob"))
    access.require_commit(BOB, report)
    attaches = "private/bob/~identity=lock"
    for grants, may in (((), False), (("**=read,write",), False), ((attaches,), True)):
        who = Principal("bob", tuple(map(access.parse_grant, grants)))
        with contextlib.nullcontext() if may else pytest.raises(AccessDenied):
            access.require_commit(who, report)
    for op in (Delete("system/barriers/ada"), Delete("system/barriers/bob/cut")):
        with pytest.raises(AccessDenied):
            access.require_commit(BOB, a_commit(op))


# --- every method ---------------------------------------------------------------------------------

# They ask nothing of the service.
NOT_REQUESTS = {
    "account",
    "agent",
    "origin",
    "acting_as",
    "aclose",
    "limits",
    "is_closed",
}  # they ask nothing of the service
ELSEWHERE = {"refresh"}  # answered by the edge (net/), which knows the connection


def link_methods() -> set[str]:
    """The requests that the Link protocol knows."""
    return {
        name for name, _ in inspect.getmembers(Transport) if not name.startswith("_")
    } - NOT_REQUESTS


def test_every_method_of_the_service_stands_in_the_table() -> None:
    assert link_methods() | ELSEWHERE == set(RIGHTS)


Attempt = Callable[[RequestHandler], Awaitable[list[str]]]


async def _commit(link: RequestHandler) -> list[str]:
    """Write the secret."""
    head = await link.head("main")
    commit = a_commit(Put(SECRET, ONE), agent=link.agent)
    await link.commit("main", Commit(commit.id, head.epoch.id, commit.ops))
    return [SECRET]


async def _watch(link: RequestHandler) -> list[str]:
    """Keys that a watch from the beginning tells of."""
    head = await link.head("main")
    found: list[str] = []
    request = WatchRequest(("**",), Position(head.epoch.id, 0))
    async with link.watch("main", request) as stream:
        await stream.request_progress()
        async for delivery in stream:
            found += [c.key for entry in delivery.revisions for c in entry.changes]
            if delivery.position.revision >= head.revision:
                break
    return found


async def _log(link: RequestHandler) -> list[str]:
    page = await link.log("main", 0)
    return [change.key for entry in page.entries for change in entry.changes]


async def _read(link: RequestHandler) -> list[str]:
    return [entry.key for entry in (await link.read("main", [SECRET])).entries]


async def _list(link: RequestHandler) -> list[str]:
    found = (await link.list("main", "**")).entries + (await link.list("main", SECRET)).entries
    return [entry.key for entry in found]


async def _leases(link: RequestHandler) -> list[str]:
    found = (await link.leases("main", "**")).leases
    return [lease.key for lease in (*found, *(await link.leases("main", SECRET)).leases)]


async def _why(link: RequestHandler) -> list[str]:
    """Keys in the reasons for the plan, which was based on the secret, and for the secret."""
    causes = [*await link.why("main", PUBLIC), *await link.why("main", SECRET)]
    return [c.key for c in causes] + [key for c in causes for key, _ in c.based_on]


async def _why_public(link: RequestHandler) -> list[str]:
    causes = await link.why("main", PUBLIC)
    return [c.key for c in causes] + [key for c in causes for key, _ in c.based_on]


async def _activity(link: RequestHandler) -> list[str]:
    """Whether revision 1, which only changed the secret, is counted."""
    return [SECRET for _ in (await link.activity("main", after=0, until=1, parts=1)).authors]


async def _refusals(link: RequestHandler) -> list[str]:
    return [refused.key for refused in await link.refusals("main", after=0)]


async def _head(link: RequestHandler) -> list[str]:
    await link.head("main")
    return []


async def _boards(link: RequestHandler) -> list[str]:
    return list(await link.boards())


async def _lost_boards(link: RequestHandler) -> list[str]:
    await link.head("main")
    return [found.board for found in await link.lost_boards()] + [SECRET]


async def _whoami(link: RequestHandler) -> list[str]:
    await link.head("main")  # which boards one may use is not asked here
    return [grant.pattern for grant in (await link.whoami()).grants]


async def _revoke(link: RequestHandler) -> list[str]:
    """Take away all that ada was issued."""
    await link.head("main")
    await link.revoke(principal="ada")
    return [SECRET]


async def _issue(link: RequestHandler) -> list[str]:
    """Have a token made with which ada's namespace could be read."""
    await link.head("main")
    await link.issue(TokenRequest("ada", None, frozenset(), 1_000))
    return [SECRET]


async def _document(link: RequestHandler) -> list[str]:
    async with link.document("main", SECRET):
        return [SECRET]


async def _audit(link: RequestHandler) -> list[str]:
    await link.head("main")
    await link.audit(after=None, limit=1)
    return [SECRET]


async def _erase(link: RequestHandler) -> list[str]:
    await link.head("main")
    with contextlib.suppress(InvalidRequest):  # nothing is encrypted here
        await link.erase("ada", "main")
    return [SECRET]


async def _rewrap(link: RequestHandler) -> list[str]:
    await link.head("main")
    with contextlib.suppress(InvalidRequest):
        await link.rewrap()
    return [SECRET]


async def _remove(link: RequestHandler) -> list[str]:
    await link.remove("main")
    return [SECRET]


ATTEMPTS: dict[str, Attempt] = {
    **PAST,
    "remove": _remove,
    "head": _head,
    "commit": _commit,
    "read": _read,
    "list": _list,
    "leases": _leases,
    "log": _log,
    "activity": _activity,
    "refusals": _refusals,
    "watch": _watch,
    "why": _why,
    "boards": _boards,
    "lost_boards": _lost_boards,
    "whoami": _whoami,
    "revoke": _revoke,
    "issue": _issue,
    "document": _document,
    "audit": _audit,
    "erase": _erase,
    "rewrap": _rewrap,
}
WHOLE = {Checked.WHOLE_CHECKPOINT, Checked.WHOLE_RESTORE, Checked.WHOLE_ADMIN}
REFUSED = {Checked.EACH_KEY, Checked.EACH_PART, Checked.ADMIN} | WHOLE


@contextlib.asynccontextmanager
async def with_a_secret(tmp_path: Path) -> AsyncIterator[Service]:
    """A service whose board `main` holds a secret of ada's and a public plan based on it."""
    store, archive = await SqliteStore.at(tmp_path, "memory"), await archive_beside(tmp_path)
    async with Service(store, archive=archive) as service:
        service.host.signer = partial(issue, new_secret())
        board = Client(service.link(ADA)).board("main")
        receipt = await board.put(SECRET, "the secret")
        based_on = [(SECRET, receipt.revision)]
        await board.commit([Put(PUBLIC, ONE)], based_on=based_on)
        await board.commit([Grant(SECRET, "ada", 1_000_000)])
        with pytest.raises(Conflict):
            await board.put(SECRET, "another", expected=0)
        await Client(service.link(OPERATOR)).board("main").checkpoint("plan")
        yield service


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """It is the test's own."""
    async with with_a_secret(tmp_path) as service:
        yield service


@pytest.fixture(scope="module")
async def guarded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Service]:
    """For tests of who is refused: they change nothing there."""
    async with with_a_secret(tmp_path_factory.mktemp("guarded")) as service:
        head = await service.link(OPERATOR).head("main")
        yield service
        now = await service.link(OPERATOR).head("main")
        assert (now.revision, now.epoch) == (head.revision, head.epoch)


def test_every_method_of_the_table_is_tried() -> None:
    assert set(ATTEMPTS) == set(RIGHTS) - ELSEWHERE


@pytest.mark.parametrize("method", ATTEMPTS)
@pytest.mark.parametrize("principal", [STRANGER, BOB], ids=lambda p: p.name)
async def test_nobody_else_gets_at_the_secret_by_any_method(
    guarded: Service, method: str, principal: Principal
) -> None:
    """It is refused, or it is filtered: as the table says."""
    link = guarded.link(principal)
    agents_may = method == "manifest" and principal is BOB  # of what they may read
    if (RIGHTS[method] in REFUSED and not agents_may) or method == "why":
        with pytest.raises(AccessDenied) as refused:
            await ATTEMPTS[method](link)
        assert refused.value.principal == principal.name
        assert "the secret" not in str(refused.value.fields())
    else:
        assert SECRET not in await ATTEMPTS[method](link)


@pytest.mark.parametrize("method", ATTEMPTS)
@pytest.mark.parametrize("principal", [ADA, OPERATOR], ids=lambda p: p.name)
async def test_the_owner_and_the_operator_get_everything(
    service: Service, method: str, principal: Principal
) -> None:
    """So that the tests above do not pass because nothing is ever there."""
    if RIGHTS[method] in {Checked.ADMIN} | WHOLE and principal is ADA:
        return  # the others may only do that to themselves, or not at all
    found = await ATTEMPTS[method](service.link(principal))
    shown = {"boards": "main", "whoami": principal.grants[0].pattern, "checkpoints": "plan"}
    assert found == [] if method == "head" else shown.get(method, SECRET) in found


@pytest.mark.parametrize("method", ATTEMPTS)
async def test_a_principal_of_other_boards_gets_at_nothing_of_this_one(
    guarded: Service, method: str
) -> None:
    link = guarded.link(NO_BOARDS)
    if method == "boards":
        assert await link.boards() == []
        return
    with pytest.raises(AccessDenied) as refused:
        await ATTEMPTS[method](link)
    assert (refused.value.right, refused.value.key) == ("use", "main")


async def test_reasons_stop_where_a_reader_may_not_look(service: Service) -> None:
    assert await _why_public(service.link(BOB)) == [PUBLIC]
    assert await _why_public(service.link(ADA)) == [PUBLIC, SECRET, SECRET]


@pytest.mark.parametrize("key", ["private/ada/secret", "private/ada/nothing", "private/nobody/x"])
async def test_a_refusal_does_not_tell_whether_the_key_exists(service: Service, key: str) -> None:
    link = service.link(BOB)
    with pytest.raises(AccessDenied) as read:
        await link.read("main", [key])
    with pytest.raises(AccessDenied) as why:
        await link.why("main", key)
    told = {"principal": "bob", "right": "read", "key": key}
    assert read.value.fields() == why.value.fields() == told


async def test_an_appender_does_not_learn_what_is_in_the_way(service: Service) -> None:
    """Ada put an item by hand where the next message would go: bob is refused, and told no more."""
    ada, bob = (Client(service.link(who)).board("main") for who in (ADA, BOB))
    await ada.put("inbox/ada/messages/0000000000", "mine")
    with pytest.raises(Conflict) as refused:
        await bob.append("inbox/ada/messages", "hello")
    told = refused.value
    assert (told.by, told.at_revision, told.current, told.actual) == (None, 0, None, -1)
