"""Every counter reaches the text that is scraped."""

from blackboard.net.metrics import Metrics, Traffic
from blackboard.service.host import ServiceStatistics


def test_every_counter_is_told() -> None:
    """Under its name, with its value."""
    traffic = Traffic(
        frames_in=11, frames_out=12, bytes_in=13, bytes_out=14, connections=15, protocol_errors=16
    )
    traffic.count("read", "ok")
    traffic.count("read", "ok")
    traffic.count("", "invalid_request")
    traffic.turned_away[401] += 17
    statistics = ServiceStatistics(
        boards=21, watchers=22, commits=23, batches=24, refused=25, lag_ms=28, backlog_bytes=29
    )
    metrics = Metrics(traffic, statistics=lambda: statistics, sockets=lambda: (26, 27))
    told = {line for line in metrics.text().decode().splitlines() if not line.startswith("#")}
    assert told == {
        "blackboard_boards 21.0",
        "blackboard_watchers 22.0",
        "blackboard_commits_total 23.0",
        "blackboard_batches_total 24.0",
        "blackboard_commits_refused_total 25.0",
        "blackboard_loop_lag_seconds 0.028",
        "blackboard_backlog_bytes 29.0",
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
