"""Who is there, by the rules of one document; and between processes that share an engine."""

import asyncio
import gc
import weakref
from collections.abc import Iterable
from pathlib import Path

import pytest

from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.commit import signature
from blackboard.core.documents.update import write_text
from blackboard.encryption.data_keys import DataKeys
from blackboard.encryption.master_key import LocalWrapper, new_master_key
from blackboard.encryption.store import SealedStore
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import AWARENESS_BYTES_MAX, AWARENESS_STATES_MAX, DEFAULT, Limits
from blackboard.server.documents import awareness, session as documents_session
from blackboard.server.documents.awareness import Presences, Publishing, pubsub_of
from blackboard.server.service import Service
from blackboard.wire import ysync
from blackboard.wire.ysync import Awareness, AwarenessState
from tests.conformance.peers import Peer
from tests.waiting import wait_until

BOARD, KEY = "board", "public/memo"
HERE, GONE = '{"name":"x"}', None


class Somebody:
    """A member that only has a name, and an account."""

    def __init__(self, agent: str, account: str = "") -> None:
        self.principal = access.agent(agent)
        self.agent = agent
        self.account = account or agent
        self.signed = signature(agent, account)
        self.can_edit = True

    def deliver(self, frame: bytes) -> None:
        """Nothing."""

    def answer(self, frame: bytes) -> None:
        """Nothing."""

    def end(self, cause: str, reason: str) -> None:
        """Nothing."""


ANN, BEN = Somebody("ann"), Somebody("ben")


def presences(owners: dict[int, str] | None = None) -> Presences:
    """Nobody is there yet."""
    return Presences((owners or {}).get)


async def test_nobody_tells_of_another_name_than_his() -> None:
    """What else a client says of itself is left as it is, whatever that is."""
    there, kid = presences(), Somebody("ann.kid", "ann")
    told = ('{"agent":"ben","hue":3}', '{"hue":3}', "7", "no json", '{"account":"ann"}', GONE)
    said = there.note(BEN, [AwarenessState(n, 1, state) for n, state in enumerate(told)])
    assert [one.state for one in said] == [
        '{"agent":"ben","hue":3}',
        '{"hue":3}',
        "7",
        "no json",
        '{"agent":"ben"}',
    ]
    for number, state in enumerate(('{"agent":"ann.kid"}', '{"agent":"ben","account":"ben"}')):
        [one] = there.note(kid, [AwarenessState(10 + number, 1, state)])
        assert one.state == '{"agent":"ann.kid","account":"ann"}'
    long = '{"hue":"' + "x" * (AWARENESS_BYTES_MAX - 30) + '","agent":""}'
    [one] = there.note(kid, [AwarenessState(20, 1, long)])
    assert one.state == '{"agent":"ann.kid","account":"ann"}'


async def test_the_same_name_of_another_account_is_somebody_else() -> None:
    own, kid = Somebody("ann.kid"), Somebody("ann.kid", "ann")
    there = presences({7: own.signed, 8: kid.signed})
    told = [AwarenessState(7, 1, HERE), AwarenessState(8, 1, HERE)]
    assert [one.client for one in there.note(kid, told)] == [8]
    assert [one.client for one in there.note(own, told)] == [7]


async def test_the_greater_clock_counts() -> None:
    there = presences()
    first, second = AwarenessState(1, 1, HERE), AwarenessState(1, 2, '{"name":"y"}')
    assert there.note(ANN, [first]) == [first]
    assert there.note(ANN, [first]) == []
    assert there.note(ANN, [second]) == [second]
    assert there.note(ANN, [first]) == []
    assert there.known() == [second]


async def test_nobody_speaks_for_another_member() -> None:
    """Peers repeat what they hear of others, late or with a lie."""
    there = presences()
    there.note(ANN, [AwarenessState(1, 1, HERE)])
    assert there.note(BEN, [AwarenessState(1, 5, HERE), AwarenessState(1, 6, GONE)]) == []
    assert there.leave(BEN) == []
    assert there.leave(ANN) == [AwarenessState(1, 1, GONE)]
    assert there.note(BEN, [AwarenessState(1, 1, HERE)]) == []
    assert there.note(ANN, [AwarenessState(1, 2, HERE)]) == [AwarenessState(1, 2, HERE)]


async def test_nobody_speaks_for_the_author_of_edits() -> None:
    there = presences({1: "ann"})
    assert there.note(BEN, [AwarenessState(1, 1, HERE)]) == []
    assert there.note(ANN, [AwarenessState(1, 1, HERE)]) == [AwarenessState(1, 1, HERE)]


async def test_who_says_that_it_leaves_is_gone() -> None:
    there = presences()
    there.note(ANN, [AwarenessState(1, 1, HERE)])
    assert there.note(ANN, [AwarenessState(1, 1, GONE)]) == [AwarenessState(1, 1, GONE)]
    assert there.known() == []
    assert there.note(ANN, [AwarenessState(1, 2, GONE)]) == []


async def test_a_member_has_so_many_clients() -> None:
    """AWARENESS_PER_SESSION_MAX; one that left makes room."""
    there, most = presences(), DEFAULT.documents.awareness_per_session_max
    told = [AwarenessState(client, 1, HERE) for client in range(most + 1)]
    assert there.note(ANN, told) == told[:-1]
    there.note(ANN, [AwarenessState(0, 1, GONE)])
    assert there.note(ANN, told) == told[-1:]


async def test_a_document_has_so_many_clients() -> None:
    """AWARENESS_STATES_MAX, so that one frame tells of all; what is remembered is bounded too."""
    there = presences()
    told = [AwarenessState(client, 1, HERE) for client in range(AWARENESS_STATES_MAX + 1)]
    assert there.hear(told) == told[:-1]
    assert ysync.read_frame(ysync.write_awareness(there.known())) == [Awareness(tuple(told[:-1]))]
    for client in range(3 * AWARENESS_STATES_MAX):
        there.hear([AwarenessState(client, 2, GONE)])
        there.hear(
            [AwarenessState(client + 10_000, 1, HERE), AwarenessState(client + 10_000, 1, GONE)]
        )
    assert there.known() == []
    assert len(there._gone) <= AWARENESS_STATES_MAX


async def test_of_members_here_another_process_knows_nothing_better() -> None:
    there = presences()
    there.note(ANN, [AwarenessState(1, 1, HERE)])
    assert there.hear([AwarenessState(1, 9, GONE), AwarenessState(1, 9, HERE)]) == []
    assert there.brought_here() == [AwarenessState(1, 1, HERE)]
    there.hear([AwarenessState(2, 1, HERE)])
    assert there.brought_here() == [AwarenessState(1, 1, HERE)]
    assert there.note(BEN, [AwarenessState(2, 1, HERE)]) == []
    assert there.note(BEN, [AwarenessState(2, 2, HERE)]) == [AwarenessState(2, 2, HERE)]
    assert len(there.brought_here()) == 2


async def test_who_is_not_heard_of_any_more_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members here stay: their connection says whether they are there."""
    now = 100.0
    monkeypatch.setattr(awareness, "_now", lambda: now)
    there = presences()
    there.note(ANN, [AwarenessState(1, 1, HERE)])
    there.hear([AwarenessState(2, 1, HERE), AwarenessState(3, 1, HERE)])
    now += 20
    there.hear([AwarenessState(2, 1, HERE)])
    assert there.expire() == []
    now += 20
    assert there.expire() == [AwarenessState(3, 1, GONE)]
    assert [p.client for p in there.known()] == [1, 2]
    assert there.hear([AwarenessState(3, 1, HERE)]) == []
    now += 40
    there.expire()
    assert there.hear([AwarenessState(3, 1, HERE)]) == [AwarenessState(3, 1, HERE)]


# --- between processes ----------------------------------------------------------------------------


class Watcher(Peer):
    """A peer that keeps what it heard of others."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: dict[int, str | None] = {}

    async def receive(self) -> list[ysync.Message]:
        """As of any peer."""
        messages = await super().receive()
        for message in messages:
            if isinstance(message, Awareness):
                self.heard |= {p.client: p.state for p in message.present}
        return messages

    async def until(self, client: int, state: str | None) -> None:
        """Read until that is what it heard last of a client."""
        while self.heard.get(client, "") != state:
            await self.take()

    async def tell(self, client: int, clock: int, state: str) -> None:
        """Say that a client is there."""
        await self.send(ysync.write_awareness([AwarenessState(client, clock, state)]))


async def test_two_services_share_their_present_clients(redis_url: str) -> None:
    """Early, late, renewed and gone."""
    async with (
        Service(RedisStore.connect(redis_url)) as one,
        Service(RedisStore.connect(redis_url)) as two,
    ):
        first, second = (s.link(access.operator()) for s in (one, two))
        ann, late, later = Watcher(), Watcher(), Watcher()
        async with ann.connected(first, BOARD, KEY):
            await ann.sync()
            await ann.tell(1, 1, HERE)
            async with late.connected(second, BOARD, KEY):
                await late.sync()
                await late.until(1, HERE)
                await late.tell(2, 1, HERE)
                await ann.until(2, HERE)
                await ann.tell(1, 2, '{"name":"z"}')
                await late.until(1, '{"name":"z"}')
                async with later.connected(second, BOARD, KEY):
                    await later.sync()
                    await later.until(1, '{"name":"z"}')
            await ann.until(2, GONE)
            assert (await Client(first).board(BOARD).list("**")).entries == ()


@pytest.mark.limits(awareness_ttl_ms=300)
async def test_who_was_at_a_process_that_died_is_gone(redis_url: str, limits: Limits) -> None:
    """It says nothing more, not even that it is gone."""
    other, ann = RedisStore.connect(redis_url), Watcher()
    async with (
        Service(RedisStore.connect(redis_url), limits=limits) as service,
        ann.connected(service.link(access.operator()), BOARD, KEY),
        other.subscribe(BOARD) as heard,
    ):
        await ann.sync()
        await ann.tell(1, 1, HERE)
        async with asyncio.timeout(60):  # it listens to others once it is heard
            async for _, data in heard:
                if b'"name":"x"' in data:
                    break
        frame = ysync.write_awareness([AwarenessState(2, 1, HERE)])
        for said in (b"", b"\xff\xff", write_text("dying") + b"\x63", write_text("dying") + frame):
            await other.publish(BOARD, KEY, said)
        await ann.until(2, HERE)
        await ann.until(2, GONE)
    await other.aclose()


class Listening:
    """A document that only hears."""

    def __init__(self) -> None:
        self.heard = asyncio.Event()

    def hear(self, told: Iterable[AwarenessState]) -> None:
        """Note that something was said."""
        self.heard.set()

    def present(self) -> list[AwarenessState]:
        """Nobody."""
        return []

    def expire(self) -> None:
        """Nothing."""


async def test_who_listens_no_more_is_let_go(redis_url: str) -> None:
    """A whole document hangs on it; and the connection stays, for others of the board."""
    store, other = RedisStore.connect(redis_url), RedisStore.connect(redis_url)
    publishing, last = Publishing(store), Listening()
    first = await _heard(publishing, other)
    publishing.join(BOARD, "public/another", last)
    await publishing.leave(BOARD, KEY, first)
    kept = weakref.ref(first)
    del first
    gc.collect()
    assert kept() is None
    await publishing.leave(BOARD, "public/another", last)
    await other.aclose()
    await store.aclose()


async def test_who_only_tells_where_its_cursor_is_can_do_so_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it tells waits for nothing, so it must not count into what may wait."""
    monkeypatch.setattr(documents_session, "DOCUMENT_UPDATE_BYTES_MAX", 1_000)
    async with Service(await SqliteStore.at(tmp_path, "memory")) as service:
        link = service.link(access.operator())
        async with Peer().connected(link, BOARD, KEY) as peer, asyncio.timeout(60):
            await peer.sync()
            for clock in range(1, 200):
                await peer.send(ysync.write_awareness([AwarenessState(9, clock, HERE)]))
            await peer.push(peer.edit("x"))
            await peer.sync_again()


async def _heard(publishing: Publishing, other: RedisStore) -> Listening:
    """Somebody who has joined at KEY, and has heard what `other` says."""
    listening = Listening()
    publishing.join(BOARD, KEY, listening)
    frame = write_text("other") + ysync.write_awareness([AwarenessState(2, 1, HERE)])

    async def is_heard() -> bool:
        await other.publish(BOARD, KEY, frame)
        return listening.heard.is_set()

    await wait_until(is_heard)
    return listening


async def test_awareness_of_an_encrypted_document_is_encrypted(redis_url: str) -> None:
    key = "private/ann/memo"
    raw, spy = RedisStore.connect(redis_url), RedisStore.connect(redis_url)
    store = SealedStore(raw, DataKeys(raw, LocalWrapper.of(new_master_key())))
    async with spy.subscribe(BOARD) as heard, store.subscribe(BOARD) as opened, asyncio.timeout(60):
        await spy.publish(BOARD, key, b"plain, from a sender without the key")
        await spy.publish(BOARD, key, b"\xc1\x01 not sealed by us")
        await store.publish(BOARD, key, b"secret")
        await store.publish(BOARD, KEY, b"for all")
        found = [await anext(opened), await anext(opened)]
        assert found == [(key, b"secret"), (KEY, b"for all")]
        said = [await anext(heard) for _ in range(4)]
        assert b"secret" not in said[2][1]
        assert said[3] == (KEY, b"for all")
    await store.aclose()
    await spy.aclose()


@pytest.mark.limits(awareness_renew_ms=50)
async def test_a_replica_says_again_that_it_is_there(tmp_path: Path, limits: Limits) -> None:
    """Browsers forget whom they have not heard of for 30 s; and it comes back with a new word."""
    async with Service(await SqliteStore.at(tmp_path, "memory"), limits=limits) as service:
        link = service.link(access.operator())
        assert pubsub_of(service.host.store) is None
        async with (
            Peer().connected(link, BOARD, KEY) as peer,
            Client(link).board(BOARD).document(KEY) as doc,
        ):
            await peer.sync()
            doc.tell({"name": "x"})
            clocks: set[int] = set()
            while len(clocks) < 4:
                for message in await peer.take():
                    found = message.present if isinstance(message, Awareness) else ()
                    clocks |= {p.clock for p in found}
