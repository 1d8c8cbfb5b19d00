"""`BlackboardStore`: LangGraph's long-term memory on a board.

    <prefix>/i/<namespace...>/~/<key>    an item, as plain data
    <prefix>/v/<namespace...>/~/<key>    its vectors, if the store has an index

An item and its vectors change in one commit, and so do all puts of one batch. The board removes
items whose time is over. A search reads everything below its namespace: filters and vectors are
compared here.
"""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from math import inf, sqrt
from operator import mul
from typing import Any, Final, Literal

import msgpack
from langchain_core.embeddings import Embeddings
from langgraph.store.base import (
    BaseStore,
    GetOp,
    IndexConfig,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    Result,
    SearchItem,
    SearchOp,
    TTLConfig,
    ensure_embeddings,
    get_text_at_path,
    tokenize_path,
    validate_op_namespace,
)
from msgspec import ValidationError, convert

import blackboard.sync
from blackboard import Board
from blackboard.errors import Conflict, Corrupt, InvalidRequest, LimitExceeded
from blackboard.integrations.langgraph.homes import FromConnString, home_of
from blackboard.integrations.langgraph.keys import is_digest, segment, text
from blackboard.integrations.langgraph.payloads import Payloads, drop_files, file_of, read, reread
from blackboard.integrations.reading import read_entries
from blackboard.ops import ABSENT, Delete, KeyAt, Put, decode_value, encode_value
from blackboard.types import Entry

PREFIX: Final = "public/langgraph-store"
_KEY: Final = "~"
"""The segment between a namespace and a key."""
_PUT_MS: Final = "put_ms"
"""When an item with a time to live was put: each look at it puts it again. Items that were put by
earlier versions have none."""
_MS_PER_MINUTE: Final = 60_000
ATTEMPTS_MAX: Final = 5
"""Attempts at a commit while others put files at its keys."""


class BlackboardStore(BaseStore):
    """A store on a board, for `compile(store=...)`, with and without `async`.

        with BlackboardStore.from_conn_string("data", index={"dims": 384, "embed": embed}) as store:
            store.put(("users", "ann"), "diet", {"text": "no nuts"}, ttl=60)
            store.search(("users",), filter={"text": {"$ne": ""}}, query="allergies")

    `board` as of BlackboardSaver. `index` says how texts become vectors, as elsewhere; `ttl` has
    the default time to live in minutes, and whether reading an item begins it again (True).

    Errors: InvalidNamespaceError and ValueError for what is no namespace or filter; TypeError for a
    value that is not plain data (JSON types); LimitExceeded for a batch of more than 512 puts, or
    than 4 MiB beside its files; those of Board. Nothing of a batch is stored then.
    """

    supports_ttl = True

    def __init__(
        self,
        board: "Board | blackboard.sync.Board",
        *,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
        prefix: str = PREFIX,
    ) -> None:
        self.board = board
        self.prefix = prefix
        self.index_config = index
        self.ttl_config = ttl
        self.embeddings: Embeddings | None = ensure_embeddings(index["embed"]) if index else None
        self._default_paths = _paths((index or {}).get("fields") or ["$"])
        self._home = home_of(board)

    @classmethod
    def from_conn_string(
        cls,
        conn_string: str,
        *,
        board: str | None = None,
        token: str | None = None,
        index: IndexConfig | None = None,
        ttl: TTLConfig | None = None,
    ) -> "FromConnString[BlackboardStore]":
        """A store for a `with` or an `async with` block; see BlackboardSaver.from_conn_string."""

        def make(opened: "Board | blackboard.sync.Board") -> BlackboardStore:
            return cls(opened, index=index, ttl=ttl)

        return FromConnString(make, conn_string, board, token)

    def setup(self) -> None:
        """Nothing: a board needs no tables. There because other stores have it."""

    async def asetup(self) -> None:
        """Nothing, as `setup`."""

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        """Carry out operations; reads come before writes, which are one commit."""
        found = list(ops)
        return self._home.run(lambda: self._batch(found))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        """As `batch`."""
        found = list(ops)
        return await self._home.arun(lambda: self._batch(found))

    async def _batch(self, ops: Sequence[Op]) -> list[Result]:
        # All of them first: of a batch with one that is refused, nothing is stored.
        for op in ops:
            if not isinstance(op, GetOp | SearchOp | ListNamespacesOp | PutOp):
                raise ValueError(f"Unknown operation type: {type(op)}")
            validate_op_namespace(op)
        # Of several puts of one item in a batch, the last counts.
        puts = {(op.namespace, op.key): op for op in ops if isinstance(op, PutOp)}
        results = [None if isinstance(op, PutOp) else await self._read(op) for op in ops]
        await self._put(list(puts.values()))
        return results

    async def _read(self, op: GetOp | SearchOp | ListNamespacesOp) -> Result:
        if isinstance(op, GetOp):
            return await self._get(op)
        if isinstance(op, SearchOp):
            return await self._search(op)
        return await self._namespaces(op)

    # --- items ------------------------------------------------------------------------------------

    async def _get(self, op: GetOp) -> Item | None:
        entry = await self._board.entry(self._key(op.namespace, op.key))
        if entry is None:
            return None
        found = await self._present(entry)
        if found is None:
            return None
        if op.refresh_ttl:
            await self._refresh([found])
        return Item(**found.fields())

    async def _present(self, entry: Entry) -> "_StoredItem | None":
        """The item in an entry, as it is now if others put it meanwhile; None when it is gone."""
        return await reread(self._board, entry, partial(_stored, self._board))

    @property
    def _board(self) -> Board:
        return self._home.board

    async def _refresh(self, items: Iterable["_StoredItem"]) -> None:
        """Let the time to live of items begin again."""
        for item in items:
            if item.ttl_minutes is None:
                continue
            for key in (item.entry.key, self._vectors_of(item.entry.key)):
                try:
                    await self._board.touch(key, ttl_ms=_ms(item.ttl_minutes))
                except Conflict:  # it has no vectors, or is gone
                    continue

    async def _put(self, puts: Sequence[PutOp]) -> None:
        if not puts:
            return
        keys = [self._key(op.namespace, op.key) for op in puts]
        vectors = await self._embed(puts)
        for left in reversed(range(ATTEMPTS_MAX)):
            try:
                await self._put_once(puts, keys, vectors)
            except Conflict:  # with others that put a file there
                if not left:
                    raise
            else:
                return

    async def _put_once(
        self, puts: Sequence[PutOp], keys: Sequence[str], vectors: list[list[list[float]]]
    ) -> None:
        """Put all of them as one commit. Errors: Conflict when others changed an item meanwhile
        that is a file, before or after: nobody would remove one of the files. LimitExceeded for
        more than one commit takes."""
        old = await read_entries(self._board.entries, keys)
        payloads = Payloads(self._board, f"{self.prefix}/f")
        for op, key, of_item in zip(puts, keys, vectors, strict=True):
            vector_key = self._vectors_of(key)
            if op.value is None:
                payloads.ops += [Delete(key), Delete(vector_key)]
                continue
            record = {
                "namespace": list(op.namespace),
                "key": op.key,
                "value": op.value,
                "ttl_minutes": op.ttl,
            }
            ttl_ms = None
            if op.ttl is not None:
                ttl_ms = _ms(op.ttl)
                record[_PUT_MS] = time.time_ns() // 1_000_000
            _store(payloads, key, record, ttl_ms)
            payloads.ops.append(
                Put(vector_key, encode_value(of_item), ttl_ms) if of_item else Delete(vector_key)
            )
        files = {key: file for key, entry in old.items() if (file := file_of(entry)) is not None}
        named = [key for key in keys if key in files or key in payloads.large]
        await payloads.commit_whole(
            [KeyAt(key, old[key].mod_revision if key in old else ABSENT) for key in named]
        )
        await drop_files(self._board, files.values())

    async def _embed(self, puts: Sequence[PutOp]) -> list[list[list[float]]]:
        """The vectors of each item."""
        found: list[list[list[float]]] = [[] for _ in puts]
        if self.embeddings is None:
            return found
        texts: list[tuple[int, str]] = []
        for number, op in enumerate(puts):
            if op.value is not None and op.index is not False:
                paths = self._default_paths if op.index is None else _paths(op.index)
                texts += [
                    (number, part) for path in paths for part in get_text_at_path(op.value, path)
                ]
        if texts:
            vectors = await self.embeddings.aembed_documents([part for _, part in texts])
            for (number, _), vector in zip(texts, vectors, strict=True):
                found[number].append([float(one) for one in vector])
        return found

    # --- search -----------------------------------------------------------------------------------

    async def _search(self, op: SearchOp) -> list[SearchItem]:
        matches = _filter_of(op.filter)
        found: list[_StoredItem] = []
        async for entry in self._board.scan(self._below("i", op.namespace_prefix)):
            item = await self._present(entry)
            if item is not None and matches(item.value):
                found.append(item)
        scored: list[tuple[_StoredItem, float | None]] = [(item, None) for item in found]
        if op.query and self.embeddings is not None:
            scored = await self._scored(op.query, op.namespace_prefix, found)
        page = scored[op.offset : op.offset + op.limit]
        if op.refresh_ttl:
            await self._refresh(item for item, _ in page)
        return [SearchItem(**item.fields(), score=score) for item, score in page]

    async def _scored(
        self, query: str, prefix: tuple[str, ...], items: Sequence["_StoredItem"]
    ) -> list[tuple["_StoredItem", float | None]]:
        """Items by how near the nearest of their vectors is; those without one come last."""
        assert self.embeddings is not None
        wanted = await self.embeddings.aembed_query(query)
        vectors: dict[str, list[list[float]]] = {}
        async for entry in self._board.scan(self._below("v", prefix)):
            vectors[entry.key] = _vectors_in(entry)
        # Beside the loop: every vector below the namespace is compared.
        ranked = await asyncio.to_thread(
            lambda: [
                (item, _nearest(wanted, vectors.get(self._vectors_of(item.entry.key), [])))
                for item in items
            ]
        )
        ranked.sort(key=lambda pair: (pair[1] is None, -(pair[1] or 0.0)))
        return ranked

    async def _namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        found: set[tuple[str, ...]] = set()
        digests: dict[str, str] = {}
        async for entry in self._board.scan(self._below("i", ()), keys_only=True):
            written = entry.key.removeprefix(f"{self.prefix}/i/").rpartition(f"/{_KEY}/")[0]
            parts = written.split("/")
            if any(map(is_digest, parts)):
                # Only the item itself has the names of which its key has digests.
                digests[written] = entry.key
            else:
                found.add(tuple(map(text, parts)))
        for key in digests.values():
            one = await self._board.entry(key)
            item = None if one is None else await self._present(one)
            if item is not None:
                found.add(item.namespace)
        wanted = [ns for ns in found if all(_is_match(c, ns) for c in op.match_conditions or ())]
        cut = sorted({ns[: op.max_depth] for ns in wanted} if op.max_depth else wanted)
        return cut[op.offset : op.offset + op.limit]

    # --- keys -------------------------------------------------------------------------------------

    def _key(self, namespace: tuple[str, ...], key: str) -> str:
        return "/".join([self.prefix, "i", *map(segment, namespace), _KEY, segment(key)])

    def _vectors_of(self, key: str) -> str:
        return f"{self.prefix}/v{key.removeprefix(f'{self.prefix}/i')}"

    def _below(self, kind: str, namespace: tuple[str, ...]) -> str:
        return "/".join([self.prefix, kind, *map(segment, namespace), "**"])


# --- what is stored of an item --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _StoredItem:
    """An item as it was read."""

    namespace: tuple[str, ...]
    key: str
    value: dict[str, Any]
    ttl_minutes: float | None
    entry: Entry
    put_ms: int | None

    def fields(self) -> dict[str, Any]:
        """The arguments of an Item."""
        return {
            "namespace": self.namespace,
            "key": self.key,
            "value": self.value,
            "created_at": _time(self.entry.created_ms or self.entry.time_ms),
            "updated_at": _time(self._updated_ms()),
        }

    def _updated_ms(self) -> int:
        """When it was put. That is of another clock than the times of the entry, between which it
        lies."""
        if not isinstance(self.put_ms, int):
            return self.entry.time_ms
        return max(self.entry.created_ms or 0, min(self.put_ms, self.entry.time_ms))


async def _stored(board: Board, entry: Entry) -> _StoredItem:
    """The item in an entry. Errors: Corrupt."""
    record = entry.value
    if file_of(entry) is not None:
        record = decode_value(await read(board, entry))
    try:
        return _StoredItem(
            tuple(record["namespace"]),
            record["key"],
            record["value"],
            record["ttl_minutes"],
            entry,
            record.get(_PUT_MS),
        )
    except (KeyError, TypeError) as error:
        raise Corrupt(what=entry.key, reason="it was redacted, or put by hand") from error


def _store(payloads: Payloads, key: str, record: dict[str, Any], ttl_ms: int | None) -> None:
    try:
        data = encode_value(record)
    except LimitExceeded:
        data = msgpack.packb(record)  # it was checked, and goes into a file
    except InvalidRequest as error:
        raise TypeError(f"the value of {record['key']!r} is not plain data: {error}") from error
    payloads.put_encoded(key, data, ttl_ms)


def _time(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC)


def _ms(minutes: float) -> int:
    if not 0 < minutes < inf:
        raise ValueError(f"ttl is {minutes!r}: pass minutes above 0")
    return max(1, int(minutes * _MS_PER_MINUTE))


def _paths(names: Sequence[str]) -> list[Any]:
    return [name if name == "$" else tokenize_path(name) for name in names]


# --- filters and vectors --------------------------------------------------------------------------


def _filter_of(filter_: dict[str, Any] | None) -> Any:
    """A function that says whether a value matches. Errors: ValueError for an unknown operator."""
    if filter_ is not None and not isinstance(filter_, Mapping):
        raise ValueError(f"filter is {filter_!r:.100}: pass a dict")
    for wanted in (filter_ or {}).values():
        _check(wanted)
    return lambda value: all(_matches(value.get(k), v) for k, v in (filter_ or {}).items())


_COMPARISONS: Final[dict[str, Any]] = {
    "$eq": lambda one, other: one == other,
    "$ne": lambda one, other: one != other,
    "$gt": lambda one, other: float(one) > float(other),
    "$gte": lambda one, other: float(one) >= float(other),
    "$lt": lambda one, other: float(one) < float(other),
    "$lte": lambda one, other: float(one) <= float(other),
}


def _check(wanted: Any) -> None:
    if isinstance(wanted, dict):
        for name, other in wanted.items():
            if name.startswith("$") and name not in _COMPARISONS:
                raise ValueError(f"Unsupported operator: {name}")
            _check(other)


def _matches(one: Any, wanted: Any) -> bool:
    """As InMemoryStore: operators in a dict, dicts by key, lists by element."""
    if isinstance(wanted, dict):
        if any(name.startswith("$") for name in wanted):
            return all(_compares(name, one, other) for name, other in wanted.items())
        return isinstance(one, dict) and all(_matches(one.get(k), v) for k, v in wanted.items())
    if isinstance(wanted, list | tuple):
        return (
            isinstance(one, list | tuple)
            and len(one) == len(wanted)
            and all(_matches(a, b) for a, b in zip(one, wanted, strict=True))
        )
    return bool(one == wanted)


def _compares(name: str, one: Any, other: Any) -> bool:
    try:
        return bool(_COMPARISONS[name](one, other))
    except (TypeError, ValueError):  # not a number: not greater, and not less
        return False


def _is_match(condition: MatchCondition, namespace: tuple[str, ...]) -> bool:
    """Whether a namespace begins, or ends, as the condition says; `*` is any label."""
    path: tuple[str, ...] = tuple(condition.path)
    kind: Literal["prefix", "suffix"] = condition.match_type
    if kind not in ("prefix", "suffix"):
        raise ValueError(f"Unsupported match type: {kind}")
    if len(namespace) < len(path):
        return False
    part = namespace[: len(path)] if kind == "prefix" else namespace[len(namespace) - len(path) :]
    return all(wanted in ("*", label) for wanted, label in zip(path, part, strict=True))


def _vectors_in(entry: Entry) -> list[list[float]]:
    """The vectors in an entry; none if it was redacted, or put by hand."""
    try:
        return convert(entry.value, list[list[float]])
    except ValidationError:
        return []


def _nearest(wanted: Sequence[float], vectors: Sequence[Sequence[float]]) -> float | None:
    """The largest cosine of the angle between `wanted` and one of `vectors`."""
    return max((_cosine(wanted, vector) for vector in vectors), default=None)


def _cosine(one: Sequence[float], other: Sequence[float]) -> float:
    lengths = sqrt(sum(map(mul, one, one)) * sum(map(mul, other, other)))
    return sum(map(mul, one, other)) / lengths if lengths else 0.0
