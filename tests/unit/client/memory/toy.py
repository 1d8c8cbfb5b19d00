"""A model that is no model: the words of a text, counted. The same text has the same vector."""

import hashlib
import math
import re
from collections.abc import Sequence

from blackboard.client.board import Board
from blackboard.client.memory.memory import Memory
from blackboard.types import MemoryFilter, Remembered

DIMENSIONS = 48
MODEL = "toy"


def vector(text: str, dimensions: int = DIMENSIONS) -> list[float]:
    """How often each word stands there, by a digest of it."""
    counts = [0.01] * dimensions
    for word in re.findall(r"\w+", text.lower()):
        counts[hashlib.sha256(word.encode()).digest()[0] % dimensions] += 1.0
    return counts


def embed(texts: Sequence[str]) -> list[list[float]]:
    """As `board.memory(embed=...)` calls it."""
    return [vector(text) for text in texts]


def cosine(a: Sequence[float], b: Sequence[float]) -> float:
    """The cosine of the angle between them."""
    return sum(map(float.__mul__, a, b)) / math.hypot(*a) / math.hypot(*b)


async def check(board: Board, memory: Memory, text: str, limit: int = 10) -> list[Remembered]:
    """Compare a search by meaning with every memory that `board` lists: the same cosines, of
    memories that are there, in order. Returns what was found."""
    entries = {
        e.key: e.value["text"]
        async for e in board.scan(f"{memory.prefix}/entries/**")
        if isinstance(e.value, dict)
    }
    question = vector(text)
    expected = sorted((cosine(question, vector(one)) for one in entries.values()), reverse=True)
    found = await memory.search(text, limit=limit, words_weight=0, where=MemoryFilter())
    assert len({one.key for one in found}) == len(found)
    shown = [one.similarity or 0.0 for one in found]
    assert [round(one, 4) for one in shown] == [round(one, 4) for one in expected[:limit]]
    for one in found:
        assert entries[one.key] == one.text
        assert abs(cosine(question, vector(one.text)) - (one.similarity or 0.0)) < 1e-4
    return [*found]
