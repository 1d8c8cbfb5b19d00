"""Memory without async.

Written by `python -m tools.sync_client`: do not edit.
"""

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

from blackboard.client.memory.memory import Summarise
from blackboard.client.memory.records import (
    Consolidated,
    Fact,
    MemoryFilter,
    MemoryPolicy,
    Remembered,
)
from blackboard.sync import asynchronous
from blackboard.sync.blocks import Step
from blackboard.sync.portal import Mirror
from blackboard.units import Key, Milliseconds, Prefix


class Memory(Mirror[asynchronous.Memory]):
    """One store of memories: `board.memory`. A block, or closed by `close`.

    Rights: those to everything below its `prefix`. The first search reads the whole store, later
    ones what has changed. Searches of one object run one after the other.
    """

    @property
    def prefix(self) -> Prefix:
        """Where its entries are."""
        return self._inner.prefix

    def remember(
        self,
        what: str | Fact,
        *,
        name: str | None = None,
        sources: Sequence[Key] = (),
        ttl_ms: Milliseconds | None = None,
    ) -> Key:
        """Keep a text, or a fact: members by name, of which `text`, or else all, is its text.

        With `name` it takes the place of the memory of that name. `sources`: the keys that it was
        made from, which `Board.why` follows. With `ttl_ms` it is removed after that time. Returns
        its key, for `forget`.

        Errors, with nothing kept: InvalidRequest without text, or for a source that is absent;
        LimitExceeded (MEMORY_TEXT_BYTES_MAX, BASED_ON_MAX, those of a commit); ModelFailed when the
        embedding failed, took too long, or is no vector (NaN, zeros); TypeMismatch when the store
        has embeddings of another model or size: call `reembed`; as of `Board.commit`.
        """
        return self._portal.run(
            lambda: self._inner.remember(what, name=name, sources=sources, ttl_ms=ttl_ms)
        )

    def remember_all(self, what: Iterable[str | Fact]) -> tuple[Key, ...]:
        """Keep many texts and facts, in commits of up to EMBED_TEXTS_MAX; returns their keys.

        Errors: as of `remember`. All texts are checked first; after a later error, or a
        cancellation, whole commits have been made or not.
        """
        return self._portal.run(lambda: self._inner.remember_all(what))

    def add(self, step: Step, what: str | Fact, *, name: str | None = None) -> None:
        """As `remember`, in the commit of `step` (or of the context of an agent's step): kept if
        and only if the step is committed.
        """
        self._portal.run(lambda: self._inner.add(step._inner, what, name=name))

    def forget(self, *keys: Key) -> int:
        """Remove memories; returns how many there were. Errors: InvalidRequest for other keys."""
        return self._portal.run(lambda: self._inner.forget(*keys))

    def search(
        self,
        text: str,
        *,
        limit: int = 10,
        where: MemoryFilter | None = None,
        words_weight: int | float = 0.5,
    ) -> tuple[Remembered, ...]:
        """The memories that fit `text` best, at most `limit` (1..MEMORY_RESULTS_MAX).

        By meaning and by words: two rankings, fused. `words_weight` is the share of the words: 0
        asks by meaning alone, 1 by words alone, without an embedding. A store without `embed` is
        searched by words. `where` leaves out what does not fit before the best are chosen.

        Errors: InvalidRequest; LimitExceeded (MEMORY_TEXT_BYTES_MAX, MEMORIES_MAX); ModelFailed;
        TypeMismatch when the store has embeddings of another model or size: call `reembed`; as of
        `Board.list` and of a watch.
        """
        return self._portal.run(
            lambda: self._inner.search(text, limit=limit, where=where, words_weight=words_weight)
        )

    def newest(
        self, limit: int = 10, *, where: MemoryFilter | None = None
    ) -> tuple[Remembered, ...]:
        """The newest memories, at most `limit` (1..MEMORY_RESULTS_MAX). Errors: as of `search`."""
        return self._portal.run(lambda: self._inner.newest(limit, where=where))

    def count(self) -> int:
        """How many memories there are. Errors: as of `search`."""
        return self._portal.run(self._inner.count)

    def consolidate(self, policy: MemoryPolicy, summarise: Summarise | None = None) -> Consolidated:
        """Take away what `policy` does not keep; with `summarise`, in exchange for summaries.

        `policy.group` memories become one: its text is what `summarise` makes of them, its sources
        are their keys, and `Board.why` leads to what they were. Each exchange is one commit. A
        single memory that is left over stays until there is another one. What changed meanwhile
        stays, too.

        Errors: ModelFailed when `summarise` fails or takes too long, InvalidRequest when it returns
        no text; as of `remember`. What was exchanged before stays exchanged.
        """
        return self._portal.run(lambda: self._inner.consolidate(policy, summarise))

    def reembed(self) -> int:
        """Let the model of this object be that of the store, and embed what other models have;
        returns how many memories that were.

        From its beginning, objects with the old model are refused; memories that are not embedded
        again yet are found by words. After an error or a cancellation, call it again: it continues.
        """
        return self._portal.run(self._inner.reembed)

    def close(self) -> None:
        """Drop the index, and end its watch."""
        self._portal.run(self._inner.aclose)

    def __enter__(self) -> Self:
        self._portal.enter(self._inner)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._portal.run(lambda: self._inner.__aexit__(kind, error, trace))
