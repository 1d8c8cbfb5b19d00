"""Users with a command line, and services of theirs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.shell import Running, Shell


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A user without any configuration."""
    return Shell(tmp_path)


@pytest.fixture
def service(shell: Shell) -> Iterator[Running]:
    """That user's service, on the embedded engine."""
    with shell.service() as running:
        yield running


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A user whose service stays empty: several tests may share it."""
    user = Shell(tmp_path_factory.mktemp("user"))
    with user.service():
        yield user
