"""Histories for the archive: a board in memory, its log, and what it held at every revision."""

import random
from collections.abc import AsyncIterator

from msgspec.structs import replace

from blackboard.archive.base import Archive
from blackboard.core import digest
from blackboard.core.checkpoints import Mark
from blackboard.core.commit import (
    RESTORE,
    Append,
    Commit,
    Delete,
    DeletePrefix,
    Entry,
    Epoch,
    Grant,
    Head,
    Increment,
    Op,
    Put,
    PutBack,
    Reading,
    Release,
)
from blackboard.core.path import namespace_of
from blackboard.core.state import evolve
from blackboard.errors import Rejected
from blackboard.limits import BLOB_BYTES
from blackboard.units import Key, Prefix, Revision
from blackboard.wire.codec import encode_value, marker_entry
from tests.unit.core.trial import Trial

CHECKPOINTS = "system/checkpoints"


class Story(Trial):
    """A board whose every state is remembered."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.dice = random.Random(seed)
        self.held: dict[Revision, dict[Key, Entry]] = {0: {}}
        self.counters: dict[Revision, dict[Prefix, int]] = {0: {}}
        self.epochs: dict[Revision, Epoch] = {0: self.state.epoch}

    @property
    def head(self) -> Revision:
        """The newest revision."""
        return self.state.revision

    def tell(self, *ops: Op, agent: str = "ada", note: str = "", account: str = "") -> Revision:
        """Commit operations, some time later; returns the revision."""
        self.now_ms += self.dice.randrange(1, 50)
        known = [(e.key, e.mod_revision) for e in list(self.state.entries.values())[:2]]
        made = self.make(*ops, agent=agent)
        commit = replace(made, note=note, based_on=tuple(known), account=account)
        outcome = self.send(commit)
        assert not isinstance(outcome, Exception), outcome
        self._remember()
        return self.head

    def tell_some(self, count: int) -> None:
        """Commit at random: every kind of change, with small, middle and large values."""
        wanted = len(self.log) + count
        while len(self.log) < wanted:
            ops = [self._op() for _ in range(self.dice.choice((1, 1, 1, 2, 4)))]
            agent = self.dice.choice(("ada", "bo", "cy"))
            if not isinstance(self.attempt(*ops, agent=agent), Rejected):
                self.tell(*ops, agent=agent, note=self.dice.choice(("", "why not")))

    def checkpoint(self, name: str, kind: str = "named") -> Revision:
        """Take a checkpoint."""
        record = {"kind": kind, "by": "ada", "note": "", "request": "r1", "barrier": None}
        return self.tell(Put(f"{CHECKPOINTS}/{name}", encode_value(record)), agent="~system")

    def restore(self, revision: Revision) -> Revision:
        """Restore what was held at `revision`."""
        then, now = self.held[revision], dict(self.state.entries)
        ops: list[Op] = []
        for key in sorted(then.keys() | now.keys()):
            old = then.get(key)
            if namespace_of(key) == "system":
                continue
            if old is None:
                ops.append(Delete(key))
            elif key not in now or now[key].value != old.value:
                ops.append(PutBack(key, old.value, old.expires_at_ms))
        number = self.state.epoch.number + 1
        begins = Epoch(number, f"epoch-{number}", RESTORE, revision, self.head + 1)
        self.now_ms += 5
        commit: Commit = replace(self.make(*ops, agent="~system"), begins=begins)
        outcome = self.send(commit)
        assert not isinstance(outcome, Exception), outcome
        self._remember()
        return self.head

    def lose(self, revision: Revision, jump: int = 1_000) -> "Story":
        """The same board after its engine came back with `revision` as its newest."""
        other = Story(self.dice.randrange(2**30))
        other.held = {r: h for r, h in self.held.items() if r <= revision}
        other.counters = {r: c for r, c in self.counters.items() if r <= revision}
        other.epochs = {r: e for r, e in self.epochs.items() if r <= revision}
        other.log = [entry for entry in self.log if entry.revision <= revision]
        for entry in other.log:
            evolve(other.state, entry)
        other.now_ms, other.step = self.now_ms, self.step
        last = other.state.epoch
        epoch = Epoch(last.number + 1, "came-back", "engine", revision, revision + jump)
        marker = marker_entry(epoch, other.now_ms)
        evolve(other.state, marker)
        other.log.append(marker)
        other._remember()
        return other

    def digests(self, revision: Revision) -> dict[str, bytes]:
        """Each namespace's digest, computed from nothing."""
        totals: dict[str, int] = {}
        for entry in self.held[revision].values():
            item = digest.element(entry.key, digest.content_of(entry.value), entry.expires_at_ms)
            name = namespace_of(entry.key)
            totals[name] = digest.add(totals.get(name, 0), item)
        return {name: digest.digest_of(total) for name, total in totals.items()}

    async def archive_into(self, archive: Archive, board: str, *, page: int = 7) -> Mark:
        """Archive everything that is not archived yet, a few entries at a time."""
        mark = await archive.mark(board)
        fence = await archive.take(board, "tester", 600_000)
        assert fence is not None
        if mark is None:
            mark = await archive.join(board, fence, Head(0, self.epochs[0], 1), listing())
        left = [entry for entry in self.log if entry.revision > mark.revision]
        for start in range(0, len(left), page):
            some = left[start : start + page]
            mark = await archive.append(board, fence, mark.revision, some)
        return mark

    def _remember(self) -> None:
        self.held[self.head] = dict(self.state.entries)
        self.counters[self.head] = dict(self.state.next_item)
        self.epochs[self.head] = self.state.epoch

    def _op(self) -> Op:
        dice = self.dice
        namespace = dice.choice(("public", "private/ada", "inbox/bo"))
        key = f"{namespace}/k{dice.randrange(12)}"
        lease = f"public/lease{dice.randrange(3)}"
        match dice.randrange(12):
            case 0:
                return Delete(key)
            case 1:
                return DeletePrefix(f"{namespace}/list")
            case 2 | 3:
                return Append(f"{namespace}/list", self._value())
            case 4:
                return Increment(f"{namespace}/count", 1)
            case 5:
                held = self.state.leases.get(lease)
                if held is None:
                    return Grant(lease, "ada", 60_000)
                return Release(lease, held.holder, held.fence)
            case 6:
                return Put(key, self._value(), ttl_ms=dice.choice((1_000, 60_000)))
        return Put(key, self._value())

    def _value(self) -> bytes:
        size = self.dice.choice((1, 20, 300, 3_000, BLOB_BYTES - 5, BLOB_BYTES + 1))
        if size >= 3_000 and self.dice.random() < 0.8:
            size = 40
        same = self.dice.random() < 0.5
        return encode_value("a" * size if same else self.dice.randbytes(size))


async def listing(*pages: Reading) -> AsyncIterator[Reading]:
    """Pages of a listing."""
    for page in pages:
        yield page
