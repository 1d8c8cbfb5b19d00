"""Rules of reading: keys, listings, expired entries, large values."""

import pytest

from blackboard.core.commit import (
    Append,
    Delete,
    DeletePrefix,
    Directory,
    Entry,
    Increment,
    ListOptions,
    Put,
    without_value,
)
from blackboard.core.path import EVERYTHING, range_below, range_of, ranges_of
from blackboard.encryption.store import SealedStore
from blackboard.engines.base import Store
from blackboard.limits import (
    DIRECTORY_KEYS_MAX,
    INTEGER_MAX,
    PAGE_BYTES_MAX,
    VALUE_BYTES_MAX,
    VALUE_INLINE_BYTES_MAX,
)
from tests.conformance.writer import Writer, packed
from tests.waiting import wait_until

ONE = packed(1)
HOUR_MS = 3_600_000


class ReadRules:
    """A reading is of one revision, complete, and in order."""

    async def test_read_keeps_the_order_asked_for_and_leaves_out_absent_keys(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/a", packed("a")), Put("public/b", packed("b")))
        await ada.commit(Put("public/c", packed("c")), Delete("public/a"))
        reading = await store.read(board, ["public/c", "public/no", "public/a", "public/b"])
        assert [(e.key, e.value) for e in reading.entries] == [
            ("public/c", packed("c")),
            ("public/b", packed("b")),
        ]
        assert (reading.revision, reading.epoch) == (2, ada.epoch)

    async def test_reading_no_key_tells_the_revision(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/a", ONE))
        reading = await store.read(board, [])
        assert (reading.revision, reading.entries) == (1, ())

    async def test_a_listing_by_directory_counts_what_lies_deeper(
        self, store: Store, board: str
    ) -> None:
        """In both directions, in pages of any size, also when a directory lies in several ranges.
        `-` sorts before `/`, so `d-x` comes between the entry `d` and its directory."""
        ada = await Writer.open(store, board)
        names = ["a", "d", "d-x", "d/1", "d/2/x", "d/2/y", "e/1", "f", "z/9"]
        await ada.commit(*[Put(f"public/p/{name}", ONE) for name in [*names, "d/gone", "g/gone"]])
        await ada.commit(
            Delete("public/p/d/gone"), DeletePrefix("public/p/g"), Put("public/q", ONE)
        )
        everything = ranges_of("public/p")
        parts = (("public/p/a", "public/p/d/2"), ("public/p/d/2/y", "public/p/f"))
        shown = {
            everything: (["a", "d", "d-x", "f"], [("d", 3), ("e", 1), ("z", 1)]),
            parts: (["a", "d", "d-x"], [("d", 2), ("e", 1)]),
        }
        for ranges, (entries, directories) in shown.items():
            for reverse in (False, True):
                turn = -1 if reverse else 1
                items = len(entries) + len(directories)
                for limit in range(1, items + 2):
                    found: list[tuple[str, bytes]] = []
                    counted: list[Directory] = []
                    pages = 0
                    after = None
                    while True:
                        page = await store.children(
                            board,
                            ranges,
                            "public/p",
                            after=after,
                            limit=limit,
                            options=ListOptions(reverse),
                        )
                        pages += 1
                        found += [(e.key.removeprefix("public/p/"), e.value) for e in page.entries]
                        counted += page.directories
                        assert len(page.entries) + len(page.directories) <= limit
                        after = page.next_key
                        if after is None:
                            break
                    assert found == [(name, ONE) for name in entries][::turn]
                    named = [(each.prefix.removeprefix("public/p/"), each.keys) for each in counted]
                    assert named == directories[::turn]
                    assert pages == -(-items // limit)
                    assert not any(each.more for each in counted)
        whole = await store.children(
            board, EVERYTHING, "", limit=9, options=ListOptions(keys_only=True)
        )
        assert whole.directories == (Directory("public", 10),)
        inside = await store.children(
            board, everything, "public/p", limit=9, options=ListOptions(keys_only=True)
        )
        assert {e.value for e in inside.entries} == {b""}

    async def test_a_directory_is_counted_up_to_a_thousand(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        for start in (0, 500):
            ops = [Put(f"public/big/{n:04}", ONE) for n in range(start, start + 500)]
            await ada.commit(*ops)
        for more, last in ((False, "public/big/0999"), (True, "public/big/1000")):
            await ada.commit(Put(last, ONE))
            page = await store.children(board, ranges_of("public"), "public", limit=5)
            assert page.directories == (Directory("public/big", DIRECTORY_KEYS_MAX, more),)
        assert [each.count for each in page.directories] == ["1,000+"]

    async def test_a_page_by_directory_ends_after_enough_bytes(
        self, store: Store, board: str
    ) -> None:
        """At an entry, and what follows it is on the next page."""
        ada = await Writer.open(store, board)
        large = packed("x" * (VALUE_BYTES_MAX - 100))
        for name in "abc":
            await ada.commit(Put(f"public/{name}", large))
        await ada.commit(Put("public/d/1", ONE))
        within = ranges_of("public")
        first = await store.children(board, within, "public", limit=9)
        assert 2 <= len(first.entries) <= 3
        assert (first.directories, first.next_key) == ((), first.entries[-1].key)
        rest = await store.children(board, within, "public", after=first.next_key, limit=9)
        assert len(first.entries) + len(rest.entries) == 3
        assert (rest.directories, rest.next_key) == ((Directory("public/d", 1),), None)

    async def test_a_listing_is_sorted_and_holds_only_what_is_below(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        keys = ["public/a/b", "public/a/B", "public/a", "public/a/~", "public/a0", "inbox/x/1"]
        await ada.commit(*[Put(key, ONE) for key in keys])
        await ada.commit(Put("public/a/gone", ONE), Append("public/a", ONE))
        await ada.commit(Delete("public/a/gone"))
        below = await store.list(board, "public/a", limit=10)
        assert [e.key for e in below.entries] == [
            "public/a/0000000000",
            "public/a/B",
            "public/a/b",
            "public/a/~",
        ]
        assert below.next_key is None
        everything = await store.list(board, "", limit=10)
        assert [e.key for e in everything.entries] == sorted([*keys, "public/a/0000000000"])

    async def test_pages_of_a_listing_join_without_gap_or_overlap(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        keys = [f"public/k{i:02}" for i in range(25)]
        await ada.commit(*[Put(key, ONE) for key in keys])
        for prefix in ("", "public"):
            for limit in (1, 7, 25, 26):
                found: list[str] = []
                after: str | None = None
                while True:
                    page = await store.list(board, prefix, after=after, limit=limit)
                    found += [entry.key for entry in page.entries]
                    assert len(page.entries) <= limit
                    if page.next_key is None:
                        break
                    assert page.next_key == page.entries[-1].key
                    after = page.next_key
                assert found == keys

    async def test_a_listing_goes_on_after_any_key_even_one_outside(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/a/1", ONE), Put("public/a/3", ONE))

        async def listed(after: str) -> list[str]:
            page = await store.list(board, "public/a", after=after, limit=10)
            return [entry.key for entry in page.entries]

        assert await listed("public/a/2") == ["public/a/3"]
        assert await listed("public/a/3") == []
        assert await listed("inbox/z/z") == ["public/a/1", "public/a/3"]
        assert await listed("public/b") == []

    async def test_a_listing_of_ranges_holds_what_lies_in_them(
        self, store: Store, board: str
    ) -> None:
        """Page by page; what lies between them neither shows nor counts."""
        ada = await Writer.open(store, board)
        keys = [f"public/{name}/{number}" for name in "abcd" for number in range(5)]
        await ada.commit(*[Put(key, ONE) for key in keys])
        await ada.commit(Delete("public/b/3"))
        ranges = (range_below("public/b"), range_of("public/c/2"), range_below("public/d"))
        expected = [key for key in keys if key[7] in "bd" or key == "public/c/2"]
        expected.remove("public/b/3")
        for limit in (1, 4, 9, 10, 11):
            found: list[str] = []
            after: str | None = None
            for _ in range(-(-len(expected) // limit)):
                page = await store.list(board, ranges, after=after, limit=limit)
                assert len(page.entries) == min(limit, len(expected) - len(found))
                found += [entry.key for entry in page.entries]
                after = page.next_key
                assert after == (found[-1] if len(found) < len(expected) else None)
            assert found == expected
        assert (await store.list(board, ranges, after="public/d/4", limit=9)).entries == ()
        nothing = await store.list(board, (), limit=9)
        assert (nothing.revision, nothing.entries, nothing.next_key) == (2, (), None)

    async def test_a_reversed_listing_holds_the_same_from_the_end(
        self, store: Store, board: str
    ) -> None:
        """Page by page, within ranges too, and from any key, even one outside."""
        ada = await Writer.open(store, board)
        keys = [f"public/{name}/{number}" for name in "abcd" for number in range(5)]
        await ada.commit(*[Put(key, ONE) for key in keys])
        await ada.commit(Delete("public/b/3"))
        ranges = (range_below("public/b"), range_of("public/c/2"), range_below("public/d"))
        for within in ("", "public/c", ranges):
            whole = [entry.key for entry in (await store.list(board, within, limit=99)).entries]
            for limit in (1, 4, len(whole), 99):
                found: list[str] = []
                after: str | None = None
                for _ in range(-(-len(whole) // limit)):
                    page = await store.list(board, within, after=after, limit=limit, reverse=True)
                    assert len(page.entries) == min(limit, len(whole) - len(found))
                    found += [entry.key for entry in page.entries]
                    after = page.next_key
                    assert after == (found[-1] if len(found) < len(whole) else None)
                assert found == whole[::-1]
        for after, expected in (
            ("public/c/2", "public/b/4"),
            ("public/c/20", "public/c/2"),
            ("public/b", None),
            ("public/zzz", "public/d/4"),
        ):
            page = await store.list(board, ranges, after=after, limit=1, reverse=True)
            assert [e.key for e in page.entries] == ([expected] if expected else [])

    async def test_a_listing_of_keys_only_has_everything_but_the_values(
        self, store: Store, board: str
    ) -> None:
        """Large values are not read: they do not count for the bytes of a page either."""
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/small", ONE), Put("public/expires", ONE, 10_000_000))
        for number in range(4):
            await ada.commit(Put(f"public/large/{number}", packed(b"x" * (VALUE_BYTES_MAX - 5))))
        await ada.commit(Put("public/small", ONE))
        entries: list[Entry] = []
        after: str | None = None
        while True:
            page = await store.list(board, "", after=after, limit=10)
            entries += page.entries
            after = page.next_key
            if after is None:
                break
        for reverse in (False, True):
            shown = await store.list(board, "", limit=10, keys_only=True, reverse=reverse)
            expected = [without_value(entry) for entry in entries]
            assert list(shown.entries) == (expected[::-1] if reverse else expected)
            assert shown.next_key is None

    async def test_a_page_of_a_listing_ends_by_bytes_too(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        value = packed(b"x" * (VALUE_BYTES_MAX - 5))
        assert len(value) == VALUE_BYTES_MAX
        for i in range(4):
            await ada.commit(Put(f"public/k{i}", value))
        sizes, after = [], None
        while True:
            page = await store.list(board, "public", after=after, limit=10)
            sizes.append(len(page.entries))
            assert all(entry.value == value for entry in page.entries)
            assert sum(len(e.value) for e in page.entries[:-1]) < PAGE_BYTES_MAX
            if page.next_key is None:
                break
            after = page.next_key
        assert sum(sizes) == 4
        assert len(sizes) > 1

    @pytest.mark.parametrize(
        "size", [1, VALUE_INLINE_BYTES_MAX, VALUE_INLINE_BYTES_MAX + 1, VALUE_BYTES_MAX]
    )
    async def test_values_of_every_size_come_back_as_they_were(
        self, store: Store, board: str, size: int
    ) -> None:
        ada = await Writer.open(store, board)
        value = bytes(range(256)) * (size // 256 + 1)
        value = packed(value[: size - 5]) if size > 5 else packed(1)
        await ada.commit(Put("public/v", value), Append("public/list", value))
        assert (await store.read(board, ["public/v"])).entries[0].value == value
        [item] = (await store.list(board, "public/list", limit=2)).entries
        assert item.value == value
        [entry] = (await store.log(board, 0, limit=1)).entries
        assert [change.value for change in entry.changes] == [value, value]

    async def test_a_value_may_grow_shrink_and_disappear(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        large, small = packed(b"L" * 5000), packed("s")
        for value in (large, small, large, packed(b"M" * 6000)):
            await ada.commit(Put("public/v", value))
            assert (await store.read(board, ["public/v"])).entries[0].value == value
        assert await ada.result(Delete("public/v")) == 1
        assert (await store.list(board, "", limit=5)).entries == ()
        await ada.commit(Increment("public/v", 3))
        assert (await store.read(board, ["public/v"])).entries[0].value == packed(3)
        await ada.commit(Put("public/d/1", large), Put("public/d/2", large))
        await ada.commit(DeletePrefix("public/d"))
        assert [e.key for e in (await store.list(board, "", limit=5)).entries] == ["public/v"]

    # --- time to live -----------------------------------------------------------------------------

    async def test_a_time_to_live_is_counted_from_the_commit(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        done = await ada.commit(
            Put("public/a", ONE, ttl_ms=HOUR_MS), Append("public/list", ONE, ttl_ms=1)
        )
        entries = (await store.read(board, ["public/a", "public/list/0000000000"])).entries
        assert [e.expires_at_ms for e in entries] == [done.time_ms + HOUR_MS, done.time_ms + 1]

    async def test_a_write_without_time_to_live_ends_the_old_one(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        for last in (Put("public/a", ONE), Increment("public/a", 1)):
            await ada.commit(Put("public/a", ONE, ttl_ms=0))
            await ada.commit(last)
            [entry] = (await store.read(board, ["public/a"])).entries
            assert entry.expires_at_ms is None
            assert (await store.due(board, limit=10)).entries == ()

    async def test_due_entries_come_longest_past_first_and_stay_until_removed(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/later", ONE, ttl_ms=HOUR_MS), Put("public/none", ONE))
        await ada.commit(Put("public/b", ONE, ttl_ms=2), Put("public/a", ONE, ttl_ms=3))
        await ada.commit(Put("public/c", packed(b"x" * 5000), ttl_ms=30))

        async def all_due() -> bool:
            return len((await store.due(board, limit=10)).entries) == 3

        await wait_until(all_due)
        due = await store.due(board, limit=10)
        assert [e.key for e in due.entries] == ["public/b", "public/a", "public/c"]
        # A store that encrypts leaves values out: what cannot be read expires, too.
        value = b"" if isinstance(store, SealedStore) else packed(b"x" * 5000)
        assert due.entries[2].value == value
        assert [e.key for e in (await store.due(board, limit=1)).entries] == ["public/b"]
        ever = await store.due(board, limit=10, by_ms=INTEGER_MAX)
        assert [e.key for e in ever.entries][2:] == ["public/c", "public/later"]
        later_ms = ever.entries[3].expires_at_ms or 0
        for by_ms, count in ((later_ms - 1, 3), (later_ms, 4), (0, 0)):
            assert len((await store.due(board, limit=10, by_ms=by_ms)).entries) == count
        assert len((await store.read(board, ["public/a"])).entries) == 1
        await ada.commit(Delete("public/b"), Put("public/a", ONE, ttl_ms=HOUR_MS))
        assert [e.key for e in (await store.due(board, limit=10)).entries] == ["public/c"]
