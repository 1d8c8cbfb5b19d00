"""docker-compose.yml offers Blackboard and engines that lose nothing, to this machine alone.

Each rule lists its offenders, and is tried on the file with one thing broken. Compose itself is not
run here: test_image_runs.py runs what it starts.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.plain_image import IMAGE
from tests.deploy.test_image import KNOWN
from tests.redis_process import RedisProcess, RedisSettings
from tests.servers import ask
from tests.source_tree import ROOT

TEXT = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
Services = dict[str, dict[str, Any]]
SERVICES: Services = yaml.safe_load(TEXT)["services"]
REDLOCK = ["redlock-1", "redlock-2", "redlock-3"]
CLUSTER = ["cluster-1", "cluster-2", "cluster-3"]
ENGINES = ["valkey", "redis", *REDLOCK, *CLUSTER]
_BY_DIGEST = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")
_MADE = re.compile(r"^keep (\S+) ", re.MULTILINE)
KEYS = set(_MADE.findall((ROOT / "deploy/compose/keys.sh").read_text(encoding="utf-8")))


def arguments_of(engine: str) -> dict[str, str]:
    """The lines of redis.conf that the service's command sets."""
    words = SERVICES[engine]["command"]
    return {
        name.removeprefix("--"): value for name, value in zip(words[::2], words[1::2], strict=True)
    }


def test_what_starts_without_a_profile_and_with_one() -> None:
    """Blackboard with all that it needs; everything else is asked for."""
    profiles = {name: service.get("profiles") for name, service in SERVICES.items()}
    assert profiles == {
        **dict.fromkeys(["blackboard", "keys", "bucket", "valkey", "postgres", "rustfs"]),
        "redis": ["redis"],
        **{name: ["redlock"] for name in REDLOCK},
        **{name: ["cluster"] for name in [*CLUSTER, "cluster"]},
    }


def ends(service: dict[str, Any]) -> bool:
    """Whether it does one thing and ends: it is not restarted."""
    return "restart" not in service


def is_ours(service: dict[str, Any]) -> bool:
    """Whether it runs the image of Dockerfile."""
    return bool(service.get("build"))


def mounts(service: dict[str, Any]) -> list[list[str]]:
    """What is mounted: source, target, and perhaps `ro`."""
    return [volume.split(":") for volume in service.get("volumes", ())]


def loose_images(services: Services) -> list[str]:
    """Images of others that are not pinned to a digest."""
    others = [one["image"] for one in services.values() if not is_ours(one)]
    return [image for image in others if not _BY_DIGEST.fullmatch(image)]


def unchecked(services: Services) -> list[str]:
    """Services that go on, and of which nobody can tell whether they work."""
    return [
        name
        for name, one in services.items()
        if not ends(one)
        and not ("healthcheck" in one or (is_ours(one) and IMAGE.of("HEALTHCHECK")))
    ]


def loose_rights(services: Services) -> list[str]:
    """Services with our image that could do more than they need."""
    wanted = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
    return [
        name
        for name, one in services.items()
        if is_ours(one) and ("user" in one or not wanted.items() <= one.items())
    ]


def open_ports(services: Services) -> list[str]:
    """Ports that another machine can reach, or that nothing of the container listens on."""
    listens = {"blackboard": IMAGE.environment["BLACKBOARD_PORT"]}
    ports = [
        (name, port.split(":")) for name, one in services.items() for port in one.get("ports", ())
    ]
    return [
        f"{name}: {port}"
        for name, port in ports
        if port[0] != "127.0.0.1" or port[-1] != listens.get(name, "6379")
    ]


def shared_places(services: Services) -> list[str]:
    """Ports, and volumes that are written to, that two services use."""
    ports = [port.split(":")[1] for one in services.values() for port in one.get("ports", ())]
    written = [mount[0] for one in services.values() for mount in mounts(one) if mount[-1] != "ro"]
    return [each for each in {*ports, *written} if (ports + written).count(each) > 1]


def not_writable(services: Services) -> list[str]:
    """Volumes that our image mounts to write to, and that do not belong to its user there."""
    ours = [mount for one in services.values() if is_ours(one) for mount in mounts(one)]
    return [mount[1] for mount in ours if mount[-1] != "ro" and mount[1] not in IMAGE.own]


def missing_files(services: Services) -> list[str]:
    """Files of the checkout and keys that are named, and that are not there or made by nobody."""
    sources = [mount[0] for one in services.values() for mount in mounts(one) if mount[0][0] == "."]
    words = [word for one in services.values() for word in one.get("entrypoint", ())]
    scripts = [f"deploy{word}" for word in words if word.startswith("/compose/")]
    named = [
        str(value) for one in services.values() for value in one.get("environment", {}).values()
    ]
    keys = [value.removeprefix("/run/keys/") for value in named if value.startswith("/run/keys/")]
    missing = [path for path in [*sources, *scripts] if not (ROOT / path).exists()]
    return missing + [key for key in keys if key not in KEYS]


def unknown_variables(services: Services) -> list[str]:
    """Variables of Blackboard that nothing looks at."""
    named = [
        name for one in services.values() if is_ours(one) for name in one.get("environment", {})
    ]
    return [name for name in named if name.startswith("BLACKBOARD_") and name not in KNOWN]


def written_secrets(services: Services) -> list[str]:
    """Variables with a password in them: each is in a file that only its readers get."""
    pairs = [pair for one in services.values() for pair in one.get("environment", {}).items()]
    secret = re.compile(r"PASSWORD|SECRET|ACCESS_KEY|SIGNING")
    return [
        name for name, value in pairs if secret.search(name) and not value.startswith("/run/keys/")
    ]


def missing_services(services: Services) -> list[str]:
    """What is waited for in a way in which it does not come: of one that ends, that it ended well.

    One that starts on request only is not required.
    """
    found = []
    for name, one in services.items():
        for other, how in one.get("depends_on", {}).items():
            target = services.get(other, {})
            wanted = "service_completed_successfully" if ends(target) else "service_healthy"
            required = target.get("profiles") in (None, one.get("profiles"))
            if not target or how["condition"] != wanted or how.get("required", True) != required:
                found.append(f"{name}: {other}")
    return found


def missing_volumes(services: Services) -> list[str]:
    """Named volumes that the file does not list."""
    listed = yaml.safe_load(TEXT)["volumes"]
    named = {mount[0] for one in services.values() for mount in mounts(one) if mount[0][0] != "."}
    return sorted(named ^ set(listed))


Rule = Callable[[Services], list[str]]
BROKEN: list[tuple[Rule, str, str]] = [
    (loose_images, "rustfs/rustfs:1.0.0@", "rustfs/rustfs:latest #"),
    (
        unchecked,
        '    healthcheck:\n      test: ["CMD-SHELL", "pg_isready',
        '    x-a:\n      test: ["pg_isready',
    ),
    (loose_rights, "  read_only: true\n", ""),
    (loose_rights, '    entrypoint: ["python"', '    user: root\n    entrypoint: ["python"'),
    (open_ports, "127.0.0.1:6379:6379", "6379:6379"),
    (open_ports, "7420:7420", "7420:7421"),
    (shared_places, "6392:6379", "6391:6379"),
    (shared_places, "redlock-2:/data", "redlock-1:/data"),
    (not_writable, '"blackboard:/var/lib/blackboard"', '"blackboard:/data"'),
    (missing_files, "/compose/keys.sh", "/compose/key.sh"),
    (missing_files, "./deploy/compose:", "./deploy/composed:"),
    (missing_files, "/run/keys/s3/secret_key", "/run/keys/s3/secret"),
    (unknown_variables, "BLACKBOARD_SIGNING_KEY:", "BLACKBOARD_SIGNING_KEY_FILE:"),
    (
        written_secrets,
        "POSTGRES_PASSWORD_FILE: /run/keys/postgres/password",
        "POSTGRES_PASSWORD: a",
    ),
    (
        missing_services,
        "bucket: {condition: service_completed_successfully}",
        "bucket: {condition: service_healthy}",
    ),
    (
        missing_services,
        "cluster: {condition: service_completed_successfully, required: false}",
        "cluster: {condition: service_completed_successfully}",
    ),
    (missing_services, "      rustfs: {condition", "      minio: {condition"),
    (missing_volumes, 'volumes: ["redis:/data"]', 'volumes: ["rdis:/data"]'),
]


@pytest.mark.parametrize("rule", dict.fromkeys(rule for rule, _, _ in BROKEN))
def test_the_services_keep_the_rule(rule: Rule) -> None:
    """No offender is among them."""
    assert rule(SERVICES) == []


@pytest.mark.parametrize(("rule", "good", "bad"), BROKEN)
def test_each_rule_notices_what_is_broken(rule: Rule, good: str, bad: str) -> None:
    """One change of the file, and it has offenders."""
    assert good in TEXT
    assert rule(yaml.safe_load(TEXT.replace(good, bad))["services"]) != []


def valid(path: Path) -> bool:
    """Whether the schema of Compose admits the file."""
    program = Path(sys.executable).with_name("check-jsonschema")
    command = [str(program), "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


def test_the_schema_of_compose_admits_the_file(tmp_path: Path) -> None:
    """And would not, with a word that it does not know."""
    assert valid(ROOT / "docker-compose.yml")
    bad = tmp_path / "docker-compose.yml"
    bad.write_text(TEXT.replace("stop_grace_period", "grace_period"))
    assert not valid(bad)


def test_the_commands_of_the_page_name_services() -> None:
    """Those of the profiles, at the top of the file: each master, and a node of the Cluster."""
    [masters] = re.findall(r"BLACKBOARD_LOCK_MASTERS=(redis\S+)", TEXT)
    assert re.findall(r"redis://([\w-]+):6379", masters) == REDLOCK
    [node] = re.findall(r"redis\+cluster://([\w-]+):6379", TEXT)
    assert node in CLUSTER
    addresses = [
        f"{SERVICES[name]['networks']['cluster']['ipv4_address']}:6379" for name in CLUSTER
    ]
    assert SERVICES["cluster"]["command"] == addresses


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_real_server_accepts_the_settings_of(engine: str, redis_binary: Path) -> None:
    """Started with them, it syncs every write and evicts nothing."""
    options = {**arguments_of(engine)}
    settings = RedisSettings(fsync="no", memory_policy="allkeys-lru", options=options)
    async with RedisProcess(redis_binary, settings=settings) as server:
        reply = await ask(server, "CONFIG GET", "append*")
        assert isinstance(reply, dict)
        assert (reply["appendonly"], reply["appendfsync"]) == ("yes", "always")
        policy = await ask(server, "CONFIG GET", "maxmemory-policy")
        assert policy == {"maxmemory-policy": "noeviction"}
