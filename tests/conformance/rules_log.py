"""Rules of the log: paging, waiting, the low-water mark, replay."""

import hashlib

import anyio
import pytest
from msgspec.structs import replace

from blackboard.core import log_entry
from blackboard.core.commit import (
    Append,
    ChangeKind,
    Committed,
    Delete,
    DeletePrefix,
    Grant,
    Increment,
    LogEntry,
    Put,
    Release,
    Renew,
)
from blackboard.core.state import State, evolve
from blackboard.engines.base import Store
from blackboard.errors import Compacted, FutureRevision
from blackboard.integrity.digest_check import sealed_form
from blackboard.limits import PAGE_BYTES_MAX, VALUE_BYTES_MAX
from blackboard.wire.codec import prepare
from tests.conformance.writer import Writer, packed

ONE = packed(1)
HOUR_MS = 3_600_000


async def whole_log(store: Store, board: str, after: int = 0) -> list[LogEntry]:
    """Every entry after `after`, page by page."""
    found: list[LogEntry] = []
    while page := (await store.log(board, after, limit=100)).entries:
        found += page
        after = page[-1].revision
    return found


class LogRules:
    """The log is every commit, whole, in order, once."""

    async def test_an_entry_tells_what_its_commit_did(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/a", ONE), Put("public/d/1", ONE), Put("public/d/2", ONE))
        step = ada.make(
            Put("public/a", packed(2), ttl_ms=HOUR_MS),
            Increment("public/a", 3),
            Append("public/list", packed("x")),
            DeletePrefix("public/d"),
            Delete("public/absent"),
            Grant("public/lock", "ada", HOUR_MS),
            based_on=[("public/a", 1)],
            note="why not",
        )
        await ada.send(step)
        [entry] = (await store.log(board, 1, limit=10)).entries
        assert (entry.revision, entry.id, entry.author) == (2, step.id, "ada")
        assert (entry.based_on, entry.note) == ((("public/a", 1),), "why not")
        assert [(c.kind, c.key, c.value, c.item) for c in entry.changes] == [
            (ChangeKind.PUT, "public/a", packed(5), None),
            (ChangeKind.PUT, "public/list/0000000000", packed("x"), 0),
            (ChangeKind.DELETE, "public/d/1", None, None),
            (ChangeKind.DELETE, "public/d/2", None, None),
            (ChangeKind.GRANT, "public/lock", None, None),
        ]
        assert entry.digest == prepare(step).digest
        assert len(entry.digest) == hashlib.sha256().digest_size

    async def test_an_entry_with_a_salt_comes_back_with_its_digest(
        self, store: Store, board: str
    ) -> None:
        """Over its changes; large values by their hash. One without a salt has the old digest."""
        ada = await Writer.open(store, board)
        large = packed("x" * 5_000)
        ops = (Put("public/a", large, 60_000), Increment("public/n", 3), Append("public/l", ONE))
        salted = replace(ada.make(*ops, note="why"), salt=b"s" * 16)
        await ada.send(salted)
        await ada.send(ada.make(Put("public/a", ONE)))
        first, second = (await store.log(board, 0, limit=10)).entries
        assert first.salt == salted.salt
        kept = [replace(c, value=sealed_form(c.value or b"")) for c in first.changes]
        assert first.digest == log_entry.digest_of(replace(first, changes=tuple(kept)))
        assert [change.value for change in first.changes] == [large, packed(3), ONE]
        assert second.salt == b""

    async def test_only_accepted_commits_are_logged(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        step = ada.make(Put("public/a", ONE))
        await ada.send_all([step, step, ada.make(), ada.make(Put("public/b", ONE))])
        assert [e.revision for e in await whole_log(store, board)] == [1, 2]

    @pytest.mark.parametrize("limit", [1, 3, 10, 11])
    async def test_pages_of_the_log_join_without_gap_or_overlap(
        self, store: Store, board: str, limit: int
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.send_all([ada.make(Increment("public/a", 1)) for _ in range(10)])
        after, found = 0, []
        while entries := (await store.log(board, after, limit=limit)).entries:
            assert len(entries) <= limit
            found += [entry.revision for entry in entries]
            after = found[-1]
        assert found == list(range(1, 11))

    async def test_a_page_of_the_log_ends_by_bytes_too(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        value = packed(b"x" * (VALUE_BYTES_MAX - 5))
        for _ in range(5):
            await ada.commit(Put("public/a", value))
        after, pages = 0, 0
        while entries := (await store.log(board, after, limit=10)).entries:
            assert (len(entries) - 1) * VALUE_BYTES_MAX < PAGE_BYTES_MAX + 2048
            pages, after = pages + 1, entries[-1].revision
        assert after == 5
        assert pages > 1

    async def test_the_log_beyond_the_head_does_not_exist(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/a", ONE))
        page = await store.log(board, 1, limit=10)
        assert (page.entries, page.head.revision, page.head.oldest) == ((), 1, 1)
        with pytest.raises(FutureRevision) as refused:
            await store.log(board, 2, limit=10)
        assert (refused.value.revision, refused.value.head) == (2, 1)

    async def test_waiting_ends_with_the_next_commit(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/a", ONE))
        found: list[int] = []

        async def wait() -> None:
            page = await store.log(board, 1, limit=10, wait_ms=HOUR_MS)
            found.extend(entry.revision for entry in page.entries)

        with anyio.fail_after(60):
            async with anyio.create_task_group() as tasks:
                for _ in range(3):
                    tasks.start_soon(wait)
                await anyio.wait_all_tasks_blocked()
                await ada.commit(Put("public/a", ONE))
        assert found == [2, 2, 2]

    async def test_waiting_for_nothing_ends_with_an_empty_page(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/a", ONE))
        with anyio.fail_after(60):
            page = await store.log(board, 1, limit=10, wait_ms=20)
        assert (page.entries, page.head.revision) == ((), 1)

    async def test_waiting_does_not_delay_what_is_there(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/a", ONE))
        with anyio.fail_after(60):
            assert len((await store.log(board, 0, limit=10, wait_ms=HOUR_MS)).entries) == 1

    # --- the low-water mark -----------------------------------------------------------------------

    async def test_a_read_from_a_trimmed_position_is_refused_and_never_shortened(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.send_all([ada.make(Increment("public/a", 1)) for _ in range(10)])
        head = await store.compact(board, 6)
        assert (head.oldest, head.revision, head.log_entries) == (6, 10, 5)
        for after in range(5):
            with pytest.raises(Compacted) as refused:
                await store.log(board, after, limit=100, wait_ms=10)
            assert (refused.value.revision, refused.value.oldest) == (after, 6)
        for after in range(5, 11):
            page = await store.log(board, after, limit=100)
            assert [e.revision for e in page.entries] == list(range(after + 1, 11))

    async def test_the_low_water_mark_never_comes_back_down(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.send_all([ada.make(Increment("public/a", 1)) for _ in range(5)])
        await store.compact(board, 4)
        assert (await store.compact(board, 2)).oldest == 4
        assert (await store.open(board)).oldest == 4

    async def test_compacting_everything_empties_the_log_and_keeps_the_state(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.send_all([ada.make(Increment("public/a", 1)) for _ in range(5)])
        before = await store.list(board, "", limit=10)
        head = await store.compact(board, 1000)
        assert (head.revision, head.oldest, head.log_entries) == (5, 6, 0)
        assert await store.list(board, "", limit=10) == before
        assert (await store.log(board, 5, limit=10)).entries == ()
        with pytest.raises(Compacted):
            await store.log(board, 4, limit=10)
        assert (await ada.commit(Increment("public/a", 1))).results == (6,)
        assert [e.revision for e in (await store.log(board, 5, limit=10)).entries] == [6]

    async def test_a_retry_is_recognised_after_its_log_entry_was_compacted(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        step = ada.make(Increment("public/a", 1))
        first = await ada.send(step)
        await store.compact(board, 2)
        again = await ada.send(step)
        assert isinstance(first, Committed)
        assert again == replace(first, duplicate=True)

    async def test_the_log_replayed_is_the_state(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(
            Put("public/a", ONE), Put("public/d/1", packed(b"x" * 3000)), Append("public/l", ONE)
        )
        await ada.commit(Grant("public/lock", "ada", HOUR_MS), Increment("public/a", 41))
        await ada.commit(DeletePrefix("public/d"), Put("public/t", ONE, ttl_ms=5))
        await ada.commit(Renew("public/lock", "ada", 2, HOUR_MS), Append("public/l", ONE))
        await ada.commit(Release("public/lock", "ada", 2), Delete("public/l/0000000000"))
        head = await store.open(board)
        state = State(head.epoch)
        for entry in await whole_log(store, board):
            evolve(state, entry)
        page = await store.list(board, "", limit=100)
        assert tuple(state.entries.values()) == page.entries
        assert state.revision == page.revision
