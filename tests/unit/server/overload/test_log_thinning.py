"""Lines of the log that anybody can cause."""

import logging
from collections.abc import Iterator

import pytest

from blackboard.limits import DEFAULT
from blackboard.server.overload.log_thinning import Thinned

ALIKE_MAX = DEFAULT.security.audit_alike_max
KINDS_MAX = DEFAULT.security.audit_kinds_max


class Lines(logging.Handler):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one."""
        self.lines.append(record.getMessage())


@pytest.fixture
def logger() -> logging.Logger:
    found = logging.getLogger("tests.thinned")
    found.setLevel("INFO")
    found.propagate = False
    return found


@pytest.fixture
def written(logger: logging.Logger) -> Iterator[Lines]:
    handler = Lines()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


async def test_the_first_are_written_and_the_rest_counted(
    logger: logging.Logger, written: Lines
) -> None:
    """Up to so many, whatever they were given; another kind has a count of its own."""
    with Thinned(logger):
        for number in range(ALIKE_MAX + 2_000):
            logger.warning("bad request from %d", number)
        logger.warning("something else")
        assert len(written.lines) == ALIKE_MAX + 1
    assert written.lines[-1] == "2000 more in a minute: bad request from %d"
    logger.warning("bad request from %d", 1)
    assert len(written.lines) == ALIKE_MAX + 3


async def test_a_new_window_begins(logger: logging.Logger, written: Lines) -> None:
    """The count is logged, and lines are written again."""
    thinned = Thinned(logger)
    with thinned:
        for _ in range(2):
            for _ in range(ALIKE_MAX + 1):
                logger.warning("bad request")
            thinned.tell()
    assert written.lines.count("bad request") == 2 * ALIKE_MAX
    assert written.lines.count("1 more in a minute: bad request") == 2


async def test_kinds_are_bounded_too(logger: logging.Logger, written: Lines) -> None:
    with Thinned(logger):
        for number in range(KINDS_MAX + 50):
            logger.warning(f"kind {number}")
        assert len(written.lines) == KINDS_MAX
    assert written.lines[-1] == "50 more in a minute: (several)"


async def test_what_broke_is_always_written(logger: logging.Logger, written: Lines) -> None:
    """Its traceback is what somebody has to read."""
    with Thinned(logger):
        for _ in range(ALIKE_MAX + 5):
            try:
                raise ValueError
            except ValueError:
                logger.exception("it broke")
    assert len(written.lines) == ALIKE_MAX + 5
