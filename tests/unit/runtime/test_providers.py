"""Models of providers, against real HTTP servers that speak the dialects of two of them."""

import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from importlib import import_module
from typing import Any

import anyio
import anyio.lowlevel
import pytest
import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from blackboard import InvalidRequest
from blackboard.errors import ModelFailed
from blackboard.runtime.environment import model_from_environment
from blackboard.runtime.models import (
    ChatMessage,
    Endpoint,
    ModelUsage,
    Patience,
    Prices,
    Prompt,
    Reply,
    Tool,
)
from blackboard.runtime.providers import ProviderModel, _pause_s
from tests.ports import free_port

KEY = "secret-key-1"
GOOD: dict[str, Any] = {
    "id": "c-1",
    "object": "chat.completion",
    "model": "teller-2026-10",
    "system_fingerprint": "fp_1",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "42"}}],
    "usage": {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15},
}
Answer = Callable[[], Response]


@dataclass
class Teller:
    """A chat service that gives the answers in turn, the last one again and again."""

    answers: list[Answer] = field(default_factory=lambda: [lambda: JSONResponse(GOOD)])
    asked: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    url: str = ""

    async def __call__(self, request: Request) -> Response:
        """Answer one request."""
        self.asked.append(await request.json())
        self.headers.append(dict(request.headers))
        number = min(len(self.asked), len(self.answers)) - 1
        return self.answers[number]()


def refusing(status: int, *, after: str = "", text: str = "busy") -> Answer:
    """An answer that refuses."""
    headers = {"Retry-After": after} if after else {}
    return lambda: JSONResponse({"error": {"message": text}}, status, headers)


async def _endless() -> AsyncIterator[bytes]:
    while True:
        yield b" " * 65_536
        await anyio.lowlevel.checkpoint()  # sending to nobody waits for nothing


async def _dripping() -> AsyncIterator[bytes]:
    tick = anyio.Event()
    while True:
        yield b" "
        with anyio.move_on_after(0.01):
            await tick.wait()


@asynccontextmanager
async def serving(*answers: Answer) -> AsyncIterator[Teller]:
    """A Teller behind a real socket."""
    teller = Teller(list(answers)) if answers else Teller()

    async def answer(request: Request) -> Response:
        return await teller(request)

    paths = ("/v1/chat/completions", "/v1/messages")
    app = Starlette(routes=[Route(path, answer, methods=["POST"]) for path in paths])
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        teller.url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        config = uvicorn.Config(app, log_level="critical", lifespan="off")
        server = uvicorn.Server(config)
        listening.listen()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve, [listening])
            try:
                yield teller
            finally:
                server.should_exit = server.force_exit = True


def model_at(
    teller: Teller, *, prices: Prices | None = None, timeout_ms: int = 30_000
) -> ProviderModel:
    """A client of `teller` that pauses shortly."""
    patience = Patience(timeout_ms=timeout_ms, first_pause_s=0.001)
    return ProviderModel(Endpoint(teller.url, "teller", KEY), prices=prices, patience=patience)


async def failure(teller: Teller, *, timeout_ms: int = 30_000) -> ModelFailed:
    """How asking `teller` fails."""
    async with model_at(teller, timeout_ms=timeout_ms) as model:
        with pytest.raises(ModelFailed) as caught:
            await model.complete(Prompt.of("How much?"))
    return caught.value


# --- asking and being answered --------------------------------------------------------------------


async def test_a_reply_says_how_it_came_about() -> None:
    """Model, version, temperature, seed, usage and cost; the request holds what was given only."""
    async with serving() as teller, model_at(teller, prices=Prices(2.5, 10)) as model:
        reply = await model.complete(
            Prompt.of("How much?", system="Be brief.", temperature=0.0, seed=7)
        )
    assert (reply.text, reply.model, reply.version) == ("42", "teller", "teller-2026-10/fp_1")
    assert (reply.temperature, reply.seed, reply.finish, reply.attempts) == (0.0, 7, "stop", 1)
    assert reply.usage == ModelUsage(prompt_tokens=12, completion_tokens=3, cost_microusd=60)
    assert reply.usage.tokens == 15
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "How much?"},
    ]
    wanted = {"model": "teller", "messages": messages, "temperature": 0.0, "seed": 7}
    assert teller.asked == [wanted | {"stream": False}]
    assert teller.headers[0]["authorization"] == f"Bearer {KEY}"


async def test_tools_go_out_and_calls_come_back() -> None:
    """And the call, with its result, goes out again in the next turn."""
    call = {"id": "t1", "type": "function", "function": {"name": "gdp", "arguments": '{"of":"x"}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    chosen = {"index": 0, "message": said, "finish_reason": "tool_calls"}
    calling = GOOD | {"choices": [chosen]}
    tool = Tool(name="gdp", description="Gross domestic product.")
    async with serving(lambda: JSONResponse(calling)) as teller, model_at(teller) as model:
        asked = ChatMessage(role="user", content="GDP?")
        reply = await model.complete(Prompt(messages=(asked,), tools=(tool,)))
        [wanted] = reply.tool_calls
        result = ChatMessage(role="tool", content="17.88", answers=wanted.id)
        await model.complete(Prompt(messages=(asked, reply.message, result)))
    assert (reply.finish, reply.text, wanted.parsed()) == ("tool_calls", "", {"of": "x"})
    assert teller.asked[0]["tools"][0]["function"]["name"] == "gdp"
    assert teller.asked[1]["messages"][1:] == [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "17.88", "tool_call_id": "t1"},
    ]


async def test_a_reply_is_plain_data() -> None:
    """It can be journaled and read again."""
    async with serving() as teller, model_at(teller) as model:
        reply = await model.complete(Prompt.of("How much?"))
    assert Reply.model_validate(json.loads(json.dumps(reply.model_dump(mode="json")))) == reply


# --- failing --------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [408, 429, 500, 503])
async def test_what_may_pass_is_tried_again(status: int) -> None:
    """The reply tells how often it was asked."""
    answers = [refusing(status), refusing(status), lambda: JSONResponse(GOOD)]
    async with serving(*answers) as teller, model_at(teller) as model:
        reply = await model.complete(Prompt.of("How much?"))
    assert (reply.text, reply.attempts, len(teller.asked)) == ("42", 3, 3)


def test_pauses_grow_up_to_a_limit_however_many_attempts_there_are() -> None:
    """A program may wait for its model all night."""
    pauses_s = [_pause_s(Patience(), attempt, 60.0) for attempt in (1, 2, 2_000, 10**9)]
    assert pauses_s[0] <= 1.0
    assert max(pauses_s) <= 60.0


async def test_attempts_are_bounded() -> None:
    """The last refusal is reported."""
    async with serving(refusing(503)) as teller:
        failed = await failure(teller)
    assert (failed.status, failed.reason) == (503, "busy")
    assert len(teller.asked) == Patience().attempts


@pytest.mark.parametrize("status", [301, 400, 401, 404])
async def test_what_does_not_pass_is_not_tried_again(status: int) -> None:
    """A wrong key stays wrong; a redirect is not followed."""
    async with serving(refusing(status, text="no such model")) as teller:
        failed = await failure(teller)
    assert (failed.status, failed.reason, len(teller.asked)) == (status, "no such model", 1)
    assert KEY not in f"{failed}{failed!r}"


async def test_a_requested_pause_is_kept_if_it_is_short() -> None:
    """Both forms of Retry-After; one that is too long is a failure at once."""
    soon = format_datetime(datetime.now(UTC) + timedelta(hours=1))
    for after in ("3600", soon):
        async with serving(refusing(429, after=after)) as teller:
            assert (await failure(teller)).status == 429
        assert len(teller.asked) == 1
    answers = [refusing(429, after="1"), lambda: JSONResponse(GOOD)]
    async with serving(*answers) as teller, model_at(teller) as model:
        began = anyio.current_time()
        await model.complete(Prompt.of("How much?"))
        assert anyio.current_time() - began >= 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"<html>", "not a usable answer"),
        (b'{"choices": []}', "not a usable answer"),
        (b"[" * 100_000, "not a usable answer"),
    ],
)
async def test_an_answer_that_is_none_is_refused(content: bytes, reason: str) -> None:
    """Whatever came with 200: it is checked before anybody sees it."""
    async with serving(lambda: Response(content, 200)) as teller:
        failed = await failure(teller)
    assert reason in failed.reason
    assert len(teller.asked) == 1


async def test_a_refusal_that_is_no_json_is_shown_shortened() -> None:
    """Not a page of HTML in an error, and no recursion to fall into."""
    async with serving(lambda: Response(b"[" * 100_000, 400)) as teller:
        assert (await failure(teller)).reason == "[" * 500


async def test_an_endless_answer_is_cut_off() -> None:
    """No more than MODEL_ANSWER_BYTES_MAX is kept."""
    async with serving(lambda: StreamingResponse(_endless())) as teller:
        assert "more than 4,194,304 bytes" in (await failure(teller)).reason


async def test_a_dripping_answer_does_not_last_for_ever() -> None:
    """The time for an attempt is one for all of it."""
    async with serving(lambda: StreamingResponse(_dripping())) as teller:
        failed = await failure(teller, timeout_ms=100)
    assert failed.reason == "no answer within 100 ms"


async def test_nobody_listens() -> None:
    """No connection is a failure, after what attempts there are."""
    nobody = Teller(url=f"http://127.0.0.1:{free_port()}/v1")
    assert "ConnectError" in (await failure(nobody)).reason


# --- as it comes ----------------------------------------------------------------------------------


def said_in_pieces(
    *pieces: str, breaks: bool = False, ends: bool = False, reason: str | None = "stop"
) -> Answer:
    """An answer that streams, with usage at its end; one that `breaks` ends without one, one that
    `ends` too, but as if it were whole."""
    chunk = {"id": "c-1", "object": "chat.completion.chunk", "created": 1, "model": "teller-2026"}
    deltas = [{"role": "assistant", "content": piece} for piece in pieces]
    chunks: list[Any] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    if not (breaks or ends):
        usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
        chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
        chunks.append({"choices": [], "usage": usage})

    async def events() -> AsyncIterator[bytes]:
        for more in chunks:
            yield f"data: {json.dumps(chunk | more)}\n\n".encode()
        if breaks:
            raise ConnectionResetError  # the server closes the connection
        if not ends:
            yield b"data: [DONE]\n\n"

    return lambda: StreamingResponse(events(), media_type="text/event-stream")


@dataclass
class Page:
    """A sink that remembers each state of its text."""

    states: list[str] = field(default_factory=lambda: ["left over"])

    def restart(self) -> None:
        """Empty it."""
        self.states.append("")

    def append(self, text: str) -> None:
        """Add to it."""
        self.states.append(self.states[-1] + text)


async def test_the_text_is_seen_while_it_comes() -> None:
    """Piece by piece; the reply is the same as without a stream."""
    page = Page()
    async with (
        serving(said_in_pieces("4", "2", ".")) as teller,
        model_at(teller, prices=Prices(2.5, 10)) as model,
    ):
        reply = await model.stream(Prompt.of("How much?", seed=7), page)
    assert page.states == ["left over", "", "4", "42", "42."]
    assert (reply.text, reply.finish, reply.seed, reply.version) == (
        "42.",
        "stop",
        7,
        "teller-2026",
    )
    assert reply.usage == ModelUsage(prompt_tokens=12, completion_tokens=3, cost_microusd=60)
    assert teller.asked[0]["stream"] is True


async def test_a_stream_that_breaks_off_begins_again() -> None:
    """The text of the attempt that failed does not stay; attempts are counted."""
    page = Page()
    answers = [refusing(503), said_in_pieces("4", breaks=True), said_in_pieces("42")]
    async with serving(*answers) as teller, model_at(teller) as model:
        reply = await model.stream(Prompt.of("How much?"), page)
    assert (reply.text, reply.attempts, page.states[-1]) == ("42", 3, "42")
    assert page.states[-4:] == ["", "4", "", "42"]


async def test_a_stream_that_ends_in_good_order_before_the_answer_begins_again() -> None:
    """As a proxy ends it when the service behind it dies: half an answer is none."""
    page = Page()
    answers = [said_in_pieces("4", ends=True), said_in_pieces("42")]
    async with serving(*answers) as teller, model_at(teller) as model:
        reply = await model.stream(Prompt.of("How much?"), page)
    assert (reply.text, reply.attempts) == ("42", 2)
    assert page.states[-4:] == ["", "4", "", "42"]


async def test_a_stream_that_never_ends_properly_is_a_failure() -> None:
    """After as many attempts as there are."""
    async with serving(said_in_pieces("4", ends=True)) as teller, model_at(teller) as model:
        with pytest.raises(ModelFailed, match="broke off"):
            await model.stream(Prompt.of("How much?"), Page())
    assert len(teller.asked) == Patience().attempts


async def test_an_answer_without_a_reason_is_whole_if_the_stream_says_so() -> None:
    """Some services give none."""
    answer = said_in_pieces("4", "2", reason=None)
    async with serving(answer) as teller, model_at(teller) as model:
        reply = await model.stream(Prompt.of("How much?"), Page())
    assert (reply.text, reply.finish, reply.attempts) == ("42", "stop", 1)


# --- structured output ----------------------------------------------------------------------------


class Valuation(BaseModel):
    """What is asked for."""

    company: str
    usd_bn: float


async def test_an_answer_has_the_asked_shape() -> None:
    """The schema goes out, and the text comes back as an object."""
    text = '{"company": "ACME", "usd_bn": 2.5}'
    message = {"role": "assistant", "content": text}
    answer = GOOD | {"choices": [{"index": 0, "message": message}]}
    async with serving(lambda: JSONResponse(answer)) as teller, model_at(teller) as model:
        reply = await model.complete(Prompt.of("Worth?").asking_for(Valuation))
    assert reply.parsed(Valuation) == Valuation(company="ACME", usd_bn=2.5)
    sent = json.dumps(teller.asked[0])
    assert "usd_bn" in sent
    with pytest.raises(ModelFailed, match="not what was asked for: it"):
        reply.parsed(list[int])


# --- another dialect ------------------------------------------------------------------------------


def anthropic_events() -> Answer:
    """What a streamed message of Anthropic looks like."""
    message = {"id": "m", "type": "message", "role": "assistant", "model": "claude-9"}
    usage = {"input_tokens": 12, "output_tokens": 1}
    deltas = [{"type": "text_delta", "text": one} for one in ("4", "2")]
    stopped = {"stop_reason": "end_turn", "stop_sequence": None}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message | {"content": [], "usage": usage}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": stopped, "usage": {"output_tokens": 3}},
        {"type": "message_stop"},
    ]
    lines = "".join(f"event: {one['type']}\ndata: {json.dumps(one)}\n\n" for one in events)
    return lambda: Response(lines, media_type="text/event-stream")


async def test_a_model_of_anthropic_is_asked_in_its_dialect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By name, with the key that its SDK finds; the tools and their results go out in its form."""
    used = {"type": "tool_use", "id": "t1", "name": "gdp", "input": {"of": "x"}}
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "model": "claude-9",
        "content": [used],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 12, "output_tokens": 3},
    }
    overloaded = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    answers = [lambda: JSONResponse(overloaded, 529), lambda: JSONResponse(message)]
    async with serving(*answers, anthropic_events()) as teller:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", teller.url.removesuffix("/v1"))
        monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
        patience, page = Patience(first_pause_s=0.001), Page()
        async with ProviderModel("anthropic:claude-9", patience=patience) as model:
            asked = ChatMessage(role="user", content="GDP?")
            system = ChatMessage(role="system", content="Be brief.")
            tool = Tool(name="gdp", description="Gross domestic product.")
            first = await model.complete(Prompt(messages=(system, asked), tools=(tool,)))
            [wanted] = first.tool_calls
            result = ChatMessage(role="tool", content="17.88", answers=wanted.id)
            second = await model.stream(Prompt(messages=(asked, first.message, result)), page)
    assert (first.finish, wanted.name, wanted.parsed()) == ("tool_calls", "gdp", {"of": "x"})
    assert (first.attempts, first.version, first.usage.tokens) == (2, "claude-9", 15)
    assert (second.text, page.states[-2:]) == ("42", ["4", "42"])
    assert any(KEY in value for value in teller.headers[0].values())
    assert teller.asked[0]["tools"][0]["name"] == "gdp"
    sent = teller.asked[2]["messages"][-1]["content"][0]
    assert (sent["type"], sent["tool_use_id"]) == ("tool_result", "t1")


@pytest.mark.parametrize("name", ["no-such-provider:x", "anthropic:claude-9", "without-provider"])
def test_a_provider_that_cannot_be_asked_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Not known, or without a key."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(InvalidRequest) as caught:
        ProviderModel(name)
    assert caught.value.field == "model"


def test_the_earlier_name_says_the_present_one() -> None:
    """As for every name that moved."""
    with pytest.raises(ImportError, match=r"ChatModel is now blackboard\.ProviderModel"):
        import_module("blackboard").ChatModel  # noqa: B018


# --- the environment ------------------------------------------------------------------------------


async def test_the_environment_names_the_model() -> None:
    """Nothing without BB_MODEL; with it, a client that works."""
    assert model_from_environment({}) is None
    async with serving() as teller:
        found = model_from_environment(
            {
                "BB_MODEL": "teller",
                "OPENAI_BASE_URL": teller.url + "/",
                "BB_MODEL_PRICES": "1,2",
            }
        )
        assert found is not None
        async with found:
            reply = await found.complete(Prompt.of("How much?"))
    assert reply.usage.cost_microusd == 18
    assert "authorization" not in teller.headers[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("BB_MODEL", "no-such-provider:x"),
        ("OPENAI_BASE_URL", "localhost:11434"),
        ("OPENAI_BASE_URL", "http://"),
        ("OPENAI_BASE_URL", "http://[::1:8000/v1"),
        ("OPENAI_BASE_URL", "http://localhost:80800/v1"),
        ("OPENAI_API_KEY", "two\nlines"),
        ("BB_MODEL_PRICES", "cheap"),
        ("BB_MODEL_PRICES", "1,nan"),
        ("BB_MODEL_PRICES", "-1,2"),
    ],
)
def test_a_wrong_environment_is_named(name: str, text: str) -> None:
    """The variable, and what is wrong with it."""
    with pytest.raises(InvalidRequest) as caught:
        model_from_environment({"BB_MODEL": "teller", name: text})
    assert caught.value.field == name


def test_the_key_is_not_shown() -> None:
    """Not by the endpoint, either."""
    assert KEY not in repr(Endpoint("http://127.0.0.1", "teller", KEY))
