"""Somebody who can write to the engine and has no master key: what he puts there is not believed.

Each test writes past the service, with the engine's own store, and then reads as a service does
that was there all the time, and as one that begins.
"""

import secrets
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

import blackboard
from blackboard.core.access import KEYS_BOARD
from blackboard.core.commit import (
    ABSENT,
    RESTORE,
    Append,
    Commit,
    CommitId,
    Committed,
    Delete,
    Entry,
    Epoch,
    Increment,
    KeyAt,
    Op,
    Put,
    PutBack,
    Seed,
)
from blackboard.core.redaction import REDACTED
from blackboard.encryption.data_keys import DataKeys
from blackboard.encryption.master_key import LocalWrapper, new_master_key
from blackboard.encryption.places import PRIVATE, RESTORED
from blackboard.encryption.store import Plan, SealedStore
from blackboard.engines.base import Store
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Conflict, Corrupt, Unavailable
from blackboard.integrity.envelope import (
    APPEND,
    MAGIC_BEFORE,
    PUT,
    Header,
    header_of,
    seal,
)
from blackboard.limits import DEFAULT, Limits
from blackboard.server.assembly import sealed
from blackboard.units import Key
from blackboard.wire.codec import decode_value, encode_value, prepare
from tests.waiting import wait_until

BOARD = "main"
SECRET, OTHER, LIST = "private/ada/secret", "private/ada/other", "private/ada/list"
ITEMS = [f"{LIST}/{n:010}" for n in range(3)]
MASTER = new_master_key()
NOTHING = encode_value(None)


class Services:
    """Services over one engine; each begins when it is asked for, all end together."""

    def __init__(self, raw: Store, limits: Limits = DEFAULT) -> None:
        self.raw = raw
        self.limits = limits
        self._keys: list[DataKeys] = []

    async def begin(self, *, public: bool = False, master: str = MASTER) -> SealedStore:
        """What a service that begins now has."""
        front, _ = await sealed(
            self.raw, None, LocalWrapper.of(master), public=public, limits=self.limits
        )
        assert isinstance(front, SealedStore)
        self._keys.append(front.keys)
        return front

    async def aclose(self) -> None:
        """End them, but not the engine."""
        for keys in self._keys:
            await keys.aclose()


@pytest.fixture
async def services(raw: Store, limits: Limits) -> AsyncIterator[Services]:
    """Services over the engine."""
    found = Services(raw, limits)
    try:
        yield found
    finally:
        await found.aclose()


def name(agent: str = "ada") -> CommitId:
    """An id that no other commit has."""
    return CommitId(agent, 0, secrets.token_hex(8), 1)


async def send(store: Store, commit: Commit, board: str = BOARD) -> Committed:
    """Commit, through the service or past it."""
    (outcome,) = await store.commit(board, [prepare(commit)])
    assert isinstance(outcome, Committed), outcome
    return outcome


async def commit(store: Store, *ops: Op, by: CommitId | None = None, board: str = BOARD) -> None:
    """Commit under an id."""
    epoch = (await store.open(board)).epoch.id
    await send(store, Commit(by or name(), epoch, ops), board)


async def kept(raw: Store, *keys: Key, board: str = BOARD) -> list[bytes]:
    """What lies in the engine."""
    return [entry.value for entry in (await raw.read(board, keys)).entries]


async def shown(store: Store, *keys: Key, board: str = BOARD) -> list[object]:
    """What readers get."""
    return [decode_value(entry.value) for entry in (await store.read(board, keys)).entries]


@pytest.fixture
async def old(services: Services) -> list[bytes]:
    """Two versions of a secret and a list of three items, of two commits: what was sealed for the
    first version, and for the items."""
    store = await services.begin()
    await commit(store, Put(SECRET, encode_value("limit=1")), by=CommitId("ada", 0, "first", 1))
    [first] = await kept(services.raw, SECRET)
    await commit(store, Put(SECRET, encode_value("limit=10")))
    await commit(store, *(Append(LIST, encode_value(c)) for c in "ABC"))
    return [first, *await kept(services.raw, *ITEMS)]


async def check_refused(services: Services, there: SealedStore, *keys: Key) -> None:
    """Each key is Corrupt, alone, in a listing and in the log; for a service that was there, and
    for one that begins. What was not touched is read."""
    for store in (there, await services.begin()):
        for found in keys:
            with pytest.raises(Corrupt, match="value of"):
                await store.read(BOARD, [found])
        with pytest.raises(Corrupt):
            await store.list(BOARD, "", limit=100)
        with pytest.raises(Corrupt):
            await store.log(BOARD, 0, limit=100)


async def sealed_before(services: Services) -> None:
    """A board as the version before this one sealed it: no switch, no place in its values."""
    keys = DataKeys(services.raw, LocalWrapper.of(MASTER))
    key = await keys.current(BOARD, "private/ada")
    await keys.aclose()
    cipher = key.cipher
    assert cipher is not None

    def old_form(by: CommitId, kind: str, path: str, value: object) -> bytes:
        return seal(cipher, Header(key.id, kind, by), path, encode_value(value))

    for step, value in enumerate(("one", "two"), 1):
        by = CommitId("ada", 0, "i", step)
        item, secret = old_form(by, APPEND, LIST, value), old_form(by, PUT, SECRET, value)
        assert item.startswith(MAGIC_BEFORE)
        await commit(services.raw, Append(LIST, item), Put(SECRET, secret), by=by)


async def restore(store: Store, *ops: Op) -> Committed:
    """Put back what was, as a service does, or as somebody with access to the engine would."""
    head = await store.open(BOARD)
    begins = Epoch(
        head.epoch.number + 1, secrets.token_hex(8), RESTORE, head.revision, head.revision + 1
    )
    return await send(store, Commit(name("~system"), head.epoch.id, ops, begins=begins))


async def records_of(services: Services, *below: str) -> list[Entry]:
    """Records of the data keys."""
    prefix = "/".join(("system/keys", *below))
    return list((await services.raw.list(KEYS_BOARD, prefix, limit=100)).entries)


class PlacesRules:
    """What holds over every engine."""

    async def test_an_old_ciphertext_in_a_new_commit_is_refused(
        self, services: Services, old: list[bytes]
    ) -> None:
        """Of the same key, by the same agent."""
        there = await services.begin()
        assert await shown(there, SECRET) == ["limit=10"]
        await commit(services.raw, Put(SECRET, old[0]))
        await check_refused(services, there, SECRET)
        assert await shown(there, *ITEMS) == ["A", "B", "C"]

    async def test_an_old_ciphertext_in_a_copy_of_its_commit_is_refused(
        self, services: Services, old: list[bytes]
    ) -> None:
        """Under the very id that it was sealed for, which the engine does not know any more."""
        there = await services.begin()
        await commit(services.raw, Put(SECRET, old[0]), by=CommitId("ada", 0, "first", 1))
        await check_refused(services, there, SECRET)

    async def test_items_that_change_places_are_refused(
        self, services: Services, old: list[bytes]
    ) -> None:
        """In a commit of their own."""
        there = await services.begin()
        await commit(services.raw, Put(ITEMS[0], old[3]), Put(ITEMS[2], old[1]))
        await check_refused(services, there, ITEMS[0], ITEMS[2])

    async def test_items_of_one_commit_are_in_its_order(
        self, services: Services, old: list[bytes]
    ) -> None:
        """Also if the log entry is written again in another one, or has one of them twice."""
        store = await services.begin()
        entry = (await services.raw.log(BOARD, 2, limit=1)).entries[0]
        await store.places.check_log(BOARD, [entry])
        for order in ([2, 1, 0], [0, 2, 1], [1, 1, 2]):
            changes = tuple(
                replace(change, value=entry.changes[at].value)
                for change, at in zip(entry.changes, order, strict=True)
            )
            with pytest.raises(Corrupt, match="another place"):
                await store.places.check_log(BOARD, [replace(entry, changes=changes)])

    @pytest.mark.parametrize(
        "changed",
        [
            lambda e: replace(e, id=replace(e.id, step=2)),
            lambda e: replace(e, id=replace(e.id, agent="boss")),
            lambda e: replace(e, account="boss"),
        ],
        ids=["step", "agent", "account"],
    )
    async def test_a_commit_cannot_get_another_name(
        self, services: Services, old: list[bytes], changed: object
    ) -> None:
        """Nor can it be another agent's or account's."""
        assert callable(changed)
        store = await services.begin()
        entry = (await services.raw.log(BOARD, 1, limit=1)).entries[0]
        await store.places.check_log(BOARD, [entry])
        with pytest.raises(Corrupt, match="another place"):
            await store.places.check_log(BOARD, [changed(entry)])

    async def test_the_state_is_what_the_log_says(
        self, services: Services, old: list[bytes]
    ) -> None:
        """Another value, another revision, another author: none counts."""
        there = await services.begin()
        assert await shown(there, SECRET) == ["limit=10"]
        [entry] = (await services.raw.read(BOARD, [SECRET])).entries
        for forged in (
            replace(entry, value=old[0]),
            replace(entry, mod_revision=3),
            replace(entry, mod_revision=99),
            replace(entry, author="boss"),
        ):
            for store in (there, await services.begin()):
                with pytest.raises((Corrupt, Unavailable)):
                    await store.places.check_entries(BOARD, [forged])

    @pytest.mark.parametrize("where", [SECRET, "private/eve/x", "inbox/eve/0000000000"])
    async def test_a_plain_value_is_refused_where_all_are_sealed(
        self, services: Services, old: list[bytes], where: Key
    ) -> None:
        """Also where nothing was before: a letter in somebody's name. No conflict shows it."""
        there = await services.begin()
        await commit(services.raw, Put(where, encode_value("pay mallory")), by=name("boss"))
        await check_refused(services, there, where)
        epoch = (await there.open(BOARD)).epoch.id
        late = Commit(name(), epoch, (Delete(where),), (KeyAt(where, ABSENT),))
        (outcome,) = await there.commit(BOARD, [prepare(late)])
        assert isinstance(outcome, Conflict)
        assert outcome.current is None

    async def test_a_plain_value_is_refused_on_a_board_that_no_service_made(
        self,
        services: Services,
    ) -> None:
        """It was not there when everything began to be sealed."""
        await services.begin()
        await commit(services.raw, Put("inbox/ada/x", encode_value("pay mallory")), board="new")
        store = await services.begin()
        with pytest.raises(Corrupt, match="not sealed"):
            await store.read("new", ["inbox/ada/x"])

    async def test_what_is_public_is_plain_until_that_is_sealed_too(
        self, services: Services
    ) -> None:
        """From then on it is refused like the others."""
        store = await services.begin()
        await commit(store, Put("public/x", encode_value(1)))
        await commit(services.raw, Put("public/y", encode_value(2)))
        assert await shown(store, "public/x", "public/y") == [1, 2]
        store = await services.begin(public=True)
        assert await shown(store, "public/x", "public/y") == [1, 2]
        await commit(store, Put("public/x", encode_value(3)))
        await commit(services.raw, Put("public/y", encode_value(4)))
        assert await shown(store, "public/x") == [3]
        with pytest.raises(Corrupt, match="not sealed"):
            await store.read(BOARD, ["public/y"])

    async def test_what_was_plain_before_stays_readable(self, services: Services) -> None:
        """A board from before there was a master key; not what somebody adds to it later."""
        raw = services.raw
        await commit(raw, Put(SECRET, encode_value("before")), Put(OTHER, encode_value(1)))
        for _ in range(2):
            store = await services.begin()
            assert await shown(store, SECRET) == ["before"]
            assert len((await store.log(BOARD, 0, limit=10)).entries) == 1
        await commit(store, Increment(OTHER, 2))
        assert await shown(store, OTHER, SECRET) == [3, "before"]
        await commit(raw, Put(SECRET, encode_value("before")))
        await check_refused(services, store, SECRET)

    async def test_a_board_that_begins_again_was_never_plain(self, services: Services) -> None:
        """A value that claims to be from before the switch is refused on it, by every service; on
        other boards it counts as before."""
        for board in (BOARD, f"{BOARD}2"):
            await commit(services.raw, Put(SECRET, encode_value("before")), board=board)
        there, store = await services.begin(), await services.begin()
        assert await there.places.switch.end(BOARD, PRIVATE) == 1
        await store.remove(BOARD)
        assert await store.keys.forget(BOARD) == 0
        forged = Entry(SECRET, encode_value("pay mallory"), 1, 1, "ada", 1_000, None)

        async def pages() -> AsyncIterator[tuple[Entry, ...]]:
            yield (forged,)

        await services.raw.seed(BOARD, Seed(Epoch(2, "b", "branch", 1, 100), 0), pages())

        async def is_known() -> bool:
            return await there.places.switch.end(BOARD, PRIVATE) == 0

        await wait_until(is_known)
        for service in (store, there, await services.begin()):
            with pytest.raises(Corrupt, match="not sealed"):
                await service.read(BOARD, [SECRET])
        assert [r.key.split("/")[5] for r in await records_of(services, "~sealed/~until")] == [
            f"{BOARD}2"
        ]
        reading = await store.read(f"{BOARD}2", [SECRET])
        assert [decode_value(entry.value) for entry in reading.entries] == ["before"]

    async def test_what_the_version_before_sealed_opens(self, services: Services) -> None:
        """It is read, put back and added to; in a new commit its form counts no more."""
        await sealed_before(services)
        store = await services.begin()
        assert await shown(store, SECRET, *ITEMS[:2]) == ["two", "one", "two"]
        first = (await store.log(BOARD, 0, limit=10)).entries[0]
        [then] = [change.value for change in first.changes if change.key == SECRET]
        assert then is not None
        await restore(store, PutBack(SECRET, then), Delete(ITEMS[1]))
        await commit(store, Append(LIST, encode_value("three")))
        for service in (store, await services.begin()):
            assert await shown(service, SECRET, ITEMS[0], ITEMS[2]) == ["one", "one", "three"]
            assert len((await service.log(BOARD, 0, limit=10)).entries) == 4
        [item] = await kept(services.raw, ITEMS[0])
        by = header_of(item, "it").commit
        await commit(services.raw, Put(ITEMS[1], item), by=replace(by, lane=1))
        await check_refused(services, store, ITEMS[1])

    async def test_what_a_restore_puts_back_is_believed_and_nothing_else(
        self, services: Services, old: list[bytes]
    ) -> None:
        """The service says so under the master key, of this restore and of no other."""
        store = await services.begin()
        back = (await store.log(BOARD, 0, limit=1)).entries[0].changes[0].value
        assert back is not None
        done = await restore(store, PutBack(SECRET, back), Delete(ITEMS[1]))
        assert len(done.results) == 2
        assert await kept(services.raw, SECRET) == [old[0]]
        for service in (store, await services.begin()):
            assert await shown(service, SECRET, ITEMS[0], ITEMS[2]) == ["limit=1", "A", "C"]
            assert len((await service.log(BOARD, 0, limit=10)).entries) == 4
        [told] = await kept(services.raw, RESTORED)
        await commit(store, Put(SECRET, encode_value("limit=20")))
        await restore(services.raw, PutBack(SECRET, old[0]), PutBack(RESTORED, told))
        await check_refused(services, store, SECRET)

    async def test_a_restore_that_no_service_made_is_refused(
        self, services: Services, old: list[bytes]
    ) -> None:
        """It was made with the engine alone."""
        store = await services.begin()
        await restore(services.raw, PutBack(SECRET, old[0]))
        await check_refused(services, store, SECRET)

    async def test_a_branch_begins_with_values_of_its_origin(
        self, services: Services, old: list[bytes]
    ) -> None:
        """They were sealed on another board; what somebody puts there later is refused."""
        store = await services.begin()
        head = await store.open(BOARD)
        entries = (await store.list(BOARD, "", limit=10)).entries

        async def pages() -> AsyncIterator[tuple[Entry, ...]]:
            yield entries

        await store.seed("branch", Seed(Epoch(1, "b", "branch", 1, head.revision + 1), 0), pages())
        for service in (store, await services.begin()):
            assert await shown(service, SECRET, *ITEMS, board="branch") == [
                "limit=10",
                "A",
                "B",
                "C",
            ]
        await commit(services.raw, Put(SECRET, old[0]), board="branch")
        with pytest.raises(Corrupt, match="another place"):
            await store.read("branch", [SECRET])

    async def test_a_value_and_its_data_key_cannot_go_to_another_board(
        self, services: Services, old: list[bytes]
    ) -> None:
        """Under the same key, in a copy of its commit."""
        store = await services.begin()
        copies = [
            Put(entry.key.replace("/main/", "/twin/"), entry.value)
            for entry in await records_of(services, "main")
        ]
        await commit(services.raw, *copies, board=KEYS_BOARD)
        by = CommitId("ada", 0, "first", 1)
        await commit(services.raw, Put(SECRET, old[0]), by=by, board="twin")
        with pytest.raises(Corrupt, match="another place"):
            await store.read("twin", [SECRET])

    async def test_the_record_of_the_switch_cannot_be_taken_away(
        self, services: Services, old: list[bytes]
    ) -> None:
        """Else all that was written before the next start would count as from before it."""
        [switch] = await records_of(services, "~sealed/~switch")
        for gone in (Delete(switch.key), Put(switch.key, encode_value({"erased_ms": 1}))):
            await commit(services.raw, gone, board=KEYS_BOARD)
            with pytest.raises(Corrupt, match="removed"):
                await services.begin()
            await commit(services.raw, Put(switch.key, switch.value), board=KEYS_BOARD)
        await services.begin()

    async def test_no_record_hides_that_of_the_switch(
        self, services: Services, old: list[bytes]
    ) -> None:
        """A destroyed key of the same id, which anybody can make, before it or behind it."""
        [switch] = await records_of(services, "~sealed/~switch")
        for other in ("~a", "~until/00/main/1"):
            key = f"system/keys/~sealed/{other}/{switch.key.rpartition('/')[2]}"
            await commit(services.raw, Put(key, encode_value({"erased_ms": 1})), board=KEYS_BOARD)
        await services.begin()
        assert len(await records_of(services, "~sealed/~switch")) == 1

    async def test_since_when_a_board_is_sealed_cannot_be_moved(self, services: Services) -> None:
        """A record that somebody makes, moves or removes lets nothing more pass."""
        await commit(services.raw, Put(SECRET, encode_value("before")))
        store = await services.begin()
        await commit(store, Put(OTHER, encode_value("sealed")))
        [until] = await records_of(services, "~sealed/~until")
        moved = until.key.replace("/main/1/", "/main/9/")
        assert moved != until.key
        await commit(services.raw, Put(moved, until.value), board=KEYS_BOARD)
        with pytest.raises(Corrupt):
            await services.begin()
        await commit(services.raw, Put(moved, encode_value({"erased_ms": 1})), board=KEYS_BOARD)
        store = await services.begin()
        assert await store.places.switch.end(BOARD, PRIVATE) == 1
        made = f"{moved.rpartition('/')[0]}/{secrets.token_hex(12)}"
        await commit(services.raw, Put(made, encode_value({"erased_ms": 1})), board=KEYS_BOARD)
        store = await services.begin()
        assert await store.places.switch.end(BOARD, PRIVATE) == 1
        await commit(services.raw, Delete(moved), Delete(until.key), board=KEYS_BOARD)
        with pytest.raises(Corrupt, match="not sealed"):
            await (await services.begin()).read(BOARD, [SECRET])

    async def test_records_from_before_the_switch_open_nothing_that_came_later(
        self,
        services: Services,
    ) -> None:
        """Who puts all of them back makes a service forget the switch, and lose the keys since."""
        await sealed_before(services)
        before = {entry.key for entry in await records_of(services, "main")}
        store = await services.begin()
        await commit(store, Put(OTHER, encode_value("later")))
        gone = [
            Delete(entry.key) for entry in await records_of(services) if entry.key not in before
        ]
        await commit(services.raw, *gone, board=KEYS_BOARD)
        store = await services.begin()
        assert await shown(store, SECRET) == ["two"]
        with pytest.raises(Corrupt, match="is not one of board"):
            await store.read(BOARD, [OTHER])

    async def test_two_services_that_switch_at_once_agree(self, services: Services) -> None:
        """Both records stand; nothing that either wrote is refused."""
        first = await services.begin()
        await first.places.switch.turn_on(PRIVATE, {BOARD: 99})
        second = await services.begin()
        assert await second.places.switch.end(BOARD, PRIVATE) == 0
        await commit(first, Put(SECRET, encode_value(1)))
        await commit(second, Put(OTHER, encode_value(2)))
        for store in (first, second, await services.begin()):
            assert await shown(store, OTHER, SECRET) == [2, 1]

    async def test_another_master_key_keeps_what_is_recorded(
        self, services: Services, old: list[bytes]
    ) -> None:
        """Of the switch, of restores, and of what was there before."""
        store = await services.begin()
        back = (await store.log(BOARD, 0, limit=1)).entries[0].changes[0].value
        assert back is not None
        await restore(store, PutBack(SECRET, back))
        new = new_master_key()
        both = await services.begin(master=f"{new}\n{MASTER}")
        assert await both.keys.rewrap() == 1
        late = await services.begin(master=new)
        assert await shown(late, SECRET, *ITEMS) == ["limit=1", "A", "B", "C"]
        await commit(services.raw, Put(SECRET, encode_value("plain")))
        with pytest.raises(Corrupt, match="not sealed"):
            await late.read(BOARD, [SECRET])

    async def test_what_the_log_does_not_reach_is_read(
        self, services: Services, old: list[bytes]
    ) -> None:
        """Without an archive there is nothing to compare with."""
        await services.raw.compact(BOARD, 4)
        assert await shown(await services.begin(), SECRET, *ITEMS) == ["limit=10", "A", "B", "C"]

    @pytest.mark.limits(sealed_compared_max=2)
    async def test_few_values_are_remembered(self, services: Services, old: list[bytes]) -> None:
        """SEALED_COMPARED_MAX; of all others the log is asked again."""
        store = await services.begin()
        for _ in range(2):
            assert await shown(store, SECRET, *ITEMS) == ["limit=10", "A", "B", "C"]
            assert len(store.places._known) == 2
        await commit(services.raw, Put(SECRET, old[0]))
        with pytest.raises(Corrupt):
            await store.read(BOARD, [SECRET])

    @pytest.mark.parametrize("search_max", [5, 4])
    async def test_a_commit_behind_others_is_distinguished_from_a_copy(
        self, services: Services, old: list[bytes], monkeypatch: pytest.MonkeyPatch, search_max: int
    ) -> None:
        """Its values were sealed when less was seen: by SEALED_SEARCH_MAX revisions."""
        monkeypatch.setattr("blackboard.encryption.places.SEALED_SEARCH_MAX", search_max)
        store = await services.begin()
        waiting = Commit(name(), (await store.open(BOARD)).epoch.id, (Put(OTHER, encode_value(1)),))
        plan = await store._plan(BOARD, prepare(waiting), {})
        assert isinstance(plan, Plan)
        for _ in range(4):
            await commit(services.raw, Put("public/x", NOTHING))
        await send(services.raw, plan.sent.commit)
        for service in (store, await services.begin()):
            assert await shown(service, OTHER) == [1]
            assert len((await service.log(BOARD, 0, limit=10)).entries) == 8
        await commit(store, Put(OTHER, encode_value(2)), by=replace(waiting.id, incarnation="b"))
        await send(services.raw, plan.sent.commit)
        if search_max == 5:
            await check_refused(services, store, OTHER)
        else:
            assert await shown(await services.begin(), OTHER) == [1]


class TestPlacesSqlite(PlacesRules):
    """In the embedded engine."""

    @pytest.fixture
    async def raw(self, tmp_path: Path) -> AsyncIterator[Store]:
        """The engine, as who can write to it has it."""
        store = await SqliteStore.at(tmp_path, "memory")
        yield store
        await store.aclose()


class TestPlacesRedis(PlacesRules):
    """In Redis."""

    @pytest.fixture
    async def raw(self, redis_url: str) -> AsyncIterator[Store]:
        """The engine, as who can write to it has it."""
        store = RedisStore.connect(redis_url)
        yield store
        await store.aclose()

    async def test_an_older_state_is_noticed_by_a_client_that_saw_a_later_one(
        self, services: Services, redis_url: str
    ) -> None:
        """While the log goes on: the log has what was written then, so it is no help."""
        store = await services.begin()
        await commit(store, Put(SECRET, encode_value("limit=1")))
        async with Redis.from_url(redis_url) as client:
            states = [
                (key, await client.hget(key, SECRET))
                async for key in client.scan_iter(_type="HASH")
                if await client.hexists(key, SECRET)
            ]
            await commit(store, Put(SECRET, encode_value("limit=10")))
            assert await shown(store, SECRET) == ["limit=10"]
            for key, value in states:
                await client.hset(key, SECRET, value or b"")
        assert states
        with pytest.raises(Corrupt, match="older"):
            await store.read(BOARD, [SECRET])
        assert await shown(await services.begin(), SECRET) == ["limit=1"]


async def test_where_the_log_was_cut_the_archive_says_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who puts an old value back much later and cuts off the log is not believed; a restore is."""
    monkeypatch.setattr("blackboard.encryption.places.SEALED_SEARCH_MAX", 2)
    async with blackboard.open(tmp_path, master_key=MASTER, level="memory") as client:
        board = client.board(BOARD)
        await board.put(SECRET, "limit=1")
        await board.put(OTHER, "back")
        await board.checkpoint("one")
        for n in range(4):
            await board.put(SECRET, n)
        await board.put(OTHER, "gone")
        await board.restore("one")
        await board.put(SECRET, "limit=10")
        await board.checkpoint("two")
        assert await board.get(OTHER) == "back"
    raw = await SqliteStore.at(tmp_path, "memory")
    try:
        [logged] = (await raw.log(BOARD, 0, limit=1)).entries
        assert logged.changes[0].value is not None
        await commit(raw, Put("public/x", NOTHING), by=replace(logged.id, incarnation="x"))
        await commit(raw, Put(SECRET, logged.changes[0].value), by=logged.id)
        await raw.compact(BOARD, (await raw.open(BOARD)).revision + 1)
    finally:
        await raw.aclose()
    async with blackboard.open(tmp_path, master_key=MASTER, level="memory") as client:
        assert await client.board(BOARD).get(OTHER) == "back"
        with pytest.raises(Corrupt):
            await client.board(BOARD).get(SECRET)


@pytest.mark.parametrize("forged", [None, encode_value("forged"), REDACTED])
async def test_a_value_of_the_past_is_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forged: bytes | None
) -> None:
    """In the archive, too: neither a much older one nor one in the clear counts, without `verify`;
    what a restore put back does, and the marker of what was removed."""
    monkeypatch.setattr("blackboard.encryption.places.SEALED_SEARCH_MAX", 2)
    async with blackboard.open(tmp_path, master_key=MASTER, level="memory") as client:
        board = client.board(BOARD)
        await board.put(SECRET, "limit=1")
        await board.put(OTHER, "back")
        await board.checkpoint("one")
        for n in range(4):
            await board.put(SECRET, n)
        await board.delete(OTHER)
        await board.restore("one")
        await board.put(SECRET, "limit=10")
        end = await board.put("public/end", 1)
        await board.checkpoint("two")
    value = "(SELECT content FROM version WHERE key = :key ORDER BY revision LIMIT 1)"
    newest = "(SELECT max(revision) FROM version WHERE key = :key)"
    with closing(sqlite3.connect(tmp_path / "archive.db")) as archive:
        change = f"UPDATE version SET content = {value if forged is None else ':plain'} "
        archive.execute(
            f"{change} WHERE key = :key AND revision = {newest}",
            {"key": SECRET, "plain": forged},
        )
        archive.commit()
    async with blackboard.open(tmp_path, master_key=MASTER, level="memory") as client:
        board = client.board(BOARD)
        assert await board.get(OTHER, at=end.revision) == "back"
        if forged == REDACTED:
            assert await board.get(SECRET, at=end.revision) == {"$redacted": True}
            assert (await board.history(SECRET))[0].value == {"$redacted": True}
            return
        with pytest.raises(Corrupt):
            await board.get(SECRET, at=end.revision)
        with pytest.raises(Corrupt):
            await board.history(SECRET)
