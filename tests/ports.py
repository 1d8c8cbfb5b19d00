"""Ports for the servers of tests, which stay theirs while they are down.

A port that the kernel picks goes to the next process that asks for one as soon as nobody listens at
it, such as while a server is killed and started again. Where tests run side by side, that happens.
These ports lie below those that the kernel picks from, and each process has a block of its own.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from itertools import cycle

FIRST = 10_000
BLOCK = 100
BLOCKS = 220
"""The kernel's ports begin at 32,768 on Linux, higher elsewhere."""


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens at and no other test process will pick."""
    _, ports = _claimed()
    return next(port for port in ports if _is_free(port))


@cache
def _claimed() -> tuple[socket.socket, Iterator[int]]:
    """The ports of a block, and what claims it: its first port for UDP, held by this process."""
    claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for number in range(BLOCKS):
        first = FIRST + (os.getpid() + number) % BLOCKS * BLOCK
        with suppress(OSError):
            claim.bind(("127.0.0.1", first))
            return claim, cycle(range(first + 1, first + BLOCK))
    raise RuntimeError("every block of ports is claimed")


def _is_free(port: int) -> bool:
    with suppress(OSError), socket.create_server(("127.0.0.1", port)):
        return True
    return False
