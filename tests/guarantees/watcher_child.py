"""A watcher as a process: `python -m tests.guarantees.watcher_child <url> <token> <last revision>`.

Prints a line when its watch is open, then one for each revision that it receives, up to the last.
"""

import sys

import anyio

import blackboard


async def main(url: str, token: str, last: int) -> None:
    """Watch the public part of board `main`."""
    async with (
        blackboard.connect(url, token=token) as client,
        client.board("main").watch("public/**") as watch,
    ):
        _say("open")
        async for revised in watch:
            _say(str(revised.revision))
            if revised.revision >= last:
                return


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    anyio.run(main, sys.argv[1], sys.argv[2], int(sys.argv[3]))
