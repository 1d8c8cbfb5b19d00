"""No user and no password of an engine is in anything that a service tells."""

from urllib.request import urlopen

import pytest
from anyio.from_thread import start_blocking_portal

from tests.acceptance.shell import Shell
from tests.redis_accounts import PASSWORD, make_account
from tests.redis_process import RedisProcess
from tests.servers import server_binaries


@pytest.mark.redis
def test_no_password_is_shown(shell: Shell) -> None:
    """In the banner, logs, metrics, what doctor says, errors; also when the engine goes away."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(RedisProcess(server_binaries()[0].path)) as server,
    ):
        shell.environ["BLACKBOARD_ENGINE"] = make_account(server.url)
        told: list[str] = []
        with shell.service("--log-format", "text") as service:
            shell.run("set", "public/a", "1")
            told += [shell.out("doctor"), shell.out("doctor", "--json")]
            url = f"http://127.0.0.1:{service.port}"
            told += [urlopen(f"{url}/{page}").read().decode() for page in ("metrics", "readyz")]
            portal.call(server.kill)
            told.append(shell.run("get", "public/b", code=6).stderr)
            told += service.lines
    assert len(told) > 5
    assert PASSWORD not in "".join(told)
    assert "blackboard:" + PASSWORD[:6] not in "".join(told)
