"""TLS with real certificates: which clients are accepted or refused, and with which messages."""

import asyncio
import re
import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest

import blackboard
from blackboard.client.contexts import CA_VARIABLE
from blackboard.errors import InvalidRequest, Unavailable
from blackboard.limits import Limits
from blackboard.server.http.serve import serve
from blackboard.server.service import Service
from blackboard.server.settings import load
from tests.certificates import Authority
from tests.serving import Served, serving
from tests.unit.server.http.conversation import PATIENCE_S
from tests.waiting import wait_until

KEY = "public/a"


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The authority that signed the service's certificate."""
    return Authority(tmp_path)


@pytest.mark.parametrize("scheme", ["wss", "https"])
async def test_with_the_authority_everything_works(
    service: Service, authority: Authority, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """Requests, watches and documents; the file by argument or by environment."""
    async with serving(service, pair=authority.issue()) as served:
        url = served.url.replace("wss", scheme)
        async with blackboard.connect(url, token=served.token(), ca=authority.ca) as client:
            await client.board("b").put(KEY, 1)
        monkeypatch.setenv(CA_VARIABLE, str(authority.ca))
        async with blackboard.connect(url, token=served.token()) as client:
            board = client.board("b")
            async with board.watch(KEY) as watch:
                await board.put(KEY, 2)
                assert (await anext(aiter(watch))).changes[0].value == 2
            async with board.document("public/text") as document:
                document.text().insert(0, "hello")
                assert str(document.text()) == "hello"


async def test_plain_http_is_served_over_tls(service: Service, authority: Authority) -> None:
    """Health and JSON-RPC for any HTTPS client, with at least TLS 1.2."""
    context = ssl.create_default_context(cafile=authority.ca)
    async with serving(service, pair=authority.issue()) as served:
        base = served.url.replace("wss", "https")
        async with httpx.AsyncClient(verify=context, trust_env=False) as http:
            assert (await http.get(f"{base}/healthz")).status_code == 200
            request = {"jsonrpc": "2.0", "id": 1, "method": "boards", "params": {}}
            headers = {"Authorization": f"Bearer {served.token()}"}
            answer = await http.post(f"{base}/v1/rpc", json=request, headers=headers)
            assert answer.json()["result"] == []
        _, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=context)
        assert writer.get_extra_info("ssl_object").version() in ("TLSv1.2", "TLSv1.3")
        writer.close()
        await writer.wait_closed()


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("stranger", "unable to get local issuer certificate"),
        ("machine", "unable to get local issuer certificate"),
        ("ended", "certificate has expired"),
        ("elsewhere", "IP address mismatch"),
    ],
)
async def test_a_certificate_that_is_not_good_is_refused_in_words(
    service: Service, authority: Authority, tmp_path: Path, case: str, words: str
) -> None:
    """Of a stranger, unknown to this machine, expired, or of another host; nothing is sent."""
    hosts = ("board.example.org",) if case == "elsewhere" else ("127.0.0.1",)
    pair = authority.issue(hosts=hosts, ended=case == "ended")
    trusted = {"stranger": Authority(tmp_path, "stranger").ca, "machine": None}
    ca = trusted.get(case, authority.ca)
    async with serving(service, pair=pair) as served:
        with pytest.raises(Unavailable) as refused:
            async with blackboard.connect(served.url, token=served.token(), ca=ca):
                pass
        assert served.gate.connections == 0
    assert refused.value.what == f"{served.url}/v1"
    assert refused.value.reason.startswith(f"its certificate is not accepted: {words}")
    assert "_ssl" not in refused.value.reason


async def test_a_document_is_refused_in_the_same_words(
    service: Service, authority: Authority, tmp_path: Path
) -> None:
    """Its connection is one of its own; the file is read for each."""
    changing = tmp_path / "changing.pem"
    changing.write_bytes(authority.ca.read_bytes())
    async with (
        serving(service, pair=authority.issue()) as served,
        blackboard.connect(served.url, token=served.token(), ca=changing) as client,
    ):
        changing.write_bytes(Authority(tmp_path, "stranger").ca.read_bytes())
        with pytest.raises(Unavailable, match="its certificate is not accepted"):
            async with client.link.document("b", "public/text"):
                pass


@pytest.mark.limits(connect_pauses_ms=(0, 1))
async def test_a_client_goes_on_after_its_file_of_authorities_was_missing_for_a_moment(
    service: Service,
    authority: Authority,
    tmp_path: Path,
    limits: Limits,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As while somebody replaces it; a document with its edits, too."""
    missing: set[asyncio.Task[Any] | None] = set()
    real = ssl.create_default_context

    def noting(**given: Any) -> ssl.SSLContext:
        try:
            return real(**given)
        except OSError:
            missing.add(asyncio.current_task())
            raise

    monkeypatch.setattr(ssl, "create_default_context", noting)
    changing = tmp_path / "changing.pem"
    changing.write_bytes(authority.ca.read_bytes())
    async with (
        serving(service, pair=authority.issue()) as served,
        blackboard.connect(
            served.url, token=served.token(), ca=changing, limits=limits, patience_ms=60_000
        ) as client,
    ):
        document = await client.board().document("public/text")
        changing.unlink()
        for visitor in [*served.gate._open, *served.gate._visitors]:
            visitor.drain()

        async def both_miss_it() -> bool:
            return len(missing) == 2

        await wait_until(both_miss_it)
        document.text().append("not lost")
        with pytest.raises(Unavailable, match="No such file"):
            async with client.link.document("main", "public/text"):
                pass
        changing.write_bytes(authority.ca.read_bytes())
        assert await client.board().increment("public/n") == 1
        await document.synced()
        await document.aclose()


async def test_a_plain_request_to_a_tls_port_is_answered(
    service: Service, authority: Authority
) -> None:
    """Over a plain address to a port with TLS, and the other way round."""
    async with serving(service, pair=authority.issue()) as served:
        with pytest.raises(Unavailable, match="if it speaks TLS, the address begins with wss:"):
            async with blackboard.connect(served.url.replace("wss", "ws"), token="t"):
                pass
    async with serving(service) as served:
        url = served.url.replace("ws:", "wss:")
        with pytest.raises(Unavailable, match="it does not speak TLS"):
            async with blackboard.connect(url, token="t", ca=authority.ca):
                pass


@pytest.mark.parametrize(
    ("url", "name", "words"),
    [
        ("wss://127.0.0.1:1", "missing.pem", "No such file"),
        ("wss://127.0.0.1:1", "empty.pem", "NO_CERTIFICATE_OR_CRL_FOUND"),
        ("ws://127.0.0.1:1", "authority.pem", "is not encrypted"),
        ("wss://[::1", "authority.pem", "Invalid IPv6 URL"),
    ],
)
async def test_a_file_that_cannot_help_is_refused_at_once(
    authority: Authority, tmp_path: Path, url: str, name: str, words: str
) -> None:
    """Before anything is sent: it is not the service that cannot be reached."""
    (tmp_path / "empty.pem").write_bytes(b"")
    with pytest.raises(InvalidRequest, match=re.escape(words)):
        async with blackboard.connect(url, ca=tmp_path / name):
            pass


async def test_a_plain_address_ignores_the_environment(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The variable is for every service; this one is on the same machine."""
    monkeypatch.setenv(CA_VARIABLE, "/nowhere/ca.pem")
    async with blackboard.connect(served.url, token=served.token()) as client:
        assert await client.boards() == []


@pytest.mark.limits(handshake_timeout_ms=300)
async def test_a_handshake_that_does_not_end_is_ended(
    service: Service, authority: Authority
) -> None:
    """A peer that connects and says nothing, or half of a greeting, costs seconds, not a minute."""
    async with serving(service, pair=authority.issue()) as served:
        for said in (b"", b"\x16\x03\x01\x02\x00\x01"):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(said)
            assert await asyncio.wait_for(_end(reader), PATIENCE_S) == b""
            writer.close()


async def _end(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.read()
    except ConnectionError:
        return b""


@pytest.mark.parametrize("case", ["missing", "not_a_pair", "locked", "no_pem"])
async def test_a_service_with_a_wrong_certificate_does_not_start(
    authority: Authority, tmp_path: Path, case: str
) -> None:
    """Nothing is opened, and nobody is asked for a password on the terminal."""
    pair = authority.issue()
    cert, key = {
        "missing": (tmp_path / "nowhere.pem", pair.key),
        "not_a_pair": (pair.cert, authority.issue("other").key),
        "locked": (pair.cert, authority.issue("locked", password="word").key),
        "no_pem": (pair.key, pair.key),
    }[case]
    settings = load({"data": tmp_path / "data", "port": 0, "tls_cert": cert, "tls_key": key})
    with pytest.raises(InvalidRequest) as refused:
        await serve(settings, signals=False)
    assert refused.value.field == "tls_cert"
    assert not (tmp_path / "data").exists()
