"""A store that seals keeps every promise of the port, with everything sealed.

But for what is seen of ciphertext: it is larger, so quotas and "small" values are others; the
digest is that of what is kept; and a sum that only the log knows is not told once that was
compacted away.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from blackboard.encryption.master_key import LocalWrapper, new_master_key
from blackboard.encryption.store import SealedStore
from blackboard.engines.base import Store
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.server.assembly import sealed
from tests.conformance.rules_access import AccessRules
from tests.conformance.store_suite import StoreSuite
from tests.lowered import PATIENT

OTHERWISE = (
    "test_quotas_count_what_it_began_with",
    "test_an_entry_tells_what_its_commit_did",
    "test_a_retry_is_recognised_after_its_log_entry_was_compacted",
    "test_a_conflict_does_not_carry_a_large_value",
    "test_a_quota_refuses_growth_and_lets_shrink",
    "test_a_quota_of_one_namespace_leaves_the_others_alone",
    "test_messages_of_an_account_take_its_share_of_the_inboxes",
    "test_an_account_fills_no_board",
)


async def sealing(raw: Store) -> Store:
    """A store in front of `raw` that seals everything."""
    front, _ = await sealed(raw, None, LocalWrapper.of(new_master_key()), public=True)
    return front


class TestSealedSqliteStore(StoreSuite):
    """In front of the embedded engine."""

    @pytest.fixture
    async def store(self, tmp_path: Path) -> AsyncIterator[Store]:
        """A sealing store over an empty directory."""
        opened = await sealing(await SqliteStore.at(tmp_path, "memory"))
        yield opened
        await opened.aclose()

    async def test_quotas_do_not_keep_back_what_was_there(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """With a data key that is there already: it is a key in a namespace, too."""
        assert isinstance(store, SealedStore)
        await store.keys.current(board, "public")
        await super().test_quotas_do_not_keep_back_what_was_there(store, board, monkeypatch)


class TestSealedRedisStore(AccessRules):
    """In front of an engine that several processes share: what only such a one promises."""

    @pytest.fixture
    async def store(self, account_url: str) -> AsyncIterator[Store]:
        """A sealing store over the shared, emptied server."""
        opened = await sealing(RedisStore.connect(account_url, limits=PATIENT))
        yield opened
        await opened.aclose()

    @pytest.fixture
    def board(self) -> str:
        """The only one there."""
        return "main"


for name in OTHERWISE:
    assert hasattr(StoreSuite, name)
    setattr(TestSealedSqliteStore, name, None)
