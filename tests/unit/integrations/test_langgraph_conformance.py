"""LangGraph's own suites, and ours for any store, against the saver and the store."""

import re
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore

import blackboard
import blackboard.sync
from blackboard.integrations.langgraph import BlackboardSaver, BlackboardStore
from tests.serving import Served
from tests.source_tree import ROOT
from tests.unit.integrations.langgraph_suites import (
    INDEX,
    STORE_CHECKS,
    check_batches,
    check_times,
)

CONFORMANCE_TESTS = 81
"""Those of langgraph-checkpoint-conformance 0.0.2."""
STORE_TESTS = 117
"""Those of InMemoryStore in the source distribution of langgraph-checkpoint 4.3.2."""
SOURCE = "langgraph-checkpoint==4.3.2"

Open = Callable[[], Any]
StoreCheck = Callable[[BaseStore], Awaitable[None]]


def name_of(check: StoreCheck) -> str:
    """For the ids of tests."""
    return check.__name__


@pytest.fixture(params=["embedded", "sync", "connected"])
async def open_board(
    request: pytest.FixtureRequest, tmp_path: Path, served: Served
) -> AsyncIterator[Open]:
    """A function that gives a new board, in each way that there is."""
    names = (f"board{number}" for number in range(1_000))
    if request.param == "sync":
        with blackboard.sync.open(tmp_path / "sync", level="memory") as client:
            yield lambda: client.board(next(names))
    elif request.param == "embedded":
        async with blackboard.open(tmp_path / "async", level="memory") as opened:
            yield lambda: opened.board(next(names))
    else:
        async with blackboard.connect(served.url, token=served.token()) as connected:
            yield lambda: connected.board(next(names))


async def test_the_saver_passes_the_published_suite(open_board: Open) -> None:
    @checkpointer_test(name="blackboard")
    async def saver() -> Any:
        yield BlackboardSaver(open_board())

    report = await validate(saver)
    failures = [line for result in report.results.values() for line in result.failures or ()]
    assert failures == []
    assert all(result.detected for result in report.results.values())
    assert sum(result.tests_passed for result in report.results.values()) == CONFORMANCE_TESTS


@pytest.mark.parametrize("check", STORE_CHECKS, ids=name_of)
async def test_the_store_passes_our_suite(open_board: Open, check: StoreCheck) -> None:
    await check(BlackboardStore(open_board(), index=INDEX))


@pytest.mark.parametrize(
    "check", [check for check in STORE_CHECKS if check is not check_batches], ids=name_of
)
async def test_our_suite_asks_for_nothing_that_is_only_ours(check: StoreCheck) -> None:
    """InMemoryStore passes it, too; but it takes objects that are no data, and keeps no time."""
    try:
        await check(InMemoryStore(index=INDEX))
    except AssertionError:
        assert check is check_times


@pytest.mark.slow
def test_the_store_passes_the_tests_of_the_framework_itself(tmp_path: Path) -> None:
    """Those in its source distribution, with our store in place of InMemoryStore."""
    source = fetched(SOURCE)
    if source is None:
        pytest.skip(f"pip cannot download the source of {SOURCE} here")
    with tarfile.open(source) as packed:
        packed.extractall(tmp_path, filter="data")
    (tests,) = tmp_path.glob("*/tests")
    text = (tests / "test_store.py").read_text()
    named = "from langgraph.store.memory import InMemoryStore"
    assert text.count(named) == 1
    ours = "from tests.unit.integrations.langgraph_in_memory import InMemoryStore"
    text = text.replace(named, ours).replace(
        "from tests.embed_test_utils", "from .embed_test_utils"
    )
    (tests / "test_store.py").write_text(text)
    tests = tests.rename(tests.parent / "upstream")
    (tests / "conftest.py").write_text(ASYNCIO)
    options = "-q -p no:valkey -p no:cacheprovider -c /dev/null upstream/test_store.py"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options.split()],
        cwd=tests.parent,
        env={"PATH": "", "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.findall(r"\d+ \w+", done.stdout.splitlines()[-1])[0] == f"{STORE_TESTS} passed", (
        done.stdout + done.stderr
    )


ASYNCIO = '''
import inspect, asyncio, pytest

@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """As pytest-asyncio does."""
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        names = pyfuncitem._fixtureinfo.argnames
        asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
        return True
'''


def fetched(requirement: str) -> Path | None:
    """A source distribution, which stays in .frameworks/ once it was downloaded."""
    folder = ROOT / ".frameworks" / "sources"
    pattern = requirement.replace("-", "_").replace("==", "-") + ".tar.gz"
    if not (found := list(folder.glob(pattern))):
        options = "--quiet --no-deps --no-binary :all: --no-build-isolation --dest"
        subprocess.run(
            [sys.executable, "-m", "pip", "download", *options.split(), str(folder), requirement],
            capture_output=True,
            check=False,
        )
        found = list(folder.glob(pattern))
    return found[0] if found else None
