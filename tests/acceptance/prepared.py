"""Commands of `blackboard` as processes that need not import it: each is a fork of one that has.

A command is still a process, with streams, a folder, an environment and an exit code of its own.
It is spared what takes most of its time: an interpreter's start, and the imports.
"""

import atexit
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

PROGRAM = Path(__file__).with_name("prepared_child.py")
NUMBER = struct.Struct("!i")
"""How process ids and exit codes cross the socket."""


class Prepared:
    """A process that has imported `blackboard`, and forks for each command. It ends with this one.

    Several threads may run commands at a time.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", PROGRAM, str(theirs.fileno())],
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def close(self) -> None:
        """End it. No command runs any more."""
        self._requests.close()
        self._process.wait()

    def run(
        self,
        arguments: Sequence[str],
        given: bytes,
        folder: Path,
        environ: Mapping[str, str],
        timeout_s: float,
    ) -> "subprocess.CompletedProcess[bytes]":
        """Run `blackboard` to its end, with `given` as its standard input.

        Raises `TimeoutError` after `timeout_s`; the command was killed then.
        """
        with TemporaryFile() as into, TemporaryFile() as out, TemporaryFile() as err:
            into.write(given)
            into.seek(0)
            request = json.dumps([list(arguments), str(folder), dict(environ)]).encode()
            code = self._end_of(request, [into, out, err], timeout_s)
            return subprocess.CompletedProcess(list(arguments), code, _all(out), _all(err))

    def _end_of(self, request: bytes, streams: list[IO[bytes]], timeout_s: float) -> int:
        mine, theirs = socket.socketpair()
        with mine:
            with theirs:
                files = [theirs.fileno(), *(stream.fileno() for stream in streams)]
                socket.send_fds(self._requests, [b"a command"], files)
            mine.settimeout(timeout_s)
            mine.sendall(request)
            mine.shutdown(socket.SHUT_WR)
            process = _number(mine)
            try:
                return _number(mine)
            except TimeoutError:
                os.kill(process, signal.SIGKILL)
                raise


@cache
def prepared(environ: tuple[tuple[str, str], ...]) -> Prepared:
    """That for commands with this environment: libraries read it while they are imported."""
    made = Prepared(dict(environ))
    atexit.register(made.close)
    return made


def _number(connection: socket.socket) -> int:
    data = connection.recv(NUMBER.size, socket.MSG_WAITALL)
    number: int = NUMBER.unpack(data)[0]
    return number


def _all(stream: IO[bytes]) -> bytes:
    stream.seek(0)
    return stream.read()
