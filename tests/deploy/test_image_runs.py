"""The image's files, run as the image says: alone, over TLS, as docker-compose.yml does, and with
the variables, secrets and volumes of the manifests of Kubernetes.

NOT run here: `docker build`, `docker compose up`, the base image, and other platforms. For those a
container runtime is needed, and the release's job `image` is the first to build it.
"""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from secrets import token_hex

import anyio
import anyio.to_thread
import pytest
from redis.cluster import RedisCluster

from blackboard.limits import BLOB_BYTES
from tests.certificates import Authority
from tests.deploy.plain_image import IMAGE, NOBODY, PlainImage
from tests.deploy.test_compose import SERVICES
from tests.deploy.test_kubernetes import EMBEDDED, REDIS, Manifests, manifests
from tests.ports import free_port
from tests.postgres import Postgres
from tests.redis_process import RedisProcess, RedisSettings
from tests.s3 import S3
from tests.servers import cluster_node
from tests.source_tree import ROOT
from tests.waiting import wait_until

KEYS = "/run/keys"
TOKEN = ["blackboard", "token", "create", "me", "--role", "operator"]
"""As the head of docker-compose.yml says."""
COMMAND = [*IMAGE.words("ENTRYPOINT"), *IMAGE.words("CMD")]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> PlainImage:
    """The image's files, installed once."""
    return PlainImage(tmp_path_factory.mktemp("image"), tmp_path_factory.mktemp("wheels"))


@pytest.fixture
def image(installed: PlainImage) -> PlainImage:
    """The same, with empty volumes."""
    for own in map(installed.path, IMAGE.own):
        for path in own.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if os.geteuid() == 0:
            os.chown(own, NOBODY, NOBODY)
        own.chmod(0o700)
    return installed


@contextmanager
def handed_over(folder: Path) -> Iterator[None]:
    """Give what was made there to the image's user."""
    yield
    if os.geteuid() == 0:
        for path in folder.rglob("*"):
            os.chown(path, NOBODY, NOBODY)


async def lives(image: PlainImage, variables: Mapping[str, str], *commands: list[str]) -> str:
    """Start it, wait until it is healthy, run commands beside it, end it; returns what it printed.

    After `TOKEN`, commands are the operator's. The exit code is 0, and nothing outside of its own
    folders has changed.
    """
    variables = {"BLACKBOARD_PORT": str(free_port()), **variables}
    client = variables | {"BLACKBOARD_URL": f"http://127.0.0.1:{variables['BLACKBOARD_PORT']}"}
    before = image.files()

    async def is_healthy() -> bool:
        ended, _ = await anyio.to_thread.run_sync(image.run, IMAGE.health, variables)
        assert process.poll() is None, process.communicate()[0].decode()
        return ended == 0

    assert image.run(IMAGE.health, variables)[0] == 1, "it is healthy before it runs"
    process = image.start(COMMAND, variables)
    try:
        await wait_until(is_healthy)
        for command in commands:
            code, said = await anyio.to_thread.run_sync(image.run, command, client)
            assert code == 0, f"{command}: {said}"
            if command == TOKEN:
                [client["BLACKBOARD_TOKEN"]] = re.findall(r"^eyJ\S+", said, re.MULTILINE)
    finally:
        code, printed = await anyio.to_thread.run_sync(image.stop, process)
    assert code == 0, printed
    assert image.files() == before
    return printed


def secret_in(image: PlainImage) -> dict[str, str]:
    """The secret of a service, in a file of its volume of keys."""
    place = f"{KEYS}/secret"
    with handed_over(image.path(KEYS)):
        image.path(place).write_text(token_hex(32))
    return {"BLACKBOARD_SECRET_FILE": place}


def test_without_a_secret_it_refuses(image: PlainImage) -> None:
    """It listens on every address, so it says what it needs, and ends."""
    code, printed = image.run(COMMAND, {})
    assert code != 0
    assert "secret" in printed


async def test_it_serves_from_its_volume_alone(image: PlainImage) -> None:
    """A commit is there after a restart; what it wrote is for its user only."""
    variables = {**secret_in(image), "BLACKBOARD_INSECURE": "true"}
    await lives(image, variables, TOKEN, ["blackboard", "set", "public/a", "1"])
    data = image.path(IMAGE.environment["BLACKBOARD_DATA"])
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in data.rglob("*")} == {0}
    await lives(image, variables, TOKEN, ["blackboard", "get", "public/a"])


async def test_a_proxy_of_the_container_is_not_asked_for_its_health(image: PlainImage) -> None:
    """Proxies are for what lies outside, such as an object store; this one is not even there."""
    proxy = f"http://127.0.0.1:{free_port()}"
    proxies = {"HTTP_PROXY": proxy, "http_proxy": proxy, "HTTPS_PROXY": proxy}
    await lives(image, {**secret_in(image), "BLACKBOARD_INSECURE": "true", **proxies})


async def test_its_health_is_seen_over_tls(image: PlainImage) -> None:
    """Set by a variable, and in the file of settings."""
    folder = image.path(KEYS)
    with handed_over(folder):
        pair = Authority(folder).issue()
        lines = f'tls_cert = "{pair.cert}"\ntls_key = "{pair.key}"\n'
        (folder / "settings.toml").write_text(lines)
    named = {"BLACKBOARD_TLS_CERT": str(pair.cert), "BLACKBOARD_TLS_KEY": str(pair.key)}
    secret = secret_in(image)
    await lives(image, {**secret, **named})
    await lives(image, {**secret, "BLACKBOARD_CONFIG": str(folder / "settings.toml")})


# --- with what docker-compose.yml says ------------------------------------------------------------


def with_hosts(values: Mapping[str, str], places: Mapping[str, str]) -> dict[str, str]:
    """Variables of a service, with its hosts as they are here; of the shell's, the defaults."""
    found = {}
    for name, value in values.items():
        plain = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value)
        for host, place in places.items():
            plain = plain.replace(host, place)
        found[name] = plain
    return found


def make_keys(folder: Path) -> None:
    """As the service `keys` does."""
    subprocess.run(["sh", str(ROOT / "deploy/compose/keys.sh"), str(folder)], check=True)


def make_bucket(folder: Path, endpoint: str) -> None:
    """As the service `bucket` does, with curl."""
    said = SERVICES["bucket"]
    values = with_hosts(said["environment"], {KEYS: str(folder), "http://rustfs:9000": endpoint})
    command = ["sh", str(ROOT / "deploy/compose/bucket.sh"), said["entrypoint"][2]]
    path = {"PATH": os.environ["PATH"]}
    subprocess.run(command, env=values | path, check=True)


def test_keys_are_made_once(tmp_path: Path) -> None:
    """A second start changes none; only the service's own user reads the service's own."""
    make_keys(tmp_path)
    first = {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()}
    make_keys(tmp_path)
    assert {path: path.read_text() for path in tmp_path.rglob("*") if path.is_file()} == first
    assert stat.S_IMODE((tmp_path / "service").stat().st_mode) == 0o700
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in tmp_path.glob("service/*"))
    password = (tmp_path / "postgres/password").read_text()
    assert f":{password}@postgres:" in (tmp_path / "service/archive_url").read_text()


@pytest.mark.skipif(shutil.which("curl") is None, reason="no curl here")
async def test_the_stack_of_compose_works(
    image: PlainImage, redis_binary: Path, postgres: Postgres, s3: S3
) -> None:
    """Keys and bucket made, then a service over Redis, PostgreSQL and S3: a commit, a file that
    goes into the bucket, a checkpoint, and all of it verified."""
    keys = image.path(KEYS)
    await postgres.empty()
    with handed_over(keys):
        make_keys(keys)
        make_bucket(keys, s3.endpoint)
        make_bucket(keys, s3.endpoint)
        archive = keys / "service/archive_url"
        written = archive.read_text()
        assert re.fullmatch(r"postgresql://blackboard:\w+@postgres:5432/blackboard", written)
        archive.write_text(postgres.url)
    large = f'"{"x" * (BLOB_BYTES + 1)}"'
    async with RedisProcess(redis_binary, settings=RedisSettings()) as server:
        places = {"redis://valkey:6379/0": server.url, "http://rustfs:9000": s3.endpoint}
        printed = await lives(
            image,
            with_hosts(SERVICES["blackboard"]["environment"], places),
            TOKEN,
            ["blackboard", "set", "public/a", "1"],
            ["blackboard", "set", "public/large", large],
            ["blackboard", "checkpoint", "create", "one"],
            ["blackboard", "checkpoint", "verify", "one"],
        )
    assert "nothing can be restored" not in printed
    assert b"blobs/" in s3.request("GET", "blackboard?list-type=2")


async def test_three_servers_become_a_cluster(redis_binary: Path) -> None:
    """By the command of the service `cluster`; a second time changes nothing."""
    async with AsyncExitStack() as stack:
        nodes = [cluster_node(redis_binary) for _ in range(3)]
        servers = [await stack.enter_async_context(server) for server, _ in nodes]
        addresses = [f"127.0.0.1:{server.port}@{bus_port}" for server, bus_port in nodes]
        command = [sys.executable, str(ROOT / "deploy/compose/cluster.py"), *addresses]
        for _ in range(2):
            await anyio.run_process(command)
        with RedisCluster.from_url(servers[0].url) as cluster:
            assert cluster.set("a", "1")
            assert len(cluster.get_primaries()) == 3


# --- with what the manifests of Kubernetes say ----------------------------------------------------


def as_kubelet(image: PlainImage, files: Manifests, contents: Mapping[str, str]) -> dict[str, str]:
    """Mount what the pod mounts, with the owners and rights that a kubelet gives to `fsGroup`;
    returns its variables. `contents` are the secrets, by path."""
    for mount in files.container["volumeMounts"]:
        place = image.path(mount["mountPath"])
        place.mkdir(exist_ok=True)
        os.chown(place, 0, NOBODY)
        place.chmod(0o2775)
    for path, text in contents.items():
        file = image.path(path)
        file.write_text(text)
        os.chown(file, 0, NOBODY)
        file.chmod(0o440)
    return {name: value for name, value in files.environment.items() if value is not None}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to a group")
async def test_a_pod_of_the_embedded_engine_starts(image: PlainImage, tmp_path: Path) -> None:
    """On a volume that belongs to root and is open to its group; twice, as after a restart. What it
    writes is private, and it finds nothing to warn of."""
    pair = Authority(tmp_path).issue()
    secrets = {
        f"{KEYS}/secret": token_hex(32),
        "/run/tls/tls.crt": pair.cert.read_text(),
        "/run/tls/tls.key": pair.key.read_text(),
    }
    variables = as_kubelet(image, manifests(EMBEDDED), secrets)
    for _ in range(2):
        assert "stays open" not in await lives(image, variables)
    data = image.path(variables["BLACKBOARD_DATA"])
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in [data, *data.rglob("*")]} == {0}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to a group")
async def test_a_pod_over_redis_starts(
    image: PlainImage, redis_binary: Path, postgres: Postgres, s3: S3, tmp_path: Path
) -> None:
    """With every URL, key and certificate from a secret."""
    pair = Authority(tmp_path).issue()
    await postgres.empty()
    make_keys(tmp_path)
    make_bucket(tmp_path, s3.endpoint)
    async with RedisProcess(redis_binary, settings=RedisSettings()) as server:
        secrets = {
            f"{KEYS}/engine": server.url,
            f"{KEYS}/archive": postgres.url,
            f"{KEYS}/secret": token_hex(32),
            f"{KEYS}/signing_key": token_hex(32),
            f"{KEYS}/s3_access_key": (tmp_path / "s3/access_key").read_text(),
            f"{KEYS}/s3_secret_key": (tmp_path / "s3/secret_key").read_text(),
            "/run/tls/tls.crt": pair.cert.read_text(),
            "/run/tls/tls.key": pair.key.read_text(),
        }
        variables = as_kubelet(image, manifests(REDIS), secrets)
        here = {"AWS_ENDPOINT_URL": s3.endpoint, "AWS_ALLOW_HTTP": "true"}
        printed = await lives(image, {**variables, **here})
    assert "nothing can be restored" not in printed
