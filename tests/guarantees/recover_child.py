"""A service that recovers a board and stops in the middle, to be killed:
`recover_child.py DIRECTORY [URL]`. It tells when the engine's board is being made.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from blackboard.archive.sql import SqlArchive
from blackboard.core.checkpoints import Point
from blackboard.core.commit import Reading
from blackboard.core.path import Ranges
from blackboard.units import Prefix
from tests.guarantees.losses import Site


class Stopping(SqlArchive):
    """An archive whose second reading of a whole board never comes: the first one is compared."""

    readings = 0

    async def list(self, at: Point, within: Prefix | Ranges, **page: Any) -> Reading:
        """As `Archive.list`, once."""
        self.readings += 1
        if self.readings > 1:
            sys.stdout.write("making\n")
            sys.stdout.flush()
            await asyncio.Event().wait()
        return await super().list(at, within, **page)


async def main(directory: str, url: str | None = None) -> None:
    """Recover, as far as it comes."""
    async with Site(Path(directory), url, archive=Stopping) as site:
        await site.board().recover()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
