"""Embeddings: from texts to unit vectors by the caller's function, which is bounded and checked.

Invariants
- What a store keeps is finite, of unit length, and of the dimensions that the store has.
- A function that fails, hangs or answers in another form is ModelFailed, and nothing was stored.
"""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from blackboard._lazy import need
from blackboard.errors import InvalidRequest, LimitExceeded, ModelFailed, line_of
from blackboard.limits import EMBED_TEXTS_MAX, MEMORY_CALL_MS_MAX, SEGMENT_BYTES_MAX

if TYPE_CHECKING:
    from blackboard.client.memory.vectors import Matrix

T = TypeVar("T")
Embed = Callable[[Sequence[str]], Any]
"""From texts to one vector for each: lists of numbers or an array, at once or awaited. A function
that does not await runs in a thread."""
_REASON_CHARACTERS_MAX = 300


class Embedder:
    """The caller's function `embed`, and the name of its `model`."""

    def __init__(self, embed: Embed, model: str, *, timeout_ms: int = MEMORY_CALL_MS_MAX) -> None:
        need("numpy", "search by meaning needs NumPy", "agent-blackboard[memory]")
        if not model:
            reason = "name the model of `embed`: its vectors are comparable with no other model's"
            raise InvalidRequest("model", reason)
        if len(model) > SEGMENT_BYTES_MAX:
            raise LimitExceeded("SEGMENT_BYTES_MAX", len(model), SEGMENT_BYTES_MAX, "characters")
        if not 1 <= timeout_ms <= MEMORY_CALL_MS_MAX:
            raise InvalidRequest("timeout_ms", f"{timeout_ms} is not in 1..{MEMORY_CALL_MS_MAX}")
        self.model = model
        self._embed = embed
        self._timeout_ms = timeout_ms

    async def vectors(self, texts: Sequence[str]) -> "Matrix":
        """One unit vector for each text, in calls of EMBED_TEXTS_MAX. Errors: ModelFailed."""
        from blackboard.client.memory.vectors import joined, unit_vectors

        parts: list[Matrix] = []
        for first in range(0, len(texts), EMBED_TEXTS_MAX):
            asked = list(texts[first : first + EMBED_TEXTS_MAX])
            found = await call_bounded(self.model, self._embed, asked, timeout_ms=self._timeout_ms)
            parts.append(unit_vectors(self.model, found, len(asked)))
        if len({part.shape[1] for part in parts}) > 1:
            raise ModelFailed(self.model, "its vectors do not all have the same dimensions")
        return joined(parts)


async def call_bounded(
    name: str, function: Callable[[T], Any], argument: T, *, timeout_ms: int = MEMORY_CALL_MS_MAX
) -> Any:
    """Call a caller's function, async or not. Errors: ModelFailed if it fails, or takes longer.

    A function without async that hangs keeps its thread; nothing waits for it any more.
    """
    try:
        # Not `fail_after`: a TimeoutError of the function itself is reported with its own text.
        with anyio.move_on_after(timeout_ms / 1_000):
            return await _called(function, argument)
    except ModelFailed:
        raise
    except Exception as error:
        reason = line_of(error)[:_REASON_CHARACTERS_MAX]
        raise ModelFailed(name, reason) from error
    raise ModelFailed(name, f"no answer within {timeout_ms} ms")


async def _called(function: Callable[[T], Any], argument: T) -> Any:
    if _is_async(function):
        return await function(argument)
    found = await anyio.to_thread.run_sync(function, argument, abandon_on_cancel=True)
    return await found if isinstance(found, Awaitable) else found


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object with an async __call__
    )
