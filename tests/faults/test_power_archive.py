"""The power goes while an archive in SQLite is written: it is behind, never wrong.

The log of a board is cut only up to where `settle` says, so that much must be there afterwards.
BLACKBOARD_TEST_CUTS=500 makes it long.
"""

import os
import random
import shutil
from collections import Counter
from pathlib import Path
from typing import get_args

from blackboard.core.commit import Head
from tests.conformance.archive_suite import Place
from tests.conformance.story import Story, listing
from tests.faults.archiver_child import story_of
from tests.faults.disk import LIVES_IN_MEMORY, Lost, Power, Told, recorded
from tests.faults.test_archiver_crash import BOARD, check
from tests.proof import Layer

CUTS = int(os.environ.get("BLACKBOARD_TEST_CUTS", "40")) // 4
STEPS = 60
SETTLED_ONE_IN = 4
"""Appends: so often somebody wants to cut the log of the board."""


async def tell_all(place: Place, story: Story, told: list[object], dice: random.Random) -> None:
    """Archive the story; note up to where the board's log may be cut."""
    archive = await place.open()
    fence = await archive.take(BOARD, "ada", 600_000)
    assert fence is not None
    mark = await archive.join(BOARD, fence, Head(0, story.epochs[0], 1), listing())
    while mark.revision < story.head:
        page = story.log[mark.revision : mark.revision + dice.randint(1, 4)]
        mark = await archive.append(BOARD, fence, mark.revision, page)
        is_first = not any(isinstance(one, Told) for one in told)
        if dice.randrange(SETTLED_ONE_IN) == 0 or is_first:
            told.append(Told(await archive.settle(BOARD), b""))


async def test_what_the_log_was_cut_for_is_in_the_archive(tmp_path: Path, seed: int) -> None:
    """At whichever write the power goes; what is there is whole, sealed and a beginning."""
    dice, number = random.Random(seed), seed % 2**20
    story, whole, cut = story_of(number, STEPS), tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    blobs = tmp_path / "blobs"
    with recorded() as recorder:
        async with Place(f"sqlite:///{whole}/archive.db", blobs) as place:
            await tell_all(place, story, recorder.events, dice)  # type: ignore[arg-type]
            events = [e for e in recorder.events if not _is_index(e)]
            shutil.copytree(blobs, tmp_path / "kept", dirs_exist_ok=True)
    first = next(n for n, event in enumerate(events) if isinstance(event, Told))
    moments = Counter(dice.randint(first + 1, len(events)) for _ in range(CUTS))
    power = Power({})
    with Layer("power", seeds=[seed]) as layer:
        for at in range(len(events) + 1):
            for _ in range(moments[at]):
                power.is_cut(cut, dice.choice(get_args(Lost)), dice)
                layer.operations += await _look(cut, tmp_path / "kept", power.told, number)
                layer.faults["cut"] += 1
            if at < len(events):
                power.goes_on(events[at])


def _is_index(event: object) -> bool:
    return str(getattr(event, "path", "")).endswith(LIVES_IN_MEMORY)


async def _look(cut: Path, blobs: Path, told: list[Told], number: int) -> int:
    """Open what is left; returns the revision that it has reached."""
    copied = cut / "blobs"
    shutil.copytree(blobs, copied, dirs_exist_ok=True)
    async with Place(f"sqlite:///{cut}/archive.db", copied) as place:
        archive = await place.open()
        mark = await archive.mark(BOARD)
        assert mark is not None
        assert mark.revision >= max(one.revision for one in told)
        await check(archive, number)
    return mark.revision
