"""The content of `/metrics`: counters that the hot path keeps as plain integers, read on request.

There are no labels for keys, boards, accounts or agents: they would reveal private names, and their
number has no bound.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from blackboard.core.commit import ENGINE, RECOVER, RESTORE
from blackboard.engines.base import VoteCounts
from blackboard.server.backups.follow import BackupStatistics
from blackboard.server.host import ServiceStatistics, SweeperStatistics
from blackboard.server.latency import Histogram, Latencies
from blackboard.server.overload.charges import ChargeStatistics


@dataclass(slots=True)
class Traffic:
    """Counters of the connections of one process since it started."""

    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    connections: int = 0
    protocol_errors: int = 0
    requests: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By method ("" = not a request) and outcome ("ok" or the code of an error)."""
    turned_away: Counter[int] = field(default_factory=Counter)
    """Handshakes refused, by HTTP status."""

    def count(self, method: str, outcome: str, times: int = 1) -> None:
        """Count requests that were answered."""
        self.requests[method, outcome] += times


class Metrics:
    """The registry of one server. A scrape gets `text`."""

    content_type = "text/plain; version=0.0.4; charset=utf-8"

    def __init__(
        self,
        traffic: Traffic,
        *,
        statistics: Callable[[], ServiceStatistics],
        sockets: Callable[[], tuple[int, int]],
    ) -> None:
        self._traffic = traffic
        self._statistics = statistics
        self._sockets = sockets  # returns how many are open, and how many bytes wait for them
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """The metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The metrics for the registry."""
        yield from self._service_metrics(self._statistics())
        traffic = self._traffic
        count, waiting = self._sockets()
        yield GaugeMetricFamily("blackboard_connections", "Open WebSockets", count)
        yield GaugeMetricFamily("blackboard_waiting_bytes", "Bytes to be sent", waiting)
        totals = (
            ("connections_opened", "WebSockets accepted", traffic.connections),
            ("frames_received", "Frames received", traffic.frames_in),
            ("frames_sent", "Frames sent", traffic.frames_out),
            ("received_bytes", "Bytes of frames received", traffic.bytes_in),
            ("sent_bytes", "Bytes of frames sent", traffic.bytes_out),
            ("protocol_errors", "Connections closed for breaking it", traffic.protocol_errors),
        )
        for name, about, value in totals:
            yield CounterMetricFamily(f"blackboard_{name}", about, value)
        requests = CounterMetricFamily(
            "blackboard_requests", "Requests answered", labels=("method", "outcome")
        )
        for labels, value in sorted(traffic.requests.items()):
            requests.add_metric(labels, value)
        yield requests
        away = CounterMetricFamily(
            "blackboard_handshakes_refused", "Handshakes refused", labels=("status",)
        )
        for status, value in sorted(traffic.turned_away.items()):
            away.add_metric((str(status),), value)
        yield away

    def _service_metrics(self, service: ServiceStatistics) -> Iterator[Metric]:
        yield GaugeMetricFamily("blackboard_boards", "Boards open here", service.boards)
        yield GaugeMetricFamily("blackboard_watchers", "Open watches", service.watchers)
        yield CounterMetricFamily("blackboard_commits", "Commits decided", service.commits)
        yield CounterMetricFamily("blackboard_commits_refused", "Refused", service.refused)
        yield CounterMetricFamily("blackboard_batches", "Engine calls for them", service.batches)
        about, lag_s = "By how much the event loop is late", service.lag_ms / 1000
        yield GaugeMetricFamily("blackboard_loop_lag_seconds", about, lag_s)
        about = "Commits that wait for an engine"
        yield GaugeMetricFamily("blackboard_backlog_bytes", about, service.backlog_bytes)
        about, started_s = "When this process began, since 1970", service.started_s
        yield GaugeMetricFamily("blackboard_started_seconds", about, started_s)
        about = "Boards of which the engine lost revisions"
        yield GaugeMetricFamily("blackboard_lost_boards", about, service.lost_boards)
        if service.disk is not None:
            about = "Bytes that may still be written where the data directory is"
            yield GaugeMetricFamily("blackboard_disk_free_bytes", about, service.disk.free_bytes)
            about = "The size of the file system where the data directory is"
            yield GaugeMetricFamily("blackboard_disk_bytes", about, service.disk.total_bytes)
        yield from _latency_metrics(service.latencies)
        yield from _charge_metrics(service.charges)
        yield from _sweeper_metrics(service.sweeper)
        if service.votes is not None:
            yield _votes_metric(service.votes)
        archive = service.archive
        if archive is not None:
            about = "Revisions by which the archive is behind, at most"
            yield GaugeMetricFamily("blackboard_archive_behind", about, archive.behind)
            about = "Age of the oldest commit that is not archived"
            lag_s = archive.lag_ms / 1000
            yield GaugeMetricFamily("blackboard_archive_lag_seconds", about, lag_s)
            about = "Boards that could not be archived just now"
            yield GaugeMetricFamily("blackboard_archive_failing", about, archive.failing)
            about = "Log entries archived here"
            yield CounterMetricFamily("blackboard_archive_appended", about, archive.appended)
            about = "Epochs that began, of the log entries archived here"
            epochs = CounterMetricFamily("blackboard_epochs", about, labels=("cause",))
            # Also those at 0: no alert sees the first step of a series that begins above that.
            for cause in (RESTORE, ENGINE, RECOVER):
                epochs.add_metric((cause,), archive.epochs.get(cause, 0))
            yield epochs
        if service.backup is not None:
            yield from _backup_metrics(service.backup)


def _backup_metrics(backup: BackupStatistics) -> Iterator[Metric]:
    about, lag_s = "Every commit older than this is in the backup", backup.lag_ms / 1000
    yield GaugeMetricFamily("blackboard_backup_lag_seconds", about, lag_s)
    about = "1 if the last round of the backup failed"
    yield GaugeMetricFamily("blackboard_backup_failing", about, int(backup.failing))
    about = "Log entries shipped to the backup"
    yield CounterMetricFamily("blackboard_backup_entries", about, backup.entries)
    about = "Bytes shipped to the backup"
    yield CounterMetricFamily("blackboard_backup_bytes", about, backup.bytes)


def _latency_metrics(latencies: Latencies) -> Iterator[Metric]:
    about = "From the queueing of a commit to its outcome"
    yield _histogram("blackboard_commit_seconds", about, latencies.commits)
    about = "Calls of the engine that carried commits: decision, write and sync"
    yield _histogram("blackboard_engine_call_seconds", about, latencies.engine_calls)
    about = "Age of a revision when it was handed to those who watch it"
    yield _histogram("blackboard_delivery_seconds", about, latencies.deliveries)
    about = "From the arrival of a request to its answer, but for commits"
    family = HistogramMetricFamily("blackboard_request_seconds", about, labels=("method",))
    for method, found in sorted(latencies.requests.items()):
        family.add_metric((method,), list(found.cumulative()), found.sum_s)
    yield family


def _histogram(name: str, about: str, found: Histogram) -> Metric:
    return HistogramMetricFamily(
        name, about, buckets=list(found.cumulative()), sum_value=found.sum_s
    )


def _charge_metrics(charges: ChargeStatistics) -> Iterator[Metric]:
    about, charged_s = "Processor time charged to accounts", charges.charged_ms / 1000
    yield CounterMetricFamily("blackboard_charged_seconds", about, charged_s)
    about = "Accounts that used more of the processor than their share"
    yield GaugeMetricFamily("blackboard_accounts_in_debt", about, charges.in_debt)
    about = "Reads that wait until the debt of their account is repaid"
    yield GaugeMetricFamily("blackboard_requests_in_debt", about, charges.waiting)
    about = "Reads refused because they would have waited too long for that"
    yield CounterMetricFamily("blackboard_debts_refused", about, charges.refused)


def _sweeper_metrics(sweeper: SweeperStatistics) -> Iterator[Metric]:
    about = "Looks of the sweeper at all boards open here"
    yield CounterMetricFamily("blackboard_sweeper_rounds", about, sweeper.rounds)
    about = "Entries and leases that ran out and were ended here"
    yield CounterMetricFamily("blackboard_sweeper_expired", about, sweeper.expired)
    about = "Entries and leases that the sweeper came too late for"
    yield CounterMetricFamily("blackboard_sweeper_refused", about, sweeper.refused)


def _votes_metric(votes: VoteCounts) -> Metric:
    about = "Answers of lock masters that were asked for a vote"
    family = CounterMetricFamily("blackboard_lock_votes", about, labels=("answer",))
    family.add_metric(("granted",), votes.granted)
    family.add_metric(("refused",), votes.refused)
    family.add_metric(("unreachable",), votes.unreachable)
    return family
