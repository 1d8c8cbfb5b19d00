"""The JavaScript client, over a real WebSocket: the same rules as for the Python one."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import Limits
from tests.conformance.js.process import needs_node
from tests.conformance.js.suite import JavaScriptRules, from_node
from tests.conformance.shared import Running, Services

pytestmark = needs_node


class TestBoardJavaScript(JavaScriptRules):
    """On the embedded engine: the client does not see which one it is."""

    @pytest.fixture(scope="class")
    async def services(self, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Services]:
        """Behind a socket, with a Node process each."""

        @asynccontextmanager
        async def over_sqlite(directory: Path, limits: Limits) -> AsyncIterator[Running]:
            store = await SqliteStore.at(directory)
            async with from_node(store, directory, limits) as running:
                yield running

        async with Services(tmp_path_factory, over_sqlite) as services:
            yield services
