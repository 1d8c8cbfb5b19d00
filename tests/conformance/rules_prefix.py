"""Rules of what concerns many keys at once: prefix delete, prefix condition, tombstones."""

import pytest

from blackboard.core.commit import (
    Append,
    Committed,
    Delete,
    DeletePrefix,
    Increment,
    Op,
    PrefixUnchanged,
    Put,
)
from blackboard.engines.base import Store
from blackboard.errors import Compacted, Conflict, FutureRevision
from tests.conformance.rules_commit import lower_limit, refused_fields
from tests.conformance.writer import Writer, packed

ONE = packed(1)
EDGE = 5


class PrefixRules:
    """What a prefix stands for: the keys below it, and nothing beside it."""

    async def test_delete_prefix_removes_what_is_below_and_nothing_beside(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        keys = ["public/a", "public/a-b", "public/a/1", "public/a/2/x", "public/a0", "public/b/1"]
        await ada.commit(*[Put(key, ONE) for key in keys])
        assert await ada.result(DeletePrefix("public/a")) == ("public/a/1", "public/a/2/x")
        page = await store.list(board, "", limit=10)
        assert [entry.key for entry in page.entries] == [
            "public/a",
            "public/a-b",
            "public/a0",
            "public/b/1",
        ]

    async def test_delete_prefix_of_nothing_removes_nothing(self, store: Store, board: str) -> None:
        ada = await Writer.open(store, board)
        assert await ada.result(DeletePrefix("public/a")) == ()

    async def test_delete_prefix_sees_the_commits_own_writes_in_key_order(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/a/M", ONE), Put("public/a/b", ONE), Put("public/a/z", ONE))
        done = await ada.commit(
            Put("public/a/c", ONE),
            Put("public/a/B", ONE),
            Put("public/a/~", ONE),
            Delete("public/a/z"),
            DeletePrefix("public/a"),
            Put("public/a/d", ONE),
        )
        assert done.results[4] == (
            "public/a/B",
            "public/a/M",
            "public/a/b",
            "public/a/c",
            "public/a/~",
        )
        page = await store.list(board, "public/a", limit=10)
        assert [entry.key for entry in page.entries] == ["public/a/d"]

    async def test_prefix_operations_see_the_earlier_commits_of_their_batch(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        outcomes = await ada.send_all(
            [
                ada.make(Put("public/a/1", ONE), Put("public/a/2", ONE)),
                ada.make(Delete("public/a/1")),
                ada.make(Put("public/b", ONE), conditions=[PrefixUnchanged("public/a", 1)]),
                ada.make(DeletePrefix("public/a")),
                ada.make(Increment("public/a/3", 1), DeletePrefix("public/a")),
            ]
        )
        assert isinstance(outcomes[2], Conflict)
        assert (outcomes[2].key, outcomes[2].at_revision) == ("public/a/1", 2)
        last = [outcome.results[-1] for outcome in outcomes if isinstance(outcome, Committed)]
        assert last[-2:] == [("public/a/2",), ("public/a/3",)]

    async def test_a_prefix_operation_at_its_limit_passes_and_above_is_refused(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ada = await Writer.open(store, board)
        lower_limit(monkeypatch, "OPERATIONS_MAX", EDGE)
        await ada.commit(*[Put(f"public/a/{i}", ONE) for i in range(EDGE)])
        head = await ada.commit(Put("public/a/x", ONE), Delete("public/a/x"))
        await ada.commit(Delete("public/b"), conditions=[PrefixUnchanged("public/a", 2)])
        await ada.commit(Put("public/a/x", ONE))
        for refused in (
            await ada.attempt(DeletePrefix("public/a")),
            await ada.attempt(
                Delete("public/b"), conditions=[PrefixUnchanged("public/a", head.revision)]
            ),
        ):
            assert refused_fields(refused) == {
                "limit": "OPERATIONS_MAX",
                "value": EDGE + 1,
                "maximum": EDGE,
                "where": "public/a",
                "account": None,
            }
        await ada.commit(Delete("public/a/x"))
        removed = tuple(f"public/a/{i}" for i in range(EDGE))
        assert await ada.result(DeletePrefix("public/a")) == removed

    async def test_what_one_commit_removes_by_prefixes_is_limited_in_all(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ada = await Writer.open(store, board)
        lower_limit(monkeypatch, "OPERATIONS_MAX", EDGE)
        await ada.commit(*[Put(f"public/a/{i}", ONE) for i in range(3)])
        await ada.commit(*[Put(f"public/b/{i}", ONE) for i in range(3)])
        refused = await ada.attempt(DeletePrefix("public/a"), DeletePrefix("public/b"))
        assert refused_fields(refused)["value"] == EDGE + 1
        assert refused_fields(refused)["where"] == "public/b"

    async def test_what_one_commit_looks_at_below_prefixes_is_limited_in_all(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Also if it is the same again and again: every look takes its time."""
        ada = await Writer.open(store, board)
        lower_limit(monkeypatch, "OPERATIONS_MAX", EDGE)
        await ada.commit(*[Put(f"public/{name}/{i}", ONE) for name in "ab" for i in range(2)])
        await ada.commit(*[Delete(f"public/b/{i}") for i in range(2)])
        for name in "ab":
            same = PrefixUnchanged(f"public/{name}", 2)
            await ada.commit(Put("public/c", ONE), conditions=[same] * (EDGE // 2))
            refused = await ada.attempt(Put("public/c", ONE), conditions=[same] * (EDGE // 2 + 1))
            assert refused_fields(refused)["value"] == EDGE + 1
            assert refused_fields(refused)["where"] == f"public/{name}"
        again = [DeletePrefix("public/a")] * (EDGE // 2 + 1)
        assert refused_fields(await ada.attempt(*again))["value"] == EDGE + 1
        await ada.commit(*again[1:])

    async def test_a_prefix_condition_notices_a_write_a_creation_and_a_removal(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/a/1", ONE), Put("public/a/2", ONE), Put("public/ab", ONE))
        changes: dict[str, Op] = {
            "public/a/1": Put("public/a/1", packed(2)),
            "public/a/3": Put("public/a/3", ONE),
            "public/a/2": Delete("public/a/2"),
            "public/a/0000000000": Append("public/a", ONE),
        }
        for key, change in changes.items():
            since = (await store.open(board)).revision
            unchanged = [PrefixUnchanged("public/a", since)]
            await ada.commit(Put("public/ab", ONE), conditions=unchanged)
            done = await ada.commit(change)
            refused = await ada.attempt(Put("public/b", ONE), conditions=unchanged)
            assert isinstance(refused, Conflict)
            assert (refused.key, refused.expected, refused.at_revision, refused.by) == (
                key,
                since,
                done.revision,
                "ada",
            )

    async def test_a_prefix_condition_names_living_keys_before_removed_ones(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/a/1", ONE), Put("public/a/2", ONE))
        await ada.commit(Delete("public/a/1"))
        await ada.commit(Put("public/a/2", ONE))
        refused = await ada.attempt(
            Put("public/b", ONE), conditions=[PrefixUnchanged("public/a", 1)]
        )
        assert isinstance(refused, Conflict)
        assert (refused.key, refused.actual) == ("public/a/2", 3)

    async def test_a_prefix_condition_on_the_future_is_refused(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        refused = await ada.attempt(
            Put("public/b", ONE), conditions=[PrefixUnchanged("public/a", 1)]
        )
        assert isinstance(refused, FutureRevision)
        assert (refused.revision, refused.head) == (1, 0)

    async def test_a_prefix_condition_on_what_was_compacted_is_refused(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        for _ in range(5):
            await ada.commit(Put("public/b", ONE))
        await store.compact(board, 4)
        await ada.commit(Put("public/b", ONE), conditions=[PrefixUnchanged("public/a", 3)])
        refused = await ada.attempt(
            Put("public/b", ONE), conditions=[PrefixUnchanged("public/a", 2)]
        )
        assert isinstance(refused, Compacted)
        assert (refused.revision, refused.oldest) == (2, 4)

    async def test_a_removal_is_forgotten_with_its_log_entry(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        ada = await Writer.open(store, board)
        lower_limit(monkeypatch, "OPERATIONS_MAX", EDGE)
        for i in range(EDGE + 1):
            await ada.commit(Put(f"public/a/{i}", ONE))
            await ada.commit(Delete(f"public/a/{i}"))
        newest = await ada.commit(Put("public/b", ONE))
        condition = [PrefixUnchanged("public/a", newest.revision)]
        assert (
            refused_fields(await ada.attempt(Put("public/b", ONE), conditions=condition))["value"]
            == EDGE + 1
        )
        await store.compact(board, newest.revision)
        await ada.commit(Put("public/b", ONE), conditions=condition)

    async def test_a_key_written_again_has_no_trace_of_its_removal(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/a/1", ONE))
        await ada.commit(Delete("public/a/1"))
        back = await ada.commit(Put("public/a/1", ONE))
        await ada.commit(
            Put("public/b", ONE), conditions=[PrefixUnchanged("public/a", back.revision)]
        )

    async def test_a_condition_on_a_namespace_is_not_about_its_books(
        self, store: Store, board: str
    ) -> None:
        ada = await Writer.open(store, board)
        await ada.commit(Put("public/~agents/ada", ONE), Put("public/d/~x", ONE))
        await ada.commit(Put("public/~agents/bob", ONE), Delete("public/~agents/ada"))
        await ada.commit(Put("private/ada/~state", ONE))
        everything = [PrefixUnchanged("public", 1), PrefixUnchanged("private/ada", 1)]
        await ada.commit(Put("private/ada/~state", ONE), conditions=everything)
        for named, key in (("public/~agents", "public/~agents/bob"), ("public", "public/d/~x")):
            await ada.commit(Put("public/~agents/bob", ONE), Put("public/d/~x", ONE))
            outcome = await ada.attempt(
                Put("public/b", ONE), conditions=[PrefixUnchanged(named, 1)]
            )
            assert isinstance(outcome, Conflict)
            assert outcome.key == key
