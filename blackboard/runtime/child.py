"""The process of one agent: `python -m blackboard.runtime.child ORDER`, started by processes.py.

SIGTERM (or the end of its standard input, when its parent is gone) stops it properly: the current
step is finished, or abandoned after the grace period, the identity is released, and the exit code
is 0. It is 75 if the board could not be reached, and 1 if a step calls `sys.exit`, which nobody
asked for. Without its parent it is killed if it does not stop in time.
"""

import asyncio
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from operator import attrgetter
from typing import Any

from blackboard.client.remote.link import connect
from blackboard.errors import InvalidRequest, Unavailable
from blackboard.limits import DEFAULT
from blackboard.runtime.agent import Agent
from blackboard.runtime.processes import Order, rest_line
from blackboard.runtime.supervisor import (
    AWAY_CODE,
    RestartPolicy,
    Supervisor,
    ended_by_signals,
)


def agent_of(order: Order) -> Agent[Any]:
    """The requested agent. Errors: InvalidRequest when the target is not a class of agents."""
    module, _, name = order.target.partition(":")
    kind = attrgetter(name)(import_module(module))
    if not (isinstance(kind, type) and issubclass(kind, Agent)):
        raise InvalidRequest(field="target", reason=f"{order.target} is no class of agents")
    agent: Agent[Any] = kind(order.name)
    return agent


async def _live(order: Order) -> int:
    agent = agent_of(order)
    async with connect(order.url, agent=order.name) as client:
        life = Supervisor(agent, client.board(order.board), RestartPolicy(**order.policy))
        if order.rests is not None:
            life.on_rest = partial(_tell, order.rests, life)
        loop = asyncio.get_running_loop()
        with ended_by_signals(life):
            await loop.connect_read_pipe(lambda: _Starter(life.stop), sys.stdin)
            return (await life.run()).exit_code


def _tell(pipe: int, life: Supervisor) -> None:
    """Report to the parent process what the agent waits for; ignored if the parent is gone."""
    with suppress(OSError):
        os.write(pipe, rest_line(life.rest))


class _Starter(asyncio.Protocol):
    """The pipe that only the parent holds: the only event on it is its end."""

    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone = gone

    def connection_lost(self, error: Exception | None) -> None:
        """The parent is gone."""
        self._gone()


def _end_with_parent(order: Order) -> None:
    """Kill this process when its parent is gone and it has not stopped in time, as the parent would
    have done: a step that blocks the event loop lets nothing else end it."""
    grace_ms = RestartPolicy(**order.policy).grace_ms + DEFAULT.client.finish_timeout_ms

    def wait() -> None:
        select.select([sys.stdin], [], [])  # nothing is ever written to it: this is its end
        time.sleep(grace_ms / 1000)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="end with the parent", daemon=True).start()


def main(order: str) -> int:
    """Run the agent of an order; returns the exit code."""
    try:
        return asyncio.run(_live(Order.model_validate_json(order)))
    except Unavailable as error:  # no crash of the agent, which has not begun
        sys.stderr.write(f"{error}\n")
        return AWAY_CODE
    except SystemExit as error:  # of a step: a crash, whatever its code says
        sys.stderr.write(f"its own code ended it: SystemExit: {error.code}\n")
        return 1


if __name__ == "__main__":
    # Before the agent's module is imported: that may block, and must not outlive the parent.
    _end_with_parent(Order.model_validate_json(sys.argv[1]))
    sys.exit(main(sys.argv[1]))
