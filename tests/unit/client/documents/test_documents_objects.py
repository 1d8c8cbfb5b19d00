"""Texts with objects that are no characters, as an editor in a browser puts images there."""

from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.documents.shared_types import EMBEDDED, Delta, SharedText
from blackboard.core import access
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.server.service import Service

KEY = "public/memo"


@pytest.fixture
async def board(tmp_path: Path) -> AsyncIterator[Board]:
    """A board."""
    async with Service(await SqliteStore.at(tmp_path, "memory")) as service:
        yield Client(service.link(access.operator())).board("board")


def embed(text: SharedText, offset: int) -> None:
    """Put an image before that byte, which an object counts as."""
    text._shared.insert_embed(offset, {"image": "logo"})


def followed(text: str, deltas: Sequence[Delta]) -> str:
    """What an observer makes of a text that it had before."""
    done, rest = "", text
    for delta in deltas:
        done += rest[: delta.retain] + (delta.insert or "")
        rest = rest[delta.retain + delta.delete :]
    return done + rest


@pytest.mark.parametrize("is_nested", [False, True])
async def test_an_observer_learns_where_a_text_with_objects_changed(
    board: Board, is_nested: bool
) -> None:
    async with board.document(KEY) as doc:
        text = doc.map("facts").set_text("note") if is_nested else doc.text()
        text.append("aé")
        seen = [str(text)]
        text.observe(lambda deltas: seen.append(followed(seen[-1], deltas)))
        embed(text, 1)
        text.append("z")
        embed(text, 0)
        text.insert(4, "!")
        text.delete(2, 1)
        text.insert(2, "é")
        assert seen[-1] == str(text) == f"{EMBEDDED}aéé!z"


async def test_positions_are_right_after_an_object_is_gone(board: Board) -> None:
    async with board.document(KEY) as doc:
        text = doc.text()
        text.append("aé")
        embed(text, 1)
        assert str(text) == f"a{EMBEDDED}é"
        text.delete(1, 1)
        text.append("z")
        text.insert(1, "b")
        await doc.synced()
        async with board.document(KEY) as other:
            assert str(text) == str(other.text()) == "abéz"
