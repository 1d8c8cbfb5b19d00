"""Every method, as every role, in every namespace: allowed exactly where the role's row says so.

The rows are written by hand, not taken from the grants: they say what is meant. A method of the
service that stands in none of the three tables fails the first test.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from blackboard.archive.sql import archive_beside
from blackboard.client.client import Client
from blackboard.client.link import WatchRequest
from blackboard.client.writer import CommitRequest, Writer
from blackboard.core import access
from blackboard.core.access import Principal, TokenRequest
from blackboard.core.checkpoints import DiffRequest
from blackboard.core.commit import (
    Append,
    Delete,
    DeletePrefix,
    Grant,
    HeldFence,
    Increment,
    KeyAt,
    PrefixUnchanged,
    Put,
)
from blackboard.core.watch import Position
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import AccessDenied, BlackboardError
from blackboard.server.requests import RequestHandler
from blackboard.server.service import Service
from blackboard.server.settings import grants_of
from blackboard.wire.codec import encode_value
from blackboard.wire.methods import RIGHTS
from tests.unit.server.past_attempts import PAST

ONE = encode_value(1)
BOARD = "main"
NAMESPACES = ("public", "private/ada", "private/bob", "inbox/ada", "inbox/bob", "system")
R, W, A, L = "read", "write", "append", "lock"
ALL = {R, W, A, L}

ROLES: dict[str, tuple[Principal, dict[str, set[str]]]] = {
    "agent": (
        Principal("ada", grants_of("agent", "ada")),
        {"public": ALL, "private/ada": ALL, "inbox/ada": ALL, "inbox/bob": {A}, "system": {R}},
    ),
    "reader": (Principal("eve", grants_of("reader", "eve")), {"public": {R}}),
    "operator": (
        Principal("root", grants_of("operator", "root")),
        {name: ALL for name in NAMESPACES if name != "system"} | {"system": {R}},
    ),
    "approver": (Principal("kay", grants_of("approver", "kay")), {"public": {R}}),
    "planner": (
        Principal("pat", (access.parse_grant("public/**=read,lock"),)),
        {"public": {R, L}},
    ),
    "keeper": (Principal("kit", (access.parse_grant("**=checkpoint,restore"),)), {}),
    "nobody": (Principal("nobody", ()), {}),
}
"""Each role with what it may do in which namespace. What belongs to the service is written by
nobody, not even by the operator."""


def key_in(namespace: str) -> str:
    """A key that exists there."""
    return f"{namespace}/checkpoints/plan" if namespace == "system" else f"{namespace}/thing"


# --- methods about a key --------------------------------------------------------------------------

Try = Callable[[RequestHandler, str], Awaitable[bool]]
"""Whether it was done, or shown; AccessDenied counts as "no"."""


async def _read(link: RequestHandler, name: str) -> bool:
    return bool((await link.read(BOARD, [key_in(name)])).entries)


async def _list(link: RequestHandler, name: str) -> bool:
    whole = await link.list(BOARD, "**")
    one = await link.list(BOARD, key_in(name))
    found = [key_in(name) in [entry.key for entry in page.entries] for page in (whole, one)]
    assert found[0] == found[1]
    return found[0]


async def _leases(link: RequestHandler, name: str) -> bool:
    found = (await link.leases(BOARD, "**")).leases
    return f"{name}/lease" in [lease.key for lease in found]


async def _log(link: RequestHandler, name: str) -> bool:
    page = await link.log(BOARD, 0)
    return key_in(name) in [change.key for entry in page.entries for change in entry.changes]


async def _why(link: RequestHandler, name: str) -> bool:
    return bool(await link.why(BOARD, key_in(name)))


async def _watch(link: RequestHandler, name: str) -> bool:
    epoch = (await link.head(BOARD)).epoch.id
    head = await link.head(BOARD)
    request = WatchRequest(("**",), Position(epoch, 0))
    keys: set[str] = set()
    async with link.watch(BOARD, request) as stream:
        await stream.request_progress()
        async for delivery in stream:
            keys |= {c.key for entry in delivery.revisions for c in entry.changes}
            if delivery.position.revision >= head.revision:
                break
    return key_in(name) in keys


async def _document(link: RequestHandler, name: str) -> bool:
    async with link.document(BOARD, f"{name}/memo"):
        return True


async def _history(link: RequestHandler, name: str) -> bool:
    return bool(await link.history(BOARD, key_in(name)))


COMMITS: dict[str, tuple[str, Callable[[str, str], CommitRequest]]] = {
    "put": (W, lambda who, name: CommitRequest((Put(f"{name}/new", ONE),))),
    "delete": (W, lambda who, name: CommitRequest((Delete(f"{name}/new"),))),
    "increment": (W, lambda who, name: CommitRequest((Increment(f"{name}/count", 1),))),
    "delete prefix": (W, lambda who, name: CommitRequest((DeletePrefix(f"{name}/nothing"),))),
    "append": (A, lambda who, name: CommitRequest((Append(f"{name}/list", ONE),))),
    "grant": (L, lambda who, name: CommitRequest((Grant(f"{name}/of-{who}", who, 60_000),))),
}
"""Commits of one operation, and the right that each needs."""

LOOKS: dict[str, Callable[[str], CommitRequest]] = {
    "condition": lambda name: CommitRequest((), (KeyAt(f"{name}/absent", 0),)),
    "prefix": lambda name: CommitRequest((), (PrefixUnchanged(f"{name}/absent", 10**6),)),
    "ground": lambda name: CommitRequest((), based_on=((key_in(name), 1),)),
    "fence": lambda name: CommitRequest((), fences=(HeldFence(f"{name}/lease", "root", 1),)),
}
"""What a commit rests on: it has to be readable."""

BY_KEY: dict[str, tuple[str, Try]] = {
    "read": (R, _read),
    "list": (R, _list),
    "leases": (R, _leases),
    "log": (R, _log),
    "why": (R, _why),
    "watch": (R, _watch),
    "document": (R, _document),
    "history": (R, _history),
}
"""Methods whose answer depends on a key, with the right that it needs."""

WHOLE: dict[str, set[str]] = {
    "checkpoint": {"operator", "keeper"},
    "pin": {"operator", "keeper"},
    "branch": {"operator", "keeper"},
    "restore": {"operator", "keeper"},
    "prune": {"operator"},
    "recover": {"operator"},
    "redact": {"operator"},
    "freeze": {"operator"},
    "thaw": {"operator"},
    "remove": {"operator"},
    "verify": {"operator"},
    "export": {"operator"},
    "import_begin": {"operator"},
    "import_page": {"operator"},
    "import_end": {"operator"},
    "audit": {"operator"},
    "erase": {"operator"},
    "rewrap": {"operator"},
    "lost_boards": {"operator"},
    "revoke": {"operator"},
    "issue": {"operator"},
    "manifest": {"operator", "agent"},
}
"""Methods about a board as a whole, or about all of them, and who may."""

ANYBODY = {"head", "boards", "whoami", "checkpoints", "differences", "activity", "refusals"}
"""Methods that everybody may call: what they show is filtered (test_access.py)."""
OF_COMMITS = {"commit"}
AT_THE_EDGE = {"refresh"}


def test_every_method_stands_in_a_table() -> None:
    listed = {*BY_KEY, *WHOLE, *ANYBODY, *OF_COMMITS, *AT_THE_EDGE}
    assert listed == set(RIGHTS)


# --- the service ----------------------------------------------------------------------------------


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A board with something in every namespace, and a checkpoint."""
    store, archive = await SqliteStore.at(tmp_path, "memory"), await archive_beside(tmp_path)
    async with Service(store, archive=archive) as service:
        board = Client(service.link(access.operator("root"))).board(BOARD)
        for name in NAMESPACES[:-1]:
            await board.put(key_in(name), name)
            await board.commit([Grant(f"{name}/lease", "root", 3_600_000)])
        await board.checkpoint("plan")
        yield service


@pytest.mark.parametrize("role", ROLES)
async def test_methods_about_a_key(service: Service, role: str) -> None:
    """Shown in the namespaces that the role may read, and nowhere else."""
    principal, rights = ROLES[role]
    link = service.link(principal)
    cells = [(m, name) for m in BY_KEY for name in NAMESPACES if (m, name) not in NOWHERE]
    shown = {(m, name) for m, name in cells if await _was_let(BY_KEY[m][1](link, name))}
    assert shown == {(m, name) for m, name in cells if BY_KEY[m][0] in rights.get(name, set())}


NOWHERE = {("leases", "system"), ("document", "system")}
"""There are no leases, and no documents, among the records of the service."""


async def _was_let(attempt: Awaitable[bool]) -> bool:
    try:
        return await attempt
    except AccessDenied:
        return False


@pytest.mark.parametrize("role", ROLES)
async def test_commits(service: Service, role: str) -> None:
    """Each operation where the role has its right; each ground where the role may read."""
    principal, rights = ROLES[role]
    writer = Writer(service.link(principal), BOARD)
    who = principal.name
    allowed = {
        (kind, name)
        for kind, (_, spec) in COMMITS.items()
        for name in NAMESPACES
        if await _commits(writer, spec(who, name))
    }
    expected = {
        (kind, name)
        for kind, (right, _) in COMMITS.items()
        for name in NAMESPACES
        if right in rights.get(name, set()) and name != "system"
    }
    assert allowed == expected


ANSWERS: dict[str, CommitRequest] = {
    "answer": CommitRequest((Put("public/~decisions/ada/x", ONE),)),
    "count": CommitRequest((Increment("public/~decisions/ada/x", 1),)),
    "list": CommitRequest((Append("public/~decisions/ada", ONE),)),
    "list of all": CommitRequest((Append("public/~decisions", ONE),)),
}
"""Ways to write where the answers to agents' requests stand."""


@pytest.mark.parametrize("role", ROLES)
async def test_answers(service: Service, role: str) -> None:
    """The right to write everywhere in public does not include approval, which is a separate
    right."""
    principal, _ = ROLES[role]
    writer = Writer(service.link(principal), BOARD)
    allowed = {kind for kind, spec in ANSWERS.items() if await _commits(writer, spec)}
    assert allowed == {"operator": set(ANSWERS), "approver": {"answer"}}.get(role, set())


async def test_an_admin_of_the_answers_gives_them(service: Service) -> None:
    """As the tokens of operators do that were made before there was the right."""
    grants = (access.parse_grant("**=read,write,append,lock,checkpoint,restore,admin"),)
    writer = Writer(service.link(Principal("root", grants)), BOARD)
    assert await _commits(writer, ANSWERS["answer"])


@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("role", ["agent", "operator"])
async def test_what_commits_rest_on(service: Service, role: str, look: str) -> None:
    """The commit itself is allowed; what it rests on decides."""
    principal, rights = ROLES[role]
    writer = Writer(service.link(principal), BOARD)
    for name in NAMESPACES[:-1]:
        spec = LOOKS[look](name)
        whole = CommitRequest(
            (Put("public/rests", ONE),), spec.conditions, spec.fences, spec.based_on
        )
        assert await _commits(writer, whole) is (R in rights.get(name, set())), name


async def _commits(writer: Writer, spec: CommitRequest) -> bool:
    """Whether it was let do it; what the board then says of it is another matter."""
    try:
        await writer.commit(spec)
    except AccessDenied:
        return False
    except BlackboardError:
        return True
    return True


@pytest.mark.parametrize("role", ROLES)
async def test_methods_about_everything(service: Service, role: str) -> None:
    """A principal without the right is refused for that, whatever else is wrong with the
    request."""
    link = service.link(ROLES[role][0])
    let = {method for method in WHOLE if await _was_let(_asked(link, method))}
    assert let == {method for method, roles in WHOLE.items() if role in roles}


async def _asked(link: RequestHandler, method: str) -> bool:
    """Errors: AccessDenied; anything else means that it was let, and found nothing to do."""
    try:
        await ABOUT_ALL[method](link)
    except AccessDenied:
        raise
    except BlackboardError:
        return True
    return True


ABOUT_ALL: dict[str, Callable[[RequestHandler], Awaitable[object]]] = {
    **{method: PAST[method] for method in WHOLE if method in PAST},
    "audit": lambda link: link.audit(after=None, limit=1),
    "erase": lambda link: link.erase("bob", BOARD),
    "rewrap": lambda link: link.rewrap(),
    "lost_boards": lambda link: link.lost_boards(),
    "revoke": lambda link: link.revoke(principal="somebody-else"),
    "issue": lambda link: link.issue(TokenRequest("somebody-else", None, frozenset(), 1_000)),
}


@pytest.mark.parametrize("role", ROLES)
async def test_methods_for_everybody(service: Service, role: str) -> None:
    """They are answered, and name nothing that the role may not read."""
    principal, rights = ROLES[role]
    link = service.link(principal)
    assert (await link.head(BOARD)).revision > 0
    assert list(await link.boards()) == [BOARD]
    assert (await link.whoami()).name == principal.name
    may_see = role in ("agent", "operator")
    assert bool(await link.checkpoints(BOARD)) is may_see
    page = await link.differences(BOARD, DiffRequest(0, "now"))
    readable = {key_in(name) for name in NAMESPACES if R in rights.get(name, set())}
    assert {found.key for found in page.differences} == readable - {key_in("system")}
