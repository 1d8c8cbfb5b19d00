"""The files of the page, and its one-time link."""

import asyncio
import secrets

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Route

from blackboard.limits import PAGE_LINK_TTL_MS, PAGE_TOKEN_TTL_MS
from blackboard.server.http.handshake import OriginPolicy
from blackboard.server.http.page import OneTimeLink, Page, client_folder, files
from blackboard.server.service import Service
from tests.serving import serving

OWN = "https://boards.example.org"


class Clock:
    """Seconds, which pass when a test says so."""

    def __init__(self) -> None:
        self.now_s = 5.0

    def __call__(self) -> float:
        return self.now_s


def test_a_link_is_good_once() -> None:
    """And only with its whole code."""
    tokens = iter(["first", "second"])
    link = OneTimeLink(lambda: next(tokens))
    wrong = [link.code[:-1], link.code + "x", "", "é", secrets.token_urlsafe(16)]
    assert [link.take(code) for code in wrong] == [None] * len(wrong)
    assert link.take(link.code) == "first"
    assert link.take(link.code) is None


@pytest.mark.parametrize(("late_ms", "token"), [(0, "token"), (1, None)])
def test_a_link_ends(late_ms: int, token: str | None) -> None:
    """After PAGE_LINK_TTL_MS; what it gives lasts longer, for PAGE_TOKEN_TTL_MS."""
    clock = Clock()
    link = OneTimeLink(lambda: "token", clock=clock)
    clock.now_s += (PAGE_LINK_TTL_MS + late_ms) / 1000
    assert link.take(link.code) == token
    assert PAGE_TOKEN_TTL_MS > PAGE_LINK_TTL_MS


@pytest.fixture
def http() -> httpx.AsyncClient:
    """Somebody who asks a page without a link for files."""
    page = Page()
    routes = [
        Route("/", page.index),
        Route("/page/enter", page.enter, methods=["POST"]),
        Route("/page/{path:path}", page.file),
    ]
    transport = httpx.ASGITransport(Starlette(routes=routes))
    return httpx.AsyncClient(transport=transport, base_url="http://board")


async def test_files_are_sent_with_their_kind(http: httpx.AsyncClient) -> None:
    """Also those of the client; a browser that has one is told so."""
    index = await http.get("/")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    module = await http.get("/page/client/index.js")
    assert module.content == (client_folder() / "index.js").read_bytes()
    assert module.headers["content-type"] == "text/javascript; charset=utf-8"
    known = {"If-None-Match": module.headers["etag"]}
    again = await http.get("/page/client/index.js", headers=known)
    assert (again.status_code, again.content) == (304, b"")
    for answer in (index, module, again):
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "path", ["", "none.js", "../limits.py", "..%2flimits.py", "vendor/vendor.json", "%00", "views"]
)
async def test_nothing_else_is_sent(http: httpx.AsyncClient, path: str) -> None:
    """Neither other files, nor folders, nor what does not end like a file of a page."""
    answer = await http.get(f"/page/{path}")
    assert answer.status_code == 404
    assert "limits.py" not in files()


async def test_without_a_link_nobody_enters(http: httpx.AsyncClient) -> None:
    """Whatever is sent, however much of it."""
    for code in (b"", b"code", b"\xff" * 10, b"x" * 1_000_000):
        answer = await http.post("/page/enter", content=code)
        assert answer.status_code == 403
        assert "token" not in answer.json()


async def test_a_code_that_does_not_come_is_not_waited_for(service: Service) -> None:
    """A stranger who announces one and sends nothing is answered."""
    link = OneTimeLink(lambda: "token")
    async with serving(service, page=Page(link, patience_s=0.05)) as served:
        host, port = served.url.removeprefix("ws://").split("/")[0].split(":")
        async with asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"POST /page/enter HTTP/1.1\r\nHost: {host}\r\nContent-Length: 22\r\n\r\n"
            writer.write(head.encode())
            assert (await reader.readline()).startswith(b"HTTP/1.1 403")
            writer.close()
    assert link.take(link.code) == "token"


@pytest.mark.parametrize(
    ("origin", "scheme", "is_let_in"),
    [
        (OWN, "wss", True),
        (OWN, "ws", True),  # a proxy has added TLS
        ("http://boards.example.org", "ws", True),
        ("http://boards.example.org", "wss", False),
        ("https://boards.example.org:444", "wss", False),
        ("https://example.org", "wss", False),
        ("https://boards.example.org.evil.example", "wss", False),
        ("null", "wss", False),
    ],
)
def test_the_page_of_the_service_may_connect(origin: str, scheme: str, is_let_in: bool) -> None:
    """With the scheme and the host of the request; others as without the page."""
    headers = [(b"host", b"Boards.example.org"), (b"origin", origin.encode())]
    scope = {"headers": headers, "scheme": scheme}
    assert (OriginPolicy(own=True).refusal(scope) is None) is is_let_in
    assert OriginPolicy().refusal(scope) is not None
