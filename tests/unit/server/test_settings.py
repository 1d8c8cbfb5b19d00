"""Settings: easy on this machine, refused where they would be unsafe."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blackboard.core.access import operator
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import InvalidRequest
from blackboard.integrity.tokens import SECRET_BYTES_MIN, verify
from blackboard.limits import DRAIN_DELAY_MS_MAX, LOG_BYTES_PER_ACCOUNT_MAX
from blackboard.server.overload.rate_limits import Meter
from blackboard.server.settings import (
    CONFIG_VARIABLE,
    PORT,
    load,
    make_archive,
    make_store,
    rates_of,
    secret_of,
    write_operator_token,
)

SECRET = "s" * SECRET_BYTES_MIN


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what a test sets counts."""
    for name in (CONFIG_VARIABLE, "BLACKBOARD_PORT", "BLACKBOARD_HOST", "BLACKBOARD_SECRET"):
        monkeypatch.delenv(name, raising=False)


def test_the_logs_grow_by_so_much_for_one_account_unless_it_is_said(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """LOG_BYTES_PER_ACCOUNT_MAX in an hour, all at once if need be; then it has to wait."""
    meter = Meter("ann", rates_of(load()))
    assert meter.take_log(LOG_BYTES_PER_ACCOUNT_MAX, 0.0) is None
    told = meter.take_log(1_000_000, 0.0)
    assert told is not None
    assert (told.what, "ann" in told.reason) == ("17179869184 bytes of log an hour", True)
    assert told.retry_after_ms > 0
    assert meter.take_log(1_000_000, 3_600_000.0) is None
    monkeypatch.setenv("BLACKBOARD_LOG_BYTES_PER_HOUR", "5")
    assert rates_of(load()).log_bytes_per_hour == 5


def test_a_stop_is_put_off_for_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """DRAIN_DELAY_MS_MAX; not at all unless it is said."""
    assert load().drain_delay_ms == 0
    monkeypatch.setenv("BLACKBOARD_DRAIN_DELAY_MS", str(DRAIN_DELAY_MS_MAX))
    assert load().drain_delay_ms == DRAIN_DELAY_MS_MAX
    for wrong in (-1, DRAIN_DELAY_MS_MAX + 1):
        with pytest.raises(InvalidRequest, match="drain_delay_ms"):
            load({"drain_delay_ms": wrong})


def test_without_configuration_it_serves_this_machine() -> None:
    """The embedded engine on loopback, in the user's data directory."""
    settings = load()
    settings.check()
    assert (settings.engine, settings.level, settings.host, settings.port) == (
        "sqlite",
        "disk",
        "127.0.0.1",
        PORT,
    )
    assert settings.data.name == "blackboard"
    assert settings.is_loopback
    assert not settings.has_tls
    assert set(settings.hosts) == {"localhost", "127.0.0.1", "[::1]"}


def test_arguments_precede_the_environment_precedes_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each setting by itself."""
    file = tmp_path / "blackboard.toml"
    file.write_text('port = 1\nlevel = "memory"\nallowed_origins = ["https://a"]\n')
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    assert (load().port, load().level, load().allowed_origins) == (1, "memory", ("https://a",))
    monkeypatch.setenv("BLACKBOARD_PORT", "2")
    monkeypatch.setenv("BLACKBOARD_ALLOWED_ORIGINS", "https://b, https://c:8443")
    assert (load().port, load().allowed_origins) == (2, ("https://b", "https://c:8443"))
    assert (load({"port": 3}).port, load({"port": 3}).level) == (3, "memory")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"port": 65536}, "port"),
        ({"port": "many"}, "port"),
        ({"level": "paper"}, "level"),
        ({"log_kept_revisions": 0}, "log_kept_revisions"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_a_bad_setting_is_refused_by_name(given: dict[str, object], field: str) -> None:
    """As InvalidRequest, like everything else that comes from outside."""
    with pytest.raises(InvalidRequest) as caught:
        load(given)
    assert caught.value.field == field


@pytest.mark.parametrize("text", ["port = ", 'nonsense = "x"\n', "port = 'x'\n"])
def test_a_bad_file_is_refused(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it is no TOML or says something unknown."""
    file = tmp_path / "blackboard.toml"
    file.write_text(text)
    monkeypatch.setenv(CONFIG_VARIABLE, str(file))
    with pytest.raises(InvalidRequest):
        load()


def test_a_file_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The service would run on defaults instead: other boards, and nothing sealed."""
    monkeypatch.setenv(CONFIG_VARIABLE, str(tmp_path / "misspelt.toml"))
    with pytest.raises(InvalidRequest, match="there is no file") as caught:
        load()
    assert caught.value.field == CONFIG_VARIABLE
    monkeypatch.setenv(CONFIG_VARIABLE, "")
    assert load().port == 7420


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "board.example.org"])
def test_another_address_needs_a_secret_and_tls(host: str) -> None:
    """One after the other is asked for; `insecure` stands in for TLS, nothing for the secret."""
    with pytest.raises(InvalidRequest, match="secret"):
        load({"host": host}).check()
    with pytest.raises(InvalidRequest, match="secret"):
        load({"host": host, "insecure": True}).check()
    with pytest.raises(InvalidRequest, match="tls_cert"):
        load({"host": host, "secret": SECRET}).check()
    load({"host": host, "secret": SECRET, "insecure": True}).check()
    load({"host": host, "secret": SECRET, "tls_cert": "c", "tls_key": "k"}).check()
    assert load({"host": host}).hosts == ()


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_loopback_needs_nothing(host: str) -> None:
    """Every spelling of it, each of which may be called by its name."""
    settings = load({"host": host})
    settings.check()
    assert (f"[{host}]" if ":" in host else host) in settings.hosts


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"tls_cert": "c"}, "tls_key"),
        ({"tls_key": "k"}, "tls_key"),
        ({"secret": SECRET, "secret_file": "f"}, "secret_file"),
    ],
)
def test_settings_that_contradict_are_refused(given: dict[str, object], field: str) -> None:
    """Also on loopback."""
    with pytest.raises(InvalidRequest) as caught:
        load(given).check()
    assert caught.value.field == field


# --- secrets --------------------------------------------------------------------------------------


def test_a_secret_is_generated_once(tmp_path: Path) -> None:
    """For this user only; the next start finds it again."""
    settings = load({"data": tmp_path / "data"})
    secret = secret_of(settings)
    path = tmp_path / "data/secret"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert secret_of(settings) == secret == path.read_text().strip()
    assert [file.name for file in path.parent.iterdir()] == ["secret"]


def test_services_that_start_at_once_agree_on_the_secret(tmp_path: Path) -> None:
    """Several services over one Redis may share a data directory."""
    settings = load({"data": tmp_path})
    with ThreadPoolExecutor(8) as threads:
        found = set(threads.map(lambda _: secret_of(settings), range(32)))
    assert len(found) == 1


def test_a_secret_that_is_given_is_not_generated(tmp_path: Path) -> None:
    """From the environment's variable or from a file; too short a one is refused, unseen."""
    file = tmp_path / "given"
    file.write_text(SECRET + "\n")
    data = tmp_path / "data"
    assert secret_of(load({"data": data, "secret": SECRET})) == SECRET
    assert secret_of(load({"data": data, "secret_file": file})) == SECRET
    assert not data.exists()
    assert SECRET not in repr(load({"secret": SECRET}))
    file.write_text("short")
    for given in ({"secret": "short"}, {"secret_file": file}, {"secret_file": tmp_path / "none"}):
        with pytest.raises(InvalidRequest) as caught:
            secret_of(load(given))
        assert "'short'" not in str(caught.value)


def test_the_operators_token_is_for_this_user_only(tmp_path: Path) -> None:
    """It is the operator's, and replaces an older one."""
    settings = load({"data": tmp_path})
    (tmp_path / "token").write_text("old")
    path = write_operator_token(settings, SECRET)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = verify(SECRET, path.read_text().strip())
    assert (found.name, found.acts_for_any) == (operator().name, True)
    assert [file.name for file in tmp_path.iterdir()] == ["token"]


# --- engines --------------------------------------------------------------------------------------


async def test_the_engine_is_chosen_by_its_url(tmp_path: Path) -> None:
    """`sqlite` in the data directory, or a server's address."""
    store = await make_store(load({"data": tmp_path, "level": "memory"}))
    assert isinstance(store, SqliteStore)
    assert (store.directory, store.level) == (tmp_path, "memory")
    await store.aclose()
    store = await make_store(load({"engine": "redis://localhost:1/0"}))
    assert isinstance(store, RedisStore)
    await store.aclose()
    for engine in ("paper://desk", "mysql", "redis://h:port/0"):
        with pytest.raises(InvalidRequest, match="sqlite") as refused:
            await make_store(load({"engine": engine}))
        assert refused.value.field == "engine"


async def test_an_archive_lies_beside_the_embedded_engine(tmp_path: Path) -> None:
    """With its blobs and a signing key that is made for its owner only; or there is none."""
    archive = await make_archive(load({"data": tmp_path}))
    assert archive is not None
    await archive.aclose()
    made = [tmp_path / name for name in ("archive.db", "blobs", "signing_key")]
    assert all(path.exists() for path in made)
    assert made[-1].stat().st_mode & 0o077 == 0
    assert await make_archive(load({"data": tmp_path, "archive": "none"})) is None
    assert await make_archive(load({"data": tmp_path, "engine": "redis://localhost:1/0"})) is None


@pytest.mark.parametrize(
    ("missing", "given"),
    [
        ("blobs", {"archive": "postgresql://localhost/board"}),
        ("signing_key", {"archive": "postgresql://localhost/board", "blobs": "s3://bucket"}),
        ("archive", {"archive": "paper://desk", "blobs": "b", "signing_key": "key"}),
    ],
)
async def test_an_archive_for_redis_is_named_in_full(
    tmp_path: Path, missing: str, given: dict[str, str]
) -> None:
    """Many services share it, so nothing of it can be made by one of them."""
    (tmp_path / "key").write_text("ab" * 32)
    paths = {name: str(tmp_path / given[name]) for name in ("signing_key",) if name in given}
    blobs = {"blobs": str(tmp_path / "b")} if given.get("blobs") == "b" else {}
    settings = load(
        {"data": tmp_path, "engine": "redis://localhost:1/0", **given, **paths, **blobs}
    )
    with pytest.raises(InvalidRequest) as refused:
        await make_archive(settings)
    assert refused.value.field == missing


@pytest.mark.parametrize("given", ["redis://h:1/0", Path("redis://h:1/0"), "file:///data"])
def test_a_url_is_no_data_directory(given: object) -> None:
    """A directory of that name would be made."""
    with pytest.raises(InvalidRequest, match="is no directory") as refused:
        load({"data": given})
    assert refused.value.field == "data"
