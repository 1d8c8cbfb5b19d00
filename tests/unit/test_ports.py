"""The ports that tests give to servers are nobody else's."""

import socket
import subprocess
import sys

from tests.ports import BLOCK, free_port
from tests.source_tree import ROOT

ASK = "from tests.ports import free_port; print(free_port(), flush=True); input()"


def test_a_port_is_given_once_and_not_while_somebody_listens() -> None:
    """The next ones are others, until the block begins again."""
    first = free_port()
    with socket.create_server(("127.0.0.1", first)):
        others = [free_port() for _ in range(2 * BLOCK)]
    assert first not in others
    assert len(set(others[: BLOCK // 2])) == BLOCK // 2
    assert all(port < 32_768 for port in others)


def test_two_processes_have_blocks_of_their_own() -> None:
    """Also when the first one does not listen at its port."""
    ours = free_port()
    command = [sys.executable, "-c", ASK]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = int(other.stdout.readline())
        other.communicate("\n")
    assert theirs // BLOCK != ours // BLOCK
