"""Embeddings from a service, against a real HTTP server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import blackboard
from blackboard import Endpoint, InvalidRequest
from blackboard.errors import ModelFailed
from blackboard.limits import EMBED_TEXTS_MAX, EMBEDDING_DIMENSIONS_MAX
from tests.acceptance.embedding_service import EmbeddingService, embedding_service
from tests.ports import free_port
from tests.unit.client.memory.toy import MODEL, vector


@pytest.fixture(scope="module")
def running() -> Iterator[EmbeddingService]:
    """One for all."""
    with embedding_service() as found:
        yield found


@pytest.fixture
def service(running: EmbeddingService) -> EmbeddingService:
    """It, as at its start."""
    running.asked.clear()
    running.keys.clear()
    running.instead = None
    return running


def test_vectors_come_in_the_order_of_the_texts(service: EmbeddingService) -> None:
    """Whatever order the service has; without a key, none is sent."""
    texts = [f"text {number}" for number in range(EMBED_TEXTS_MAX)]
    assert Endpoint(f"{service.url}/", MODEL).embed(texts) == [vector(text) for text in texts]
    assert service.keys == [None]
    assert service.asked == [{"model": MODEL, "input": texts, "encoding_format": "float"}]


async def test_a_memory_asks_it(service: EmbeddingService, tmp_path: Path) -> None:
    """From the environment, as the command line and the janitor have it."""
    names = {"BB_EMBED_MODEL": MODEL, "OPENAI_BASE_URL": service.url, "OPENAI_API_KEY": "sk-1"}
    endpoint = Endpoint.for_embeddings(names)
    assert endpoint is not None
    assert Endpoint.for_embeddings({"OPENAI_BASE_URL": service.url}) is None
    async with blackboard.open(tmp_path / "data", level="memory") as client:
        board = client.board("main")
        async with board.memory(embed=endpoint.embed, model=endpoint.model) as memory:
            await memory.remember_all(["copper price", "a walk in the woods"])
            (found,) = await memory.search("price of copper", limit=1, words_weight=0)
            assert (found.text, service.keys[0]) == ("copper price", "Bearer sk-1")
            service.instead = 200, b'{"data": [{"index": 0, "embedding": [NaN]}]}'
            with pytest.raises(ModelFailed, match="NaN"):
                await memory.remember("x")


LONGEST = [-1.2345678901234567e-100] * EMBEDDING_DIMENSIONS_MAX


def test_the_longest_answer_is_read_and_no_longer_one(service: EmbeddingService) -> None:
    """Vectors of the most dimensions, in the longest form; and one byte more than they may take."""
    body = json.dumps({"data": [{"index": 0, "embedding": LONGEST}]}).encode()
    service.instead = 200, body
    assert Endpoint(service.url, MODEL).embed(["a"]) == [LONGEST]
    service.instead = 200, body + b" " * len(body) * 2
    with pytest.raises(ModelFailed, match="an answer of more than"):
        Endpoint(service.url, MODEL).embed(["a"])


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        ((429, b'{"error": "slow down"}'), 429, "slow down"),
        ((500, b"x" * 10_000), 500, "x" * 500),
        ((307, b"over there"), 307, "over there"),
        ((200, b"text"), 200, "something else"),
        ((200, b"[" * 100_000), 200, "something else"),
        ((200, b"[]"), 200, "something else"),
        ((200, b'{"data": 7}'), 200, "something else"),
        ((200, b'{"data": [{"embedding": [1]}]}'), 200, "something else"),
        ((200, b'{"data": [{"index": 0}]}'), 200, "something else"),
    ],
)
def test_what_is_no_answer_is_refused(
    service: EmbeddingService, answer: tuple[int, bytes], status: int, reason: str
) -> None:
    """With the service's words; a redirect is not followed, and the key stands nowhere."""
    service.instead = answer
    with pytest.raises(ModelFailed, match=reason) as failed:
        Endpoint(service.url, MODEL, "sk-secret").embed(["a"])
    assert (failed.value.status, len(service.asked)) == (status, 1)
    assert "sk-secret" not in repr(failed.value)


def test_a_service_that_is_not_there() -> None:
    url = f"http://127.0.0.1:{free_port()}/v1"
    with pytest.raises(ModelFailed, match="refused") as failed:
        Endpoint(url, MODEL).embed(["a"])
    assert failed.value.status is None


@pytest.mark.parametrize(
    ("variable", "value"), [("OPENAI_BASE_URL", "nowhere"), ("OPENAI_API_KEY", "a\nb")]
)
def test_a_wrong_variable_is_named(variable: str, value: str) -> None:
    with pytest.raises(InvalidRequest, match=variable):
        Endpoint.for_embeddings({"BB_EMBED_MODEL": MODEL, variable: value})
