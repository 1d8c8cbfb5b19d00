"""Data keys: one for each namespace of each board, shared by processes, destroyed for good."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from blackboard.core.access import KEYS_BOARD
from blackboard.core.commit import Commit, CommitId, Delete, Put, Reading
from blackboard.encryption.data_keys import DataKey, DataKeys
from blackboard.encryption.master_key import LocalWrapper, new_master_key
from blackboard.engines.base import Store
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Corrupt, InvalidRequest, Unavailable
from blackboard.limits import DEFAULT, Limits
from blackboard.wire.codec import decode_value, encode_value, prepare
from tests.waiting import slow_at_first, wait_until

ADA, BOB = "private/ada", "private/bob"
MASTER_KEY = new_master_key()


@pytest.fixture
async def raw(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """An engine."""
    store = await SqliteStore.at(tmp_path, "memory")
    yield store
    await store.aclose()


@pytest.fixture
def wrapper() -> LocalWrapper:
    """A master key."""
    return LocalWrapper.of(MASTER_KEY)


@pytest.fixture
async def keys(raw: SqliteStore, wrapper: LocalWrapper, limits: Limits) -> AsyncIterator[DataKeys]:
    """The data keys of one process."""
    keys = DataKeys(raw, wrapper, limits=limits)
    yield keys
    await keys.aclose()


@pytest.fixture
async def others(raw: SqliteStore, wrapper: LocalWrapper) -> AsyncIterator[DataKeys]:
    """The data keys as another process has them."""
    keys = DataKeys(raw, wrapper)
    yield keys
    await keys.aclose()


async def test_a_namespace_of_a_board_has_a_key_of_its_own(keys: DataKeys) -> None:
    """The same one each time."""
    found = [
        await keys.current(board, namespace) for board in ("a", "b") for namespace in (ADA, BOB)
    ]
    assert len({key.id for key in found}) == 4
    assert await keys.current("a", ADA) is found[0]
    assert await keys.find("a", found[0].id) is found[0]
    assert await keys.find("b", found[0].id) is None


async def test_two_keys_are_made_at_once(
    keys: DataKeys, raw: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the engine answers the second first."""
    await keys.current("a", "private/eve")
    monkeypatch.setattr(raw, "commit", slow_at_first(raw.commit))
    ada, bob = await asyncio.gather(keys.current("a", ADA), keys.current("a", BOB))
    assert (ada.namespace, bob.namespace) == (ADA, BOB)


async def test_another_process_gets_the_same_keys(keys: DataKeys, others: DataKeys) -> None:
    """From the records, also those that were made after it began."""
    first = await keys.current("a", ADA)
    assert (await others.current("a", ADA)).id == first.id
    second = await keys.current("a", BOB)
    found = await others.find("a", second.id)
    assert found is not None
    assert found.namespace == BOB


async def test_a_destroyed_key_is_gone_in_every_process(
    keys: DataKeys, others: DataKeys, raw: SqliteStore
) -> None:
    """Its record stays, its wrapped bytes do not: neither in the board nor in its log."""
    doomed, stays = await keys.current("a", ADA), await keys.current("a", BOB)
    await others.find("a", doomed.id)
    assert await keys.destroy([ADA], "a") == 1
    await wait_until(partial(is_destroyed, others, doomed))
    assert await keys.erased("a") == [ADA]
    kept = await keys.find("a", stays.id)
    assert kept is not None
    assert kept.cipher is not None
    head = await raw.open(KEYS_BOARD)
    assert head.log_entries == 0
    assert (await keys.current("a", ADA)).id != doomed.id


class AwayStore:
    """The engine of another process: while `is_away`, no records can be read from it."""

    def __init__(self, raw: SqliteStore) -> None:
        self._raw = raw
        self.is_away = False
        self.refused = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._raw, name)

    async def list(self, board: str, within: str, **named: Any) -> Reading:
        """As `Store.list`."""
        if self.is_away:
            self.refused += 1
            raise Unavailable("engine", "it is away for a moment")
        return await self._raw.list(board, within, **named)


@pytest.fixture
async def away(raw: SqliteStore) -> AwayStore:
    """The engine of the process `late`."""
    return AwayStore(raw)


@pytest.fixture
async def late(away: AwayStore) -> AsyncIterator[DataKeys]:
    """The data keys of a process whose engine goes away."""
    keys = DataKeys(cast("Store", away), LocalWrapper.of(MASTER_KEY))
    yield keys
    await keys.aclose()


async def is_away_while_a_key_is_destroyed(
    keys: DataKeys, late: DataKeys, away: AwayStore
) -> DataKey:
    """The key; `late` has noticed that something changed, and could not read what."""
    doomed = await keys.current("a", ADA)
    await late.find(
        "a", doomed.id
    )  # it makes no key itself: so the first change is the destruction
    away.is_away = True
    await keys.destroy([ADA], "a")

    async def is_noticed() -> bool:
        return away.refused > 0

    await wait_until(is_noticed)
    return doomed


async def is_destroyed(keys: DataKeys, key: DataKey) -> bool:
    """Whether a process knows that a key of board a was destroyed."""
    found = keys.known("a", key.id)
    return found is not None and found.cipher is None


async def test_records_that_could_not_be_read_are_read_as_soon_as_they_can(
    keys: DataKeys, late: DataKeys, away: AwayStore
) -> None:
    """Else the destroyed key would be used until the next change."""
    doomed = await is_away_while_a_key_is_destroyed(keys, late, away)
    away.is_away = False
    await wait_until(partial(is_destroyed, late, doomed))
    assert (await late.current("a", ADA)).id != doomed.id


async def test_a_key_is_not_used_while_its_changed_record_cannot_be_read(
    keys: DataKeys, late: DataKeys, away: AwayStore
) -> None:
    """Neither to encrypt nor to decrypt."""
    doomed = await is_away_while_a_key_is_destroyed(keys, late, away)
    with pytest.raises(Unavailable):
        await late.current("a", ADA)
    with pytest.raises(Unavailable):
        await late.find("a", doomed.id)


class LockedWrapper(LocalWrapper):
    """A master key that unwraps nothing while `is_locked`."""

    is_locked = False

    async def unwrap(self, wrapped: bytes, context: bytes) -> bytes:
        """As `Wrapper.unwrap`."""
        if self.is_locked:
            raise Unavailable("key service", "it is away for a moment")
        return await super().unwrap(wrapped, context)


async def test_a_key_that_cannot_be_unwrapped_now_hides_no_destruction(
    keys: DataKeys, raw: SqliteStore
) -> None:
    """Nor does it keep those from being used that are known."""
    locked = LockedWrapper([bytes.fromhex(MASTER_KEY)])
    others = DataKeys(raw, locked)
    doomed, stays = await others.current("a", ADA), await others.current("a", BOB)
    locked.is_locked = True
    newer = await keys.current("a", "private/eve")
    await keys.destroy([ADA], "a")
    await wait_until(partial(is_destroyed, others, doomed))
    assert await others.current("a", BOB) is stays
    with pytest.raises(Unavailable):
        await others.find("a", newer.id)
    locked.is_locked = False
    assert await others.find("a", newer.id) is not None
    await others.aclose()


async def test_a_destroyed_key_that_is_put_back_stays_destroyed_where_that_is_known(
    keys: DataKeys, others: DataKeys, raw: SqliteStore
) -> None:
    """In a process that saw it; others take it, until the master key is changed."""
    doomed = await keys.current("a", ADA)
    [record] = (await raw.list(KEYS_BOARD, "system/keys/a", limit=10)).entries
    await keys.destroy([ADA], "a")
    await put_record(raw, record.key, record.value)
    assert await keys.erased("a") == [ADA]
    found = await others.find("a", doomed.id)
    assert found is not None
    assert found.cipher is not None


async def test_a_request_that_comes_late_destroys_no_newer_key(
    keys: DataKeys, others: DataKeys
) -> None:
    """A process that was stopped carries it out after another one did."""
    await keys.current("a", ADA)
    assert await keys.destroy([ADA], "a", request="once") == 1
    newer = await keys.current("a", ADA)
    assert await others.destroy([ADA], "a", request="once") == 1
    found = await others.find("a", newer.id)
    assert found is not None
    assert found.cipher is not None
    assert await others.destroy([ADA], "a", request="twice") == 1


async def test_to_erase_on_a_branch_takes_nothing_from_its_origin(keys: DataKeys) -> None:
    """They share keys; a branch is refused until its origin has none of them any more."""
    key, mine = await keys.current("a", ADA), await keys.current("a", BOB)
    await keys.adopt("branch", [key.id])
    own = await keys.current("branch", BOB)
    with pytest.raises(InvalidRequest, match="shares data keys with a: "):
        await keys.destroy([ADA, BOB], "branch")
    assert await keys.find("a", key.id) is key
    assert await keys.destroy([BOB], "branch") == 1
    found = await keys.find("branch", own.id)
    assert found is not None
    assert found.cipher is None
    assert await keys.find("a", mine.id) is mine
    await keys.forget("a")
    assert await keys.destroy([ADA], "branch") == 1


async def test_what_was_destroyed_before_is_not_destroyed_again(
    keys: DataKeys, raw: SqliteStore
) -> None:
    """It is not counted, and its record still says when that was; a damaged record is replaced."""
    doomed = await keys.current("a", ADA)
    assert await keys.destroy([ADA], "a") == 1
    (before,) = (await raw.list(KEYS_BOARD, "system/keys/a", limit=10)).entries
    assert await keys.destroy([ADA]) == 0
    assert (await raw.read(KEYS_BOARD, [before.key])).entries == (before,)
    copy = before.key.replace("/a/", "/branch/")
    for damaged in (encode_value({"wrapped": b"x"}), encode_value("junk")):
        await put_record(raw, copy, damaged)
        assert await keys.destroy([ADA], "a") == 1
        (entry,) = (await raw.read(KEYS_BOARD, [copy])).entries
        assert decode_value(entry.value).keys() == {"erased_ms"}
    assert (await raw.read(KEYS_BOARD, [before.key])).entries == (before,)
    assert await is_destroyed(keys, doomed)


async def test_a_request_that_found_no_key_destroys_none_that_was_made_since(
    keys: DataKeys,
) -> None:
    assert await keys.destroy([ADA], "a", request="once") == 0
    newer = await keys.current("a", ADA)
    assert await keys.destroy([ADA], "a", request="once") == 0
    assert newer is await keys.current("a", ADA)
    with pytest.raises(InvalidRequest, match="another erasure"):
        await keys.destroy([BOB], "a", request="once")


async def test_a_request_that_is_carried_out_twice_at_the_same_time(
    keys: DataKeys, others: DataKeys, raw: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of the two is stopped after it has looked, until a newer key was made."""
    await keys.current("a", ADA)
    read, newer = raw.read, list[DataKey]()

    async def read_and_stop(board: str, names: Sequence[str]) -> Reading:
        found = await read(board, names)
        if not newer:
            monkeypatch.undo()
            await others.destroy([ADA], "a", request="once")
            newer.append(await others.current("a", ADA))
        return found

    monkeypatch.setattr(raw, "read", read_and_stop)
    assert await keys.destroy([ADA], "a", request="once") == 1
    found = await keys.find("a", newer[0].id)
    assert found is not None
    assert found.cipher is not None


@pytest.mark.parametrize("act", ["rewrap", "adopt"])
async def test_a_key_that_is_destroyed_while_its_record_is_copied_stays_destroyed(
    keys: DataKeys,
    others: DataKeys,
    raw: SqliteStore,
    monkeypatch: pytest.MonkeyPatch,
    act: str,
) -> None:
    """A process that was stopped between reading and writing brings nothing back."""
    doomed = await keys.current("a", ADA)
    await keys.table("branch")
    commit, stopped = keys._commit, list[bool]()

    async def stop_and_commit(*arguments: Any) -> Any:
        if not stopped:
            stopped.append(True)
            await others.destroy([ADA], "a")
        return await commit(*arguments)

    monkeypatch.setattr(keys, "_commit", stop_and_commit)
    await (keys.rewrap() if act == "rewrap" else keys.adopt("branch", [doomed.id]))
    for process in (others, DataKeys(raw, LocalWrapper.of(new_master_key()))):
        for board in ("a", "branch"):
            found = await process.find(board, doomed.id)
            assert found is None or found.cipher is None
        await process.aclose()


async def put_record(raw: SqliteStore, key: str, value: bytes) -> None:
    """As somebody with access to the engine."""
    epoch = (await raw.open(KEYS_BOARD)).epoch.id
    change = Commit(CommitId("thief", 0, value.hex(), 1), epoch, (Put(key, value),))
    await raw.commit(KEYS_BOARD, [prepare(change)])


@pytest.mark.parametrize("damage", ["swapped", "cut", "form"])
async def test_a_record_that_was_changed_is_no_key(
    keys: DataKeys, others: DataKeys, raw: SqliteStore, damage: str
) -> None:
    """Of another namespace, cut short, or said to be wrapped in another form."""
    await keys.current("a", ADA)
    await keys.current("a", BOB)
    ada, bob = (await raw.list(KEYS_BOARD, "system/keys/a", limit=10)).entries
    record = decode_value(ada.value)
    forged = {
        "swapped": bob.value,
        "cut": encode_value({"wrapped": record["wrapped"][:-1]}),
        "form": encode_value(record | {"form": 2}),
    }[damage]
    await put_record(raw, ada.key, forged)
    with pytest.raises(Corrupt):
        await others.current("a", ADA)


@pytest.mark.parametrize("key", ["system/keys/a/private/ada/none", "system/other"])
async def test_a_record_in_no_place_of_a_key_is_damage(
    keys: DataKeys, others: DataKeys, raw: SqliteStore, key: str
) -> None:
    """And who follows the changes goes on."""
    ada = await keys.current("a", ADA)
    [record] = (await raw.list(KEYS_BOARD, "system/keys/a", limit=10)).entries
    await others.current("a", ADA)
    await put_record(raw, key, record.value)
    if key.startswith("system/keys"):
        with pytest.raises(Corrupt, match="no place of a data key"):
            await DataKeys(raw, LocalWrapper.of(MASTER_KEY)).current("a", ADA)
        epoch = (await raw.open(KEYS_BOARD)).epoch.id
        away = Commit(CommitId("thief", 0, "away", 1), epoch, (Delete(key),))
        await raw.commit(KEYS_BOARD, [prepare(away)])
    await keys.destroy([ADA], "a")

    async def is_known() -> bool:
        return (found := others.known("a", ada.id)) is not None and found.cipher is None

    await wait_until(is_known)


async def test_a_branch_has_the_keys_that_it_needs_and_loses_them_too(keys: DataKeys) -> None:
    """Destroying a key in one place destroys every copy."""
    key = await keys.current("a", ADA)
    await keys.adopt("branch", [key.id, b"x" * 12])
    found = await keys.find("branch", key.id)
    assert found is not None
    assert found.cipher is not None
    await keys.destroy([ADA], "a")
    for board in ("a", "branch"):
        gone = await keys.find(board, key.id)
        assert gone is not None
        assert gone.cipher is None


async def test_a_new_master_key_wraps_all_without_touching_a_value(
    raw: SqliteStore, keys: DataKeys
) -> None:
    """After `rewrap` the old one opens nothing, and is not needed."""
    old, new = new_master_key(), new_master_key()
    first = DataKeys(raw, LocalWrapper.of(old))
    key = await first.current("x", ADA)
    await first.aclose()
    both = DataKeys(raw, LocalWrapper.of(f"{new}\n{old}"))
    assert await both.rewrap() == 1
    await both.aclose()
    late = DataKeys(raw, LocalWrapper.of(new))
    await late.check()
    found = await late.find("x", key.id)
    assert found is not None
    await late.aclose()
    with pytest.raises(Corrupt):
        await DataKeys(raw, LocalWrapper.of(old)).check()


@pytest.mark.limits(seals_per_key_max=2)
async def test_a_key_is_replaced_before_it_has_sealed_too_much(keys: DataKeys) -> None:
    """At the edge."""
    assert DEFAULT.encryption.seals_per_key_max > 2
    first = await keys.current("a", ADA)
    first.seals = 1
    assert await keys.current("a", ADA) is first
    first.seals = 2
    assert (await keys.current("a", ADA)).id != first.id
    assert await keys.find("a", first.id) is first
