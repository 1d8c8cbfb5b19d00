"""Services, and people who look at them through the page."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

import blackboard
from tests.acceptance.shell import Running, Shell
from tests.page.browser import Readers, chromium, launched
from tests.ports import free_port


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A user without any configuration."""
    return Shell(tmp_path)


@pytest.fixture
def service(shell: Shell) -> Iterator[Running]:
    """That user's service, on the embedded engine."""
    chromium()  # skips before anything is started
    # At a port of this process's own: a test may stop it, and start it there again.
    with shell.service("--level", "memory", port=free_port()) as running:
        yield running


@pytest.fixture(scope="module")
async def browser() -> AsyncIterator[Any]:
    """One browser for the tests of a module."""
    async with launched() as found:
        yield found


@pytest.fixture
async def readers(browser: Any, service: Running) -> AsyncIterator[Readers]:
    """People at pages, gone before the service is; the test fails if a console complained."""
    found = Readers(browser)
    yield found
    await found.close()
    assert found.errors == []


@pytest.fixture
async def client(shell: Shell, service: Running) -> AsyncIterator[blackboard.Client]:
    """The operator, from Python."""
    token = (Path(shell.environ["BLACKBOARD_DATA"]) / "token").read_text().strip()
    async with blackboard.connect(service.url, token=token) as connected:
        yield connected
