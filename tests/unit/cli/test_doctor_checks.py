"""What doctor finds, on real files and real numbers."""

import asyncio
import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import blackboard
from blackboard.cli import doctor as checks
from blackboard.cli.doctor import FindingStatus
from blackboard.cli.target import Target
from blackboard.core.access import agent
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.integrity.tokens import issue, new_secret
from blackboard.limits import DEFAULT
from blackboard.server.settings import Settings
from tests.otlp import receiving
from tests.unit.cli.typed import ended

NOW_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def test_a_private_directory_is_fine(tmp_path: Path) -> None:
    """Writable, roomy enough for tests, and its fsync time is printed in milliseconds."""
    directory = tmp_path / "boards"
    directory.mkdir(mode=0o700)
    found = {finding.check: finding for finding in checks.directory(directory)}
    assert found["data"].status is FindingStatus.OK
    assert found["fsync"].text.split()[1] == "ms"
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("name", ["", "archive.db", "blobs", "blobs/ab"])
def test_what_others_can_open_is_a_warning(tmp_path: Path, name: str) -> None:
    """The directory or anything in it; the fix is the command, and nothing is changed."""
    directory = tmp_path / "boards"
    (directory / "blobs").mkdir(mode=0o700, parents=True)
    directory.chmod(0o700)
    for file in ("archive.db", "blobs/ab"):
        (directory / file).touch(0o600)
    assert next(iter(checks.directory(directory))).status is FindingStatus.OK
    open_one = directory / name
    open_one.chmod(0o755)
    finding = next(iter(checks.directory(directory)))
    assert (finding.status, finding.text.split()[0]) == (FindingStatus.WARN, str(open_one))
    assert finding.fix.startswith(f"chmod -R go-rwx {directory}")
    assert stat.S_IMODE(open_one.stat().st_mode) == 0o755


def test_several_are_counted(tmp_path: Path) -> None:
    """One line, however many there are."""
    directory = tmp_path / "boards"
    directory.mkdir(mode=0o700)
    for number in range(5):
        (directory / str(number)).touch(0o644)
    assert "and 4 more" in next(iter(checks.directory(directory))).text


async def test_doctor_looks_before_the_engine_mends(tmp_path: Path) -> None:
    """Opening the engine closes the directory to others; the finding is still told."""
    async with blackboard.open(tmp_path) as client:
        await client.board("main").put("public/a", 1)
    (tmp_path / "boards" / "main.db").chmod(0o644)
    settings = Settings(data=tmp_path)
    # Not by `to_thread`, which takes along that a loop runs here.
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(None, checks._of_this_machine, settings)
    [data] = [finding for finding in found if finding.check == "data"]
    assert (data.status, "main.db" in data.text) == (FindingStatus.WARN, True)


def test_a_missing_directory_is_not_made(tmp_path: Path) -> None:
    """Doctor looks at where it would be."""
    directory = tmp_path / "not" / "yet"
    findings = list(checks.directory(directory))
    assert findings[0].status is FindingStatus.OK
    assert "not made yet" in findings[0].text
    assert list(tmp_path.iterdir()) == []


async def test_an_engine_that_somebody_uses_is_fine(tmp_path: Path) -> None:
    """It names the process instead of waiting for it; afterwards it asks the engine itself."""
    settings = Settings(data=tmp_path)
    [new] = await checks.engine(settings)
    assert "when it is first used" in new.text
    store = await SqliteStore.at(tmp_path)
    [used] = await checks.engine(settings)
    assert (used.status, "in use by process" in used.text) == (FindingStatus.OK, True)
    await store.aclose()
    engine, durability = await checks.engine(settings)
    assert engine.text.startswith("sqlite 3.")
    assert durability.text == "an acknowledged commit is on disk"


async def test_an_unknown_engine_fails() -> None:
    """With the words of the error."""
    [finding] = await checks.engine(Settings(engine="mysql://x"))
    assert finding.status is FindingStatus.FAIL


@pytest.mark.parametrize(
    ("ttl_ms", "status"),
    [(HOUR_MS, FindingStatus.OK), (HOUR_MS // 6, FindingStatus.WARN)],
)
def test_a_token_that_ends_soon_is_a_warning(ttl_ms: int, status: FindingStatus) -> None:
    """There is time to ask for another one."""
    import time

    token = issue(new_secret(), agent("bob"), ttl_ms)
    now_ms = time.time_ns() // 1_000_000
    assert checks.token(Target("b", url="ws://x", token=token), now_ms).status is status
    later_ms = now_ms + ttl_ms + 1000
    expired = checks.token(Target("b", url="ws://x", token=token), later_ms)
    assert (expired.status, expired.text) == (FindingStatus.FAIL, "bob's has expired")


@pytest.mark.parametrize("token", [None, "nonsense"])
def test_no_token_fails(token: str | None) -> None:
    """Nothing works without one."""
    assert checks.token(Target("b", url="ws://x", token=token), NOW_MS).status is FindingStatus.FAIL


@pytest.mark.parametrize(
    ("url", "status"),
    [
        ("ws://127.0.0.1:7420", FindingStatus.OK),
        ("ws://[::1]:7420", FindingStatus.OK),
        ("ws://localhost", FindingStatus.OK),
        ("wss://boards.example.org", FindingStatus.OK),
        ("ws://boards.example.org", FindingStatus.WARN),
        ("ws://localhost.example.org", FindingStatus.WARN),
    ],
)
def test_an_open_wire_is_a_warning(url: str, status: FindingStatus) -> None:
    """Loopback needs no encryption, everything else does."""
    assert checks.transport(url).status is status


@pytest.mark.parametrize(
    ("theirs", "status"),
    [
        ("0.1.0", FindingStatus.OK),
        ("0.1.9", FindingStatus.OK),
        ("0.2.0", FindingStatus.WARN),
        ("", FindingStatus.WARN),
    ],
)
def test_versions_are_compared(theirs: str, status: FindingStatus) -> None:
    """A minor version may change the protocol."""
    assert checks.versions(theirs, "0.1.0").status is status


@pytest.mark.parametrize(
    ("ahead_s", "status", "words"),
    [
        (0, FindingStatus.OK, "agrees"),
        (90, FindingStatus.WARN, "ahead of"),
        (-90, FindingStatus.WARN, "behind"),
    ],
)
def test_clocks_are_compared(ahead_s: int, status: FindingStatus, words: str) -> None:
    """Both directions are reported."""
    now_s = NOW_MS / 1000
    finding = checks.clock(formatdate(now_s - ahead_s, usegmt=True), now_s)
    assert finding.status is status
    assert words in finding.text


@pytest.mark.parametrize("date", ["yesterday", "Mon, 01 Jan 99999999 00:00:00 GMT", "0"])
def test_a_clock_that_makes_no_sense_is_not_compared(date: str) -> None:
    """It is that of any program at that address."""
    assert checks.clock(date, NOW_MS / 1000).status is FindingStatus.OK


def test_a_clock_without_a_zone_is_that_of_greenwich(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        date = formatdate(NOW_MS / 1000, usegmt=True).replace("GMT", "-0000")
        assert "agrees" in checks.clock(date, NOW_MS / 1000).text
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    "url", ["ws://[::1", "ws://localhost:x", "ws://localhost:99999", "localhost:7420", "localhost"]
)
def test_what_is_no_address_fails(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BLACKBOARD_CONFIG_DIR", str(tmp_path))
    assert ended("doctor", "--json", "--url", url, "--data", str(tmp_path / "data")) == 1
    found = json.loads(capsys.readouterr().out)["findings"][-1]
    assert (found["check"], found["status"]) == ("service", "fail")
    assert f"{url} is no address" in found["text"]


def test_an_answer_that_is_nested_too_deep_is_no_answer() -> None:
    """Of a program that answers anything."""
    with served(b"[" * 60_000) as url:
        [*_, finding] = checks.service(url)
        assert finding.status is FindingStatus.FAIL
        assert "nested too deep" in finding.text
        assert checks.served_engine(url) is None


@contextmanager
def served(body: bytes) -> Iterator[str]:
    """A server that answers every request with `body`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"ws://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("lag_ms", "status"),
    [
        (0, FindingStatus.OK),
        (DEFAULT.archive.archive_lag_ms_max, FindingStatus.OK),
        (DEFAULT.archive.archive_lag_ms_max + 1, FindingStatus.WARN),
    ],
)
def test_an_archive_that_falls_behind_is_reported(lag_ms: int, status: FindingStatus) -> None:
    """By the age of what it misses; the boards that fail are counted."""
    told = {"status": "ready", "archive": {"behind": 7, "lag_ms": lag_ms, "failing": 2}}
    [finding] = checks.archive(told)
    assert (finding.check, finding.status) == ("archive", status)
    assert "7 revisions" in finding.text
    assert ("2 boards" in finding.text) is (status is FindingStatus.WARN)


def test_one_revision_behind_is_not_many() -> None:
    """Nor is one board."""
    told = {
        "archive": {"behind": 1, "lag_ms": DEFAULT.archive.archive_lag_ms_max + 1_000, "failing": 1}
    }
    [finding] = checks.archive(told)
    assert "1 revision behind" in finding.text
    assert finding.text.endswith("; 1 board cannot be archived")


def test_a_service_without_an_archive_has_no_such_finding() -> None:
    """Nor has one that answers something else."""
    answers: list[object] = [{"status": "ready"}, [], None, {"archive": {"behind": "x"}}]
    assert [list(checks.archive(told)) for told in answers] == [[]] * 4


# --- telemetry ------------------------------------------------------------------------------------


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No variable of OpenTelemetry."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    return monkeypatch


def test_telemetry_is_off_unless_it_is_asked_for(asked: pytest.MonkeyPatch) -> None:
    """Nothing is asked then; nor if variables say that nothing is sent."""
    asked.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    [finding] = checks.telemetry(is_on=False)
    assert (finding.status, finding.text) == (FindingStatus.OK, "off: nothing is sent")
    asked.setenv("OTEL_SDK_DISABLED", "true")
    [finding] = checks.telemetry(is_on=True)
    assert (finding.status, "nothing is sent" in finding.text) == (FindingStatus.OK, True)


def test_telemetry_that_a_service_would_refuse_fails(asked: pytest.MonkeyPatch) -> None:
    asked.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    [finding] = checks.telemetry(is_on=True)
    assert finding.status is FindingStatus.FAIL
    assert "OTEL_EXPORTER_OTLP_PROTOCOL" in finding.text


def test_a_collector_that_refuses_is_a_warning(asked: pytest.MonkeyPatch) -> None:
    """One line for each kind; a header that it needs is sent."""
    with receiving(answers=401) as collector:
        asked.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        asked.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc")
        found = checks.telemetry(is_on=True)
    assert [finding.status for finding in found] == [FindingStatus.WARN] * 3
    assert all(finding.text.endswith("which answers 401") for finding in found)
    assert collector.authorizations == {"Bearer abc"}


def test_a_collector_that_hangs_is_waited_for_a_while(asked: pytest.MonkeyPatch) -> None:
    hold = threading.Event()
    with receiving(hold=hold) as collector:
        asked.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        found = checks.telemetry(is_on=True, patience_s=0.2)
        hold.set()
    assert {finding.status for finding in found} == {FindingStatus.WARN}
    assert all("did not answer in 0.2 s" in finding.text for finding in found)
