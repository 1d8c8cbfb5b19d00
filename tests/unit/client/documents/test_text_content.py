"""Text in chunks against a plain string; a document's text against the library's own content."""

import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

import blackboard
from blackboard.client.documents.document import Document
from blackboard.client.documents.shared_types import FOLLOWED_MAX, Delta, SharedText
from blackboard.client.documents.text_content import CHUNK_LENGTH_MAX, TextContent

_LETTERS = "ax\n\u00e9\u4e2d\U0001f600"


def edit(rng: random.Random, length: int, longest: int) -> tuple[int, int, str]:
    """A position, how much to remove there, and what to put there."""
    position = rng.randint(0, length)
    removed = rng.randint(0, min(length - position, longest)) if rng.random() < 0.5 else 0
    return position, removed, "".join(rng.choices(_LETTERS, k=rng.randint(0, longest)))


@given(st.integers(0, 10**9), st.sampled_from((3, CHUNK_LENGTH_MAX // 2, 3 * CHUNK_LENGTH_MAX)))
def test_it_is_the_text_after_any_edits(number: int, longest: int) -> None:
    """Content, counts and positions; chunks are not empty, none is too long, few are small."""
    rng = random.Random(number)
    plain = "".join(rng.choices(_LETTERS, k=rng.choice((0, 10, 2 * CHUNK_LENGTH_MAX))))
    text = TextContent(plain)
    for _ in range(20):
        position, length, put = edit(rng, len(plain), longest)
        assert text.replace(position, length, put) == plain[position : position + length]
        plain = plain[:position] + put + plain[position + length :]
        assert (text.length, text.size, str(text)) == (len(plain), len(plain.encode()), plain)
        at = rng.randint(0, len(plain))
        assert text.bytes_before(at) == len(plain[:at].encode())
        assert text.position_at(len(plain[:at].encode())) == at
        assert all(0 < len(chunk) <= CHUNK_LENGTH_MAX for chunk in text._chunks)


def test_many_deletions_leave_few_chunks() -> None:
    """Almost everything goes, piece by piece."""
    rng, text = random.Random(1), TextContent("x" * 100 * CHUNK_LENGTH_MAX)
    while text.length > 1_000:
        position = rng.randrange(text.length)
        text.replace(position, min(2_000, text.length - position), "")
    assert len(text._chunks) <= 10


def check(text: SharedText) -> None:
    """What the text says is what the library has."""
    assert str(text) == str(text._shared)
    assert len(text) == len(str(text._shared))


async def two_replicas(folder: Path, rng: random.Random) -> None:
    """Random edits on both sides, single ones and several in one transaction, with undo."""
    async with blackboard.open(folder, level="memory") as client:
        board = client.board("b")
        async with board.document("public/d") as one, board.document("public/d") as two:
            seen = {doc: list[str]([""]) for doc in (one, two)}
            for doc in (one, two):
                doc.map("m")
                doc.text().observe(partial(note, seen[doc]))
            for _ in range(30):
                act(rng, rng.choice((one, two)))
                if rng.random() < 0.3:
                    await one.synced()
                    await two.synced()
            await one.synced()
            await two.synced()
            await one.synced()
            for doc in (one, two):
                check(doc.text())
                assert seen[doc][-1] == str(doc.text())
            assert str(one.text()) == str(two.text())


def note(seen: list[str], deltas: Sequence[Delta]) -> None:
    """Add the text after a change."""
    seen.append(after(seen, deltas))


def after(seen: list[str], deltas: Sequence[Delta]) -> str:
    """The last text in `seen` after a change."""
    before, position, parts = seen[-1], 0, list[str]()
    for delta in deltas:
        if delta.insert is not None:
            parts.append(delta.insert)
        parts.append(before[position : position + delta.retain])
        position += delta.retain + delta.delete
    return "".join(parts) + before[position:]


def act(rng: random.Random, doc: Document) -> None:
    """Edit once, several times in a transaction, or undo."""
    text = doc.text()
    if rng.random() < 0.15:
        doc.undo()
        return check(text)
    with doc.transaction():
        for _ in range(rng.choice((1, 1, 3))):
            text.replace(*edit(rng, len(text), 5))
            check(text)
            if rng.random() < 0.2:
                doc.map("m")["k"] = rng.random()
    return check(text)


@pytest.mark.parametrize("number", range(5))
async def test_a_text_follows_every_change(tmp_path: Path, number: int, seed: int) -> None:
    """Its own edits, those of others, undone ones; and observers can follow by the deltas alone."""
    await two_replicas(tmp_path, random.Random(f"{seed} {number}"))


@pytest.mark.parametrize("parts", [FOLLOWED_MAX // 2 - 1, FOLLOWED_MAX])
async def test_a_change_of_many_parts(tmp_path: Path, parts: int) -> None:
    """On both sides of FOLLOWED_MAX, which counts what is kept and what is put."""
    async with blackboard.open(tmp_path, level="memory") as client:
        board = client.board("b")
        async with board.document("public/d") as one, board.document("public/d") as two:
            one.text().append("\u00e9" * 2 * parts)
            await one.synced()
            await two.synced()
            seen = [str(two.text())]
            two.text().observe(lambda deltas: seen.append(after(seen, deltas)))
            with one.transaction():
                for number in range(parts):
                    one.text().insert(3 * number + 1, "\U0001f600")
            await one.synced()
            await two.synced()
            check(two.text())
            assert seen[-1] == str(two.text()) == str(one.text())


async def test_a_change_of_many_parts_that_leaves_the_size_as_it_was(tmp_path: Path) -> None:
    """More than FOLLOWED_MAX of them, by another replica; the text is edited afterwards."""
    async with blackboard.open(tmp_path, level="memory") as client:
        board = client.board("b")
        async with board.document("public/d") as one, board.document("public/d") as two:
            one.text().append("\u00e9" * 2 * FOLLOWED_MAX)
            await one.synced()
            await two.synced()
            assert len(two.text()) == 2 * FOLLOWED_MAX
            with one.transaction():
                for number in range(FOLLOWED_MAX):
                    one.text().replace(2 * number, 1, "\u00e8")
            await one.synced()
            await two.synced()
            check(two.text())
            assert str(two.text()) == str(one.text())
