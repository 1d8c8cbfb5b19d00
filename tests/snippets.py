"""The examples of a page: found, and run as a reader would run them.

All Python blocks of a page run from top to bottom in one event loop, one folder and one set of
names. A block may await at its top level, as in `python -m asyncio`; one that does not runs in a
thread, so that it may start a loop of its own. These names are there without being made:

- `client` and `board`: the embedded engine in this page's folder;
- `url` and `token`: a service of this page's own on loopback, and its operator's token.

    ```python no-run          is shown and not run
    ```text output            directly below a block: what the block prints
    ```python title="a.py"    a file, or what is typed at a place: not run here, see tests/walk.py
"""

import ast
import asyncio
import builtins
import contextlib
import inspect
import io
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType
from typing import Any

import anyio

import blackboard
from blackboard.server.http.serve import Serving, serve
from blackboard.server.settings import load
from tests.source_tree import Source

PAGE_TIMEOUT_S = 60
NO_RUN = "no-run"
_FENCE = re.compile(r"^```(\S*)((?: \S+)*)\s*$")
_TITLE = re.compile(r' title="([^"]*)"')


@dataclass(frozen=True)
class Block:
    """One fenced block of a page; its text begins at line `line` of the page's file."""

    page: str
    line: int
    language: str
    marks: tuple[str, ...]
    text: str
    output: str | None = None
    title: str = ""

    @property
    def runs(self) -> bool:
        """Whether it is an example that is run."""
        return self.language == "python" and NO_RUN not in self.marks and not self.title


def blocks(page: Source) -> list[Block]:
    """The fenced blocks of `page`, in order; an `output` block becomes part of the one above."""
    found: list[Block] = []
    for block, before in _fenced(page):
        if block.marks == ("output",) and found and not before.strip():
            found[-1] = replace(found[-1], output=block.text)
        else:
            found.append(block)
    return found


def _fenced(page: Source) -> Iterator[tuple[Block, str]]:
    """Each fenced block, and the text between it and the one before."""
    between: list[str] = []
    inside: list[str] | None = None
    start, language, marks = 0, "", ""
    for number, line in enumerate(page.text.splitlines(), 1):
        fence = _FENCE.match(line)
        if inside is None and fence:
            inside, start = [], number + 1
            language, marks = fence.group(1), fence.group(2)
        elif inside is not None and line.rstrip() == "```":
            text = "".join(f"{kept}\n" for kept in inside)
            found = _TITLE.search(marks)
            title, marks = (found[1] if found else ""), _TITLE.sub("", marks)
            block = Block(page.path, start, language, tuple(marks.split()), text, title=title)
            yield block, "\n".join(between)
            between, inside = [], None
        else:
            (between if inside is None else inside).append(line)
    if inside is not None:
        raise SyntaxError(f"{page.path}:{start - 1}: the block has no end")


def misspelt_marks(page: Source) -> list[str]:
    """Python blocks with a mark that means nothing: a slip would hide an example from the tests."""
    return [
        f"{block.page}:{block.line}: {mark}"
        for block in blocks(page)
        for mark in block.marks
        if (block.language, mark) != ("python", NO_RUN)
    ]


def free_names(text: str) -> set[str]:
    """Names that the block reads and nowhere binds: not by assignment, nor as a parameter."""
    nodes = list(ast.walk(ast.parse(text)))
    names = [node for node in nodes if isinstance(node, ast.Name)]
    bound = {node.id for node in names if not isinstance(node.ctx, ast.Load)}
    bound |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    return {node.id for node in names} - bound


@dataclass
class Reader:
    """Somebody who tries one page's examples in `folder`."""

    folder: Path
    stack: contextlib.AsyncExitStack
    names: dict[str, Any] = field(default_factory=dict)
    provided: dict[str, Any] = field(default_factory=dict)

    async def try_block(self, block: Block) -> None:
        """Run one block. Errors: whatever it raises; AssertionError for another output."""
        needed = free_names(block.text)
        if needed & {"board", "client"}:
            await self._provide_board()
        if needed & {"url", "token"}:
            await self._provide_service()
        self.names.update({name: self.provided[name] for name in needed & self.provided.keys()})
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            await self._run(block)
        if block.output is not None:
            where = f"{block.page}:{block.line}"
            assert printed.getvalue() == block.output, f"{where} prints\n{printed.getvalue()}"

    async def _run(self, block: Block) -> None:
        # The blank lines make a traceback name the line of the page.
        text = "\n" * (block.line - 1) + block.text
        code = compile(text, block.page, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        body = FunctionType(code, self.names)
        if code.co_flags & inspect.CO_COROUTINE:
            await body()
        else:
            await asyncio.to_thread(body)

    async def _provide_board(self) -> None:
        if "client" not in self.provided:
            opened = blackboard.open(self.folder / "provided")
            client = await self.stack.enter_async_context(opened)
            self.provided.update(client=client, board=client.board("expansion"))

    async def _provide_service(self) -> None:
        if "url" not in self.provided:
            started = served(self.folder / "service")
            self.provided.update(await self.stack.enter_async_context(started))


@contextlib.asynccontextmanager
async def served(folder: Path) -> AsyncIterator[dict[str, str]]:
    """A service on a free port of loopback; yields its `url` and the operator's `token`."""
    ready: asyncio.Future[Serving] = asyncio.get_running_loop().create_future()
    settings = load({"data": folder, "port": 0})
    serving = asyncio.create_task(serve(settings, ready=ready.set_result))
    waiting: set[asyncio.Future[Any]] = {ready, serving}
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            await serving
        found = ready.result()
        assert found.token_path is not None
        yield {"url": found.url, "token": found.token_path.read_text().strip()}
    finally:
        serving.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving


async def run_page(page: Source, folder: Path) -> int:
    """Run the examples of `page`, whose present folder is `folder`; returns how many ran."""
    runnable = [block for block in blocks(page) if block.runs]
    async with contextlib.AsyncExitStack() as stack:
        # Code with globals of its own has to bring __builtins__ there: classes look for it.
        names = {"__name__": "__main__", "__builtins__": builtins, "blackboard": blackboard}
        reader = Reader(folder, stack, names)
        with anyio.fail_after(PAGE_TIMEOUT_S):
            for block in runnable:
                await reader.try_block(block)
    return len(runnable)
