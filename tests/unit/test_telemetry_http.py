"""The trace context of HTTP requests and handshakes: the service continues it, and no longer than
they last."""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Subprotocol

import blackboard
from blackboard import telemetry
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import TRACEPARENT_CHARACTERS_MAX
from blackboard.server.service import Service
from blackboard.telemetry import sending
from blackboard.wire.frames import JSON
from tests.otlp import ReceivedSpan, Receiver, receiving
from tests.serving import Served, serving
from tests.unit.integrations.test_mcp_http import ACCEPT, up
from tests.unit.server.http.conversation import Talk
from tests.waiting import TIMEOUT_S, wait_until

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
HEADER = f"00-{TRACE}-{PARENT}-01"
OTHER = "11111111111111111111111111111111"
NONE = (
    "garbage",
    f"00-{'0' * 32}-{PARENT}-01",
    f"ff-{TRACE}-{PARENT}-01",
    HEADER.upper(),
    HEADER + "-" * TRACEPARENT_CHARACTERS_MAX,
    "\xff" * 4_000,
)
"""Headers that are no traceparent."""


@dataclass
class Traced:
    """A collector, and the provider that sends to it."""

    collector: Receiver
    provider: TracerProvider

    async def spans(self) -> list[ReceivedSpan]:
        """What was made until now, and has been received."""
        assert await asyncio.to_thread(self.provider.force_flush, round(TIMEOUT_S * 1000))
        return list(self.collector.spans)

    async def named(self, name: str) -> list[ReceivedSpan]:
        """Those of a name."""
        return [span for span in await self.spans() if span.name == name]


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Traced]:
    """Telemetry that is sent by OTLP."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    with receiving() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        sending.resource.cache_clear()
        provider = sending.span_provider("tests")
        telemetry.start("tests", provider)
        yield Traced(collector, provider)
        telemetry.stop()
        provider.shutdown()
        sending.resource.cache_clear()


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    """A service, which ends before telemetry does."""
    async with (
        Service(await SqliteStore.at(tmp_path, "memory")) as service,
        serving(service) as found,
    ):
        yield found


@pytest.fixture
async def http(served: Served) -> AsyncIterator[httpx.AsyncClient]:
    """A client that keeps one connection."""
    headers = {"Authorization": f"Bearer {served.token()}"}
    base = f"http://127.0.0.1:{served.port}"
    async with httpx.AsyncClient(
        base_url=base, headers=headers, trust_env=False, timeout=TIMEOUT_S
    ) as client:
        yield client


async def begin(http: httpx.AsyncClient) -> dict[str, Any]:
    """The board's epoch, as commits name it."""
    asked = {"id": 1, "method": "head", "params": {"board": "b"}}
    answer = (await http.post("/v1/rpc", json=asked)).json()
    return {"epoch": answer["result"]["epoch"]["id"]}


def commit(number: int, epoch: dict[str, Any]) -> dict[str, Any]:
    """The `number`th commit of one writer."""
    params = {
        "board": "b",
        "id": {"lane": 0, "incarnation": "i", "step": number},
        "ops": [{"kind": "put", "key": "public/a", "value": number}],
        **epoch,
    }
    return {"jsonrpc": "2.0", "id": number, "method": "commit", "params": params}


async def post(
    http: httpx.AsyncClient, body: Any, headers: Sequence[tuple[str, str]] = ()
) -> list[Any]:
    """Post requests; their results, each of which is there."""
    raw = [(name.encode(), text.encode("latin-1")) for name, text in headers]
    response = await http.post("/v1/rpc", content=json.dumps(body), headers=raw)
    assert response.status_code == 200
    answers = response.json()
    answers = answers if isinstance(answers, list) else [answers]
    return [answer["result"] for answer in answers]


async def test_a_request_by_post_continues_its_trace(
    traced: Traced, http: httpx.AsyncClient
) -> None:
    """All of a batch, into the engine; one that names a trace itself continues that one. The next
    request on the same connection belongs to none of them."""
    epoch = await begin(http)
    own = {**commit(2, epoch), "traceparent": f"00-{OTHER}-{PARENT}-01"}
    await post(http, [commit(1, epoch), own], [("traceparent", HEADER)])
    await post(http, commit(3, epoch))
    first, second, third = await traced.named("blackboard.commit")
    assert (first.trace_id, first.parent_id) == (TRACE, PARENT)
    assert (second.trace_id, second.parent_id) == (OTHER, PARENT)
    assert third.trace_id not in {TRACE, OTHER}
    assert not third.parent_id
    engine = await traced.named("engine commit")
    assert [span.parent_id for span in engine] == [s.span_id for s in (first, second, third)]
    assert [s.attributes["blackboard.revision"] for s in (first, second, third)] == [1, 2, 3]


@pytest.mark.parametrize("text", NONE)
async def test_a_header_that_is_no_traceparent_is_ignored(
    text: str, traced: Traced, http: httpx.AsyncClient
) -> None:
    epoch = await begin(http)
    await post(http, commit(1, epoch), [("traceparent", text)])
    [span] = await traced.named("blackboard.commit")
    assert not span.parent_id
    assert span.trace_id != TRACE


async def test_two_traceparents_are_none(traced: Traced, http: httpx.AsyncClient) -> None:
    epoch = await begin(http)
    await post(http, commit(1, epoch), [("traceparent", HEADER)] * 2)
    [span] = await traced.named("blackboard.commit")
    assert not span.parent_id


async def test_a_request_that_is_not_sampled_is_not_traced(
    traced: Traced, http: httpx.AsyncClient
) -> None:
    """The caller has decided so."""
    epoch = await begin(http)
    await post(http, commit(1, epoch), [("traceparent", f"{HEADER[:-1]}0")])
    assert not await traced.named("blackboard.commit")


async def test_a_span_of_a_middleware_stays_the_parent(traced: Traced) -> None:
    """It has continued the trace already; one of another trace does not hide the header's."""
    tracer = traced.provider.get_tracer("a middleware")
    with telemetry.entering(HEADER), tracer.start_as_current_span("GET /"):
        with telemetry.entering(HEADER), telemetry.serving("restore", "b", "ada"):
            pass
        with telemetry.entering("garbage"), telemetry.serving("branch", "b", "ada"):
            pass
    other = tracer.start_as_current_span("another")
    with other, telemetry.entering(HEADER), telemetry.serving("checkpoint", "b", "ada"):
        pass
    left, now = telemetry.entering(HEADER), telemetry.entering
    with left, now(None), telemetry.serving("diff", "b", "ada"):
        pass  # asyncio may have kept the context of an earlier request on the connection
    found = {span.name: span for span in await traced.spans()}
    assert found["blackboard.diff"].trace_id != TRACE
    for name in ("blackboard.restore", "blackboard.branch"):
        assert found[name].parent_id == found["GET /"].span_id
    assert found["blackboard.checkpoint"].parent_id == PARENT


async def test_a_handshake_continues_its_trace_until_it_is_accepted(
    traced: Traced, served: Served, http: httpx.AsyncClient
) -> None:
    """The connection may last for days: what is asked on it names its own traces."""
    epoch = await begin(http)
    headers = {"Authorization": f"Bearer {served.token()}", "traceparent": HEADER}
    name = Subprotocol("blackboard.v1+json")
    async with connect(
        f"{served.url}/v1", subprotocols=[name], additional_headers=headers, proxy=None
    ) as opened:
        talk = Talk(opened, JSON)
        await talk.ask(0, "hello", {})
        [handshake] = await traced.named("blackboard.connect")
        assert (handshake.trace_id, handshake.parent_id) == (TRACE, PARENT)
        assert not handshake.is_error
        await talk.ask(1, "commit", commit(1, epoch)["params"])
        await talk.ask(2, "checkpoint", {"board": "b", "name": "one", "request": "r1"})
    for kind in ("blackboard.commit", "blackboard.checkpoint"):
        for span in await traced.named(kind):
            assert span.trace_id != TRACE


async def test_a_connection_that_becomes_a_websocket_leaves_the_trace_of_its_request(
    traced: Traced, served: Served, http: httpx.AsyncClient
) -> None:
    """Asyncio keeps the context of the task that last resumed reading."""
    epoch = await begin(http)
    head = f"Host: x\r\nAuthorization: Bearer {served.token()}\r\ntraceparent: {HEADER}\r\n"
    body = json.dumps(commit(1, epoch))
    request = f"POST /v1/rpc HTTP/1.1\r\n{head}Content-Length: {len(body)}\r\n\r\n"
    with socket.create_connection(("127.0.0.1", served.port)) as plain:
        # In two parts: the request waits for the body, and resumes reading.
        await asyncio.to_thread(plain.sendall, request.encode())
        await asyncio.to_thread(plain.sendall, body.encode())
        answer = await asyncio.to_thread(plain.recv, 65_536)
        while b'"result"' not in answer:
            answer += await asyncio.to_thread(plain.recv, 65_536)
        name = Subprotocol("blackboard.v1+json")
        opening = connect(
            f"{served.url}/v1", sock=plain, subprotocols=[name], additional_headers={}, proxy=None
        )
        async with opening as upgraded:
            talk = Talk(upgraded, JSON)
            await talk.ask(0, "hello", {"token": served.token()})
            for number in (2, 3):
                await talk.ask(number, "commit", commit(number, epoch)["params"])
    found = await traced.named("blackboard.commit")
    assert [span.trace_id == TRACE for span in found] == [True, False, False]


async def test_a_handshake_that_is_refused_says_so(traced: Traced, served: Served) -> None:
    """One with a header that is no traceparent begins no trace."""
    for text in (HEADER, *NONE[:3]):
        with pytest.raises(InvalidStatus, match="401"):
            await connect(
                f"{served.url}/v1",
                subprotocols=[Subprotocol("blackboard.v1+json")],
                additional_headers={"Authorization": "Bearer garbage", "traceparent": text},
                proxy=None,
            )
    [span] = await traced.named("blackboard.connect")
    assert (span.trace_id, span.parent_id, span.is_error) == (TRACE, PARENT, True)
    assert span.attributes["blackboard.outcome"] == "refused"
    assert span.attributes["error.type"] == "401"


@pytest.mark.parametrize("is_known", [True, False])
async def test_a_document_s_handshake_continues_its_trace(
    is_known: bool, traced: Traced, served: Served
) -> None:
    """Here a refusal comes after the connection was accepted."""
    token = served.token() if is_known else "garbage"
    headers = {"Authorization": f"Bearer {token}", "traceparent": HEADER}
    url = f"{served.url}/v1/boards/b/docs/public/memo"
    async with connect(url, additional_headers=headers, proxy=None) as opened:
        await (opened.recv() if is_known else opened.wait_closed())
        [span] = await traced.named("blackboard.connect")
    assert (span.trace_id, span.parent_id, span.is_error) == (TRACE, PARENT, not is_known)
    assert span.attributes["blackboard.board"] == "b"
    assert span.attributes.get("error.type") == (None if is_known else "unauthenticated")


async def test_a_request_of_mcp_continues_its_trace(traced: Traced, served: Served) -> None:
    """From the agent's program through the MCP server into the service; a later one does not."""
    async with up(served) as gateway:
        headers = {"Authorization": f"Bearer {gateway.token('ann')}", **ACCEPT}
        async with httpx.AsyncClient(headers=headers, trust_env=False, timeout=TIMEOUT_S) as http:
            for number, text in enumerate((HEADER, "garbage", None)):
                called = {"name": "write", "arguments": {"key": "public/x", "value": number}}
                body = {"jsonrpc": "2.0", "id": number, "method": "tools/call", "params": called}
                more = {} if text is None else {"traceparent": text}
                answer = await http.post(gateway.url, json=body, headers=more)
                assert answer.status_code == 200, answer.text
                assert '"isError":true' not in answer.text
    commits = await traced.named("blackboard.commit")
    served_span, asked = (span for span in commits if span.trace_id == TRACE)
    assert asked.parent_id == PARENT
    assert served_span.parent_id == asked.span_id
    assert len(commits) == 6


async def test_what_outlives_a_request_is_not_in_its_trace(traced: Traced, served: Served) -> None:
    """A lease is renewed for as long as it is held, in traces of their own."""

    async def is_renewed() -> bool:
        commits = await traced.named("blackboard.commit")
        return any(span.trace_id != TRACE for span in commits)

    async with blackboard.connect(served.url, token=served.token()) as client:
        lock = client.board("b").lock("public/plan", ttl_ms=6_000)
        with telemetry.entering(HEADER):
            await lock.__aenter__()
        granted = [s for s in await traced.named("blackboard.commit") if s.trace_id == TRACE]
        assert len(granted) == 2  # of the client and of the service
        await wait_until(is_renewed)
        await lock.__aexit__(None, None, None)
    inside = [s for s in await traced.named("blackboard.commit") if s.trace_id == TRACE]
    assert inside == granted
