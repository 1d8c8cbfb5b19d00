"""How long to wait before something is tried again."""

import random

from blackboard.errors import Overloaded
from blackboard.types import Milliseconds


def pause_s(failure: Exception, usual_ms: Milliseconds) -> float:
    """Seconds until the next attempt after `failure`.

    Whoever was told when to come back waits so long, and up to half as long more; everybody else
    `usual_ms`, shortened by up to half. So those who failed together do not come back together.
    """
    usual = random.uniform(0.5, 1.0) * usual_ms
    if not isinstance(failure, Overloaded):
        return usual / 1000
    return max(usual, random.uniform(1.0, 1.5) * failure.retry_after_ms) / 1000
