"""docker-compose.yml offers engines that lose nothing, to this machine alone."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from blackboard.engines.redis.process import RedisProcess, RedisSettings
from tests.servers import ask
from tests.source_tree import ROOT

SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(
    (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
)["services"]
ENGINES = ["valkey", "redis", "redlock-1", "redlock-2", "redlock-3"]


def settings_of(engine: str) -> dict[str, str]:
    """The lines of redis.conf that the service's command sets."""
    words = SERVICES[engine]["command"]
    return {
        name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)
    }


def test_what_starts_without_a_profile_and_with_one() -> None:
    """Valkey is the default; everything else is asked for."""
    profiles = {name: service.get("profiles") for name, service in SERVICES.items()}
    assert profiles == {
        "valkey": None,
        "redis": ["redis"],
        **{f"redlock-{number}": ["redlock"] for number in (1, 2, 3)},
        "postgres": ["cold"],
        "rustfs": ["cold"],
    }


@pytest.mark.parametrize("name", SERVICES)
def test_each_service_is_checked_and_published_on_loopback_only(name: str) -> None:
    """A health check, and no port that another machine can reach."""
    assert SERVICES[name]["healthcheck"]["test"][0] == "CMD-SHELL"
    assert SERVICES[name]["ports"]
    assert all(port.startswith("127.0.0.1:") for port in SERVICES[name]["ports"])


def test_no_two_services_share_a_port_or_a_volume() -> None:
    """All profiles can run together, and lock masters are independent."""
    ports = [port.split(":")[1] for service in SERVICES.values() for port in service["ports"]]
    volumes = [volume.split(":")[0] for one in SERVICES.values() for volume in one["volumes"]]
    assert len(set(ports)) == len(ports)
    assert len(set(volumes)) == len(volumes) == len(SERVICES)


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_real_server_accepts_the_settings_of(engine: str, redis_binary: Path) -> None:
    """Started with them, it syncs every write and evicts nothing."""
    settings = RedisSettings(fsync="no", memory_policy="allkeys-lru", options=settings_of(engine))
    async with RedisProcess(redis_binary, settings=settings) as server:
        reply = await ask(server, "CONFIG GET", "append*")
        assert isinstance(reply, dict)
        assert (reply["appendonly"], reply["appendfsync"]) == ("yes", "always")
        policy = await ask(server, "CONFIG GET", "maxmemory-policy")
        assert policy == {"maxmemory-policy": "noeviction"}
