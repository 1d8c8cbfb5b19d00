"""The classes of `blackboard.sync`, as the rules call them: each call is made in a thread."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from blackboard import sync
from blackboard.client.writer import adopt_holds
from blackboard.core.path import check_document
from blackboard.sync import asynchronous
from blackboard.sync.portal import Mirror

T = TypeVar("T")
_END = object()
_THREADS = ThreadPoolExecutor(256, thread_name_prefix="rules")
"""More than calls that wait for each other."""


async def in_thread(work: Callable[[], T]) -> T:
    """The result of `work` in a thread that holds what this task holds, and the other way round."""
    context = copy_context()
    try:
        return await asyncio.get_running_loop().run_in_executor(_THREADS, context.run, work)
    finally:
        adopt_holds(context)


def through(value: Any) -> Any:
    """What a call returned, as the rules see it."""
    return Through(value) if isinstance(value, Mirror) else value


def _inside(value: Any, loop: asyncio.AbstractEventLoop) -> Any:
    """An argument as the synchronous classes take it: functions of theirs are no coroutines."""
    if isinstance(value, Through):
        return value.inner
    if not inspect.iscoroutinefunction(value):
        return value

    def run(*arguments: Any) -> Any:
        work = value(*map(through, arguments))
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    return run


class Through:
    """One object."""

    def __init__(self, inner: Mirror[Any]) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        if name in ("link", "_link"):
            return ThroughLink(self.inner)
        member = inspect.getattr_static(
            getattr(asynchronous, type(self.inner).__name__), name, None
        )
        if name == "aclose":
            return partial(in_thread, self.inner.close)  # type: ignore[attr-defined]
        target = getattr(self.inner, name)
        if not inspect.isroutine(target):
            return through(target)

        def call(*args: Any, **named: Any) -> Any:
            loop = asyncio.get_running_loop()
            inner = partial(
                target,
                *(_inside(one, loop) for one in args),
                **{key: _inside(one, loop) for key, one in named.items()},
            )
            if name == "document":
                check_document(*args)
                return Later(inner)
            if inspect.iscoroutinefunction(inspect.unwrap(member)):
                return _awaited(inner)
            result = inner()
            return _items(result) if inspect.isgenerator(result) else through(result)

        return call

    async def __aenter__(self) -> Any:
        entered = await in_thread(self.inner.__enter__)  # type: ignore[attr-defined]
        return self if entered is self.inner else through(entered)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        leave = self.inner.__exit__  # type: ignore[attr-defined]
        await in_thread(partial(leave, kind, error, trace))

    def __aiter__(self) -> "Through":
        return self

    async def __anext__(self) -> Any:
        return await in_thread(partial(next, self.inner))

    def __repr__(self) -> str:
        return repr(self.inner)

    def __eq__(self, other: object) -> bool:
        return self.inner == (other.inner if isinstance(other, Through) else other)

    def __hash__(self) -> int:
        return id(self)

    def __str__(self) -> str:
        return str(self.inner)

    def __len__(self) -> int:
        return len(self.inner)  # type: ignore[arg-type]

    def __iter__(self) -> Any:
        return map(through, self.inner)  # type: ignore[call-overload]

    def __getitem__(self, key: Any) -> Any:
        return through(self.inner[key])  # type: ignore[index]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.inner[key] = value  # type: ignore[index]

    def __delitem__(self, key: Any) -> None:
        del self.inner[key]  # type: ignore[attr-defined]

    def __contains__(self, key: Any) -> bool:
        return key in self.inner  # type: ignore[operator]


class ThroughLink:
    """The way to the service, for rules that use it: its calls are made in the loop."""

    def __init__(self, owner: Mirror[Any]) -> None:
        inner = owner._inner
        self._portal = owner._portal
        self._link = inner.link if isinstance(inner, asynchronous.Client) else inner._link

    def __getattr__(self, name: str) -> Any:
        target = getattr(self._link, name)
        if not inspect.iscoroutinefunction(inspect.unwrap(target)):
            return target

        async def call(*args: Any, **named: Any) -> Any:
            return await in_thread(lambda: self._portal.run(lambda: target(*args, **named)))

        return call


class Later:
    """A document that is opened when it is awaited or entered."""

    def __init__(self, load: Callable[[], sync.Document]) -> None:
        self._load = load
        self._found: Through | None = None

    def __await__(self) -> Generator[Any, None, Through]:
        return _awaited(self._load).__await__()

    async def __aenter__(self) -> Through:
        self._found = await _awaited(self._load)
        return self._found

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._found is not None
        await self._found.__aexit__(kind, error, trace)


async def _awaited(work: Callable[[], Any]) -> Any:
    return through(await in_thread(work))


async def _items(items: Any) -> AsyncIterator[Any]:
    while (item := await in_thread(partial(next, items, _END))) is not _END:
        yield item
