"""What every engine promises, as one suite: subclass `StoreSuite` and provide the `store` fixture.

    class TestSqliteStore(StoreSuite):
        @pytest.fixture
        async def store(self, tmp_path: Path) -> AsyncIterator[Store]: ...

The rules stand in `rules_*.py` beside this file, a group each. They use boards of their own, so a
store may be shared; `small_limits` lowers the rows of blackboard/limits.py that an engine must read
at every call (as `limits.NAME`, never by `from ... import NAME`).
"""

from collections.abc import AsyncIterator
from itertools import count

import pytest

from blackboard.engines.base import Store
from tests.conformance.rules_barrier import BarrierRules
from tests.conformance.rules_commit import CommitRules
from tests.conformance.rules_freeze import FreezeRules
from tests.conformance.rules_lease import LeaseRules, QueueRules
from tests.conformance.rules_log import LogRules
from tests.conformance.rules_prefix import PrefixRules
from tests.conformance.rules_read import ReadRules
from tests.conformance.rules_remove import RemoveRules
from tests.conformance.rules_restore import HoldRules, RestoreRules
from tests.conformance.rules_seed import DropRules, SeedRules
from tests.conformance.rules_share import ShareRules
from tests.conformance.rules_store import StoreRules

_numbers = count()


class StoreSuite(
    CommitRules,
    PrefixRules,
    LeaseRules,
    QueueRules,
    ReadRules,
    LogRules,
    StoreRules,
    RestoreRules,
    HoldRules,
    BarrierRules,
    FreezeRules,
    SeedRules,
    DropRules,
    RemoveRules,
    ShareRules,
):
    """Every rule. The subclass provides `store`."""

    @pytest.fixture
    def store(self) -> Store | AsyncIterator[Store]:
        """An opened engine; subclasses override it, mostly by an async fixture that yields one."""
        raise NotImplementedError

    @pytest.fixture
    def board(self) -> str:
        """The name of a board that no other test uses."""
        return f"board-{next(_numbers)}"
