"""Editing traces: many edits by two and three writers at once, over WebSockets.

A trace is made from the run's seed: each writer edits its own copy at random, as people do (runs of
typing, corrections, jumps), and now and then waits for the others, so that most edits are
concurrent with some of the others' (what they build on is recorded by the CRDT itself). The
expected text is what an independent implementation, pycrdt, makes of all updates in one place.
"""

import asyncio
import os
import random
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio.lowlevel
import pytest
from pycrdt import Doc, Text

import blackboard
from blackboard.client.documents.document import Document
from blackboard.core import access
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.server.service import Service
from tests.serving import serving
from tests.tiers import few_or_many

EDITS = int(os.environ.get("BLACKBOARD_TEST_EDITS", "20000"))
"""Edits of one trace, all writers together."""
FEW_EDITS = 4_000
"""In `make test`."""
_WORDS = ("budget", "naïve", "漢字", "😀", "risk ", "a", "\n", "the ")
_WAIT_EVERY = 250


async def write(doc: Document, edits: int, rng: random.Random) -> None:
    """One writer's part of a trace."""
    text, place, length = doc.text(), 0, len(doc.text())
    for number in range(edits):
        if rng.random() < 0.1 or number % _WAIT_EVERY == 0:
            length = len(text)
            place = rng.randrange(length + 1)
        if rng.random() < 0.2 and place > 1:
            text.delete(place - 1, 1)
            place, length = place - 1, length - 1
        else:
            word = rng.choice(_WORDS)
            text.insert(place, word)
            place, length = place + len(word), length + len(word)
        if rng.random() < 0.05:
            await anyio.lowlevel.checkpoint()
            length = len(text)
            place = min(place, length)
        if number % _WAIT_EVERY == _WAIT_EVERY - 1:
            await doc.synced()
            place = min(place, len(text))


@pytest.mark.parametrize("writers", [2, 3])
@few_or_many(FEW_EDITS, EDITS)
async def test_a_trace_ends_in_the_expected_text(
    tmp_path: Path, writers: int, seed: int, rounds: int
) -> None:
    """Every replica, one that is loaded afterwards, and the sum of all updates are the same."""
    async with (
        Service(await SqliteStore.at(tmp_path, "memory")) as service,
        serving(service) as served,
        AsyncExitStack() as stack,
    ):
        made: list[bytes] = []
        documents = []
        for number in range(writers):
            token = served.token(access.agent(f"writer-{number}"))
            client = await stack.enter_async_context(blackboard.connect(served.url, token=token))
            doc = await client.board("traces").document("public/trace")
            doc.text()
            doc._doc.observe(lambda event: made.append(event.update))
            documents.append(doc)
        parts = [
            write(doc, rounds // writers, random.Random(f"{seed} {number}"))
            for number, doc in enumerate(documents)
        ]
        await asyncio.gather(*parts)
        for _ in range(2):
            await asyncio.gather(*(doc.synced() for doc in documents))
        sum_of_all: Doc[Any] = Doc()
        for update in made:
            sum_of_all.apply_update(update)
        expected = str(sum_of_all.get("text", type=Text))
        assert len(expected) > rounds // 4
        assert {str(doc.text()) for doc in documents} == {expected}
        async with client.board("traces").document("public/trace") as late:
            assert str(late.text()) == expected
        for doc in documents:
            await doc.aclose()
