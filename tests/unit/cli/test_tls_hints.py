"""What helps when address and port disagree about TLS, with real certificates."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import blackboard
from blackboard.cli import doctor as checks
from blackboard.cli.doctor import Finding, FindingStatus
from blackboard.cli.errors import explain
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Unavailable
from blackboard.server.service import Service
from tests.certificates import LOOPBACK, Authority
from tests.serving import serving


@pytest.fixture(autouse=True)
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service is in this process, and the machine may be busy."""
    monkeypatch.setattr(checks, "_HTTP_TIMEOUT_S", 60)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service, not yet served."""
    async with Service(await SqliteStore.at(tmp_path / "data", "memory")) as service:
        yield service


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """Who signed the service's certificate."""
    return Authority(tmp_path)


async def hint_of_a_command(url: str, ca: Path) -> str:
    """What a command suggests that cannot connect."""
    with pytest.raises(Unavailable) as refused:
        async with blackboard.connect(url, token="t", ca=ca if url.startswith("wss") else None):
            pass
    return explain(refused.value).fix


async def finding_of_doctor(url: str, ca: Path) -> Finding:
    """The one finding of doctor, which looks no further."""
    [finding] = await asyncio.to_thread(lambda: list(checks.service(url, str(ca))))
    assert (finding.check, finding.status) == ("/healthz", FindingStatus.FAIL)
    return finding


async def test_a_port_without_tls(service: Service, authority: Authority) -> None:
    """No hint to start a service that runs, or to trust a certificate."""
    async with serving(service) as served:
        url = served.url.replace("ws:", "wss:")
        hint = await hint_of_a_command(url, authority.ca)
        assert hint == f"It is running without TLS: use {served.url}, or serve it with --tls-cert."
        finding = await finding_of_doctor(url, authority.ca)
        assert (finding.text, finding.fix) == (
            f"{url} does not answer: it does not speak TLS at that port",
            hint,
        )


async def test_a_port_with_tls(service: Service, authority: Authority) -> None:
    """A command can only suppose it; doctor looks, and knows."""
    async with serving(service, pair=authority.issue()) as served:
        url = served.url.replace("wss:", "ws:")
        hint = await hint_of_a_command(url, authority.ca)
        assert hint == f"Use {served.url} if it is served over TLS: try blackboard doctor."
        finding = await finding_of_doctor(url, authority.ca)
        assert (finding.text, finding.fix) == (
            f"{url} does not answer: it speaks TLS at that port",
            f"Use {served.url}",
        )


async def test_a_port_that_speaks_something_else(authority: Authority) -> None:
    """Neither HTTP nor TLS: doctor does not claim what it did not find."""

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finding = await finding_of_doctor(url, authority.ca)
        assert "does not answer in HTTP" in finding.text
        assert "if it is served over TLS" in finding.fix


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("untrusted", "If it is your own, trust its CA (--ca FILE"),
        ("another name", "Use a name that its certificate has (--url)"),
        ("expired", "It needs a new certificate"),
    ],
)
async def test_a_certificate_that_is_not_accepted(
    service: Service, authority: Authority, tmp_path: Path, case: str, words: str
) -> None:
    """Only who is not trusted is a matter of --ca."""
    hosts = ("board.example.org",) if case == "another name" else LOOPBACK
    pair = authority.issue(hosts=hosts, ended=case == "expired")
    ca = Authority(tmp_path, "another").ca if case == "untrusted" else authority.ca
    async with serving(service, pair=pair) as served:
        hint = await hint_of_a_command(served.url, ca)
        finding = await finding_of_doctor(served.url, ca)
    assert hint.startswith(words)
    assert finding.fix == hint
    assert "its certificate is not accepted" in finding.text
