"""A Node process that runs the JavaScript client, driven by commands on its standard input."""

import asyncio
import base64
import json
import math
import shutil
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime
from itertools import count
from typing import Any

import pytest

from blackboard.errors import BlackboardError, from_fields
from tests.source_tree import ROOT

DRIVER = ROOT / "tests/conformance/js/driver.mjs"
FOLDER = ROOT / ".js"
LINE_BYTES_MAX = 64 * 1024 * 1024
"""A line of the driver: a page of large values, in base64."""
END_S = 20
needs_node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
needs_npm = pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None,
    reason="node and npm are not installed",
)
SIGNAL = {"$signal": True}
"""Stands for the AbortSignal of the call."""
BODY = {"$undefined": True}
"""Stands for the body of a block."""


def get_packages() -> None:
    """Install TypeScript and Yjs into .js/, if they are not there."""
    subprocess.run([ROOT / "tools/get_js.sh"], check=True, timeout=300)


class RaisedError(Exception):
    """What JavaScript threw that is no error of the client."""


def written(value: Any) -> Any:
    """A value of Python as the driver reads it: JSON has no bytes, and no exact numbers."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return {"$int": str(value)}
        case float():
            named = {math.inf: "Infinity", -math.inf: "-Infinity"}
            return {"$float": "NaN" if math.isnan(value) else named.get(value, repr(value))}
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case list() | tuple():
            return [written(each) for each in value]
        case datetime():
            return {"$date": value.isoformat()}
        case dict() if value in (SIGNAL, BODY):
            return value
        case dict():
            return {"$map": [[written(key), written(each)] for key, each in value.items()]}
        case set():
            return {"$set": sorted(value)}
    return {"$object": True}


def read(value: Any) -> Any:
    """What the driver wrote. Handles of objects stay as they are."""
    if isinstance(value, list):
        return [read(each) for each in value]
    if not isinstance(value, dict) or "$handle" in value:
        return value
    if "$int" in value:
        return int(value["$int"])
    if "$float" in value:
        return float(value["$float"])
    if "$bytes" in value:
        return base64.b64decode(value["$bytes"])
    return {key: read(each) for key, each in value["$map"]}


class Node:
    """The process; `call` calls a method of an object in it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._numbers = count(1)
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answer = json.loads(line)
            future = self._answers.pop(answer["id"], None)
            if future is not None and not future.done():
                future.set_result(answer)
        for future in self._answers.values():
            if not future.done():
                future.set_exception(RaisedError("the process of the JavaScript client is gone"))

    def _tell(self, message: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(message).encode() + b"\n")

    async def do(self, command: Mapping[str, Any]) -> Any:
        """Carry out a command; a cancellation aborts it, and waits for that."""
        number = next(self._numbers)
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._tell({**command, "id": number})
        try:
            return {**(await asyncio.shield(answer)), "number": number}
        except asyncio.CancelledError:
            if not answer.done():
                self._tell({"abort": number})
                await asyncio.wait([answer], timeout=END_S)
            raise

    async def call(self, on: int, method: str, *arguments: Any) -> Any:
        """The result of a method. Errors: those of the client."""
        return result(await self.answer(on, method, *arguments))

    async def answer(self, on: int, method: str, *arguments: Any) -> Any:
        """The whole answer of the driver."""
        return await self.do({"on": on, "method": method, "args": written(arguments)})

    async def all(self, on: int, method: str, *arguments: Any) -> list[Any]:
        """Everything that a method yields."""
        command = {"do": "all", "on": on, "method": method, "args": written(arguments)}
        found: list[Any] = result(await self.do(command))
        return found

    async def end(self) -> None:
        """End the process, and wait until it has ended well."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            code = await asyncio.wait_for(self._process.wait(), END_S)
        except TimeoutError:
            self._process.kill()
            code = await self._process.wait()
        await self._reader
        assert code == 0, f"the JavaScript client ended with {code}"


def result(answer: Mapping[str, Any]) -> Any:
    """What an answer says. Errors: those of the client."""
    if "error" in answer:
        raise error_of(answer["error"])
    if "raised" in answer:
        raise RaisedError(answer["raised"])
    return read(answer["ok"])


def error_of(told: Mapping[str, Any]) -> BlackboardError:
    """The error of Python for one of JavaScript: with the same code, and the same fields."""
    return from_fields(told["code"], read(told["fields"]))


@asynccontextmanager
async def node(*flags: str) -> AsyncIterator[Node]:
    """A process, until the block ends."""
    process = await asyncio.create_subprocess_exec(
        "node",
        *flags,
        DRIVER,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        limit=LINE_BYTES_MAX,
    )
    driver = Node(process)
    try:
        yield driver
    finally:
        await driver.end()
