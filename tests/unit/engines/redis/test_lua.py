"""The scripts as such: what they make of large numbers and of malformed arguments."""

import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from blackboard.core.commit import Committed, Increment, KeyAt, PrefixUnchanged, Put
from blackboard.engines.redis.layout import board_keys
from blackboard.engines.redis.lua import COMMIT, COMPACT, LOG, OPEN, READ
from blackboard.engines.redis.store import RedisStore
from blackboard.errors import InvalidRequest
from blackboard.wire.codec import prepare
from tests.conformance.writer import Writer, packed

BOARD = "scripts"


async def test_integers_beyond_32_bits_are_revisions_too(
    redis_store: RedisStore, redis: Redis
) -> None:
    """Lua counts in doubles and formats them with an exponent unless told otherwise."""
    await redis_store.open(BOARD)
    far = 2**53 - 10
    await redis.hset(board_keys(BOARD)[0], "rev", far)
    ada = await Writer.open(redis_store, BOARD)
    done = await ada.commit(Put("public/a", packed(1)))
    assert done.revision == far + 1
    await ada.commit(Put("public/a", packed(2)), conditions=[KeyAt("public/a", far + 1)])
    refused = await ada.attempt(Put("public/a", packed(2)), conditions=[KeyAt("public/a", far)])
    assert not isinstance(refused, Committed)
    assert (await redis_store.read(BOARD, ["public/a"])).entries[0].mod_revision == far + 2
    page = await redis_store.log(BOARD, far + 1, limit=5)
    assert [entry.revision for entry in page.entries] == [far + 2]


@pytest.mark.parametrize(
    "body",
    [
        b"\xc1",
        b"",
        b"\x93\x01\x02\x03",
        BODY := b"\x97\xa3ada\x00\xa1i\x01\x90\xa0\x91\x92\xa1z\xa8public/a",
        BODY.replace(b"\xa1z\xa8public/a", b"\xa1p\x05"),
        BODY.replace(b"\xa1z\xa8public/a", b"\xa1p\xa8public/a"),
        BODY.replace(b"\x92\xa1z", b"\x94\xa1P") + b"\x09\xff",
    ],
    ids=["no msgpack", "nothing", "too short", "no such op", "no key", "no value", "no large"],
)
async def test_a_malformed_commit_refuses_only_itself(redis_store: RedisStore, body: bytes) -> None:
    """It cannot come from our codec; should it come, its neighbours in the batch are decided."""
    ada, bob = await Writer.open(redis_store, BOARD), await Writer.open(redis_store, BOARD, "bob")
    good = [prepare(bob.make(Increment("public/n", 1))) for _ in range(2)]
    bad = replace(prepare(ada.make(Put("public/a", packed(1)))), body=body)
    first, refused, second = await redis_store.commit(BOARD, [good[0], bad, good[1]])
    assert isinstance(refused, InvalidRequest)
    assert isinstance(first, Committed)
    assert isinstance(second, Committed)
    assert second.results == (2,)
    assert len((await redis_store.list(BOARD, "", limit=9)).entries) == 1


async def test_a_log_ahead_of_the_state_stops_the_board(
    redis_store: RedisStore, redis: Redis
) -> None:
    """Whatever did that, nothing is decided on top of it."""
    ada = await Writer.open(redis_store, BOARD)
    await redis.xadd(board_keys(BOARD)[1], {"b": "x"}, id="5-0")
    outcome = await ada.attempt(Put("public/a", packed(1)))
    assert getattr(outcome, "code", None) == "corrupt"
    assert (await redis_store.list(BOARD, "", limit=9)).entries == ()


async def test_a_forgotten_script_is_sent_again(redis_store: RedisStore, redis: Redis) -> None:
    """The cache of scripts is neither saved nor replicated."""
    ada = await Writer.open(redis_store, BOARD)
    for number in range(3):
        await redis.script_flush()
        assert (await ada.commit(Increment("public/n", 1))).results == (number + 1,)
        await redis.script_flush()
        assert len((await redis_store.log(BOARD, 0, limit=9)).entries) == number + 1
    await redis.script_flush()
    condition = [PrefixUnchanged("public/x", 3)]
    await ada.commit(Increment("public/n", 1), conditions=condition)


def test_scripts_differ_and_share_their_beginning() -> None:
    """A server knows them by their hash alone."""
    scripts = (COMMIT, COMPACT, LOG, OPEN, READ)
    assert len({script.sha for script in scripts}) == len(scripts)
    assert len({script.text.partition("local META")[0] for script in scripts}) == 1
