"""What tests cost. `pytest -p tests.costs` ends with a line for each file, the dearest first.

Processor time is that of the worker and of the processes that a test started and that have ended.
The rest of a test's time it waited, or others had the processor. Servers that tests share, and
programs that tests/prepared.py starts, are in no line.
"""

import resource
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass

import pytest

_BEGAN = pytest.StashKey[float]()
_PROCESSOR = "processor_s"


@dataclass
class Cost:
    """Of the tests in one file."""

    tests: int = 0
    seconds: float = 0.0
    processor_s: float = 0.0


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Note what the worker had used before."""
    item.stash[_BEGAN] = _used()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add what a phase used to its report, which a worker sends."""
    report = yield
    used = _used()
    setattr(report, _PROCESSOR, used - item.stash.get(_BEGAN, used))
    item.stash[_BEGAN] = used
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the table."""
    costs = defaultdict[str, Cost](Cost)
    for report in (one for reports in terminalreporter.stats.values() for one in reports):
        if hasattr(report, _PROCESSOR):
            cost = costs[report.nodeid.partition("::")[0]]
            cost.tests += report.when == "setup"
            cost.seconds += report.duration
            cost.processor_s += getattr(report, _PROCESSOR)
    terminalreporter.section("costs")
    terminalreporter.write_line("tests  seconds  processor")
    for path, cost in sorted(costs.items(), key=lambda found: -found[1].processor_s):
        line = f"{cost.tests:5}{cost.seconds:9.1f}{cost.processor_s:11.1f}  {path}"
        terminalreporter.write_line(line)


def _used() -> float:
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)
