"""What a command says when the engine behind its service is away: soon, and with what to do."""

import time
from pathlib import Path

from blackboard.store.redis_process import RedisProcess
from blackboard.types import COMMAND_PATIENCE_MS, REQUEST_TIMEOUT_MS
from tests.acceptance.shell import Shell

SOON_S = (COMMAND_PATIENCE_MS + REQUEST_TIMEOUT_MS) / 2000
"""Half way to the silence of a program that waits, so a slow machine has its seconds."""
UNAVAILABLE = 6


async def test_a_command_does_not_wait_long_for_an_engine_that_is_away(tmp_path: Path) -> None:
    shell = Shell(tmp_path)
    async with RedisProcess() as redis:
        with shell.service("--engine", redis.url) as service:
            shell.environ["BLACKBOARD_URL"] = service.url
            shell.run("set", "public/a", "1")
            await redis.kill()
            for command in (("get", "public/a"), ("set", "public/a", "2")):
                began_s = time.monotonic()
                told = shell.run(*command, code=UNAVAILABLE).stderr
                assert time.monotonic() - began_s < SOON_S
                assert "perhaps its engine is away" in told
                assert "blackboard doctor" in told
