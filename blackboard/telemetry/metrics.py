"""Metrics by OTLP: the families that a scrape of `/metrics` gets, under the same names.

Numbers only grow from the start of the process (cumulative), so one that is not sent is contained
in the next one. Buckets and labels are those of Prometheus. The unit follows from the name, which
is why a Prometheus behind a collector shows the names of `/metrics`, to which alerts refer.

Invariants
- Families are collected in the event loop, which alone changes the counters; they are encoded and
  sent in a thread.
- At most one collection waits while another is being sent: a newer one replaces it.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from blackboard.telemetry.sending import (
    SCOPE,
    Signal,
    flush_at_exit,
    interval_ms,
    is_sent,
    resource,
)

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import export as sdk
    from prometheus_client import Metric, samples

_UNITS: Final = {"seconds": "s", "bytes": "By"}
_UNKNOWN: Final = cast("float", None)
"""The smallest and largest of a histogram, which ours do not keep; the field is then not sent."""

log = logging.getLogger(__name__)

Collect = Callable[[], Iterable["Metric"]]
"""Returns the families as of now."""


@contextmanager
def sent(service: str, collect: Collect) -> Iterator[None]:
    """A block in whose event loop metrics are collected and sent every
    OTEL_METRIC_EXPORT_INTERVAL (milliseconds), and once more at its end; nothing if
    OTEL_METRICS_EXPORTER says `none`.

    Errors: InvalidRequest for a variable that cannot be used. A collector that fails is logged.
    """
    if not is_sent(Signal.METRICS):
        yield
        return
    sender = MetricSender(service, collect, interval_ms())
    sender.start()
    try:
        yield
    finally:
        sender.close()


class MetricSender:
    """Collects on a timer of the loop, and sends from a thread of its own."""

    def __init__(self, service: str, collect: Collect, every_ms: int) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

        self._exporter = OTLPMetricExporter()
        self._resource = resource(service)
        self._began_ns = time.time_ns()
        self._collect = collect
        self._every_s = every_ms / 1000
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: tuple[int, Sequence[Metric]] | None = None
        self._is_closed = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._send_all, name="metrics", daemon=True)

    def start(self) -> None:
        """Send from here on."""
        self._thread.start()
        flush_at_exit(lambda timeout_ms: self._thread.join(timeout_ms / 1000))
        self._again()

    def close(self) -> None:
        """Send the numbers of now as the last ones; does not wait for that, but the end of the
        process does."""
        if self._timer is not None:
            self._timer.cancel()
        self._offer()
        self._is_closed = True
        self._wake.set()

    def _again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._every_s, self._tick)

    def _tick(self) -> None:
        # The timer first: a collection that fails must not be the last one.
        self._again()
        self._offer()

    def _offer(self) -> None:
        """Let the thread send the numbers of now, instead of older ones that wait."""
        # Time and numbers in one assignment: the thread takes both without a lock.
        self._waiting = time.time_ns(), list(self._collect())
        self._wake.set()

    def _send_all(self) -> None:
        is_last = False
        while not is_last:
            self._wake.wait()
            self._wake.clear()
            is_last = self._is_closed  # before what waits is taken: the last was put before
            taken, self._waiting = self._waiting, None
            if taken is not None:
                self._send(*taken)

    def _send(self, now_ns: int, families: Sequence["Metric"]) -> None:
        try:
            data = encoded(families, self._resource, self._began_ns, now_ns)
            self._exporter.export(data)  # logs by itself what a collector refuses
        except Exception:
            # The thread goes on: the numbers of the next collection contain these.
            log.exception("metrics were not sent")


def encoded(
    families: Iterable["Metric"], sender: Any, began_ns: int, now_ns: int
) -> "sdk.MetricsData":
    """Families of Prometheus as the SDK's records of a `sender`, a Resource."""
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    # Converted: instruments of the SDK would count everything again, with a lock for each number.
    metrics = [_metric(family, began_ns, now_ns) for family in families if family.samples]
    scope = ScopeMetrics(InstrumentationScope(SCOPE), metrics, "")
    return MetricsData([ResourceMetrics(sender, [scope], "")])


def _metric(family: "Metric", began_ns: int, now_ns: int) -> "sdk.Metric":
    from opentelemetry.sdk.metrics import export as sdk

    unit = _UNITS.get(family.name.rpartition("_")[2], "")
    cumulative = sdk.AggregationTemporality.CUMULATIVE
    data: Any
    if family.type == "histogram":
        data = sdk.Histogram(_distributions(family.samples, began_ns, now_ns), cumulative)
    else:
        points = [
            sdk.NumberDataPoint(dict(sample.labels), began_ns, now_ns, sample.value)
            for sample in family.samples
        ]
        is_counter = family.type == "counter"
        data = sdk.Sum(points, cumulative, is_monotonic=True) if is_counter else sdk.Gauge(points)
    return sdk.Metric(family.name, family.documentation, unit, data)


def _distributions(
    found: Iterable["samples.Sample"], began_ns: int, now_ns: int
) -> "list[sdk.HistogramDataPoint]":
    """The samples of a histogram, one point for each set of labels: Prometheus' buckets contain
    those below them, OTLP's do not."""
    from opentelemetry.sdk.metrics import export as sdk

    buckets: dict[tuple[tuple[str, str], ...], list[tuple[float, float]]] = {}
    sums: dict[tuple[tuple[str, str], ...], float] = {}
    for sample in found:
        labels = tuple(sorted((k, text) for k, text in sample.labels.items() if k != "le"))
        if sample.name.endswith("_bucket"):
            buckets.setdefault(labels, []).append((float(sample.labels["le"]), sample.value))
        elif sample.name.endswith("_sum"):
            sums[labels] = sample.value
    points = []
    for labels, upto in buckets.items():
        totals = [int(total) for _, total in upto]
        counts = [now - before for before, now in zip([0, *totals], totals, strict=False)]
        bounds = [bound for bound, _ in upto[:-1]]  # the last one has no end
        points.append(
            sdk.HistogramDataPoint(
                *(dict(labels), began_ns, now_ns, totals[-1], sums[labels], counts, bounds),
                *(_UNKNOWN, _UNKNOWN),
            )
        )
    return points
