"""A service that redacts a key and stops at a step, to be killed:
`redact_child.py STEP KEY DIRECTORY [URL]`. It says when it is there.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from blackboard.archive import sql
from blackboard.archive.redact import Redacting
from blackboard.server.checkpoints import redact
from tests.guarantees.losses import Site

STEPS = ("recorded", "cut", "rewriting", "rewritten", "scrubbed")
"""Where it is killed: after the first commit, after the log was cut, in the transaction of the
archive before it is committed, after it, and before the end is recorded."""


async def _stop(*_: Any) -> Any:
    sys.stdout.write("there\n")
    sys.stdout.flush()
    await asyncio.Event().wait()


def _stop_at(step: str) -> None:
    running: Any = redact._Running
    places: dict[str, tuple[Any, str]] = {
        "recorded": (running, "_cut"),
        "cut": (sql.SqlArchive, "redact"),
        "rewriting": (Redacting, "_remove_blobs"),
        "rewritten": (running, "_scrub"),
        "scrubbed": (running, "_record"),
    }
    owner, name = places[step]
    setattr(owner, name, _stop)


async def main(step: str, key: str, directory: str, url: str | None = None) -> None:
    """Redact, as far as it comes."""
    _stop_at(step)
    async with Site(Path(directory), url) as site:
        await site.client().redact(key, why="pasted")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
