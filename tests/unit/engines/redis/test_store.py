"""The Redis engine beyond the suite: what lies in the server, settings, memory, script cache."""

import random
import struct
import threading
from pathlib import Path
from typing import Any

import msgpack
import pytest
from redis.asyncio import Redis

from blackboard import limits
from blackboard.core.commit import (
    SERVICE,
    Append,
    Committed,
    Delete,
    DeletePrefix,
    Expire,
    Grant,
    HeldFence,
    LogPage,
    Op,
    Put,
    Release,
    Renew,
    account_of,
)
from blackboard.core.freeze import FROZEN_KEY
from blackboard.core.path import namespace_of
from blackboard.core.state import shares_of
from blackboard.engines.redis import store as redis_module
from blackboard.engines.redis.codec import read_log_page
from blackboard.engines.redis.layout import BOARDS, board_keys
from blackboard.engines.redis.store import _DECODED_BYTES, RedisStore
from blackboard.errors import (
    BoardFrozen,
    FutureRevision,
    LeaseHeld,
    LimitExceeded,
    NoSuchBoard,
    Unavailable,
)
from blackboard.limits import LEASE_TTL_MS, VALUE_BYTES_MAX, VALUE_INLINE_BYTES_MAX
from blackboard.wire.codec import prepare
from tests.conformance.writer import Writer, packed
from tests.redis_process import RedisProcess

BOARD = "unit"
HEADER = struct.Struct(">QQQQBB")
HOUR_MS = 3_600_000


# --- what lies in the server ----------------------------------------------------------------------


def random_op(dice: random.Random) -> Op:
    """Some write, on few keys."""
    key = dice.choice(["public/a", "public/d/1", "public/d/2", "private/ada/x"])
    value = packed(dice.choice([1, "text", b"L" * 3000, b"M" * 5000]))
    ttl_ms = dice.choice([None, None, HOUR_MS])
    ops: list[Op] = [
        Put(key, value, ttl_ms),
        Put(key, value, ttl_ms),
        Delete(key),
        DeletePrefix("public/d"),
        Append("public/d", value, ttl_ms),
    ]
    return dice.choice(ops)


async def check_layout(redis: Any) -> None:
    """Index, expiry, large values and usage say exactly what the entries say."""
    meta_key, _, _, entries_key, index_key, expiry_key, _ = board_keys(BOARD)
    fields: dict[bytes, bytes] = await redis.hgetall(entries_key)
    index: set[bytes] = set(await redis.zrange(index_key, 0, -1))
    expiry: dict[bytes, float] = dict(await redis.zrange(expiry_key, 0, -1, withscores=True))
    meta: dict[bytes, bytes] = await redis.hgetall(meta_key)
    members, large, expires, usage = {b""}, set(), {b"": float("inf")}, {"": [0, 0]}
    for key, field in fields.items():
        if key[:1] in (b"", b"\0", b"#"):
            continue
        _, _, _, expires_at_ms, kind, size = HEADER.unpack_from(field)
        if kind == ord("t"):
            members.add(b"\1" + key)
            continue
        members.add(key)
        length = len(field) - HEADER.size - size
        if kind == ord("L"):
            large.add(b"\0" + key)
            length = struct.unpack_from(">I", field, HEADER.size + size)[0]
            assert length == len(fields[b"\0" + key])
        if expires_at_ms:
            expires[key] = expires_at_ms
        author, _, _ = field[HEADER.size : HEADER.size + size].partition(b"\0")
        account = account_of(author.decode())
        namespace = namespace_of(key.decode())
        for name in (namespace, "", *shares_of(account, namespace)):
            used = usage.setdefault(name, [0, 0])
            used[0] += 1
            used[1] += len(key) + length
    assert index == members
    assert expiry == expires
    assert {key for key in fields if key.startswith(b"\0")} == large
    kept = {k[2:].decode(): struct.unpack(">QQ", v) for k, v in meta.items() if k[:2] == b"u:"}
    assert {name: list(used) for name, used in kept.items() if any(used)} == {
        name: used for name, used in usage.items() if any(used)
    }


async def test_nothing_is_left_over_in_the_server(
    redis_store: RedisStore, redis: Redis, seed: int
) -> None:
    """After random commits, and after compaction, each structure follows from the entries."""
    dice = random.Random(seed)
    ada = await Writer.open(redis_store, BOARD)
    for _ in range(60):
        steps = [
            ada.make(*[random_op(dice) for _ in range(dice.randint(1, 4))])
            for _ in range(dice.randint(1, 4))
        ]
        await ada.send_all(steps)
    await check_layout(redis)
    before = await redis.hlen(board_keys(BOARD)[3])
    await ada.commit(DeletePrefix("public"), DeletePrefix("private/ada"))
    await redis_store.compact(BOARD, 10**6)
    await check_layout(redis)
    assert await redis.hlen(board_keys(BOARD)[3]) < before


@pytest.mark.parametrize("after", [Put("public/a", packed(1)), Delete("public/a")])
async def test_a_large_value_goes_when_its_key_holds_it_no_longer(
    redis_store: RedisStore, redis: Redis, after: Op
) -> None:
    """Nothing else would remove it."""
    ada, entries = await Writer.open(redis_store, BOARD), board_keys(BOARD)[3]
    await ada.commit(Put("public/a", packed(b"L" * VALUE_INLINE_BYTES_MAX)))
    assert await redis.hexists(entries, "\0public/a")
    await ada.commit(after)
    assert not await redis.hexists(entries, "\0public/a")
    await check_layout(redis)


async def test_every_key_of_a_board_exists_from_the_start_and_stays(
    redis_store: RedisStore, redis: Redis
) -> None:
    """A declared key that does not exist stops commits while its slot moves."""
    await redis_store.open(BOARD)
    assert await redis.exists(*board_keys(BOARD)) == 7
    ada = await Writer.open(redis_store, BOARD)
    await ada.commit(Put("public/a", packed(1), HOUR_MS), Grant("public/l", "ada", HOUR_MS))
    await ada.commit(Delete("public/a"))
    await redis_store.compact(BOARD, 10**6)
    assert await redis.exists(*board_keys(BOARD)) == 7
    assert await redis.dbsize() == 8


async def test_no_key_of_a_board_ever_expires(redis_store: RedisStore, redis: Redis) -> None:
    """Redis must not remove by itself what a board holds."""
    ada = await Writer.open(redis_store, BOARD)
    await ada.commit(Put("public/a", packed(1), HOUR_MS))
    assert [await redis.ttl(key) for key in board_keys(BOARD)] == [-1] * 7


async def test_a_long_log_is_compacted_in_slices(
    redis_store: RedisStore, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call looks at more than a slice, and all that lies below the mark goes."""
    monkeypatch.setattr("blackboard.engines.redis.store._COMPACT_SLICE", 7)
    ada = await Writer.open(redis_store, BOARD)
    for number in range(10):
        keys = [f"public/k{number}{i}" for i in range(5)]
        await ada.commit(*[Put(key, packed(1)) for key in keys])
        await ada.commit(*[Delete(key) for key in keys])
    await redis.config_resetstat()
    head = await redis_store.compact(BOARD, 15)
    assert (head.oldest, head.log_entries) == (15, 6)
    scripts = (await redis.info("commandstats"))["cmdstat_evalsha"]["calls"]
    assert scripts >= 20 // 7 + 50 // 7
    _, *tombstones = await redis.zrangebylex(board_keys(BOARD)[4], "-", "(\2")
    assert len(tombstones) == 15


async def test_a_large_page_of_the_log_is_decoded_in_a_thread(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the edge on; what is in it, and what is refused, is the same."""
    threads: list[threading.Thread] = []

    def noted(*given: Any) -> LogPage:
        threads.append(threading.current_thread())
        return read_log_page(*given)

    monkeypatch.setattr(redis_module, "read_log_page", noted)
    writer = await Writer.open(redis_store, BOARD)
    await writer.commit(Put("public/a", b"x" * _DECODED_BYTES))
    await writer.commit(Put("public/a", b"x" * (_DECODED_BYTES - 1_000)))
    large = await redis_store.log(BOARD, 0, limit=1)
    small = await redis_store.log(BOARD, 1, limit=1)
    assert [thread is threading.main_thread() for thread in threads] == [False, True]
    assert [entry.revision for page in (large, small) for entry in page.entries] == [1, 2]
    monkeypatch.setattr(redis_module, "_DECODED_BYTES", 0)
    with pytest.raises(FutureRevision):
        await redis_store.log(BOARD, 9, limit=1)


async def test_a_reading_larger_than_a_frame_is_refused_and_never_shortened(
    redis_store: RedisStore,
) -> None:
    """It could not be sent on, and would block the server for everybody."""
    ada = await Writer.open(redis_store, BOARD)
    keys = [f"public/k{number}" for number in range(9)]
    for key in keys:
        await ada.commit(Put(key, packed(b"x" * (VALUE_BYTES_MAX - 5))))
    assert len((await redis_store.read(BOARD, keys[:7])).entries) == 7
    with pytest.raises(LimitExceeded) as refused:
        await redis_store.read(BOARD, keys)
    assert refused.value.limit == "FRAME_BYTES_MAX"


async def test_a_removed_board_that_is_listed_again_is_taken_from_the_list(
    redis_store: RedisStore, redis_server: RedisProcess
) -> None:
    """A late copy of the command that lists it may come after its removal."""
    await redis_store.open(BOARD)
    await redis_store.remove(BOARD)
    async with Redis.from_url(redis_server.url) as redis:
        await redis.sadd(BOARDS, BOARD)
    assert await redis_store.boards() == [BOARD]
    with pytest.raises(NoSuchBoard):
        await redis_store.open(BOARD)
    assert await redis_store.boards() == []


async def test_without_memory_only_what_removes_passes(redis_binary: Path) -> None:
    """A refused commit leaves nothing, also beside an accepted one; then everything goes on."""
    async with RedisProcess(redis_binary) as server:
        store = RedisStore.connect(server.url)
        ada, bob = await Writer.open(store, BOARD), await Writer.open(store, BOARD, "bob")
        await ada.commit(*[Put(f"public/d/{i}", packed(i)) for i in range(5)])
        async with Redis.from_url(server.url) as redis:
            await redis.config_set("maxmemory", "1")
            put = ada.make(Put("public/a", packed(1)), Delete("public/d/0"))
            outcomes = await store.commit(
                BOARD,
                [
                    prepare(put),
                    prepare(bob.make(Delete("public/d/1"))),
                    prepare(put),
                    prepare(bob.make(DeletePrefix("public/d"))),
                    prepare(put),
                ],
            )
            assert [type(outcome) for outcome in outcomes] == [
                Unavailable,
                Committed,
                Unavailable,
                Committed,
                Unavailable,
            ]
            assert (await store.list(BOARD, "", limit=9)).entries == ()
            assert (await store.compact(BOARD, 3)).oldest == 3
            with pytest.raises(Unavailable):
                await store.open("another")
            assert (await store.open(BOARD)).revision == 3
            await redis.config_set("maxmemory", "0")
        assert isinstance(await ada.send(put), Committed)
        head = await store.open(BOARD)
        assert (head.revision, head.log_entries) == (4, 2)
        await store.aclose()


# --- deadlines of leases --------------------------------------------------------------------------


async def test_a_lease_has_its_full_time_on_another_run_of_the_server(redis_binary: Path) -> None:
    """And so has each ticket, from when the board is opened there; the holder keeps its fence."""
    async with RedisProcess(redis_binary) as server:
        store = RedisStore.connect(server.url)
        ada = await Writer.open(store, BOARD)
        await ada.commit(Grant("public/x", "ada", HOUR_MS))
        await ada.commit(Grant("public/x", "bob", HOUR_MS, wait=True))
        await ada.commit(Grant("public/over", "ada", 0))
        await server.kill()
        await server.restart()
        head = await store.open(BOARD)
        over, lease = (await store.leases(BOARD)).leases
        [waiter] = lease.waiters
        assert (lease.holder, lease.fence, lease.ttl_ms) == ("ada", 1, HOUR_MS)
        assert lease.until_ms == waiter.until_ms == over.until_ms + HOUR_MS
        assert 0 <= head.time_ms - over.until_ms < HOUR_MS
        assert head.epoch.cause == "engine"
        ada.epoch = head.epoch.id
        assert isinstance(await ada.attempt(Expire("public/x", "ada", 1)), LeaseHeld)
        await ada.commit(Put("public/y", packed(1)), fences=[HeldFence("public/x", "ada", 1)])
        await store.aclose()


async def test_a_board_is_frozen_on_another_run_of_the_server(redis_binary: Path) -> None:
    async with RedisProcess(redis_binary) as server:
        store = RedisStore.connect(server.url)
        ada, service = await Writer.open(store, BOARD), await Writer.open(store, BOARD, SERVICE)
        await service.commit(Put(FROZEN_KEY, packed({"by": "boss", "note": "why"})))
        await server.kill()
        await server.restart()
        ada.epoch = (await store.open(BOARD)).epoch.id
        refused = await ada.attempt(Put("public/y", packed(1)))
        assert isinstance(refused, BoardFrozen)
        assert (refused.by, refused.note, refused.revision) == ("boss", "why", 1)
        await store.aclose()


async def test_a_lease_without_its_time_to_live_is_renewed_and_passed_on(
    redis_store: RedisStore, redis_url: str
) -> None:
    """Those of an older form: it has what is left of it, or the usual time if that is more."""
    ada = await Writer.open(redis_store, BOARD)
    granted = await ada.commit(Grant("public/x", "ada", HOUR_MS))
    older = ["ada", 1, granted.time_ms + 5, "bob", HOUR_MS, granted.time_ms + HOUR_MS]
    async with Redis.from_url(redis_url) as redis:
        await redis.hset(board_keys(BOARD)[6], "public/x", msgpack.packb(older))
    [lease] = (await redis_store.leases(BOARD)).leases
    assert lease.ttl_ms == LEASE_TTL_MS
    assert (await ada.commit(Renew("public/x", "ada", 1, HOUR_MS))).revision == 2
    assert (await ada.commit(Renew("public/x", "ada", 1, HOUR_MS))).revision == 2
    released = await ada.commit(Release("public/x", "ada", 1))
    assert released.results == (("bob", 3, released.time_ms + HOUR_MS),)
    [lease] = (await redis_store.leases(BOARD)).leases
    assert lease.ttl_ms == HOUR_MS
    assert lease.account == ""  # nobody knows whose it was


async def test_what_was_written_before_shares_were_counted_is_taken_out_of_none(
    redis_store: RedisStore, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ACCOUNT_KEYS_MAX", 1)
    ada = await Writer.open(redis_store, BOARD)
    await ada.commit(Put("public/x", packed(1)))
    async with Redis.from_url(redis_url) as redis:
        await redis.hdel(board_keys(BOARD)[0], "u:@ada")
    await ada.commit(Put("public/y", packed(1)))
    assert isinstance(await ada.attempt(Put("public/z", packed(1))), LimitExceeded)
    await ada.commit(DeletePrefix("public"))
    await ada.commit(Put("public/z", packed(1)))
    assert isinstance(await ada.attempt(Put("public/x", packed(1))), LimitExceeded)
