"""Programs as processes that need not import `blackboard`: each is a fork of one that has.

A program is still a process, with streams, a folder, an environment and an exit code of its own;
signals end it. It is spared what takes most of its time: an interpreter's start, and the imports.
"""

import atexit
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Self

PROGRAM = Path(__file__).with_name("prepared_child.py")
NUMBER = struct.Struct("!i")
"""How process ids and exit codes cross the socket."""
_SPAWNS = bool(os.environ.get("BLACKBOARD_TEST_SPAWN"))
_WORD = re.compile(r"[a-z][\w.-]*")
_OPTION = re.compile(r'^--?[a-z][\w-]*|"\w+"(?=:)|\w+(?=://)')
"""An option, a setting in JSON, and the kind of an address."""
_spawned: set[frozenset[str]] = set()
READ_LATE = ("BB_", "BLACKBOARD_", "FAILING_", "OPENAI_", "PYTEST_", "TRACE")
"""Variables that change from test to test, and that nothing reads while it is imported."""


def form_of(arguments: Sequence[str]) -> frozenset[str]:
    """What decides which modules a program needs: its first two words, and its options."""
    words = [each for each in arguments[:2] if _WORD.fullmatch(each)]
    return frozenset([*words, *(part for each in arguments for part in _OPTION.findall(each))])


def spawns(arguments: Sequence[str]) -> bool:
    """Whether a program gets an interpreter of its own, as a user's does.

    With BLACKBOARD_TEST_SPAWN (`make test-all`) it does when it is first run in a form: that shows
    what a fork hides, a module that only another program imports. Once more would show no more.
    """
    form = form_of(arguments)
    if not _SPAWNS or form in _spawned:
        return False
    _spawned.add(form)
    return True


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
            streams = [stream.fileno() for stream in (into, out, err)]
            with self.start(["blackboard", *arguments], streams, folder, environ) as process:
                try:
                    code = process.wait(timeout_s)
                except TimeoutError:
                    os.kill(process.pid, signal.SIGKILL)
                    raise
            return subprocess.CompletedProcess(list(arguments), code, _all(out), _all(err))

    def start(
        self,
        command: Sequence[str],
        streams: Sequence[int],
        folder: Path,
        environ: Mapping[str, str],
        *,
        leads: bool = False,
    ) -> "Forked":
        """Start `python -m` with `command`: a module, and its arguments.

        `streams` are its standard input, output and error. With `leads` it begins a session.
        """
        request = json.dumps([list(command), str(folder), dict(environ), leads]).encode()
        mine, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(self._requests, [b"a program"], [theirs.fileno(), *streams])
            mine.sendall(request)
            mine.shutdown(socket.SHUT_WR)
            return Forked(mine)
        except BaseException:
            mine.close()
            raise


class Forked:
    """A program that runs. It is the child of another process, which says here how it ended."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        """Can be read when it has ended."""
        self.pid = _number(connection)
        self.returncode: int | None = None
        """As that of `subprocess.Popen`; None until somebody looked after its end."""

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end; returns its exit code. Raises `TimeoutError` after `timeout_s`."""
        if self.returncode is None:
            self.connection.settimeout(timeout_s)
            self.returncode = _number(self.connection)
        return self.returncode

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        with suppress(BlockingIOError):
            return self.wait(0)
        return None

    def close(self) -> None:
        """Stop listening. The program runs on, if it does."""
        self.connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def prepared(environ: Mapping[str, str]) -> Prepared:
    """That for programs with this environment: libraries read it while they are imported."""
    early = {name: text for name, text in environ.items() if not name.startswith(READ_LATE)}
    return _prepared(tuple(sorted(early.items())))


@cache
def _prepared(environ: tuple[tuple[str, str], ...]) -> Prepared:
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
