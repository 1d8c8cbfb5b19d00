"""Leases: who may hold one, who is next, and what a fence proves.

Invariants (tests/guarantees/ checks them over recorded histories)
- L1 at most one (fence, holder) of a lease is current at any revision.
- L2 fences of a lease only grow: a fence is the revision of its grant.
- L3 the log names lease, holder and fence of each grant.
- L4 a commit that relies on a fence that is not current changes nothing (Fenced), whatever any
  clock says.
- L5 a lease whose holder died goes to the next one within its time to live and one sweep.
- L6 requests are granted in their order, except for those that stopped waiting.

Time decides only who may take over: `until_ms` is compared with the engine's clock, never a fence.
It is not part of a board's history: a renewal moves it without a revision, and when an engine opens
a board, each lease and each ticket has its full time to live again (`dated`). Source: the fencing
tokens of M. Kleppmann, "How to do distributed locking" (2016); Consul's lock sequencers; the queue
is that of etcd's and ZooKeeper's lock recipes, kept by the lease itself. Twin: the lease functions
of engines/redis/scripts/commit.lua.
"""

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

from msgspec.structs import replace

from blackboard import limits
from blackboard.core.commit import Expire, Grant, HeldFence, Lease, Release, Renew, Waiter
from blackboard.errors import Fenced, LeaseHeld, LimitExceeded
from blackboard.limits import SEGMENT_BYTES_MAX
from blackboard.units import Fence, Key, Milliseconds

LOCK_MASTERS: Final = "lock masters"
"""The `what` of Unavailable when no majority of the lock masters answers."""
_UNIQUE_CHARACTERS: Final = 16
_AGENT_CHARACTERS_MAX: Final = SEGMENT_BYTES_MAX - _UNIQUE_CHARACTERS - len("~")


def holder_prefix(agent: str) -> str:
    """What the names of `agent`'s holders have before their last `~`: the agent's name.

    A name that is too long is cut and gets a digest, so that no other agent has the same prefix by
    chance.
    """
    if len(agent) <= _AGENT_CHARACTERS_MAX:
        return agent
    digest = hashlib.sha256(agent.encode()).hexdigest()[:_UNIQUE_CHARACTERS]
    return f"{agent[: _AGENT_CHARACTERS_MAX - len(digest) - 1]}.{digest}"


def owner_prefix(agent: str, account: str) -> str:
    """As `holder_prefix`, for leases of `agent` on `account` ("" = the account of its own name).

    A name without a dot has one account. In one with dots an `@` stands where the account ends:
    `buyer@me` for `buyer.me` of the account `buyer`, `buyer.me@` for that of an account `buyer.me`.
    """
    if "." not in agent:
        return holder_prefix(agent)
    account = account or agent
    return holder_prefix(f"{account}@{agent[len(account) + 1 :]}")


def is_holder_of(agent: str, holder: str) -> bool:
    """Whether `holder` names an acquisition by `agent`, without an account: `<agent>~<anything>`,
    or its name."""
    return _owner_in(holder) == holder_prefix(agent)


def is_owned_by(agent: str, account: str, holder: str) -> bool:
    """Whether `holder` names an acquisition by `agent` on `account`."""
    return _owner_in(holder) == owner_prefix(agent, account)


def _owner_in(holder: str) -> str:
    before, mark, _ = holder.rpartition("~")
    return before if mark else holder


def check_fence(lease: Lease | None, fence: HeldFence | Renew | Release | Expire) -> Lease:
    """Return the lease if (fence, holder) is current: equality, never a comparison.

    Errors: Fenced.
    """
    if lease is None:
        raise Fenced(fence.key, fence.fence, 0, None)
    if (lease.fence, lease.holder) != (fence.fence, fence.holder):
        raise Fenced(fence.key, fence.fence, lease.fence, lease.holder)
    return lease


def grant(lease: Lease | None, op: Grant, fence: Fence, now_ms: Milliseconds) -> Lease:
    """The lease after `op`: granted under `fence`, or with `op.holder` at the end of its queue.

    An expired lease goes to the first waiter, not to the present requester. Errors: LeaseHeld, also
    when the holder already has it or waits for it; LimitExceeded.
    """
    current = lease
    if lease is not None and lease.until_ms <= now_ms:
        current = pass_on(lease, fence, now_ms)
    if lease is None or current is None:
        return Lease(op.key, op.holder, fence, now_ms + op.ttl_ms, ttl_ms=op.ttl_ms)
    names = {current.holder, *(waiter.holder for waiter in current.waiters)}
    if not op.wait or op.holder in names:
        # With the holder before `pass_on`: a refused commit passes nothing on.
        raise LeaseHeld(op.key, lease.holder, lease.fence, lease.until_ms)
    if len(current.waiters) >= limits.LEASE_WAITERS_MAX:
        count = len(current.waiters) + 1
        raise LimitExceeded("LEASE_WAITERS_MAX", count, limits.LEASE_WAITERS_MAX, op.key)
    waiter = Waiter(op.holder, op.ttl_ms, now_ms + op.ttl_ms)
    return replace(current, waiters=(*current.waiters, waiter))


def renew(lease: Lease | None, op: Renew, now_ms: Milliseconds) -> Lease:
    """The lease, or with fence 0 the ticket of a waiter, prolonged. Errors: Fenced."""
    until_ms = now_ms + op.ttl_ms
    if op.fence:
        # Also after its time: until another holder has it, the fence is current, and no clock
        # counts.
        return replace(check_fence(lease, op), until_ms=until_ms, ttl_ms=op.ttl_ms)
    held, index = _waiting(lease, op)
    waiter = Waiter(op.holder, op.ttl_ms, until_ms)
    waiters = (*held.waiters[:index], waiter, *held.waiters[index + 1 :])
    return replace(held, waiters=waiters)


def release(lease: Lease | None, op: Release, fence: Fence, now_ms: Milliseconds) -> Lease | None:
    """The lease as granted to the first waiter under `fence`; None if the queue is empty.

    With fence 0 in `op`: the lease without that waiter. Errors: Fenced.
    """
    if op.fence:
        return pass_on(check_fence(lease, op), fence, now_ms)
    held, index = _waiting(lease, op)
    return replace(held, waiters=held.waiters[:index] + held.waiters[index + 1 :])


def expire(lease: Lease | None, op: Expire, fence: Fence, now_ms: Milliseconds) -> Lease | None:
    """As `release`, for an expired lease. Errors: Fenced; LeaseHeld if it has not expired."""
    held = check_fence(lease, op)
    if held.until_ms > now_ms:
        # A renewal since the sweeper looked has left the fence as it was: only the deadline tells.
        raise LeaseHeld(op.key, held.holder, held.fence, held.until_ms)
    return pass_on(held, fence, now_ms)


def pass_on(lease: Lease, fence: Fence, now_ms: Milliseconds) -> Lease | None:
    """The lease as granted to the first waiter whose ticket is still valid; None if there is
    none."""
    for index, waiter in enumerate(lease.waiters):
        if waiter.until_ms > now_ms:
            rest = lease.waiters[index + 1 :]
            # Tickets before this one have run out and are dropped. `charged` adds the account.
            ttl_ms = waiter.ttl_ms
            return Lease(lease.key, waiter.holder, fence, now_ms + ttl_ms, rest, ttl_ms)
    return None


def dated(lease: Lease, now_ms: Milliseconds) -> Lease:
    """The lease, and each ticket in its queue, with its full time to live from `now_ms` on."""
    waiters = tuple(replace(w, until_ms=now_ms + w.ttl_ms) for w in lease.waiters)
    return replace(lease, until_ms=now_ms + (lease.ttl_ms or 0), waiters=waiters)


def is_prolonged(before: Lease | None, after: Lease | None) -> bool:
    """Whether the two differ only in deadlines."""
    if before is None or after is None:
        return False
    return dated(before, 0) == dated(after, 0)


def charged(before: Lease | None, after: Lease | None, account: str) -> Lease | None:
    """`after` with the account of its holder and of each waiter.

    Those that are in `before` keep the account under which they asked. Every other name was added
    by this commit, so it gets `account`. Twin: `charge` of engines/redis/scripts/lease.lua.
    """
    if after is None:
        return None
    known = {} if before is None else {waiter.holder: waiter.account for waiter in before.waiters}
    waiters = tuple(replace(w, account=known.get(w.holder, account)) for w in after.waiters)
    if before is not None and (before.holder, before.fence) == (after.holder, after.fence):
        return replace(after, waiters=waiters, account=before.account)
    return replace(after, waiters=waiters, account=known.get(after.holder, account))


def accounts(lease: Lease | None) -> Iterator[str]:
    """The accounts of the holder and of each waiter; "" where none is known."""
    if lease is not None:
        yield lease.account
        for waiter in lease.waiters:
            yield waiter.account


def to_result(lease: Lease | None) -> tuple[str | int, ...]:
    """A lease as the result of an operation: (holder, fence, until_ms, then three per waiter)."""
    if lease is None:
        return ()
    flat: list[str | int] = [lease.holder, lease.fence, lease.until_ms]
    for waiter in lease.waiters:
        flat += (waiter.holder, waiter.ttl_ms, waiter.until_ms)
    return tuple(flat)


def from_result(key: Key, flat: Sequence[str | int]) -> Lease | None:
    """The inverse of `to_result`. Errors: ValueError, TypeError on anything else."""
    if not flat:
        return None
    holder, fence, until_ms, *rest = flat
    triples = zip(rest[::3], rest[1::3], rest[2::3], strict=True)
    waiters = tuple(Waiter(str(name), int(ttl), int(until)) for name, ttl, until in triples)
    return Lease(key, str(holder), int(fence), int(until_ms), waiters)


def page_of(leases: Sequence[Lease], limit: int) -> Sequence[Lease]:
    """The first of `leases`, at most `limit` and about PAGE_BYTES_MAX with their queues."""
    size = 0
    for count, lease in enumerate(leases):
        size += 100 * (1 + len(lease.waiters))
        if count == limit or (count and size > limits.PAGE_BYTES_MAX):
            return leases[:count]
    return leases


def _waiting(lease: Lease | None, op: Renew | Release) -> tuple[Lease, int]:
    """The lease, and the place of `op.holder` in its queue. Errors: Fenced if it is not in the
    queue."""
    for index, waiter in enumerate(lease.waiters if lease else ()):
        if waiter.holder == op.holder and lease is not None:
            return lease, index
    raise Fenced(op.key, 0, lease.fence if lease else 0, lease.holder if lease else None)
