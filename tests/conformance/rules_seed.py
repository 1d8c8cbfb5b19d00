"""Rules of boards that begin with the entries of another one, and of removing a board."""

from collections.abc import AsyncIterator, Sequence

import anyio
import pytest

from blackboard import limits
from blackboard.core.commit import (
    BRANCH,
    Append,
    Delete,
    Entry,
    Epoch,
    Grant,
    KeyAt,
    Put,
    Seed,
    without_value,
)
from blackboard.core.history import check_sequence
from blackboard.engines.base import Store
from blackboard.errors import BlackboardError, Compacted, InvalidRequest, LimitExceeded, Unavailable
from blackboard.limits import VALUE_INLINE_BYTES_MAX
from tests.conformance.rules_log import whole_log
from tests.conformance.rules_restore import restored
from tests.conformance.writer import Writer, packed

PLAN = "public/plan"
SOON_MS, LATE_MS = 1_000, 2_000_000_000_000


def entry(
    key: str, value: object, mod_revision: int = 7, expires_at_ms: int | None = None
) -> Entry:
    """An entry as another board had it."""
    return Entry(key, packed(value), mod_revision, 3, "bob", 1_234, expires_at_ms)


ENTRIES = (
    entry("inbox/ada/0000000003", "item"),
    entry("private/ada/note", "n", 39),
    entry("public/big", "B" * (VALUE_INLINE_BYTES_MAX + 1)),
    entry("public/due", 1, expires_at_ms=SOON_MS),
    entry("public/later", 2, expires_at_ms=LATE_MS),
    entry("system/checkpoints/one", {"kind": "named"}),
)


def a_seed(board: str, revision: int = 40) -> Seed:
    """A branch that goes on at `revision`."""
    epoch = Epoch(3, f"{board}-branch", BRANCH, revision - 1, revision)
    return Seed(epoch, time_ms=1_700_000_000_000, next_item=(("inbox/ada", 4), ("public/l", 9)))


async def paged(entries: Sequence[Entry], size: int = 2) -> AsyncIterator[Sequence[Entry]]:
    """Pages of `entries`."""
    for first in range(0, len(entries), size):
        yield entries[first : first + size]


class SeedRules:
    """A seeded board is there whole, with the metadata of its entries; or not at all."""

    async def test_it_begins_with_the_entries_as_they_were(self, store: Store, board: str) -> None:
        seed = a_seed(board)
        head = await store.seed(board, seed, paged(ENTRIES))
        assert (head.revision, head.oldest, head.log_entries, head.epoch) == (40, 40, 1, seed.epoch)
        reading = await store.list(board, "", limit=10)
        assert (reading.revision, reading.epoch) == (40, seed.epoch.id)
        assert reading.entries == ENTRIES
        assert (await store.read(board, ["public/big"])).entries == (ENTRIES[2],)
        assert (await store.open(board)).epoch == seed.epoch
        assert board in await store.boards()

    async def test_its_log_begins_with_its_epoch(self, store: Store, board: str) -> None:
        seed = a_seed(board)
        await store.seed(board, seed, paged(ENTRIES))
        [marker] = (await store.log(board, 39, limit=10)).entries
        assert (marker.revision, marker.epoch, marker.changes) == (40, seed.epoch, ())
        assert marker.time_ms == seed.time_ms
        with pytest.raises(Compacted) as refused:
            await store.log(board, 38, limit=10)
        assert refused.value.oldest == 40
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        assert check_sequence(0, await whole_log(store, board, 39)) == 41

    async def test_it_goes_on_as_any_board(self, store: Store, board: str) -> None:
        await store.seed(board, a_seed(board), paged(ENTRIES))
        ada = await Writer.open(store, board)
        done = await ada.commit(
            Append("inbox/ada", packed(1)),
            Append("public/l", packed(1)),
            Append("public/new", packed(1)),
            Grant("public/lock", "ada", 60_000),
            conditions=[KeyAt("private/ada/note", 39)],
        )
        assert done.revision == 41
        keys = ("inbox/ada/0000000004", "public/l/0000000009", "public/new/0000000000")
        assert done.results[:3] == keys
        await ada.commit(Put("public/big", packed(1)), Delete("public/due"))
        [big] = (await store.read(board, ["public/big", "public/due"])).entries
        assert (big.create_revision, big.mod_revision) == (3, 42)
        commit, _ = await restored(store, ada, Delete("public/big"), to=40)
        assert commit.begins is not None
        assert (await store.open(board)).epoch.number == 4

    async def test_what_expires_does_so(self, store: Store, board: str) -> None:
        await store.seed(board, a_seed(board), paged(ENTRIES))
        [due] = (await store.due(board, limit=10)).entries
        assert without_value(due) == without_value(ENTRIES[3])

    async def test_quotas_count_what_it_began_with(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        await store.seed(board, a_seed(board), paged(ENTRIES))
        ada = await Writer.open(store, board)
        size = sum(len(e.key) + len(e.value) for e in ENTRIES if e.key.startswith("public/"))
        monkeypatch.setattr(limits, "NAMESPACE_BYTES_MAX", size)
        refused = await ada.attempt(Put(PLAN, packed(1)))
        assert isinstance(refused, LimitExceeded)
        assert refused.value == size + len(PLAN) + 1
        monkeypatch.undo()
        monkeypatch.setattr(limits, "BOARD_KEYS_MAX", len(ENTRIES))
        full = await ada.attempt(Put(PLAN, packed(1)))
        assert isinstance(full, LimitExceeded)
        assert (full.limit, full.value) == ("BOARD_KEYS_MAX", len(ENTRIES) + 1)

    async def test_it_may_be_empty(self, store: Store, board: str) -> None:
        head = await store.seed(board, a_seed(board, 1), paged(()))
        assert (head.revision, head.oldest) == (1, 1)
        [marker] = (await store.log(board, 0, limit=10)).entries
        assert marker.epoch == head.epoch

    async def test_it_may_have_many_entries_and_counters(self, store: Store, board: str) -> None:
        entries = [entry(f"public/k/{n:05d}", f"{n}") for n in range(3_000)]
        lists = tuple((f"public/list{n}", n) for n in range(2_000))
        seed = Seed(a_seed(board).epoch, 1, lists)
        await store.seed(board, seed, paged(entries, 1_024))
        last = await store.list(board, "public/k", after="public/k/02997", limit=10)
        assert last.entries == tuple(entries[-2:])
        ada = await Writer.open(store, board)
        done = await ada.commit(Append("public/list1999", packed(1)))
        assert done.results == ("public/list1999/0000001999",)

    async def test_a_board_that_exists_is_left_alone(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        with pytest.raises(InvalidRequest) as refused:
            await store.seed(board, a_seed(board), paged(ENTRIES))
        assert refused.value.field == "board"
        assert len((await store.list(board, "", limit=10)).entries) == 1

    @pytest.mark.parametrize(
        "entries",
        [(ENTRIES[1], ENTRIES[0]), (ENTRIES[0], ENTRIES[0]), (entry(PLAN, 1, mod_revision=40),)],
        ids=["not sorted", "twice", "too new"],
    )
    async def test_what_cannot_be_leaves_nothing(
        self, store: Store, board: str, entries: Sequence[Entry]
    ) -> None:
        with pytest.raises(InvalidRequest) as refused:
            await store.seed(board, a_seed(board), paged(entries, 1))
        assert refused.value.field == "pages"
        assert board not in await store.boards()
        assert (await store.open(board)).revision == 0

    async def test_until_it_is_whole_there_is_no_such_board(self, store: Store, board: str) -> None:
        async def looking() -> AsyncIterator[Sequence[Entry]]:
            yield ENTRIES[:2]
            with pytest.raises(Unavailable):
                await store.open(board)
            with pytest.raises(BlackboardError):
                await store.list(board, "", limit=10)
            assert board not in await store.boards()
            yield ENTRIES[2:]

        await store.seed(board, a_seed(board), looking())
        assert (await store.list(board, "", limit=10)).entries == ENTRIES

    async def test_a_cancelled_one_leaves_nothing(self, store: Store, board: str) -> None:
        async def endless() -> AsyncIterator[Sequence[Entry]]:
            yield ENTRIES[:2]
            scope.cancel()
            await anyio.sleep_forever()

        with anyio.CancelScope() as scope:
            await store.seed(board, a_seed(board), endless())
        assert scope.cancelled_caught
        assert board not in await store.boards()
        await store.seed(board, a_seed(board), paged(ENTRIES))
        assert (await store.list(board, "", limit=10)).entries == ENTRIES


class DropRules:
    """A board that was removed is gone whole, and its name is free."""

    async def test_a_removed_board_is_gone(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)), Append("public/l", packed(1)))
        before = await store.open(board)
        await store.drop(board)
        assert board not in await store.boards()
        head = await store.open(board)
        assert (head.revision, head.log_entries, head.epoch.number) == (0, 0, 1)
        assert head.epoch.id != before.epoch.id
        assert (await store.list(board, "", limit=10)).entries == ()
        assert (await (await Writer.open(store, board)).result(Append("public/l", b"\1"))) == (
            "public/l/0000000000"
        )

    async def test_removing_nothing_is_no_error(self, store: Store, board: str) -> None:
        await store.drop(board)
        assert board not in await store.boards()

    async def test_its_name_can_be_seeded(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put(PLAN, packed(1)))
        await store.drop(board)
        await store.seed(board, a_seed(board), paged(ENTRIES))
        assert (await store.list(board, "", limit=10)).entries == ENTRIES
