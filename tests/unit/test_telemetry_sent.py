"""Metrics and log lines by OTLP: what a collector gets is what the service counts and writes."""

import json
import logging
import math
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality, Metric
from opentelemetry.sdk.trace import TracerProvider

from blackboard import telemetry
from blackboard.cli.serve import JsonFormatter
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Conflict, InvalidRequest
from blackboard.limits import TELEMETRY_LOG_CHARACTERS_MAX, TELEMETRY_QUEUE_MAX, Limits
from blackboard.server.service import Service
from blackboard.telemetry import logs, metrics, sending
from blackboard.telemetry.sending import Signal
from tests.otlp import Receiver, receiving
from tests.serving import scraped, serving, serving_a_used_service
from tests.waiting import wait_until

SECRET = "the-value-that-nobody-may-see"
NEVER_MS = "3600000"
UNITS = {"seconds": "s", "bytes": "By"}


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A collector that answers, and no variable of OpenTelemetry but its address."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    with receiving() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        sending.resource.cache_clear()
        yield receiver
        sending.resource.cache_clear()


def samples_of(found: list[Metric]) -> dict[str, float]:
    """What was received, as the samples of a scrape."""
    told: dict[str, float] = {}
    for metric in found:
        if metric.HasField("histogram"):
            for point in metric.histogram.data_points:
                labels = {each.key: each.value.string_value for each in point.attributes}
                total = 0
                ends = [*map(str, point.explicit_bounds), "+Inf"]
                for end, count in zip(ends, point.bucket_counts, strict=True):
                    total += count
                    told[name_of(f"{metric.name}_bucket", {**labels, "le": end})] = total
                told[name_of(f"{metric.name}_count", labels)] = point.count
                told[name_of(f"{metric.name}_sum", labels)] = point.sum
        else:
            is_sum = metric.HasField("sum")
            for number in metric.sum.data_points if is_sum else metric.gauge.data_points:
                labels = {each.key: each.value.string_value for each in number.attributes}
                is_whole = number.WhichOneof("value") == "as_int"
                value = number.as_int if is_whole else number.as_double
                told[name_of(metric.name + "_total" * is_sum, labels)] = value
    return told


def name_of(name: str, labels: dict[str, str]) -> str:
    """A sample's name in the text of a scrape."""
    inside = ",".join(f'{key}="{text}"' for key, text in sorted(labels.items()))
    return f"{name}{{{inside}}}" if labels else name


async def test_what_is_sent_is_what_is_scraped(
    collector: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limits: Limits
) -> None:
    """Every sample of `/metrics` of a service that was used, with its value; and nothing else."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", NEVER_MS)
    async with serving_a_used_service(tmp_path, limits) as served:
        with metrics.sent("tests", served.app.state.metrics.collect):
            told = await scraped(served, "blackboard_")
        await wait_until(lambda: has(collector, 1))
    [(about, found)] = collector.metrics
    received = samples_of(found)
    assert received.keys() == told.keys()
    moving = re.compile("lag_seconds|disk_free|charged|archive|sweeper|loop|epochs")
    fixed = {name for name in told if not moving.search(name)}
    assert len(fixed) > 100
    assert {n: received[n] for n in fixed} == pytest.approx({n: told[n] for n in fixed})
    assert received["blackboard_commits_total"] > 2
    assert received['blackboard_requests_total{method="restore",outcome="ok"}'] == 1
    assert about["service.name"] == "tests"
    assert about["service.instance.id"]
    for metric in found:
        assert metric.unit == UNITS.get(metric.name.rpartition("_")[2], ""), metric.name
        assert metric.description
        check_times(metric)


def check_times(metric: Metric) -> None:
    """Numbers that only grow do so from a beginning, and have no smallest or largest that we would
    have to invent."""
    cumulative = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
    if metric.HasField("gauge"):
        return
    data = metric.histogram if metric.HasField("histogram") else metric.sum
    assert data.aggregation_temporality == cumulative
    for point in data.data_points:
        assert 0 < point.start_time_unix_nano <= point.time_unix_nano
    for point in metric.histogram.data_points:
        assert not point.HasField("min")
        assert not point.HasField("max")
        assert math.isclose(sum(point.bucket_counts), point.count)


async def has(collector: Receiver, exports: int) -> bool:
    """Whether so many exports of metrics have come."""
    return len(collector.metrics) >= exports


async def test_metrics_are_sent_again_and_again(
    collector: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each time with the numbers of that moment."""
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", "20")
    async with (
        Service(await SqliteStore.at(tmp_path, "memory")) as service,
        serving(service) as served,
    ):
        board = Client(service.link(access.operator())).board("main")
        with metrics.sent("tests", served.app.state.metrics.collect):
            await wait_until(lambda: has(collector, 2))
            before = samples_of(collector.metrics[-1][1])["blackboard_commits_total"]
            await board.put("public/plan", SECRET)

            async def is_counted() -> bool:
                now = samples_of(collector.metrics[-1][1])["blackboard_commits_total"]
                return now == before + 1

            await wait_until(is_counted)
    assert SECRET.encode() not in collector.raw


async def test_one_collection_waits_while_a_collector_hangs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And commits do not; what comes later are the newest numbers, not those in between."""
    hold = threading.Event()
    monkeypatch.setenv("OTEL_METRIC_EXPORT_INTERVAL", NEVER_MS)
    with receiving(hold=hold) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        async with (
            Service(await SqliteStore.at(tmp_path, "memory")) as service,
            serving(service) as served,
        ):
            board = Client(service.link(access.operator())).board("main")
            sender = metrics.MetricSender("tests", served.app.state.metrics.collect, 5)
            sender.start()
            await wait_until(lambda: is_held(collector))
            for number in range(200):
                await board.put("public/plan", number)
            sender.close()
            hold.set()
            await wait_until(lambda: has(collector, 2))
            commits = samples_of(collector.metrics[-1][1])["blackboard_commits_total"]
            assert commits == service.statistics().commits
    assert len(collector.metrics) == 2


async def is_held(collector: Receiver) -> bool:
    """Whether an export has come, and waits for its answer."""
    return collector.held > 0


@pytest.mark.parametrize(
    ("environ", "sent", "field"),
    [
        ({}, {"TRACES", "METRICS", "LOGS"}, ""),
        ({"OTEL_SDK_DISABLED": "true"}, set(), ""),
        ({"OTEL_METRICS_EXPORTER": "none"}, {"TRACES", "LOGS"}, ""),
        ({"OTEL_METRICS_EXPORTER": "prometheus"}, {"TRACES", "LOGS"}, ""),
        ({"OTEL_METRICS_EXPORTER": "otlp, prometheus"}, {"TRACES", "METRICS", "LOGS"}, ""),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_LOGS_EXPORTER": ""}, {"METRICS", "LOGS"}, ""),
        ({"OTEL_LOGS_EXPORTER": "console"}, set(), "OTEL_LOGS_EXPORTER"),
        ({"OTEL_TRACES_EXPORTER": "prometheus"}, set(), "OTEL_TRACES_EXPORTER"),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, set(), "OTEL_EXPORTER_OTLP_PROTOCOL"),
        (
            {
                "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
                "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL": "http/json",
            },
            set(),
            "OTEL_EXPORTER_OTLP_LOGS_PROTOCOL",
        ),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "soon"}, set(), "OTEL_METRIC_EXPORT_INTERVAL"),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "0"}, set(), "OTEL_METRIC_EXPORT_INTERVAL"),
    ],
)
def test_the_standard_variables_decide_what_is_sent(
    environ: dict[str, str], sent: set[str], field: str
) -> None:
    """What cannot be done is refused at the start, by the name of the variable."""
    if field:
        with pytest.raises(InvalidRequest) as refused:
            sending.check(environ)
        assert refused.value.field == field
    else:
        sending.check(environ)
        assert {str(signal) for signal in Signal if sending.is_sent(signal, environ)} == sent


def test_where_signals_go() -> None:
    assert sending.address_of(Signal.LOGS, {}) == "http://localhost:4318/v1/logs"
    base = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://c.example/otlp/"}
    assert sending.address_of(Signal.METRICS, base) == "https://c.example/otlp/v1/metrics"
    own = {**base, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://t.example/in"}
    assert sending.address_of(Signal.TRACES, own) == "http://t.example/in"


@pytest.mark.usefixtures("collector")
def test_a_name_that_variables_give_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-1,team=red")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "boards")
    about = sending.resource("blackboard").attributes
    named = [about[key] for key in ("service.name", "service.instance.id", "team")]
    assert named == ["boards", "pod-1", "red"]


# --- logs -----------------------------------------------------------------------------------------

ours = logging.getLogger("blackboard.server.tests")


@pytest.fixture
def traced() -> Iterator[None]:
    """Spans, on a provider of the program's own."""
    telemetry.start("tests", TracerProvider())
    yield
    telemetry.stop()


async def are_there(collector: Receiver, count: int) -> bool:
    """Whether so many lines have come."""
    return len(collector.lines) >= count


@pytest.mark.usefixtures("traced")
async def test_a_line_carries_the_ids_of_its_trace_and_no_value(
    collector: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an error the code, the class and the places; of what other libraries say, the first
    line."""
    monkeypatch.setenv("OTEL_BLRP_SCHEDULE_DELAY", "10")
    with logs.sent("tests"):
        with telemetry.serving("restore", "main", "ada"):
            ours.warning("board %s: %s, %d left", "main", ValueError(SECRET), 3)
            traceparent = telemetry.traceparent()
            line = JsonFormatter().format(ours.makeRecord("blackboard", 30, "", 0, "x", (), None))
        try:
            raise Conflict("public/plan", 3, 7, SECRET, current=SECRET)
        except Conflict:
            ours.exception("a connection failed")
        logging.getLogger("asyncio").error("Task failed\nfuture: <%s>", SECRET)
        logging.getLogger("urllib3.connectionpool").error("about the sending itself")
        ours.error("x" * TELEMETRY_LOG_CHARACTERS_MAX + "y")
        await wait_until(lambda: are_there(collector, 4))
    [foreign] = [line for line in collector.lines if line.logger == "asyncio"]
    about, failed, long = [line for line in collector.lines if line is not foreign]
    _, trace_id, span_id, _ = traceparent.split("-")
    assert (about.trace_id, about.span_id) == (trace_id, span_id)
    assert json.loads(line)["trace_id"] == trace_id
    assert json.loads(line)["span_id"] == span_id
    assert about.body == "board main: ValueError, 3 left"
    assert (about.logger, about.severity) == ("blackboard.server.tests", "WARNING")
    assert about.resource["service.name"] == "tests"
    assert failed.trace_id == failed.span_id == ""
    assert failed.body == "a connection failed"
    assert failed.attributes["exception.type"] == "conflict"
    assert "test_telemetry_sent.py" in failed.attributes["exception.stacktrace"]
    assert foreign.body == "Task failed"
    assert set(long.body) == {"x"}
    assert len(long.body) == TELEMETRY_LOG_CHARACTERS_MAX
    assert SECRET.encode() not in collector.raw


async def test_a_line_that_cannot_be_formatted_harms_nobody(
    collector: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ours or of another library; those after it are sent."""
    monkeypatch.setenv("OTEL_BLRP_SCHEDULE_DELAY", "10")
    monkeypatch.setattr(logging, "raiseExceptions", False)
    with logs.sent("tests"):
        for name in ("blackboard.server.tests", "another"):
            root_only = logging.getLogger(name)
            root_only.handle(root_only.makeRecord(name, 30, "", 0, "%d left", ("x",), None))
        ours.warning("the last one")
        await wait_until(lambda: are_there(collector, 1))
    assert [line.body for line in collector.lines] == ["the last one"]


async def test_lines_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector that hangs gets TELEMETRY_QUEUE_MAX of them later, beside those of the export
    that hung; writing them took no turn of it."""
    hold = threading.Event()
    with receiving(hold=hold) as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_BLRP_SCHEDULE_DELAY", "10")
        with logs.sent("tests"):
            ours.warning("the first one")
            await wait_until(lambda: is_held(collector))
            for number in range(2 * TELEMETRY_QUEUE_MAX):
                ours.warning("line %d", number)
            assert not collector.lines
            hold.set()
            await wait_until(lambda: are_there(collector, 1 + TELEMETRY_QUEUE_MAX))
            ours.warning("the last one")

            async def is_over() -> bool:
                return collector.lines[-1].body == "the last one"

            await wait_until(is_over)
        assert len(collector.lines) == 1 + TELEMETRY_QUEUE_MAX + 1
