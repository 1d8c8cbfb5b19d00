"""A process that archives until it is killed: `archiver_child.py URL BLOBS BOARD SEED STEPS [own]`.

It tells the same story as the test that starts it, goes on where the archive is, and prints the
revision of each mark. With `own`, a process of its own writes the pages, whose id it prints first.
"""

import asyncio
import sys

from blackboard.archive.sql import SqlArchive
from blackboard.core.commit import Head
from blackboard.integrity.signing import Seal
from tests.appended import ONE_ENTRY, started
from tests.conformance.archive_suite import SECRET
from tests.conformance.story import Story, listing


def story_of(seed: int, steps: int) -> Story:
    """The story that everybody tells here: commits, restores and checkpoints."""
    story = Story(seed)
    while len(story.log) < steps:
        story.tell_some(7)
        story.checkpoint(f"c{len(story.log)}")
        if len(story.log) % 5 == 0:
            story.restore(story.dice.randrange(story.head))
    return story


async def main(url: str, blobs: str, board: str, seed: str, steps: str, own: str = "") -> None:
    """Append one to four entries at a time."""
    story = story_of(int(seed), int(steps))
    archive = await SqlArchive.open(
        url, blobs=blobs, sealer=Seal(SECRET), limits=ONE_ENTRY, may_spawn=bool(own)
    )
    if own:
        sys.stdout.write(f"{await started(archive)}\n")
        sys.stdout.flush()
    fence = None
    while fence is None:
        fence = await archive.take(board, f"child-{seed}", 50)
    mark = await archive.mark(board)
    if mark is None:
        mark = await archive.join(board, fence, Head(0, story.epochs[0], 1), listing())
    while mark.revision < story.head:
        page = story.log[mark.revision : mark.revision + story.dice.randint(1, 4)]
        mark = await archive.append(board, fence, mark.revision, page)
        sys.stdout.write(f"{mark.revision}\n")
        sys.stdout.flush()
    await archive.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
