"""What a sealing store does beyond the port: what lies behind it, counters, erasure, damage.

That it keeps every promise of the port is tested by tests/conformance/test_store_sealed.py.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from blackboard.core.commit import (
    Append,
    Commit,
    CommitId,
    Committed,
    Delete,
    DeletePrefix,
    Entry,
    Epoch,
    Increment,
    KeyAt,
    Op,
    Put,
    PutBack,
    Reading,
    Seed,
)
from blackboard.core.model import Outcome
from blackboard.encryption.data_keys import DataKeys
from blackboard.encryption.master_key import LocalWrapper, new_master_key
from blackboard.encryption.store import ERASED, SealedStore
from blackboard.engines.base import Behind
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import (
    BlackboardError,
    Conflict,
    Corrupt,
    InvalidRequest,
    LimitExceeded,
    OutcomeUnknown,
    StaleEpoch,
    TypeMismatch,
    Unavailable,
)
from blackboard.integrity.envelope import is_sealed
from blackboard.limits import INTEGER_MAX
from blackboard.units import Key, Revision
from blackboard.wire.codec import Prepared, decode_value, encode_value, prepare
from blackboard.wire.frames import SEALED
from tests.waiting import wait_until

BOARD = "main"
SECRET, PUBLIC, COUNT = "private/ada/secret", "public/plan", "private/ada/count"
CANARY = encode_value("canary")


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SealedStore]:
    """A store that seals what is private."""
    raw = await SqliteStore.at(tmp_path, "memory")
    store = SealedStore(raw, DataKeys(raw, LocalWrapper.of(new_master_key())))
    yield store
    await store.aclose()


class Writer:
    """Commits as ada."""

    def __init__(self, store: SealedStore) -> None:
        self.store = store
        self.step = 0

    async def make(self, *ops: Op, conditions: tuple[KeyAt, ...] = ()) -> Commit:
        """The next commit."""
        self.step += 1
        epoch = (await self.store.open(BOARD)).epoch.id
        return Commit(CommitId("ada", 0, "i", self.step), epoch, ops, conditions)

    async def send(self, commit: Commit) -> Outcome:
        """Commit."""
        (outcome,) = await self.store.commit(BOARD, [prepare(commit)])
        return outcome

    async def commit(self, *ops: Op) -> Committed:
        """Commit what must be accepted."""
        outcome = await self.send(await self.make(*ops))
        assert isinstance(outcome, Committed), outcome
        return outcome


@pytest.fixture
def ada(store: SealedStore) -> Writer:
    """A writer."""
    return Writer(store)


async def values(store: SealedStore, *keys: str) -> list[object]:
    """The values at keys."""
    return [decode_value(entry.value) for entry in (await store.read(BOARD, keys)).entries]


async def test_only_what_is_private_is_sealed_behind_it(store: SealedStore, ada: Writer) -> None:
    """In the state and in the log; and nobody who reads through it notices."""
    await ada.commit(Put(SECRET, CANARY), Put(PUBLIC, CANARY), Append("inbox/ada/m", CANARY))
    behind = (await store.raw.list(BOARD, "", limit=10)).entries
    assert [is_sealed(entry.value) for entry in behind] == [True, True, False]
    (logged,) = (await store.raw.log(BOARD, 0, limit=10)).entries
    assert [c.key for c in logged.changes if c.value and not is_sealed(c.value)] == [PUBLIC]
    shown = (await store.list(BOARD, "", limit=10)).entries
    assert [entry.value for entry in shown] == [CANARY] * 3
    (entry,) = (await store.log(BOARD, 0, limit=10)).entries
    assert all(change.value == CANARY for change in entry.changes)


async def test_a_sealed_counter_counts_and_answers_retries_as_at_first(
    store: SealedStore, ada: Writer
) -> None:
    """Several in one commit, after a put, after a delete; also once something else is there."""
    other = "private/ada/other"
    for ops, results, value in (
        ((Increment(COUNT, 2), Increment(other, 1), Increment(COUNT, 3)), (2, 1, 5), 5),
        ((Increment(COUNT, -2),), (3,), 3),
        ((Increment(COUNT, 1), Increment(COUNT, 0)), (4, 4), 4),
        ((Put(COUNT, encode_value(7)), Increment(COUNT, 1)), (None, 8), 8),
        ((Delete(COUNT), Increment(COUNT, 4), Increment(COUNT, 5)), (1, 4, 9), 9),
        ((DeletePrefix("private/ada"), Increment(COUNT, 6)), ((COUNT, other), 6), 6),
        (
            (Put(COUNT, encode_value(7)), Increment(COUNT, 1), Delete(COUNT), Increment(COUNT, 4)),
            (None, 8, 1, 4),
            4,
        ),
    ):
        commit = await ada.make(*ops)
        done = await ada.send(commit)
        assert isinstance(done, Committed), done
        assert done.results == results
        assert await values(store, COUNT) == [value]
        assert await ada.send(commit) == replace(done, duplicate=True)
        bob = replace(commit, id=CommitId("bob", 0, "i", ada.step), ops=(Put(COUNT, CANARY),))
        assert isinstance(await ada.send(bob), Committed)
        assert await ada.send(commit) == replace(done, duplicate=True)
        restored = replace(bob, id=CommitId("bob", 1, "i", ada.step))
        restored = replace(restored, ops=(Put(COUNT, encode_value(value)),))
        assert isinstance(await ada.send(restored), Committed)


@pytest.mark.parametrize("last", [Delete(COUNT), Put(COUNT, CANARY), DeletePrefix("private/ada")])
async def test_a_sum_that_its_commit_overwrote_is_not_guessed_for_a_retry(
    ada: Writer, last: Op
) -> None:
    """Nothing has it any more; another sum of the commit is no answer to it."""
    commit = await ada.make(Increment(COUNT, 2), last)
    assert isinstance(await ada.send(commit), Committed)
    again = await ada.send(commit)
    assert isinstance(again, OutcomeUnknown), again
    assert again.final


async def test_many_writers_of_a_sealed_counter_lose_nothing(store: SealedStore) -> None:
    """What came too late is computed again."""
    epoch = (await store.open(BOARD)).epoch.id
    batch = [
        prepare(Commit(CommitId("ada", lane, "i", 1), epoch, (Increment(COUNT, 1),)))
        for lane in range(20)
    ]
    outcomes = await store.commit(BOARD, batch)
    sums = [o.results[0] for o in outcomes if isinstance(o, Committed)]
    assert sorted(sums) == list(range(1, 21))  # type: ignore[type-var]


async def test_a_sealed_counter_is_refused_as_any_other(store: SealedStore, ada: Writer) -> None:
    """For what it holds, for its size; and not before what comes first."""
    await ada.commit(Put(SECRET, CANARY), Put(COUNT, encode_value(INTEGER_MAX)))
    refused = await ada.send(await ada.make(Increment(SECRET, 1)))
    assert isinstance(refused, TypeMismatch)
    assert (refused.key, refused.wanted, refused.found) == (SECRET, "integer", "string")
    assert isinstance(await ada.send(await ada.make(Increment(COUNT, 1))), LimitExceeded)
    stale = replace(await ada.make(Increment(SECRET, 1)), epoch="old")
    assert isinstance(await ada.send(stale), StaleEpoch)
    absent = await ada.make(Increment(SECRET, 1), conditions=(KeyAt(PUBLIC, 7),))
    assert isinstance(await ada.send(absent), Conflict)


async def test_a_conflict_shows_the_plain_value(ada: Writer) -> None:
    """As the port says."""
    await ada.commit(Put(SECRET, CANARY))
    refused = await ada.send(await ada.make(Put(SECRET, CANARY), conditions=(KeyAt(SECRET, 0),)))
    assert isinstance(refused, Conflict)
    assert refused.current == CANARY


async def test_an_item_that_is_appended_is_not_counted_from_nothing(
    store: SealedStore, ada: Writer
) -> None:
    """The engine gives its key, so the sum cannot be encrypted; a later commit can add to it."""
    item = "private/ada/list/0000000000"
    append, add = Append("private/ada/list", encode_value(5)), Increment(item, 2)
    refused = await ada.send(await ada.make(append, add))
    assert isinstance(refused, InvalidRequest)
    assert await values(store, item) == []
    await ada.commit(append)
    assert (await ada.commit(append, add)).results == ("private/ada/list/0000000001", 7)
    assert await values(store, item, "private/ada/list/0000000001") == [7, 5]


@pytest.mark.parametrize("error", [Corrupt("value", "damaged"), Unavailable("data keys", "away")])
async def test_a_conflict_with_a_value_that_cannot_be_read_is_one(
    store: SealedStore, ada: Writer, error: BlackboardError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused for sure, and not of an unknown outcome."""
    await ada.commit(Put(SECRET, CANARY))
    absent = await ada.make(Put(SECRET, CANARY), conditions=(KeyAt(SECRET, 0),))

    async def fails(*_: object) -> bytes:
        raise error

    monkeypatch.setattr(store.opener, "value", fails)
    refused = await ada.send(absent)
    assert isinstance(refused, Conflict)
    assert refused.current is None


async def test_what_is_put_back_is_the_same_ciphertext(store: SealedStore, ada: Writer) -> None:
    """So the digest of what was restored is that of the checkpoint."""
    await ada.commit(Put(SECRET, CANARY))
    (before,) = (await store.raw.read(BOARD, [SECRET])).entries
    (opened,) = (await store.read(BOARD, [SECRET])).entries
    await ada.commit(Put(SECRET, encode_value("other")))
    head = await store.open(BOARD)
    restore = replace(
        await ada.make(PutBack(SECRET, opened.value)),
        begins=Epoch(head.epoch.number + 1, "new", "restore", 1, head.revision + 1),
    )
    assert isinstance(await ada.send(restore), Committed)
    (after,) = (await store.raw.read(BOARD, [SECRET])).entries
    assert after.value == before.value
    assert await values(store, SECRET) == ["canary"]


async def test_a_branch_begins_with_the_same_ciphertext_and_reads_it(
    store: SealedStore, ada: Writer
) -> None:
    """With the keys that it needs, and no other board's."""
    await ada.commit(Put(SECRET, CANARY), Put(PUBLIC, CANARY))
    page = (await store.list(BOARD, "", limit=10)).entries

    async def pages() -> AsyncIterator[list[Entry]]:
        yield list(page)

    await store.seed("branch", Seed(Epoch(1, "b", "branch", 1, 2), 0), pages())
    for kept in (store.raw, store):
        first = (await kept.read(BOARD, [SECRET])).entries
        second = (await kept.read("branch", [SECRET])).entries
        assert [e.value for e in first] == [e.value for e in second]


async def test_what_is_moved_to_another_board_or_key_is_corrupt(
    store: SealedStore, ada: Writer
) -> None:
    """Behind the store's back."""
    await ada.commit(Put(SECRET, CANARY))
    await ada.commit(Put("private/ada/other", CANARY))
    (entry,) = (await store.raw.read(BOARD, [SECRET])).entries
    for board, key in ((BOARD, "private/ada/other"), (BOARD, "private/bob/x"), ("b2", SECRET)):
        epoch = (await store.raw.open(board)).epoch.id
        moved = Commit(CommitId("eve", 0, key, 1), epoch, (Put(key, entry.value),))
        await store.raw.commit(board, [prepare(moved)])
        with pytest.raises(Corrupt):
            await store.read(board, [key])


async def test_what_cannot_be_read_expires_all_the_same(store: SealedStore, ada: Writer) -> None:
    """The sweeper needs no values; one that is damaged would keep all others on the board."""
    await ada.commit(Put(SECRET, CANARY, ttl_ms=1))
    epoch = (await store.open(BOARD)).epoch.id
    damaged = Put("private/ada/damaged", SEALED + b"damaged", ttl_ms=1)
    commit = Commit(CommitId("eve", 0, "i", 1), epoch, (damaged,))
    await store.raw.commit(BOARD, [prepare(commit)])

    async def are_due() -> bool:
        return len((await store.raw.due(BOARD, limit=9)).entries) == 2

    await wait_until(are_due)
    found = (await store.due(BOARD, limit=9)).entries
    # Which of the two comes first depends on the clock.
    assert {entry.key: entry.value for entry in found} == {SECRET: b"", damaged.key: b""}


async def test_an_erased_agent_is_erased_and_the_board_goes_on(
    store: SealedStore, ada: Writer
) -> None:
    """State and log; the others' values stay, and so does what is written from then on."""
    bob = encode_value("bob's")
    await ada.commit(Put(SECRET, CANARY), Put("private/bob/x", bob), Put(PUBLIC, bob))
    assert await store.keys.destroy(["private/ada"], BOARD) == 1
    found = {e.key: e.value for e in (await store.list(BOARD, "", limit=10)).entries}
    assert found == {SECRET: ERASED, "private/bob/x": bob, PUBLIC: bob}
    (entry,) = (await store.log(BOARD, 0, limit=10)).entries
    assert ERASED in [change.value for change in entry.changes]
    await ada.commit(Put(SECRET, bob))
    assert await values(store, SECRET) == ["bob's"]


class RacedStore(RedisStore):
    """An engine on which somebody is faster, and a token is revoked: `race` runs once, before the
    first commit under a token, and `after` right after it."""

    race: Callable[[], Awaitable[object]] | None = None
    after: Callable[[], Awaitable[object]] | None = None

    async def commit_at(
        self, board: str, batch: Sequence[Prepared], access: Revision
    ) -> list[Outcome | Behind]:
        """As `Shared.commit_at`."""
        race, after, self.race, self.after = self.race, self.after, None, None
        if race is not None:
            await race()
        outcomes = await super().commit_at(board, batch, access)
        if after is not None:
            await after()
        return outcomes


class LookedAtStore(RedisStore):
    """An engine on which somebody is faster: `race` runs once, after the first look at its keys."""

    race: Callable[[], Awaitable[object]] | None = None

    async def read(self, board: str, keys: Sequence[Key]) -> Reading:
        """As `Store.read`."""
        reading = await super().read(board, keys)
        race, self.race = self.race, None
        if race is not None:
            await race()
        return reading


async def test_the_sums_of_a_batch_are_of_one_moment(redis_url: str) -> None:
    """Else the first of two commits of a writer came too late, and the second one before it."""
    raw = LookedAtStore.connect(redis_url)
    assert isinstance(raw, LookedAtStore)
    store = SealedStore(raw, DataKeys(raw, LocalWrapper.of(new_master_key())))
    try:
        ada = Writer(store)
        await ada.commit(Increment(COUNT, 1))
        batch = [prepare(await ada.make(Increment(COUNT, by))) for by in (10, 100)]
        bob = replace(await ada.make(Increment(COUNT, 1000)), id=CommitId("bob", 0, "i", 1))
        raw.race = lambda: store.commit(BOARD, [prepare(bob)])
        outcomes = await store.commit(BOARD, batch)
        assert [o.results for o in outcomes if isinstance(o, Committed)] == [(1011,), (1111,)]
    finally:
        await store.aclose()


async def test_a_sum_that_came_too_late_is_not_sent_again_under_a_revoked_token(
    redis_url: str,
) -> None:
    """It goes the way that it came: with the number that was known when the token was looked at."""
    raw = RacedStore.connect(redis_url)
    assert isinstance(raw, RacedStore)
    store = SealedStore(raw, DataKeys(raw, LocalWrapper.of(new_master_key())))
    ada = Writer(store)
    await ada.commit(Increment(COUNT, 1))
    await store.raise_access(BOARD, 7)
    raw.race = lambda: ada.commit(Increment(COUNT, 10))
    raw.after = lambda: store.raise_access(BOARD, 8)
    late = prepare(replace(await ada.make(Increment(COUNT, 100)), id=CommitId("bob", 0, "i", 1)))
    assert await store.commit_at(BOARD, [late], 7) == [Behind(8)]
    assert await values(store, COUNT) == [11]
    raw.race = lambda: ada.commit(Increment(COUNT, 1000))
    (outcome,) = await store.commit_at(BOARD, [late], 8)
    assert isinstance(outcome, Committed)
    assert outcome.results == (1111,)
    await store.aclose()
