"""What workers under a lock (lease_worker.py) said, and the log that says who is right."""

from collections.abc import Iterable, Sequence

from blackboard.client.board import Board
from blackboard.core.commit import RESTORE, LogEntry
from blackboard.limits import LOG_ENTRIES_MAX
from blackboard.wire.codec import decode_value, encode_value
from tests.guarantees.lease_history import Acquired, Relied
from tests.guarantees.lease_worker import BOARD, COUNTER, LOCK
from tests.guarantees.worker_process import WorkerProcess


def relied_of(worker: WorkerProcess) -> list[Relied]:
    """What a worker asked for under its lock, and what became of it."""
    found: list[Relied] = []
    for line in worker.lines:
        match line["said"]:
            case "asked":
                value = encode_value(line["value"])
                found.append(Relied(value, LOCK, line["holder"], line["fence"], "unknown"))
            case "refused":
                last = found.pop()
                found.append(Relied(last.value, LOCK, last.holder, last.fence, "refused"))
            case "done":
                last = found.pop()
                revision = line["revision"]
                found.append(Relied(last.value, LOCK, last.holder, last.fence, "done", revision))
    return found


def acquired_of(worker: WorkerProcess) -> list[Acquired]:
    """The lease that a worker was granted."""
    acquired = (line for line in worker.lines if line["said"] == "acquired")
    return [Acquired(LOCK, line["holder"], line["fence"]) for line in acquired]


async def whole_log(board: Board) -> list[LogEntry]:
    """The workers' log as the service has it, page by page."""
    found: list[LogEntry] = []
    after = 0
    while True:
        page = await board._link.log(BOARD, after, limit=LOG_ENTRIES_MAX)
        found += page.entries
        if page.through >= page.head.revision:
            return found
        after = page.through


def miscounted(log: Sequence[LogEntry]) -> list[str]:
    """Each step builds on the one before; a restore brings back the count of then, whole."""
    found, count = [], 0
    counts: dict[int, int] = {0: 0}
    for entry in log:
        before = count
        for value in _counters(entry):
            count = 0 if value is None else decode_value(value)["count"]
        if entry.epoch is not None and entry.epoch.cause == RESTORE:
            then = counts[entry.epoch.from_revision]
            if count != then:
                found.append(f"the restore at {entry.revision} left {count}, it was {then} then")
        elif count not in (before, before + 1):
            found.append(f"revision {entry.revision} made {count} of {before}")
        counts[entry.revision] = count
    return found


def _counters(entry: LogEntry) -> Iterable[bytes | None]:
    return (change.value for change in entry.changes if change.key == COUNTER)
