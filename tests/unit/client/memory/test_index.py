"""The index by itself: filters and rankings, compared with a list of the same memories."""

from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from unicodedata import normalize

import pytest
from hypothesis import given, strategies as st

from blackboard.client.memory.index import Index, Question
from blackboard.client.memory.records import ModelRecord
from blackboard.client.memory.vectors import packed, unit_vectors
from blackboard.client.views import Entry
from blackboard.core.path import parse_pattern
from blackboard.types import MemoryFilter
from tests.unit.client.memory.toy import DIMENSIONS, MODEL, cosine, embed, vector

PREFIX = "public/~memory/main/entries"
EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
WORDS = ("copper", "price", "ship", "euro")
AUTHORS = ("ann", "bob")
Form = Literal["NFC", "NFD"]
VALUES = st.sampled_from([0, 1, 1.0, True, None, "1", [1]])

memories = st.fixed_dictionaries(
    {
        "text": st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join),
        "author": st.sampled_from(AUTHORS),
        "minute": st.integers(0, 9),
        "fact": st.dictionaries(st.sampled_from("xy"), VALUES, max_size=2),
        "is_embedded": st.booleans(),
    }
)
filters = st.builds(
    MemoryFilter,
    author=st.none() | st.sampled_from(AUTHORS),
    since=st.none() | st.integers(0, 9).map(lambda minute: EPOCH + timedelta(minutes=minute)),
    until=st.none() | st.integers(0, 9).map(lambda minute: EPOCH + timedelta(minutes=minute)),
    keys=st.sampled_from([None, f"{PREFIX}/*", f"{PREFIX}/1", "public/*/main/**", "private/**"]),
    facts=st.dictionaries(st.sampled_from("xy"), VALUES, max_size=2),
)


def entry(number: int, memory: dict[str, Any]) -> Entry:
    """The memory at key `number`."""
    time_ms = round((EPOCH + timedelta(minutes=memory["minute"])).timestamp() * 1_000)
    stored = packed(unit_vectors(MODEL, embed([memory["text"]]), 1)[0])
    value = {
        "text": memory["text"],
        "author": "nobody",
        "time_ms": 0,
        "fact": memory["fact"],
        "model": MODEL,
        "vector": stored if memory["is_embedded"] else b"",
    }
    return Entry(f"{PREFIX}/{number}", value, number + 1, 1, memory["author"], time_ms)


def same(a: Any, b: Any) -> bool:
    """Equal and of one type: 1 is neither 1.0 nor True."""
    return type(a) is type(b) and a == b


def passes(number: int, memory: dict[str, Any], where: MemoryFilter) -> bool:
    """What the filter means, said once more."""
    at = EPOCH + timedelta(minutes=memory["minute"])
    missing = object()
    return (
        where.author in (None, memory["author"])
        and (where.since is None or at >= where.since)
        and (where.until is None or at < where.until)
        and (where.keys is None or parse_pattern(where.keys).matches(f"{PREFIX}/{number}"))
        and all(same(memory["fact"].get(k, missing), v) for k, v in where.facts.items())
    )


@given(st.lists(memories, max_size=12), st.sets(st.integers(0, 11)), filters, st.integers(1, 5))
def test_every_ranking_is_that_of_a_list(
    kept: list[dict[str, Any]], removed: set[int], where: MemoryFilter, limit: int
) -> None:
    """By meaning, by words and by time, behind a filter; also after removals, and in any order of
    changes."""
    index = Index(ModelRecord(MODEL, DIMENSIONS))
    index.apply([entry(number, memory) for number, memory in enumerate(kept)])
    index.apply([f"{PREFIX}/{number}" for number in removed])
    index.apply([entry(number, memory) for number, memory in enumerate(kept) if number % 2])
    there = {n: m for n, m in enumerate(kept) if n not in removed or n % 2}
    fitting = {n: m for n, m in there.items() if passes(n, m, where)}
    assert len(index) == len(there)
    newest = sorted(fitting, key=lambda n: (fitting[n]["minute"], f"{PREFIX}/{n}"), reverse=True)
    assert [hit.key for hit in index.newest(limit, where)] == [
        f"{PREFIX}/{n}" for n in newest[:limit]
    ]
    question = "copper price"
    asked = unit_vectors(MODEL, embed([question]), 1)[0]
    by_meaning = index.rank(Question(question, asked, limit, where, 0))
    cosines = {
        f"{PREFIX}/{n}": cosine(vector(question), vector(m["text"]))
        for n, m in fitting.items()
        if m["is_embedded"]
    }
    expected = sorted(cosines.values(), reverse=True)[:limit]
    assert [round(hit.similarity or 0, 4) for hit in by_meaning] == [round(c, 4) for c in expected]
    assert all(abs(cosines[hit.key] - (hit.similarity or 0)) < 1e-4 for hit in by_meaning)
    by_words = index.rank(Question(question, None, 100, where, 1))
    assert {hit.key for hit in by_words} == {
        f"{PREFIX}/{n}" for n, m in fitting.items() if {"copper", "price"} & set(m["text"].split())
    }
    index.close()


def test_both_rankings_are_fused() -> None:
    """What is near the top of both comes before what is at the top of one."""
    index = Index(ModelRecord("m", 2))
    vectors = {"a": [1, 0], "b": [0.9, 0.1], "c": [0, 1]}
    texts = {"a": "zebra", "b": "copper zebra", "c": "copper copper"}
    for number, (name, numbers) in enumerate(vectors.items()):
        stored = packed(unit_vectors("m", [numbers], 1)[0])
        plain: dict[str, Any] = {"text": texts[name], "author": "ann", "time_ms": 0, "model": "m"}
        if name != "c":
            plain["vector"] = stored
        index.apply([Entry(f"{PREFIX}/{name}", plain, number + 1, 1, "ann", 0)])
    asked = unit_vectors("m", [[1, 0]], 1)[0]

    def order(weight: float) -> str:
        hits = index.rank(Question("copper", asked, 3, MemoryFilter(), weight))
        return "".join(hit.key[-1] for hit in hits)

    assert order(0) == "ab"
    assert order(0.5)[0] == "b"
    assert order(1) == "cb"


def test_a_query_of_operators_is_words() -> None:
    """What FTS5 would take for its own language."""
    index = Index()
    value = {"text": 'say "NEAR(" OR * -', "author": "ann", "time_ms": 0}
    index.apply([Entry(f"{PREFIX}/a", value, 1, 1, "ann", 0)])
    for text in (
        '"',
        "NEAR(",
        "say* AND -",
        "text:say",
        "(",
        "* -",
        "say' OR 1=1",
        "^say",
        "\0say",
    ):
        hits = index.rank(Question(text, None, 3, MemoryFilter(), 1.0))
        assert len(hits) == any(word in text.lower() for word in ("say", "near", "or"))


@pytest.mark.parametrize("stored", ["NFC", "NFD"])
@pytest.mark.parametrize("asked", ["NFC", "NFD"])
def test_a_word_is_found_in_either_normal_form(stored: Form, asked: Form) -> None:
    """Composed, as most keyboards write it, or decomposed, as file names on a Mac are."""
    index = Index()
    value = {"text": normalize(stored, "Der Lo\u0308sungsweg"), "author": "ann", "time_ms": 0}
    index.apply([Entry(f"{PREFIX}/a", value, 1, 1, "ann", 0)])
    question = normalize(asked, "lo\u0308sungsweg")
    assert len(index.rank(Question(question, None, 3, MemoryFilter(), 1.0))) == 1


@pytest.mark.parametrize("time_ms", [0, 1_795_854_784_001, 2_178_156_167_813])
def test_a_memory_of_exactly_that_time_is_since_then_and_not_until_then(time_ms: int) -> None:
    """Also where a float of the seconds has no room for the milliseconds."""
    index = Index()
    value = {"text": "copper", "author": "ann", "time_ms": 0}
    index.apply([Entry(f"{PREFIX}/a", value, 1, 1, "ann", time_ms)])
    then = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=time_ms)
    later = then + timedelta(microseconds=1)
    counts = [
        len(index.newest(1, where))
        for moment in (then, later)
        for where in (MemoryFilter(since=moment), MemoryFilter(until=moment))
    ]
    assert counts == [1, 0, 0, 1]
