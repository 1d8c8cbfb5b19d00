"""`BlackboardSaver`: the checkpoints of LangGraph's threads on a board."""

import random
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, contextmanager
from functools import partial
from typing import Any, Final, Self

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
    get_checkpoint_id,
    get_checkpoint_metadata,
)
from langgraph.checkpoint.serde.base import SerializerProtocol

import blackboard.sync
from blackboard import Board
from blackboard.integrations.langgraph.history import config_of
from blackboard.integrations.langgraph.homes import FromConnString, Pulled, home_of, within
from blackboard.integrations.langgraph.keys import ThreadPlace, thread_prefix
from blackboard.integrations.langgraph.records import TaskWrite, pieced
from blackboard.integrations.langgraph.threads import ThreadBook
from blackboard.limits import LEASE_TTL_MS
from blackboard.ops import HeldFence

PREFIX: Final = "public/langgraph"
_RANDOM_BITS: Final = 32
_DIGITS: Final = 10


class BlackboardSaver(BaseCheckpointSaver[str]):
    """A checkpointer on a board, for graphs with and without `async`.

        with BlackboardSaver.from_conn_string("data") as saver:         # or `async with`
            graph = builder.compile(checkpointer=saver)
            graph.invoke(inputs, {"configurable": {"thread_id": "ann"}})

    `board` comes from `blackboard.open` or `connect`: then the methods with `a` are called in its
    loop, and the others from other threads. Or it comes from `blackboard.sync`: then all can be
    called from anywhere. Everything lies below `prefix`; reading it needs the right there.

    Errors: those of Board (Unavailable for a service that does not answer, AccessDenied for a
    prefix of somebody else, LimitExceeded for a checkpoint above 64 MiB): nothing of the checkpoint
    is stored then.
    """

    def __init__(
        self,
        board: "Board | blackboard.sync.Board",
        *,
        serde: SerializerProtocol | None = None,
        prefix: str = PREFIX,
    ) -> None:
        super().__init__(serde=serde)
        self.board = board
        self.prefix = prefix
        self._home = home_of(board)
        self._threads = ThreadBook(self._home.board, prefix)

    @classmethod
    def from_conn_string(
        cls, conn_string: str, *, board: str | None = None, token: str | None = None
    ) -> FromConnString[Self]:
        """A saver for a `with` or an `async with` block.

        `conn_string` is a directory, or the URL of a service (`ws://...`, `https://...`), then with
        a `token`; `board` is the name of a board (None: the default one).
        """
        return FromConnString(cls, conn_string, board, token)

    def setup(self) -> None:
        """Nothing: a board needs no tables. There because other savers have it."""

    async def asetup(self) -> None:
        """Nothing, as `setup`."""

    # --- asynchronous -----------------------------------------------------------------------------

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that `config` names, or the newest of its thread; None without one."""
        place, id_ = self._place(config), get_checkpoint_id(config) or None
        return await self._home.arun(lambda: self._threads.get(place, id_, self.serde))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the name in the base class
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """The checkpoints of a thread, or of all threads without `config`, the newest first.

        `filter` compares keys of the metadata. Errors: TypeError when it is no mapping.
        """
        found = Pulled(self._found(config, filter, before, limit))
        try:
            while True:
                try:
                    one = await self._home.arun(found.next)
                except StopAsyncIteration:
                    return
                yield one
        finally:
            await self._home.arun(found.close)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Put a checkpoint; what it shares with its parent is not stored again.

        Errors: Fenced when another worker owns the thread by now (`own`); Conflict when its parent
        was there and is gone: deleted, or taken back by a restore. As of Board.commit.
        """
        place, parent = self._place(config), get_checkpoint_id(config) or None
        # With what the config says, such as `run_id`, by which `adelete_for_runs` finds it.
        kept = get_checkpoint_metadata(config, metadata)
        put = self._threads.put
        await self._home.arun(lambda: put(place, parent, checkpoint, kept, self.serde))
        return config_of(place, checkpoint["id"])

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Put the writes of a task on a checkpoint; they are on the board when this returns.

        Errors: Conflict when the checkpoint was there and is gone. As of Board.commit.
        """
        place, id_ = self._place(config), config["configurable"]["checkpoint_id"]
        found = [
            TaskWrite(
                task_id,
                task_path,
                WRITES_IDX_MAP.get(channel, index),
                channel,
                pieced(self.serde.dumps_typed(value)),
            )
            for index, (channel, value) in enumerate(writes)
        ]
        await self._home.arun(lambda: self._threads.put_writes(place, id_, found))

    async def adelete_thread(self, thread_id: str) -> None:
        """Remove everything of a thread. Its past stays in the history of the board."""
        await self._home.arun(lambda: self._threads.delete(str(thread_id)))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Remove the checkpoints of these runs, with their writes."""
        wanted = set(map(str, run_ids))
        await self._home.arun(lambda: self._threads.delete_for_runs(wanted, self.serde))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy everything of a thread to another one."""
        source, target = str(source_thread_id), str(target_thread_id)
        await self._home.arun(lambda: self._threads.copy(source, target))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Remove all checkpoints of these threads (`delete`), or all but the newest of each
        namespace and what its delta channels begin with (`keep_latest`).

        Errors: ValueError for another strategy, before anything is removed.
        """
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"strategy is {strategy!r}: pass 'keep_latest' or 'delete'")
        for thread in map(str, thread_ids):
            await self._home.arun(partial(self._prune, thread, strategy))

    async def _prune(self, thread: str, strategy: str) -> None:
        if strategy == "delete":
            await self._threads.delete(thread)
        else:
            await self._threads.prune(thread, self.serde)

    @asynccontextmanager
    async def aown(
        self, thread_id: str, *, ttl_ms: int = LEASE_TTL_MS, timeout_ms: int | None = None
    ) -> AsyncIterator[None]:
        """A block in which no other worker can put checkpoints to the thread through `aown`.

            async with saver.aown("ann"):
                await graph.ainvoke(inputs, {"configurable": {"thread_id": "ann"}})

        It waits for another owner, at most `timeout_ms` (None: for ever). If this process is away
        for longer than `ttl_ms`, another one may own the thread: what this one still puts is
        Fenced, and nothing of it is stored. Errors: as of Board.lock. In another loop than the
        board's, the block is not cancelled when the thread is lost: it ends with LeaseLost.
        """
        async with within(self._home, self._owning(str(thread_id), ttl_ms, timeout_ms)):
            yield

    @asynccontextmanager
    async def _owning(
        self, thread: str, ttl_ms: int, timeout_ms: int | None
    ) -> AsyncIterator[None]:
        """The block of `aown`, in the board's loop."""
        lock = self._home.board.lock(self._lease(thread), ttl_ms=ttl_ms, timeout_ms=timeout_ms)
        async with lock:
            fences = self._threads.fences

            def mine() -> Sequence[HeldFence]:
                return lock.fences

            fences[thread] = mine
            try:
                yield
            finally:
                # Once this one lost the thread, a later owner may have its fence there.
                if fences.get(thread) is mine:
                    del fences[thread]

    def _lease(self, thread: str) -> str:
        return f"{thread_prefix(self.prefix, thread)}/owner"

    # --- synchronous ------------------------------------------------------------------------------

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As `aget_tuple`."""
        place, id_ = self._place(config), get_checkpoint_id(config) or None
        return self._home.run(lambda: self._threads.get(place, id_, self.serde))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,  # noqa: A002 - the name in the base class
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """As `alist`."""
        found = Pulled(self._found(config, filter, before, limit))
        try:
            while True:
                try:
                    one = self._home.run(found.next)
                except StopAsyncIteration:
                    return
                yield one
        finally:
            self._home.run(found.close)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As `aput`."""
        return self._home.run(lambda: self.aput(config, checkpoint, metadata, new_versions))

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """As `aput_writes`."""
        self._home.run(lambda: self.aput_writes(config, writes, task_id, task_path))

    def delete_thread(self, thread_id: str) -> None:
        """As `adelete_thread`."""
        self._home.run(lambda: self.adelete_thread(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As `adelete_for_runs`."""
        self._home.run(lambda: self.adelete_for_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As `acopy_thread`."""
        self._home.run(lambda: self.acopy_thread(source_thread_id, target_thread_id))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As `aprune`."""
        self._home.run(lambda: self.aprune(thread_ids, strategy=strategy))

    @contextmanager
    def own(
        self, thread_id: str, *, ttl_ms: int = LEASE_TTL_MS, timeout_ms: int | None = None
    ) -> Iterator[None]:
        """As `aown`, for a `with` block. It cannot be interrupted when the thread is lost: the next
        checkpoint is Fenced, and the end of the block raises LeaseLost."""
        block = self._owning(str(thread_id), ttl_ms, timeout_ms)
        self._home.run(block.__aenter__)
        try:
            yield
        except BaseException as error:
            details = (type(error), error, error.__traceback__)
            self._home.run(lambda: block.__aexit__(*details))
            raise
        else:
            self._home.run(lambda: block.__aexit__(None, None, None))

    # --- both -------------------------------------------------------------------------------------

    def get_next_version(self, current: str | None, channel: None) -> str:
        """A version after `current`: a number, and something random, because two branches of a
        thread go on from the same one."""
        number = 0 if current is None else int(str(current).partition(".")[0])
        return f"{number + 1:0{_DIGITS}}.{random.getrandbits(_RANDOM_BITS):08x}"

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """As `aget_delta_channel_history`."""
        # Outside of the lambda, in which `super()` finds no `self`.
        history = super().aget_delta_channel_history
        return self._home.run(lambda: history(config=config, channels=channels))

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """The writes from which the values of delta channels are made: along the parents."""
        history = super().aget_delta_channel_history
        return await self._home.arun(lambda: history(config=config, channels=channels))

    def _place(self, config: RunnableConfig) -> ThreadPlace:
        """Where the config points. Errors: KeyError without a `thread_id`."""
        of = config["configurable"]
        return ThreadPlace(self.prefix, str(of["thread_id"]), of.get("checkpoint_ns") or "")

    async def _found(
        self,
        config: RunnableConfig | None,
        filter_: dict[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> AsyncGenerator[CheckpointTuple, None]:
        """The listing, in the board's loop."""
        if filter_ is not None and not isinstance(filter_, Mapping):
            raise TypeError(f"filter is {filter_!r:.100}: pass a dict of metadata")
        of = config["configurable"] if config else {}
        thread = str(of["thread_id"]) if config else None
        exact = (get_checkpoint_id(config) or None) if config else None
        end = (get_checkpoint_id(before) or None) if before else None

        def is_wanted(id_: str, metadata: Any) -> bool:
            # Ids are UUIDs that grow with time, so they are in the order of the checkpoints.
            return (
                (exact is None or id_ == exact)
                and (end is None or id_ < end)
                and all(metadata.get(key) == value for key, value in (filter_ or {}).items())
            )

        left = limit
        if left is not None and left <= 0:
            return
        namespace = of.get("checkpoint_ns")
        found = self._threads.listing(thread, namespace, self.serde, is_wanted)
        async with aclosing(found):
            async for one in found:
                yield one
                if left is not None:
                    left -= 1
                    if left <= 0:
                        return
