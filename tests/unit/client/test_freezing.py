"""What a client says of the board when it asks for a freeze or a thaw."""

from pathlib import Path

import pytest

import blackboard
from blackboard.core.freeze import Freeze
from blackboard.errors import Conflict
from blackboard.units import Revision


async def test_a_request_of_somebody_who_saw_it_frozen_freezes_nothing_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It changed nothing, and a copy of it that comes after the thaw does neither."""
    async with blackboard.open(tmp_path, level="memory") as client:
        await client.board().put("public/a", 1)
        freeze = await client.freeze()
        sent: list[Revision | None] = []
        as_ever = client.link.freeze

        async def noted(board: str, note: str, known: Revision | None = None) -> Freeze:
            sent.append(known)
            return await as_ever(board, note, known)

        monkeypatch.setattr(client.link, "freeze", noted)
        assert await client.freeze(note="also") == freeze
        await client.thaw()
        with pytest.raises(Conflict):
            await as_ever("main", "also", sent[0])
        assert await client.frozen() is None
        await client.freeze()
        assert sent[1] is not None
        assert sent[1] >= freeze.revision
