"""Real lock masters for tests: several independent servers, small and without files."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from tests.redis_process import RedisProcess, RedisSettings
from tests.servers import ask

QUIET = RedisSettings(options={"appendonly": "no"})


@asynccontextmanager
async def lock_masters(binary: Path, count: int) -> AsyncIterator[list[RedisProcess]]:
    """`count` servers that a test may kill, pause and restart."""
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(RedisProcess(binary, settings=QUIET))
            for _ in range(count)
        ]


async def votes(masters: Sequence[RedisProcess], name: str) -> list[str | None]:
    """Whom each running master has given its vote for `name`."""
    told = [await ask(master, "GET", f"redlock:{name}") for master in masters]
    return [one.decode() if isinstance(one, bytes) else None for one in told]


async def keys_of(masters: Sequence[RedisProcess]) -> int:
    """How many votes there are at all masters together, for whatever name."""
    sizes = [await ask(master, "DBSIZE") for master in masters]
    return sum(size for size in sizes if isinstance(size, int))
