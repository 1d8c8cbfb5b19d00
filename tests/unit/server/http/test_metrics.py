"""Every counter reaches the text that is scraped, and counts what a real service did."""

import re
from pathlib import Path

import pytest

from blackboard.client.client import Client
from blackboard.core import access
from blackboard.engines.base import VoteCounts
from blackboard.engines.disk import DiskSpace
from blackboard.engines.redis.redlock import LockMasters
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.limits import Limits
from blackboard.server.archiver import ArchiveStatistics
from blackboard.server.backups.follow import BackupStatistics
from blackboard.server.host import ServiceStatistics, SweeperStatistics
from blackboard.server.http.metrics import Metrics, Traffic
from blackboard.server.overload.charges import ChargeStatistics
from blackboard.server.service import Service
from tests.lock_masters import lock_masters
from tests.lowered import lowered
from tests.servers import ask
from tests.serving import Served, scraped, serving, serving_a_used_service
from tests.source_tree import ROOT
from tests.waiting import wait_until

HOUR_MS = 3_600_000
RESTORED = 'blackboard_epochs_total{cause="restore"}'
EXPIRED = "blackboard_sweeper_expired_total"
OF_HISTOGRAMS = re.compile(r"^\w+_(bucket|count|sum)[ {]")


def told_of(traffic: Traffic, statistics: ServiceStatistics) -> set[str]:
    """The lines that are scraped, but for histograms."""
    metrics = Metrics(traffic, statistics=lambda: statistics, sockets=lambda: (26, 27))
    lines = [line for line in metrics.text().decode().splitlines() if not line.startswith("#")]
    return {line for line in lines if not OF_HISTOGRAMS.search(line)}


def histograms_of(statistics: ServiceStatistics) -> dict[str, float]:
    """The samples of histograms, as they are scraped."""
    metrics = Metrics(Traffic(), statistics=lambda: statistics, sockets=lambda: (0, 0))
    lines = [line for line in metrics.text().decode().splitlines() if OF_HISTOGRAMS.search(line)]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def busy() -> tuple[Traffic, ServiceStatistics]:
    """A different number for every counter, without archive and lock masters."""
    traffic = Traffic(
        frames_in=11, frames_out=12, bytes_in=13, bytes_out=14, connections=15, protocol_errors=16
    )
    traffic.count("read", "ok")
    traffic.count("read", "ok")
    traffic.count("", "invalid_request")
    traffic.turned_away[401] += 17
    statistics = ServiceStatistics(
        boards=21,
        watchers=22,
        commits=23,
        batches=24,
        refused=25,
        lag_ms=28,
        backlog_bytes=29,
        charges=ChargeStatistics(charged_ms=33_000, in_debt=34, waiting=35, refused=36),
        sweeper=SweeperStatistics(rounds=30, expired=31, refused=32),
        started_s=37,
        lost_boards=38,
        disk=DiskSpace(39, 40),
    )
    return traffic, statistics


def test_every_counter_is_exported() -> None:
    """Under its name, with its value."""
    assert told_of(*busy()) == {
        "blackboard_boards 21.0",
        "blackboard_watchers 22.0",
        "blackboard_commits_total 23.0",
        "blackboard_batches_total 24.0",
        "blackboard_commits_refused_total 25.0",
        "blackboard_loop_lag_seconds 0.028",
        "blackboard_backlog_bytes 29.0",
        "blackboard_charged_seconds_total 33.0",
        "blackboard_accounts_in_debt 34.0",
        "blackboard_requests_in_debt 35.0",
        "blackboard_debts_refused_total 36.0",
        "blackboard_started_seconds 37.0",
        "blackboard_lost_boards 38.0",
        "blackboard_disk_free_bytes 39.0",
        "blackboard_disk_bytes 40.0",
        "blackboard_sweeper_rounds_total 30.0",
        "blackboard_sweeper_expired_total 31.0",
        "blackboard_sweeper_refused_total 32.0",
        "blackboard_connections 26.0",
        "blackboard_waiting_bytes 27.0",
        "blackboard_connections_opened_total 15.0",
        "blackboard_frames_received_total 11.0",
        "blackboard_frames_sent_total 12.0",
        "blackboard_received_bytes_total 13.0",
        "blackboard_sent_bytes_total 14.0",
        "blackboard_protocol_errors_total 16.0",
        'blackboard_requests_total{method="read",outcome="ok"} 2.0',
        'blackboard_requests_total{method="",outcome="invalid_request"} 1.0',
        'blackboard_handshakes_refused_total{status="401"} 17.0',
    }


def with_all_parts() -> tuple[Traffic, ServiceStatistics]:
    """The same, of a service with an archive, a backup and lock masters."""
    traffic, plain = busy()
    archive = ArchiveStatistics(
        boards=1, behind=41, failing=42, appended=43, lag_ms=44_000, epochs={"restore": 48}
    )
    votes = VoteCounts(granted=45, refused=46, unreachable=47)
    counts = (plain.boards, plain.watchers, plain.commits, plain.batches, plain.refused)
    backup = BackupStatistics(lag_ms=49_000, failing=True, entries=50, bytes=51)
    return traffic, ServiceStatistics(
        *counts, archive=archive, votes=votes, disk=plain.disk, backup=backup
    )


def test_archive_and_lock_masters_are_listed_where_there_are_some() -> None:
    told = told_of(*with_all_parts())
    assert {line for line in told if re.search("_(archive|votes|epochs)_", line)} == {
        "blackboard_archive_behind 41.0",
        "blackboard_archive_failing 42.0",
        "blackboard_archive_appended_total 43.0",
        "blackboard_archive_lag_seconds 44.0",
        'blackboard_epochs_total{cause="restore"} 48.0',
        'blackboard_epochs_total{cause="engine"} 0.0',
        'blackboard_epochs_total{cause="recover"} 0.0',
        'blackboard_lock_votes_total{answer="granted"} 45.0',
        'blackboard_lock_votes_total{answer="refused"} 46.0',
        'blackboard_lock_votes_total{answer="unreachable"} 47.0',
    }


def test_the_page_of_metrics_has_each_of_them() -> None:
    """And no metric that the service does not have."""
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(blackboard_\w+)", page, re.MULTILINE)
    traffic, statistics = with_all_parts()
    statistics.latencies.requests["read"].observe(0)
    samples = [*told_of(traffic, statistics), *histograms_of(statistics)]
    told = {re.sub(r"(_bucket|_sum|_count)?[ {].*|(_bucket|_sum|_count)$", "", s) for s in samples}
    assert set(listed) == told


def test_a_duration_is_counted_in_its_bucket_and_in_all_above() -> None:
    """A bound belongs to the bucket that it ends; what is longer than all is in the last one."""
    _, statistics = busy()
    for duration_s in (0.0, 0.001, 0.002, 31.0):
        statistics.latencies.commits.observe(duration_s)
    statistics.latencies.requests["restore"].observe(0.3)
    told = histograms_of(statistics)
    upto = {
        name[name.index('"') + 1 : -2]: value
        for name, value in told.items()
        if name.startswith("blackboard_commit_seconds_bucket")
    }
    assert (upto["0.0005"], upto["0.001"], upto["0.0025"], upto["30.0"], upto["+Inf"]) == (
        1,
        2,
        3,
        3,
        4,
    )
    assert told["blackboard_commit_seconds_count"] == 4
    assert told["blackboard_commit_seconds_sum"] == pytest.approx(31.003)
    assert told['blackboard_request_seconds_bucket{le="0.25",method="restore"}'] == 0
    assert told['blackboard_request_seconds_bucket{le="0.5",method="restore"}'] == 1


async def test_a_service_counts_how_long_things_took(tmp_path: Path, limits: Limits) -> None:
    """Each commit once, a refused one too; each engine call, request, delivery and restore."""
    async with serving_a_used_service(tmp_path, limits) as served:
        told = await scraped(served, "blackboard_")
        statistics = served.service.statistics()

        async def is_counted() -> bool:
            return (await scraped(served, "blackboard_epochs"))[RESTORED] == 1

        await wait_until(is_counted)
    assert told["blackboard_commit_seconds_count"] == statistics.commits > 2
    assert told["blackboard_engine_call_seconds_count"] == statistics.batches
    assert told["blackboard_delivery_seconds_count"] >= 1
    assert told['blackboard_request_seconds_count{method="restore"}'] == 1
    assert told['blackboard_request_seconds_sum{method="restore"}'] > 0


async def test_a_service_counts_what_its_sweeper_does(tmp_path: Path, limits: Limits) -> None:
    """An entry that expires is removed once, and counted once."""
    async with (
        Service(await SqliteStore.at(tmp_path, "memory"), limits=limits) as service,
        serving(service) as served,
    ):
        board = Client(service.link(access.operator())).board("main")
        await board.put("public/brief", 1, ttl_ms=1)

        async def is_counted() -> bool:
            told = await scraped(served, "blackboard_sweeper")
            return bool(told[EXPIRED] and told["blackboard_sweeper_rounds_total"])

        await wait_until(is_counted)
        told = await scraped(served, "blackboard_sweeper")
        assert (told[EXPIRED], told["blackboard_sweeper_refused_total"]) == (1, 0)


async def test_a_service_counts_the_answers_of_its_lock_masters(
    tmp_path: Path, redis_binary: Path
) -> None:
    """All three grant; then one has promised its vote elsewhere; then another one is dead."""
    # A busy machine may be slow to answer: only the dead master must count as unreachable.
    patient = lowered(lock_master_timeout_ms=20_000)
    store = await SqliteStore.at(tmp_path, "memory")
    async with lock_masters(redis_binary, 3) as servers:
        masters = LockMasters([server.url for server in servers], patient)
        async with Service(store, lock_masters=masters) as service, serving(service) as served:
            board = Client(service.link(access.operator())).board("main")
            assert await votes_of(served) == (0, 0, 0)
            async with board.lock("public/a", ttl_ms=HOUR_MS):
                assert await votes_of(served) == (3, 0, 0)
            await ask(servers[1], "SET", "redlock:main/public/b", "somebody else")
            async with board.lock("public/b", ttl_ms=HOUR_MS):
                assert await votes_of(served) == (5, 1, 0)
            await servers[0].kill()
            async with board.lock("public/c", ttl_ms=HOUR_MS):
                assert await votes_of(served) == (7, 1, 1)


async def votes_of(served: Served) -> tuple[float, ...]:
    """How many votes were granted, were refused, and could not be asked for."""
    told = await scraped(served, "blackboard_lock_votes_total")
    answers = ("granted", "refused", "unreachable")
    return tuple(told[f'blackboard_lock_votes_total{{answer="{answer}"}}'] for answer in answers)
