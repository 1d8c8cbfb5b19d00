"""Helpers for the tests of frameworks: workers that collide, and examples of the documentation."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio

import blackboard
from bench.servers import Lab
from bench.sessions import ROWS, alone, colliding
from blackboard.errors import Unavailable
from tests.snippets import run_page
from tests.source_tree import ROOT, Source

WORKERS_TIMEOUT_S = 60
READY = "ready"


async def collide(script: Path, *arguments: str, workers: int = 2) -> list[Any]:
    """Start `script` in so many processes; let all go at once when each is ready; what each prints
    last, as JSON. The arguments are followed by the worker's number."""
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable, str(script), *arguments, str(number), stdin=PIPE, stdout=PIPE
        )
        for number in range(workers)
    ]
    with anyio.fail_after(WORKERS_TIMEOUT_S):
        for process in processes:
            assert process.stdout is not None
            assert (await process.stdout.readline()).decode().strip() == READY
        said = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [process.returncode for process in processes] == [0] * workers
    return [json.loads(output.decode().splitlines()[-1]) for output, _ in said]


def worker(body: Callable[[blackboard.Board, int], Coroutine[Any, Any, Any]]) -> None:
    """The main function of such a script: `body(board, number)` begins when all are ready."""

    async def run(url: str, token: str, number: str) -> None:
        async with blackboard.connect(url, token=token) as client:
            print(READY, flush=True)  # noqa: T201
            await asyncio.to_thread(sys.stdin.readline)
            found = await body(client.board("main"), int(number))
            print(json.dumps(found), flush=True)  # noqa: T201

    asyncio.run(run(*sys.argv[1:4]))


async def examples_run(name: str, folder: Path) -> int:
    """Run the examples of docs/howto/<name>.md; how many there are."""
    path = ROOT / "docs" / "howto" / f"{name}.md"
    return await run_page(Source(str(path.relative_to(ROOT)), path.read_text("utf-8")), folder)


async def losses(extra: str, folder: Path) -> dict[str, float]:
    """Let bench/sessions.py measure each store of a framework briefly, and two workers collide; by
    row, how many acknowledged turns were lost or out of order."""
    found = {}
    for kind in ROWS:
        if kind.extra == extra:
            row = kind()
            row.lab, row.python = Lab(folder, fetch=False), Path(sys.executable)
            by_one = await alone(row, f"{kind.name}-alone", 4)
            assert by_one["steps/s"] > 0
            assert by_one["bytes x input"] > 1
            by_two = await colliding(row, f"{kind.name}-shared", 4)
            found[kind.name] = by_two["lost"] + by_two["out of order"]
    return found


async def redact_and_restore(url: str, token: str, *keys: str) -> None:
    """Remove the values of `keys` for good, and restore the board `main` to before that: markers
    are in their place then."""
    async with blackboard.connect(url, token=token) as client:
        board = client.board("main")
        await board.checkpoint("before-redaction")
        for key in keys:
            await client.redact(key, board="main")
        await board.restore("before-redaction")
        marked = await board.entries(keys)
        assert [marked[key].value for key in keys] == [{"$redacted": True}] * len(keys)


@contextmanager
def removals(board: blackboard.Board, count: int) -> Iterator[None]:
    """A block in which `board` cannot be reached any more after so many commits of deletions."""
    commit, left = board.commit, count

    async def limited(operations: Any, **options: Any) -> Any:
        nonlocal left
        if left == 0:
            raise Unavailable(what="the board", reason="the connection broke")
        receipt = await commit(operations, **options)
        left -= 1
        return receipt

    board.commit = limited  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        board.commit = commit  # type: ignore[method-assign]


def distinct(values: Sequence[Any]) -> bool:
    """Whether no value is there twice."""
    texts = [json.dumps(value, sort_keys=True) for value in values]
    return len(set(texts)) == len(texts)
