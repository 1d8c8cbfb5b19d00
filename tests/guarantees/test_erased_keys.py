"""A data key that was destroyed or wrapped again is found in no live file."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.access import KEYS_BOARD
from blackboard.encryption.data_keys import DataKeys
from blackboard.encryption.master_key import LocalWrapper, new_master_key
from blackboard.encryption.store import SealedStore
from blackboard.engines.base import Store
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.server.service import Service
from blackboard.wire.codec import decode_value
from tests.canary import files_with
from tests.redis_accounts import make_account
from tests.redis_process import RedisProcess, RedisSettings


async def wrapped_keys(store: Store) -> list[bytes]:
    """Every data key as it is kept."""
    page = await store.list(KEYS_BOARD, "system/keys", limit=1000)
    records = [decode_value(entry.value) for entry in page.entries]
    return [bytes(record["wrapped"]) for record in records if "wrapped" in record]


@asynccontextmanager
async def sealing(raw: Store, keys: str) -> AsyncIterator[Service]:
    """A service over `raw` with master keys."""
    store = SealedStore(raw, DataKeys(raw, LocalWrapper.of(keys)))
    async with Service(store) as service:
        yield service


async def write_some(service: Service) -> None:
    """Private values of two agents."""
    for name in ("ann", "bob"):
        client = Client(service.link(access.agent(name)))
        await client.board("main").put(f"private/{name}/a", "secret")


async def check_erasing(service: Service, raw: Store, directory: Path) -> None:
    """Found before, gone after, and the other agent's stays. While the service runs."""
    await write_some(service)
    before = await wrapped_keys(raw)
    assert len(before) == 2
    assert all(files_with(directory, key) for key in before), "the search can find them"
    operator = Client(service.link(access.operator()))
    assert await operator.erase("ann") == 1
    [kept] = await wrapped_keys(raw)
    [gone] = set(before) - {kept}
    assert files_with(directory, gone) == []
    assert files_with(directory, kept)
    assert await operator.board("main").get("private/bob/a") == "secret"
    records = [r async for r in operator.audit() if r.verb == "scrub_keys"]
    assert [r.what for r in records] == ["no live file holds what was replaced"]


async def test_an_erased_key_is_in_no_file_of_the_embedded_engine(tmp_path: Path) -> None:
    """Neither in the board's file nor in its journal, at once."""
    raw = await SqliteStore.at(tmp_path)
    async with sealing(raw, new_master_key()) as service:
        await check_erasing(service, raw, tmp_path)


async def test_an_erased_key_is_in_no_file_of_redis(redis_binary: Path) -> None:
    """Its append-only file is rewritten before the erasure is answered."""
    settings = RedisSettings(options={"rdbcompression": "no"})  # else the search finds nothing
    async with RedisProcess(redis_binary, settings=settings) as server:
        raw = RedisStore.connect(server.url)
        async with sealing(raw, new_master_key()) as service:
            await check_erasing(service, raw, server.directory)


async def test_a_rewrapped_key_is_in_no_file_as_it_was(tmp_path: Path) -> None:
    """The old master key, found later, opens nothing."""
    raw = await SqliteStore.at(tmp_path)
    old = new_master_key()
    async with sealing(raw, f"{new_master_key()}\n{old}") as service:
        await write_some(service)
        before = await wrapped_keys(raw)
        operator = Client(service.link(access.operator()))
        assert await operator.rewrap() == 2
        assert [files_with(tmp_path, key) for key in before] == [[], []]
        assert await operator.board("main").get("private/bob/a") == "secret"


async def test_a_key_erased_under_load_is_gone_too(tmp_path: Path) -> None:
    """Others make and use keys meanwhile."""
    raw = await SqliteStore.at(tmp_path)
    async with sealing(raw, new_master_key()) as service:
        await write_some(service)
        before = await wrapped_keys(raw)
        operator = Client(service.link(access.operator()))

        async def write(number: int) -> None:
            client = Client(service.link(access.agent(f"agent-{number}")))
            await client.board("main").put(f"private/agent-{number}/a", "secret")

        writing = [asyncio.create_task(write(number)) for number in range(20)]
        await operator.erase("ann")
        await operator.erase("bob")
        await asyncio.gather(*writing)
        assert [files_with(tmp_path, key) for key in before] == [[], []]


async def test_a_file_that_another_program_holds_open_is_reported(tmp_path: Path) -> None:
    """A reader of the journal keeps it; the keys are destroyed all the same."""
    raw = await SqliteStore.at(tmp_path)
    async with sealing(raw, new_master_key()) as service:
        await write_some(service)
        reader = sqlite3.connect(tmp_path / "boards" / f"{KEYS_BOARD}.db", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM entry").fetchone()
        operator = Client(service.link(access.operator()))
        assert await operator.erase("ann") == 1
        [record] = [r async for r in operator.audit() if r.verb == "scrub_keys"]
        assert "another program reads" in record.what
        reader.close()
        assert await raw.scrub(KEYS_BOARD) == ""


async def test_an_account_without_the_right_to_rewrite_is_reported(redis_binary: Path) -> None:
    """The operator learns what to run."""
    async with RedisProcess(redis_binary) as server:
        raw = RedisStore.connect(make_account(server.url, "-bgrewriteaof"))
        async with sealing(raw, new_master_key()) as service:
            await write_some(service)
            operator = Client(service.link(access.operator()))
            assert await operator.erase("ann") == 1
            [record] = [r async for r in operator.audit() if r.verb == "scrub_keys"]
            assert "run BGREWRITEAOF" in record.what


@pytest.mark.parametrize("options", [{"appendonly": "no"}])
async def test_a_redis_without_an_append_only_file_is_reported(
    redis_binary: Path, options: dict[str, str]
) -> None:
    """Its snapshots are its own affair."""
    settings = RedisSettings(options=options)
    async with RedisProcess(redis_binary, settings=settings) as server:
        raw = RedisStore.connect(server.url)
        assert "snapshots" in await raw.scrub(KEYS_BOARD)
        await raw.aclose()
