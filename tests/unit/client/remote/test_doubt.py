"""What the client says of a request that changes something when its answer is lost: done or not,
nobody knows, unless asking again finds out."""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from blackboard.archive.sql import archive_beside
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.link import Transport
from blackboard.client.remote.channel import Channel
from blackboard.client.remote.link import RemoteTransport, connect
from blackboard.core import access
from blackboard.core.access import TokenRequest
from blackboard.core.checkpoints import (
    BranchRequest,
    CheckpointRequest,
    RecoverRequest,
    RedactRequest,
    RestoreRequest,
    RetentionPolicy,
)
from blackboard.errors import (
    LocalProtocolError,
    NoSuchCheckpoint,
    OutcomeUnknown,
    Unavailable,
)
from blackboard.limits import Limits
from blackboard.server.service import Service
from blackboard.wire.methods import METHODS
from tests.serving import Served, serving
from tests.source_tree import ROOT
from tests.unit.server.http.conversation import PATIENCE_S
from tests.unit.server.http.line import CuttingStore, Line
from tests.waiting import wait_until

pytestmark = pytest.mark.limits(connect_pauses_ms=(0, 50))

REQUEST = "0123456789abcdef"
SHORT_MS = 300


def channel_of(client: Client) -> Channel:
    """Its connection."""
    assert isinstance(client.link, RemoteTransport)
    return client.link._channel


async def noticed(client: Client) -> bool:
    """Whether the client knows that its connection is gone."""
    return channel_of(client)._session is None


@pytest.fixture
async def store(tmp_path: Path) -> CuttingStore:
    """The engine."""
    return await CuttingStore.at(tmp_path / "boards")


@pytest.fixture
async def service(store: CuttingStore, tmp_path: Path, limits: Limits) -> AsyncIterator[Service]:
    """A service with a past."""
    archive = await archive_beside(tmp_path / "boards")
    async with Service(store, archive=archive, limits=limits) as service:
        yield service


@pytest.fixture
async def served(service: Service) -> AsyncIterator[Served]:
    """The service on a port."""
    async with serving(service) as served:
        yield served


@pytest.fixture
async def line(served: Served) -> AsyncIterator[Line]:
    """A line to the service that can be cut."""
    async with Line(served.port) as line:
        yield line


@pytest.fixture
async def client(served: Served, line: Line, limits: Limits) -> AsyncIterator[Client]:
    """The operator over that line, with little patience once connected."""
    async with connect(line.url, token=served.token(), patience_ms=60_000, limits=limits) as client:
        channel_of(client).patience_ms = SHORT_MS
        yield client


@pytest.fixture
async def board(service: Service) -> Board:
    """The board as it is behind the line: `public/a` is 1 at checkpoint "base", and 2 now."""
    board = Client(service.link(access.operator())).board("b")
    await board.put("public/a", 1)
    await board.checkpoint("base")
    await board.put("public/a", 2)
    return board


Ask = Callable[[Transport], Awaitable[Any]]

DEEDS: dict[str, Ask] = {
    "checkpoint": lambda link: link.checkpoint("b", CheckpointRequest("new", REQUEST)),
    "pin": lambda link: link.pin("b", "base", pinned=True),
    "prune": lambda link: link.prune("b", RetentionPolicy(), dry_run=False),
    "restore": lambda link: link.restore("b", RestoreRequest("base", REQUEST)),
    "branch": lambda link: link.branch("b", BranchRequest("new", "base", REQUEST)),
    "import_end": lambda link: link.import_end("new", REQUEST),
    "remove": lambda link: link.remove("b"),
    "erase": lambda link: link.erase("ada"),
    "rewrap": lambda link: link.rewrap(),
    "revoke": lambda link: link.revoke(tokens=["no-such-token"]),
    "freeze": lambda link: link.freeze("b", ""),
    "thaw": lambda link: link.thaw("b", ""),
    "recover": lambda link: link.recover("b", RecoverRequest()),
    "redact": lambda link: link.redact("b", RedactRequest("public/a", "", REQUEST)),
}
WITHOUT_DOUBT = {
    **dict.fromkeys(["audit", "export", "verify"], "it changes nothing"),
    "issue": "nothing is stored, and another token does no harm",
    "import_begin": "there is no board before the import ends",
}
"""Methods that are audited, and why nothing is in doubt when their answer is lost."""
LOOKS: dict[str, Ask] = {
    "head": lambda link: link.head("b"),
    "read": lambda link: link.read("b", ["public/a"]),
    "a dry run": lambda link: link.prune("b", RetentionPolicy(), dry_run=True),
    "verify": lambda link: link.verify("b", "now"),
    "whoami": lambda link: link.whoami(),
    "issue": lambda link: link.issue(TokenRequest("kim", None, frozenset(), 60_000)),
}
NAMED = {"checkpoint", "restore", "branch", "import_end", "redact"}


async def lost(client: Client, served: Served, line: Line, ask: Ask) -> asyncio.Task[Any]:
    """A request that came through, and whose answer does not; nobody can be reached any more."""
    line.hush()
    before = served.gate.traffic.frames_in
    asking = asyncio.ensure_future(ask(client.link))

    async def came_through() -> bool:
        return served.gate.traffic.frames_in > before

    await wait_until(came_through)
    line.kill()
    line.speak()
    return asking


def test_each_change_of_the_table_of_methods_is_tried() -> None:
    """One that is added is one that can be in doubt, or there is a reason."""
    audited = {method.name for method in METHODS.values() if method.audited}
    assert audited - WITHOUT_DOUBT.keys() == DEEDS.keys()


def test_the_javascript_client_only_looks_with_what_changes_nothing() -> None:
    """It has two ways to ask, too; a dry run of `prune` goes the other one."""
    code = "".join(path.read_text() for path in (ROOT / "clients/js/src").glob("*.js"))
    looked = set(re.findall(r"\blook\('(\w+)'", code))
    assert {"read", "verify", "prune"} <= looked
    assert looked & DEEDS.keys() == {"prune"}


@pytest.mark.parametrize("method", DEEDS)
async def test_what_changes_something_and_is_not_answered_is_unknown(
    client: Client, served: Served, line: Line, board: Board, method: str
) -> None:
    """It may have been done, so it is never reported as not done."""
    asking = await lost(client, served, line, DEEDS[method])
    with pytest.raises(OutcomeUnknown) as unknown:
        await asyncio.wait_for(asking, PATIENCE_S)
    told = unknown.value
    assert (told.method, told.agent, told.step) == (method, "operator", None)
    assert told.request == (REQUEST if method in NAMED else None)


@pytest.mark.parametrize("what", LOOKS)
async def test_what_changes_nothing_and_is_not_answered_is_unavailable(
    client: Client, served: Served, line: Line, board: Board, what: str
) -> None:
    """There is nothing to be in doubt of."""
    asking = await lost(client, served, line, LOOKS[what])
    with pytest.raises(Unavailable):
        await asyncio.wait_for(asking, PATIENCE_S)


@pytest.mark.parametrize("method", DEEDS)
async def test_what_was_never_sent_is_certainly_not_done(
    client: Client, line: Line, board: Board, method: str
) -> None:
    """So it stays Unavailable, which says so."""
    line.kill()
    await wait_until(partial(noticed, client))
    with pytest.raises(Unavailable):
        await asyncio.wait_for(DEEDS[method](client.link), PATIENCE_S)


@pytest.mark.limits(connect_pauses_ms=(100,))
async def test_what_waited_to_be_sent_as_the_connection_broke_is_not_in_doubt(
    client: Client, line: Line, board: Board
) -> None:
    """It breaks in the turn in which the request is made: not a byte of it has left."""
    asking = asyncio.ensure_future(DEEDS["restore"](client.link))
    asyncio.get_running_loop().call_soon(channel_of(client)._forget, "broken")
    line.kill()
    with pytest.raises(Unavailable):
        await asyncio.wait_for(asking, PATIENCE_S)


async def test_a_restore_that_took_effect_and_was_not_answered_can_be_looked_up(
    client: Client, line: Line, board: Board, store: CuttingStore
) -> None:
    """By the request that the error names; which, sent again, is answered and not done again."""
    store.cut = line.kill
    with pytest.raises(OutcomeUnknown) as unknown:
        await asyncio.wait_for(client.board("b").restore("base"), PATIENCE_S)
    request = unknown.value.request
    assert request is not None
    assert await board.get("public/a") == 1
    store.cut = None
    line.revive()
    channel_of(client).patience_ms = 60_000
    far = client.board("b")
    assert await far.get(f"system/restores/{request}") is not None
    restored = await client.link.restore("b", RestoreRequest("base", request))
    head = await far.head()
    assert (restored.revision, head.epoch) == (head.revision, restored.epoch)
    assert head.epoch.number == 2


async def test_a_restore_whose_answer_was_lost_is_found_when_it_can_be_asked_again(
    client: Client, line: Line, board: Board, store: CuttingStore
) -> None:
    store.cut = line.cut
    channel_of(client).patience_ms = 60_000
    restored = await asyncio.wait_for(client.board("b").restore("base"), PATIENCE_S)
    assert (restored.epoch.number, line.connections) == (2, 2)


async def test_a_refusal_of_what_is_asked_again_does_not_mean_that_it_was_not_done(
    client: Client, line: Line, board: Board
) -> None:
    """The checkpoint was pinned, and others removed it since: there is nothing to pin again."""
    channel_of(client).patience_ms = 60_000
    line.hush()
    pinning = asyncio.create_task(client.board("b").pin("base"))
    await wait_until(partial(is_pinned, board))
    await board.unpin("base")
    await board.prune(RetentionPolicy(last=0, days=0, named=False))
    line.cut()
    line.speak()
    with pytest.raises(OutcomeUnknown, match="no_such_checkpoint") as unknown:
        await asyncio.wait_for(pinning, PATIENCE_S)
    assert isinstance(unknown.value.__cause__, NoSuchCheckpoint)
    with pytest.raises(NoSuchCheckpoint):
        await client.board("b").pin("base")


async def is_pinned(board: Board) -> bool:
    """Whether its checkpoint is kept from being pruned."""
    return any(checkpoint.pinned for checkpoint in await board.checkpoints())


async def test_a_watch_that_waits_for_a_connection_is_opened_once(
    client: Client, line: Line, board: Board, service: Service
) -> None:
    """However many attempts to connect fail meanwhile: each change would come twice."""
    channel_of(client).patience_ms = 60_000
    async with client.board("b").watch("public/**") as watch:
        watchers = service.statistics().watchers
        line.kill()
        news = asyncio.create_task(anext(watch))
        await wait_until(partial(noticed, client))
        tried = line.connections

        async def was_tried_again() -> bool:
            return line.connections > tried + 1

        await wait_until(was_tried_again)
        line.revive()
        await board.put("public/a", 3)
        assert (await asyncio.wait_for(news, PATIENCE_S)).changes[0].value == 3
        assert service.statistics().watchers == watchers


async def test_a_watch_that_is_closed_while_it_waits_for_a_connection_stays_closed(
    client: Client, line: Line, board: Board, service: Service
) -> None:
    channel_of(client).patience_ms = 60_000
    watchers = service.statistics().watchers
    async with client.board("b").watch("public/**") as watch:
        line.kill()
        news = asyncio.create_task(anext(watch))
        await wait_until(partial(noticed, client))
    line.revive()
    await asyncio.wait([news])
    assert isinstance(news.exception(), LocalProtocolError)
    assert await client.board("b").get("public/a") == 2
    assert service.statistics().watchers == watchers
