"""Data keys: one for each namespace of each board, shared by processes, destroyed for good."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.core.commit import Commit, CommitId, Put
from blackboard.encryption.data_keys import KEYS_BOARD, DataKeys
from blackboard.encryption.master_key import LocalWrapper, new_master_key
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Corrupt
from blackboard.limits import DEFAULT, Limits
from blackboard.wire.codec import decode_value, encode_value, prepare
from tests.waiting import wait_until

ADA, BOB = "private/ada", "private/bob"


@pytest.fixture
async def raw(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """An engine."""
    store = await SqliteStore.at(tmp_path, "memory")
    yield store
    await store.aclose()


@pytest.fixture
def wrapper() -> LocalWrapper:
    """A master key."""
    return LocalWrapper.of(new_master_key())


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

    async def is_gone() -> bool:
        found = others.known("a", doomed.id)
        return found is not None and found.cipher is None

    await wait_until(is_gone)
    assert await keys.erased("a") == [ADA]
    kept = await keys.find("a", stays.id)
    assert kept is not None
    assert kept.cipher is not None
    head = await raw.open(KEYS_BOARD)
    assert head.log_entries == 0
    assert (await keys.current("a", ADA)).id != doomed.id


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


async def put_record(raw: SqliteStore, key: str, value: bytes) -> None:
    """As somebody with access to the engine."""
    epoch = (await raw.open(KEYS_BOARD)).epoch.id
    change = Commit(CommitId("thief", 0, "i", 1), epoch, (Put(key, value),))
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
