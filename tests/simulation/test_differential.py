"""fakeredis is not Redis: every script of ours, called at random, does the same on a real server.

Both get the same calls, at the same time by the same clock (the scripts ask a key for it, in place
of TIME) and as the same run. Replies are compared one by one, and now and then everything that the
two hold. BLACKBOARD_TEST_CALLS sets how many calls of each script there are, over all kinds of
servers.
"""

import os
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import msgpack
import pytest
from redis import Redis
from redis.exceptions import ResponseError

from blackboard.core.commit import (
    ABSENT,
    BRANCH,
    PRESENT,
    RESTORE,
    Append,
    Commit,
    CommitId,
    Condition,
    Delete,
    DeletePrefix,
    Entry,
    Epoch,
    Expire,
    Grant,
    HeldFence,
    Increment,
    KeyAt,
    Op,
    PrefixUnchanged,
    Put,
    PutBack,
    Release,
    Renew,
)
from blackboard.core.state import BoardUsage
from blackboard.engines.redis import lua as redis_scripts
from blackboard.engines.redis.codec import commit_arguments
from blackboard.engines.redis.driver import Argument
from blackboard.engines.redis.layout import (
    FORMAT,
    board_keys,
    pack_epoch,
    pack_usage,
    read_epoch,
    write_entry,
)
from blackboard.limits import EPOCH_JUMP, LEASE_TTL_MS, VALUE_INLINE_BYTES_MAX
from blackboard.wire.codec import encode_value, prepare
from tests.servers import server_binaries
from tests.simulation.fake_redis import FakeRedis

CALLS = int(os.environ.get("BLACKBOARD_TEST_CALLS", "2500"))
COMPARED_EVERY: Final = 500
BOARD: Final = "main"
KEYS: Final = ("public/a", "public/b", "public/c/d", "private/ada/x", "inbox/bob/y")
NAMESPACES: Final = ("", "public", "private/ada", "inbox/bob")
LOCKS: Final = ("public/lock", "public/c")
PREFIXES: Final = ("public/c", "public/list", "public", "inbox/bob")
HOLDERS: Final = ("ada~1", "ada~2", "bob~1")
SEED_STEPS: Final = ("begin", "page", "page", "end", "undo")
SCRIPTS: Final = ("COMMIT", "OPEN", "READ", "LEASES", "LOG", "COMPACT", "HOLD", "SEED", "ACCESS")


@dataclass(slots=True)
class Pair:
    """A real server and the fake one, which get the same."""

    real: Redis
    fake: FakeRedis
    calls: Counter[str] = field(default_factory=Counter)

    def both(self, *command: Argument) -> Any:
        """The reply of both to one command, which must be the same."""
        real = self._told(self.real.execute_command, command)
        fake = self._told(self.fake.execute, command)
        assert _sorted(real) == _sorted(fake), command
        return real

    def _told(self, ask: Callable[..., Any], command: tuple[Argument, ...]) -> Any:
        try:
            return ask(*command)
        except ResponseError as error:
            return f"an error: {str(error)[:3]}"

    def run(self, name: str, *arguments: Argument) -> Any:
        """Call a script."""
        self.calls[name] += 1
        text = getattr(redis_scripts, name).text
        assert text.count("call('TIME')") == 1
        text = text.replace("call('TIME')", "{call('GET', 'clock'), '0'}")
        keys = board_keys(BOARD)
        return self.both("EVAL", text, len(keys), *keys, *arguments)

    def compare(self) -> None:
        """Everything that is kept."""
        meta, log, answers, entries, index, expiry, leases = board_keys(BOARD)
        for key in (meta, answers, entries, leases):
            ask = ("HGETALL", key)
            assert _pairs(self.real.execute_command(*ask)) == _pairs(self.fake.execute(*ask))
        for key in (index, expiry):
            self.both("ZRANGE", key, 0, -1, "WITHSCORES")
        self.both("XRANGE", log, "-", "+")


def _sorted(reply: Any) -> Any:
    """A reply in which a hash, which has no order, is in the order of its fields."""
    if isinstance(reply, list) and reply and isinstance(reply[-1], list) and b"" in reply[-1]:
        return [*reply[:-1], _pairs(reply[-1])]
    return reply


def _pairs(flat: list[bytes]) -> dict[bytes, bytes]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


@dataclass(slots=True)
class Caller:
    """Draws calls that make sense often enough to get far."""

    pair: Pair
    dice: random.Random
    now_s: int = 1_700_000_000
    revision: int = 0
    epoch: Epoch = field(default_factory=lambda: Epoch(1, "first"))
    access: int = 5
    steps: Counter[tuple[str, int]] = field(default_factory=Counter)
    fences: dict[str, tuple[str, int]] = field(default_factory=dict)

    def call(self, name: str) -> None:
        """One call of the script `name`, a little later."""
        passed_s = self.dice.choice((0, 0, 1))
        if passed_s or not self.pair.calls:
            self.now_s += passed_s
            self.pair.both("SET", "clock", self.now_s)
        getattr(self, f"_{name.lower()}")()

    # --- scripts ----------------------------------------------------------------------------------

    def _open(self) -> None:
        if self.dice.random() < 0.02:
            self.pair.both("HSET", board_keys(BOARD)[0], "run", "another")
        name = f"e{self.pair.calls['OPEN']}"
        known = FORMAT - (self.dice.random() < 0.05)
        given = (name, EPOCH_JUMP, self.revision, "", 0, LEASE_TTL_MS, 0, known)
        head = self.pair.run("OPEN", *given)
        if len(head) > 2:  # the others are refusals
            self.revision, self.epoch = head[0], read_epoch(head[2])

    def _commit(self) -> None:
        batch = [prepare(self._spec()) for _ in range(self.dice.randint(1, 3))]
        access = self.dice.choice((None, None, self.access, max(0, self.access - 1)))
        reply = self.pair.run("COMMIT", *commit_arguments(batch, access))
        if len(reply) > 2:
            self.revision = reply[0]
            for prepared, outcome in zip(batch, reply[2:], strict=True):
                if outcome[0] == 1 and prepared.commit.begins is not None:
                    self.epoch = prepared.commit.begins

    def _read(self) -> None:
        match self.dice.randrange(3):
            case 0:
                self.pair.run("READ", 1_000, "keys", *self._some(KEYS))
            case 1:
                bounds = self.dice.choice(("[\2", f"[{self.dice.choice(PREFIXES)}/")), "+"
                what = self.dice.choice(("ranges", "backwards"))
                shown = self.dice.randint(1, 20), self.dice.choice(("values", "keys"))
                ends = bounds if what == "ranges" else bounds[::-1]
                self.pair.run("READ", 1_000, what, *shown, *ends)
            case _:
                by_ms = self.dice.choice(("", 0, 2**52))
                self.pair.run("READ", 1_000, "due", self.dice.randint(1, 5), by_ms)

    def _leases(self) -> None:
        reply = self.pair.run("LEASES")
        if reply:
            flat = reply[3]
            for key, packed in zip(flat[::2], flat[1::2], strict=True):
                if key:
                    holder, fence, *_ = msgpack.unpackb(packed)
                    self.fences[key.decode()] = (holder, fence)

    def _log(self) -> None:
        after = max(0, self.revision - self.dice.randrange(40))
        self.pair.run("LOG", after, self.dice.randint(1, 50), self.dice.choice((500, 100_000)))

    def _compact(self) -> None:
        oldest = max(1, self.revision - self.dice.randrange(60))
        reply = self.pair.run("COMPACT", oldest, "", self.dice.choice((5, 1_000)))
        while reply and reply[1] != b"done":
            reply = self.pair.run("COMPACT", oldest, reply[1], 1_000)

    def _hold(self) -> None:
        self.pair.run("HOLD", self.dice.choice((0, 0, 0, 900)))

    def _access(self) -> None:
        self.access += self.dice.choice((-1, 0, 0, 1, 1))
        self.pair.run("ACCESS", self.access)

    def _seed(self) -> None:
        """A step of any call; now and then on the place of the board, which was removed."""
        name, step = f"seed{self.dice.randrange(2)}", self.dice.choice(SEED_STEPS)
        if self.dice.random() < 0.02:
            self.pair.both("DEL", *board_keys(BOARD))
            self.fences.clear()
            self.steps.clear()
            step = "begin"
        epoch = Epoch(2, f"made{self.pair.calls['SEED']}", BRANCH, self.revision, self.revision + 1)
        match step:
            case "page":
                self.pair.run("SEED", step, name, *self._page())
            case "end":
                packed = pack_epoch(epoch)
                self.pair.run("SEED", step, name, packed, epoch.id, epoch.revision, 1_000, FORMAT)
            case _:
                self.pair.run("SEED", step, name)

    def _page(self) -> list[bytes]:
        value, at = self._value(), self.revision
        entry = Entry(self.dice.choice(KEYS), value, at, at, "ada", 1_000, None)
        text, large = write_entry(entry)
        fields = [entry.key, text] if large is None else [entry.key, text, f"\0{entry.key}", large]
        used = pack_usage(BoardUsage(1_000, 1_000_000))
        meta = [part for name in NAMESPACES for part in (f"u:{name}", used)]
        lists: list[list[Any]] = [fields, ["0", entry.key], [], meta]
        return [msgpack.packb(parts, use_bin_type=False) for parts in lists]

    # --- commits ----------------------------------------------------------------------------------

    def _spec(self) -> Commit:
        agent, lane = self.dice.choice(("ada", "bob")), self.dice.randrange(2)
        step = max(1, self.steps[agent, lane] + self.dice.choice((1, 1, 1, 1, 0, -1)))
        self.steps[agent, lane] = max(self.steps[agent, lane], step)
        incarnation = self.dice.choice(("one", "one", "one", "two"))
        name = CommitId(agent, lane, incarnation, step)
        epoch = self.epoch.id if self.dice.random() < 0.95 else "another"
        known = self.dice.choice((None, self.revision, max(0, self.revision - 5)))
        since = known if self.dice.random() < 0.2 else None
        if self.dice.random() < 0.03:
            return self._restore(name, epoch)
        ops = tuple(self._op() for _ in range(self.dice.randint(1, 4)))
        conditions = tuple(self._condition() for _ in range(self.dice.choice((0, 0, 1, 2))))
        fences = tuple(self._fence() for _ in range(self.dice.choice((0, 0, 0, 1))))
        return Commit(
            name, epoch, ops, conditions, fences, note="note", retry_since=since, known=known
        )

    def _restore(self, name: CommitId, epoch: str) -> Commit:
        at = self.revision + self.dice.choice((1, 1, 1, 2))
        begins = Epoch(
            self.epoch.number + 1, f"r{at}", RESTORE, max(0, at - self.dice.randint(1, 9)), at
        )
        ops: tuple[Op, ...] = (
            PutBack(self.dice.choice(KEYS), self._value(), None),
            PutBack("public/list/0000000004", self.dice.choice((None, self._value())), item=4),
            Delete(self.dice.choice(KEYS)),
        )
        return Commit(name, epoch, ops, begins=begins)

    def _op(self) -> Op:
        key, lock, holder = (self.dice.choice(names) for names in (KEYS, LOCKS, HOLDERS))
        ttl_ms = self.dice.choice((None, None, 1_000, 60_000))
        fence = self._fence()
        return self.dice.choice(
            (
                Put(key, self._value(), ttl_ms),
                Put(key, encode_value(self.dice.randrange(100)), None),
                Increment(key, self.dice.choice((1, -3, 2**52))),
                Append("public/list", self._value(), ttl_ms),
                Delete(key),
                DeletePrefix(self.dice.choice(PREFIXES)),
                Grant(lock, holder, 2_000, self.dice.random() < 0.5),
                Renew(fence.key, fence.holder, fence.fence, 2_000),
                Release(fence.key, fence.holder, self.dice.choice((0, fence.fence))),
                Expire(fence.key, fence.holder, fence.fence),
            )
        )

    def _value(self) -> bytes:
        size = self.dice.choice((1, 40, 300, VALUE_INLINE_BYTES_MAX + 10))
        return encode_value(
            self.dice.choice((None, True, 1.5, "x" * size, b"\xff" * size, [1, "é"], {"a": -7}))
        )

    def _condition(self) -> Condition:
        if self.dice.random() < 0.3:
            since = max(0, self.revision - self.dice.randrange(3))
            return PrefixUnchanged(self.dice.choice(PREFIXES), since)
        return KeyAt(self.dice.choice(KEYS), self.dice.choice((ABSENT, PRESENT, self.revision)))

    def _fence(self) -> HeldFence:
        key = self.dice.choice(LOCKS)
        holder, fence = self.fences.get(key, (HOLDERS[0], 1))
        return HeldFence(key, holder, fence)

    def _some(self, names: tuple[str, ...]) -> list[str]:
        return self.dice.sample(names, self.dice.randint(1, len(names)))


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_scripts_do_the_same_on_a_real_server(redis_url: str, seed: int) -> None:
    """Replies and contents, call by call."""
    dice = random.Random(seed)
    with Redis.from_url(redis_url, protocol=2) as real:
        info = real.info()
        real.response_callbacks.clear()  # replies as they come
        fake = FakeRedis(lambda: 0)
        fake.run_id, fake.replication_id = info["run_id"], info["master_replid"]
        pair = Pair(real, fake)
        caller = Caller(pair, dice)
        caller.call("OPEN")
        number, calls = 0, CALLS // max(1, len(server_binaries()))
        while any(pair.calls[name] < calls for name in SCRIPTS):
            wanted = [name for name in SCRIPTS if pair.calls[name] < calls]
            name = dice.choice(("COMMIT", "COMMIT", "OPEN", *wanted))
            caller.call(name)
            number += 1
            if number % COMPARED_EVERY == 0:
                pair.compare()
        pair.compare()
