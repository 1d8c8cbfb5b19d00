"""Walks of the machine over every engine for so long: `python -m tests.conformance.run_walks 60`.

BLACKBOARD_TEST_SEED is the number of the first walk; a failing walk is named by its number.
"""

import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from anyio.from_thread import BlockingPortal, start_blocking_portal

from blackboard.engines.base import Store
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from tests.conformance.machines import Counts, walk
from tests.lowered import PATIENT
from tests.proof import Layer
from tests.redis_process import RedisProcess, RedisSettings
from tests.servers import server_binaries

UNSYNCED = RedisSettings(fsync="no", options={"appendonly": "no"})


@contextmanager
def stores(portal: BlockingPortal) -> Iterator[list[Store]]:
    """Every engine there is, open."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        found: list[Store] = [portal.call(partial(SqliteStore.at, Path(folder), "memory"))]
        for binary in server_binaries():
            server = RedisProcess(binary.path, settings=UNSYNCED)
            stack.enter_context(portal.wrap_async_context_manager(server))
            found.append(RedisStore.connect(server.url, limits=PATIENT))
        try:
            yield found
        finally:
            for store in found:
                portal.call(store.aclose)


def main(seconds: str) -> int:
    """Walk until the time is over."""
    first = int(os.environ.get("BLACKBOARD_TEST_SEED") or random.SystemRandom().randrange(2**31))
    deadline_s, number, counts = time.monotonic() + float(seconds), first, Counts()
    with Layer("model") as layer, start_blocking_portal() as portal, stores(portal) as engines:
        while time.monotonic() < deadline_s:
            sys.stdout.write(f"walk {number}\n")
            layer.seeds.append(number)
            for store in engines:
                walk(portal, store, counts, number)
            layer.operations = counts.kinds.total()
            number += 1
    sys.stdout.write(f"{number - first} walks over {len(engines)} engines, nothing differs\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
