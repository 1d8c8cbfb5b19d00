"""The third act: both agents write one memo at the same time, each with a token of its own.

Each has a copy of the document and edits it at once; what both made is merged. Where both rewrote
one sentence without having seen the other's, the board says so: who, and where.
"""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import blackboard
from blackboard import Board, Document

MEMO = "public/memo"
OVERLAPS = f"{MEMO}/~doc/overlap/*"
DRAFT = "We open in Brazil. The price is fair. We start in May."
AGENTS = ("researcher", "architect")

Say = Callable[[str, str], None]
"""Shows a line of the one who is named."""


async def agreed(*documents: Document) -> None:
    """Wait until what each has made is everywhere."""
    for _ in range(2):
        await asyncio.gather(*(document.synced() for document in documents))


def rewrite(document: Document, old: str, new: str) -> None:
    """Put `new` where the memo says `old`."""
    text = document.text()
    text.replace(str(text).index(old), len(old), new)


async def play(url: str, board: Board, tokens: dict[str, str], say: Say) -> dict[str, bool]:
    """Write together; returns what was promised, and whether it was kept."""
    async with AsyncExitStack() as stack:

        async def opened(name: str) -> Document:
            client = await stack.enter_async_context(blackboard.connect(url, token=tokens[name]))
            return await stack.enter_async_context(client.board(board.name).document(MEMO))

        researcher, architect = [await opened(name) for name in AGENTS]
        watch = await stack.enter_async_context(board.watch(OVERLAPS))
        researcher.text().append(DRAFT)
        await agreed(researcher, architect)
        # Nobody waits for anybody: each edits its own copy, and the two have not seen each other's.
        rewrite(researcher, " fair.", " below our valuation.")
        rewrite(architect, " fair.", " above our budget.")
        rewrite(architect, "We open", "We plan to open")
        await agreed(researcher, architect)
        (change,) = (await anext(watch)).changes
        memo, told = str(researcher.text()), change.value
        say("memo", memo)
        where = memo[told["start"] : told["end"]]
        say("memo", f"overlap: {' and '.join(told['agents'])} at once: {where!r}")
        return {
            "both agents have the same memo": memo == str(architect.text()),
            "nothing that either wrote is lost": all(
                part in memo
                for part in ("below our valuation", "above our budget", "We plan to open")
            ),
            "the board says who wrote over whom, and where": told["agents"]
            == ["architect", "researcher"]
            and "valuation" in where
            and "budget" in where,
        }
