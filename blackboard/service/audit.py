"""The audit: who did what that others may want to know of, out of everybody's reach.

Recorded is, of principals that came with a token: what was refused (access_denied,
unauthenticated, fenced), what changes or copies a board as a whole (restore, branch, export,
import, prune ...), what is done to tokens and keys, and each look into somebody else's private
namespace. Names of keys and patterns are recorded, values never.

The records lie in a board of the service's own, `~audit`. Each process writes a chain: a record has
its number and the hash of the one before, so that one that was changed, taken out or put in shows.

Invariants
- nobody waits for a record to be written, and no request fails because one cannot be; at most
  AUDIT_QUEUE_MAX wait, and how many were left out above that is itself recorded.
"""

import asyncio
import hashlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from blackboard.core.commit import Append, Commit, CommitId
from blackboard.errors import BlackboardError, Corrupt
from blackboard.service.access import Principal, Right, allows
from blackboard.store.base import Store
from blackboard.types import (
    AUDIT_BATCH_MAX,
    AUDIT_KEPT_MS,
    AUDIT_QUEUE_MAX,
    LIST_ENTRIES_MAX,
    Key,
    Milliseconds,
)
from blackboard.wire.codec import SYSTEM_AGENT, decode_value, encode_value, prepare

log = logging.getLogger(__name__)

AUDIT_BOARD: Final = "~audit"
_LIST: Final = "system/audit"
_WHAT_CHARACTERS_MAX: Final = 512
_PAUSE_S: Final = 0.5
_WRITTEN_IN_S: Final = 0.05
"""Records wait so long for others that share their commit."""
WHOLE: Final = frozenset(
    {
        "checkpoint",
        "pin",
        "prune",
        "restore",
        "branch",
        "verify",
        "export",
        "import_begin",
        "import_end",
        "revoke",
        "erase",
        "rewrap",
        "audit",
    }
)
"""Methods that are recorded whenever they succeed."""


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """`principal`, by token `token`, asked for `verb` on `board`, about `what`: `outcome`.

    `writer` and `number` name its place in the chain of one process; `previous` is the hash of the
    record before, empty for the first.
    """

    time_ms: Milliseconds
    principal: str
    token: str
    verb: str
    board: str
    what: str
    outcome: str
    writer: str = ""
    number: int = 0
    previous: str = ""

    def hash(self) -> str:
        """SHA-256 over all of it, in hexadecimal."""
        packed = encode_value([str(value) for value in asdict(self).values()])
        return hashlib.sha256(packed).hexdigest()


class Audit:
    """Writes and reads the records of one process's requests."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._writer = secrets.token_hex(8)
        self._waiting: deque[AuditRecord] = deque()
        self._left_out = 0
        self._number, self._previous, self._step = 0, "", 0
        self._task: asyncio.Task[None] | None = None

    def note(self, principal: Principal, verb: str, board: str, what: str, outcome: str) -> None:
        """Record something; who came without a token is not recorded: he opened the service."""
        if principal.credential is None:
            return
        if len(self._waiting) >= AUDIT_QUEUE_MAX:
            self._left_out += 1
            return
        token = principal.credential.ids[-1]
        now_ms = time.time_ns() // 1_000_000
        short = what if len(what) <= _WHAT_CHARACTERS_MAX else what[:_WHAT_CHARACTERS_MAX] + "..."
        self._waiting.append(
            AuditRecord(now_ms, principal.name, token, verb, board, short, outcome)
        )
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._write(), name="audit")

    async def read(self, after: Key | None, limit: int) -> Sequence[tuple[Key, AuditRecord]]:
        """Records after the one with key `after`, the oldest first. Errors: Unavailable."""
        await self.settle()
        await self._store.open(AUDIT_BOARD)
        page = await self._store.list(
            AUDIT_BOARD, _LIST, after=after, limit=min(limit, LIST_ENTRIES_MAX)
        )
        return [(entry.key, _record(entry.key, entry.value)) for entry in page.entries]

    async def settle(self) -> None:
        """Wait until what was noted until now is written."""
        if self._task is not None:
            await asyncio.wait([self._task])

    async def aclose(self) -> None:
        """Write what waits, once; what cannot be written now is logged as lost."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            while self._waiting:
                await self._write_some()
        except BlackboardError as error:
            log.warning("%d audit records are lost: %s", len(self._waiting), error)

    async def _write(self) -> None:
        await asyncio.sleep(_WRITTEN_IN_S)
        while self._waiting:
            try:
                await self._write_some()
            except BlackboardError as error:
                log.warning("audit: %s", error)
                await asyncio.sleep(_PAUSE_S)

    async def _write_some(self) -> None:
        """Errors: Unavailable and others: the records wait on."""
        some = [self._waiting[i] for i in range(min(len(self._waiting), AUDIT_BATCH_MAX))]
        chained = list(self._chained(some))
        epoch = (await self._store.open(AUDIT_BOARD)).epoch.id
        self._step += 1
        name = CommitId(SYSTEM_AGENT, 0, self._writer, self._step)
        ops = tuple(Append(_LIST, encode_value(asdict(r)), AUDIT_KEPT_MS) for r in chained)
        (outcome,) = await self._store.commit(AUDIT_BOARD, [prepare(Commit(name, epoch, ops))])
        if isinstance(outcome, BlackboardError):
            raise outcome
        self._number, self._previous = chained[-1].number, chained[-1].hash()
        for _ in some:
            self._waiting.popleft()
        if self._left_out:
            left_out, self._left_out = self._left_out, 0
            self._waiting.append(replace(some[-1], verb="audit", what=f"{left_out} left out"))

    def _chained(self, records: Iterable[AuditRecord]) -> Iterable[AuditRecord]:
        number, previous = self._number, self._previous
        for record in records:
            number += 1
            made = replace(record, writer=self._writer, number=number, previous=previous)
            previous = made.hash()
            yield made


def findings(records: Iterable[AuditRecord]) -> Sequence[str]:
    """What is wrong with records in their order: changed, taken out or put in. Empty if nothing is.

    The oldest record of each writer is taken as it is: what was before it may be over.
    """
    found: list[str] = []
    last: dict[str, AuditRecord] = {}
    for record in records:
        before = last.get(record.writer)
        if before is not None:
            if record.number != before.number + 1:
                found.append(f"{record.writer}: {record.number} follows {before.number}")
            elif record.previous != before.hash():
                found.append(f"{record.writer}: {before.number} is not what was written")
        last[record.writer] = record
    return found


def looks_into_others(principal: Principal, patterns: Iterable[str]) -> bool:
    """Whether a look at `patterns` shows `principal` what is private to somebody else."""
    if not allows(principal.grants, Right.READ, "private/~/x"):
        return False  # narrower grants on others are grants for that very purpose
    own = {f"private/{principal.name}", f"inbox/{principal.name}"}
    for pattern in patterns:
        first, _, rest = pattern.partition("/")
        if first not in ("public", "system") and f"{first}/{rest.partition('/')[0]}" not in own:
            return True
    return False


def _record(key: Key, value: bytes) -> AuditRecord:
    try:
        fields: dict[str, Any] = decode_value(value)
        return AuditRecord(**fields)
    except TypeError as error:
        raise Corrupt(what=key, reason="it is no record of the audit") from error
