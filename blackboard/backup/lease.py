"""The lease of the writer of a backup in an object store: an object that says who writes, and until
when.

Invariants
- It is renewed for as long as it is held, however long a round or a pruning takes.
- Once it ran out or was another's, it is lost until it is taken again: what its holder read under
  it may not be so any more, so nothing is written that follows from that.

The store compares nothing. So two processes may take it in one moment, and a write that takes
longer than the lease to arrive comes too late to be stopped. `confirm` just before a write makes
this rare; it does not rule it out.
"""

import asyncio
import contextlib
import json
import secrets
import time
from typing import Final, Protocol

from blackboard.errors import BlackboardError, Unavailable
from blackboard.limits import DEFAULT, Limits
from blackboard.units import Milliseconds

LEASE: Final = "lock.json"
_OWNER_BYTES: Final = 8


class Files(Protocol):
    """Where the lease is."""

    where: str

    async def get(self, name: str) -> bytes | None:
        """A file; None if there is none."""

    async def put(self, name: str, data: bytes) -> None:
        """Write a file."""

    async def remove(self, name: str) -> None:
        """Remove a file."""


class WriterLease:
    """One process's lease on a place. Errors of every method: Unavailable."""

    def __init__(self, place: Files, limits: Limits = DEFAULT) -> None:
        self._place = place
        self._lease_ms = limits.archive.archive_lease_ms
        self._owner = secrets.token_hex(_OWNER_BYTES)
        self._until_ms: Milliseconds = 0
        """When it runs out; 0: it is not held, or was lost."""
        self._keeping: asyncio.Task[None] | None = None
        self._over = asyncio.Event()

    async def take(self) -> None:
        """Take it, or renew it. Errors: Unavailable also while another process has it."""
        owner, until_ms = await self._read()
        left_ms = until_ms - _now_ms()
        if owner != self._owner and left_ms > 0:
            reason = "another process writes to it"
            if left_ms > self._lease_ms:
                reason += f", or its clock was ahead: its lease has {left_ms // 1000} s left,"
                reason += f" more than one has. If no process writes to it, remove {LEASE}"
            raise self._refused(reason)
        await self._write()
        # The old task may not have seen yet that it should end, so the new one gets its own event.
        if self._keeping is None or self._keeping.done() or self._over.is_set():
            self._over = asyncio.Event()
            self._keeping = asyncio.create_task(self._keep(self._over), name="lease of a backup")

    def check(self) -> None:
        """Errors: Unavailable when it ran out or was lost, as far as this process knows."""
        if self._until_ms <= _now_ms():
            self._until_ms = 0
            raise self._refused("its lease ran out, and another process may write to it")

    async def confirm(self) -> None:
        """As `check`, and ask the store whether another process has it by now."""
        self.check()
        owner, _ = await self._read()
        if owner != self._owner:
            self._until_ms = 0
        # The question may have taken longer than the lease had left.
        self.check()

    async def give_up(self) -> None:
        """Let another process have it at once."""
        self.end_renewals()  # before the first await: so, too, after a cancellation
        if self._keeping is None:
            return
        # A renewal that is under way would put it back.
        await asyncio.wait([self._keeping])
        self._until_ms = 0
        owner, _ = await self._read()
        if owner == self._owner:
            await self._place.remove(LEASE)

    def end_renewals(self) -> None:
        """Let it run out unless it is taken again."""
        self._over.set()

    async def _keep(self, over: asyncio.Event) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                # A third of it: two renewals may fail before it runs out.
                await asyncio.wait_for(over.wait(), self._lease_ms / 3000)
            if over.is_set():
                return
            try:
                await self.confirm()
                await self._write()
            except BlackboardError:
                # Lost. After any other failure, such as a silent store, it is tried again while the
                # lease lasts.
                if not self._until_ms:
                    return

    async def _read(self) -> tuple[str, Milliseconds]:
        """The holder that the store names, and the end of the lease."""
        found = await self._place.get(LEASE)
        try:
            lease = json.loads(found or b"{}")
            return str(lease.get("owner", "")), int(lease.get("until_ms", 0))
        except (ValueError, TypeError, AttributeError, OverflowError):
            # A damaged lease would otherwise keep every writer out for ever.
            return "", 0

    async def _write(self) -> None:
        # Counted from before the request: it must not end later here than the store says.
        until_ms = _now_ms() + self._lease_ms
        lease = {"owner": self._owner, "until_ms": until_ms}
        await self._place.put(LEASE, json.dumps(lease).encode())
        self._until_ms = until_ms

    def _refused(self, reason: str) -> Unavailable:
        return Unavailable(what=f"backup {self._place.where}", reason=reason)


def _now_ms() -> Milliseconds:
    # The clock of the machine, and not a monotonic one: other machines compare it with theirs.
    return time.time_ns() // 1_000_000
