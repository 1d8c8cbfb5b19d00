"""The Grafana board and the alert rules speak of metrics that a real service exports.

Each rule lists its offenders, and is tried on the files with one thing broken. Neither Grafana nor
Prometheus runs here: a parser of PromQL reads each expression, and a service is scraped.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import promql_parser
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.acceptance.shell import Shell
from tests.source_tree import ROOT

ALERTS = (ROOT / "deploy/prometheus/alerts.yaml").read_text(encoding="utf-8")
BOARD = (ROOT / "deploy/grafana/blackboard.json").read_text(encoding="utf-8")
OF_PROMETHEUS = {"instance", "job"}
"""Labels that the scrape adds."""
OF_GRAFANA = {"$__rate_interval": "1m", "$__interval": "1m", "$instance": ".*"}
"""What Grafana puts in for its variables."""

Labels = dict[str, set[str]]
"""The labels of each exported sample, by its name."""


def alert_expressions(text: str) -> Iterator[str]:
    """The expressions of the alert rules."""
    for group in yaml.safe_load(text)["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]


def board_expressions(text: str) -> Iterator[str]:
    """The queries of the board: of panels, annotations and variables."""
    board = json.loads(text)
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield with_values(target["expr"])
    for annotation in board["annotations"]["list"]:
        yield with_values(annotation["expr"])
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((\w+), \w+\)", variable["query"]["query"])
            assert found is not None, variable
            yield found[1]


def with_values(expression: str) -> str:
    """An expression as Prometheus gets it from Grafana."""
    for name, value in OF_GRAFANA.items():
        expression = expression.replace(name, value)
    return expression


def selectors(expression: str) -> list[promql_parser.VectorSelector]:
    """The metrics that an expression selects. Errors: ValueError when it is no PromQL."""
    found: list[promql_parser.VectorSelector] = []

    def visit(node: Any) -> None:
        if isinstance(node, promql_parser.VectorSelector):
            found.append(node)

    promql_parser.walk(promql_parser.parse(expression), visit)
    return found


def unknown(expressions: Iterator[str], exported: Labels) -> list[str]:
    """Metrics and labels of `expressions` that are not exported."""
    missing = []
    for expression in expressions:
        for selector in selectors(expression):
            labels = exported.get(selector.name or "")
            if labels is None:
                missing.append(f"{selector.name}")
                continue
            named = {matcher.name for matcher in selector.matchers.matchers}
            missing += [f"{selector.name}{{{label}}}" for label in named - labels - OF_PROMETHEUS]
    return missing


def unseen(expressions: Iterator[str], scraped: list[Sample]) -> list[str]:
    """Expressions with an `increase` of what a service exports only once it has happened, without
    a look at whether it was there before."""
    return [
        expression
        for expression in expressions
        if "increase(" in expression
        and " offset " not in expression
        and not all(
            any(
                sample.name == selector.name
                and all(sample.labels.get(m.name) == m.value for m in selector.matchers.matchers)
                for sample in scraped
            )
            for selector in selectors(expression)
        )
    ]


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> list[Sample]:
    """What a service exports that has served a commit, a read and a refused handshake."""
    user = Shell(tmp_path_factory.mktemp("user"))
    with user.service() as service:
        user.run("set", "public/plan", "1")
        user.run("get", "public/plan")
        url = f"http://127.0.0.1:{service.port}"
        with httpx.Client(trust_env=False, timeout=60) as http:
            upgrade = {
                "Upgrade": "websocket",
                "Connection": "Upgrade",
                "Sec-WebSocket-Version": "13",
                "Sec-WebSocket-Protocol": "blackboard.v1+json",
                "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==",
                "Authorization": "Bearer nobody",
            }
            assert http.get(f"{url}/v1", headers=upgrade).status_code == 401
            text = http.get(f"{url}/metrics").text
    return [sample for family in text_string_to_metric_families(text) for sample in family.samples]


@pytest.fixture(scope="module")
def exported(scraped: list[Sample]) -> Labels:
    """The labels of these."""
    found: Labels = {}
    for sample in scraped:
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def test_alerts_speak_of_what_is_exported(exported: Labels) -> None:
    assert unknown(alert_expressions(ALERTS), exported) == []


def test_the_board_speaks_of_what_is_exported(exported: Labels) -> None:
    assert unknown(board_expressions(BOARD), exported) == []


def test_a_misspelt_metric_or_label_is_found(exported: Labels) -> None:
    wrong = ALERTS.replace("blackboard_archive_lag_seconds", "blackboard_archive_lag_second")
    assert unknown(alert_expressions(wrong), exported) == ["blackboard_archive_lag_second"]
    wrong = ALERTS.replace('{cause="engine"}', '{why="engine"}')
    assert unknown(alert_expressions(wrong), exported) == ["blackboard_epochs_total{why}"]
    wrong = BOARD.replace("blackboard_disk_bytes", "blackboard_disk_byte")
    assert unknown(board_expressions(wrong), exported) == ["blackboard_disk_byte"]


def test_an_alert_sees_the_first_time_of_what_may_happen(scraped: list[Sample]) -> None:
    """Prometheus counts how much a series grew since its first sample."""
    assert unseen(alert_expressions(ALERTS), scraped) == []
    wrong = ALERTS.replace(" offset 15m", "")
    assert len(unseen(alert_expressions(wrong), scraped)) == 1


def test_what_is_no_promql_is_found() -> None:
    with pytest.raises(ValueError, match="inside brackets"):
        selectors("rate(blackboard_commits_total[5m)")


def test_each_alert_says_how_bad_it_is() -> None:
    """And each name is given once."""
    rules = [rule for group in yaml.safe_load(ALERTS)["groups"] for rule in group["rules"]]
    assert len({rule["alert"] for rule in rules}) == len(rules)
    for rule in rules:
        assert rule["labels"]["severity"] in ("critical", "warning", "info"), rule
        assert rule["annotations"]["summary"], rule


def test_the_panels_of_the_board_do_not_overlap() -> None:
    """Each has an id and a place of its own, in 24 columns, and its data source is the variable."""
    panels = json.loads(BOARD)["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
        assert panel.get("datasource", {"uid": "${datasource}"})["uid"] == "${datasource}"
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_every_alert_is_in_the_documentation() -> None:
    page = Path(ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(Blackboard\w+)`", page))
    assert named == set(re.findall(r"alert: (\w+)", ALERTS))
