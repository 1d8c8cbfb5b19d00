"""The command line as a user has it: real processes, their streams, their exit codes."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from typing import IO, Any, Self

from tests.prepared import Forked, prepared, spawns

TIMEOUT_S = 60
COMMAND = (sys.executable, "-m", "blackboard")
PLAIN = re.compile(r"""blackboard(?: [-\w/:.,=@+%]+| '[^']*'| "[^"$`\\]*")*""")
"""A command of ours that means the same without a shell."""


class Shell:
    """Runs `blackboard` with a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        kept = {name: text for name, text in os.environ.items() if "BLACKBOARD" not in name}
        self.environ = {
            **kept,
            "BLACKBOARD_CONFIG_DIR": str(home / "config"),
            "BLACKBOARD_DATA": str(home / "data"),
            "PATH": f"{Path(sys.executable).parent}:{kept['PATH']}",
            "NO_COLOR": "1",
        }

    def run(
        self, *arguments: str, code: int = 0, given: str | bytes = b""
    ) -> "subprocess.CompletedProcess[str]":
        """Run a command to its end, and check its exit code."""
        done = self._ended(arguments, given.encode() if isinstance(given, str) else given)
        out, err = done.stdout.decode(), done.stderr.decode()
        assert done.returncode == code, f"{arguments} ended with {done.returncode}: {out}{err}"
        assert "Traceback" not in err, err
        return subprocess.CompletedProcess(done.args, done.returncode, out, err)

    def _ended(
        self, arguments: tuple[str, ...], given: bytes
    ) -> "subprocess.CompletedProcess[bytes]":
        """The process of a command: a prepared one, unless it gets an interpreter."""
        if spawns(arguments):
            return subprocess.run(
                [*COMMAND, *arguments],
                input=given,
                capture_output=True,
                cwd=self.home,
                env=self.environ,
                timeout=TIMEOUT_S,
                check=False,
            )
        ours = prepared(self.environ)
        return ours.run(arguments, given, self.home, self.environ, TIMEOUT_S)

    def out(self, *arguments: str, given: str | bytes = b"") -> str:
        """What a command that succeeds prints."""
        return self.run(*arguments, given=given).stdout

    def json(self, *arguments: str) -> Any:
        """The document that a command with `--json` prints."""
        return json.loads(self.out(*arguments, "--json"))

    def error(self, *arguments: str, code: int) -> Any:
        """The error that a command with `--json` ends with."""
        return json.loads(self.run(*arguments, "--json", code=code).stderr)["error"]

    @contextmanager
    def start(self, *arguments: str) -> Iterator["Running"]:
        """A command that runs until the block ends."""
        spawned = spawns(arguments)
        starts = self._spawned([*COMMAND, *arguments]) if spawned else self._forked(arguments)
        with starts as running:
            yield running

    @contextmanager
    def script(self, text: str) -> Iterator["Running"]:
        """A line of shell that runs until the block ends.

        It needs no shell if it is a command of ours, and nothing in it is special to a shell.
        """
        arguments = shlex.split(text)[1:] if PLAIN.fullmatch(text) else None
        is_forked = arguments is not None and not spawns(arguments)
        starts = self._forked(arguments or []) if is_forked else self._spawned(["sh", "-c", text])
        with starts as running:
            yield running

    def _spawned(self, command: Sequence[str]) -> "Running":
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.home,
            env=self.environ,
            start_new_session=True,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        return Running(process, process.stdout, process.stderr)

    def _forked(self, arguments: Sequence[str]) -> "Running":
        (out, out_end), (err, err_end) = _pipe(), _pipe()
        with Path(os.devnull).open("rb") as nothing, out_end, err_end:
            process = prepared(self.environ).start(
                ["blackboard", *arguments],
                [stream.fileno() for stream in (nothing, out_end, err_end)],
                self.home,
                self.environ,
                leads=True,
            )
        return Running(process, out, err)

    @contextmanager
    def service(self, *arguments: str, port: int = 0) -> Iterator["Running"]:
        """`blackboard serve`, up."""
        with self.start("serve", "--port", str(port), *arguments) as running:
            running.wait_for("Ctrl-C stops it.")
            yield running


class Running:
    """A process whose output is read line by line as it comes."""

    def __init__(
        self, process: "subprocess.Popen[str] | Forked", out: IO[str], err: IO[str]
    ) -> None:
        self._process = process
        self._streams = (out, err)
        self.lines: list[str] = []
        """What was taken from its standard output so far."""
        self._out: Queue[str] = Queue()
        self._err: Queue[str] = Queue()
        self._readers = [
            threading.Thread(target=_read, args=(stream, queue), daemon=True)
            for stream, queue in ((out, self._out), (err, self._err))
        ]

    def __enter__(self) -> Self:
        for reader in self._readers:
            reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        kill_session(self._process.pid)
        self._process.wait(TIMEOUT_S)
        for reader, stream in zip(self._readers, self._streams, strict=True):
            reader.join(TIMEOUT_S)
            # To close what a thread reads waits for that thread, and no signal ends such a wait.
            assert not reader.is_alive(), "something it has started holds its output"
            stream.close()
        if isinstance(self._process, Forked):
            self._process.close()

    @property
    def url(self) -> str:
        """The address in a service's banner."""
        return next(line.split()[1] for line in self.lines if line.startswith("   url "))

    @property
    def port(self) -> int:
        """The port of that address."""
        return int(self.url.rpartition(":")[2])

    def wait_for(self, text: str) -> str:
        """The next line of standard output that holds `text`."""
        while True:
            line = self._next(self._out, f"{text!r} on stdout")
            self.lines.append(line)
            if text in line:
                return line

    def wait_for_note(self, text: str) -> str:
        """The next line of standard error that holds `text`."""
        while True:
            line = self._next(self._err, f"{text!r} on stderr")
            if text in line:
                return line

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the whole group, as a terminal does."""
        os.killpg(self._process.pid, number)

    def end(self, number: signal.Signals | None = None) -> tuple[int, str, str]:
        """Exit code, and what was not yet taken of stdout and stderr, after `number` was sent."""
        if number is not None:
            self.send(number)
        code = self._process.wait(TIMEOUT_S)
        for reader in self._readers:
            reader.join(TIMEOUT_S)
        return code, _rest(self._out), _rest(self._err)

    def _next(self, queue: "Queue[str]", wanted: str) -> str:
        try:
            return queue.get(timeout=TIMEOUT_S)
        except Empty:
            rest = f"{self.lines}{_rest(self._out)}{_rest(self._err)}"
            raise AssertionError(f"no {wanted}; exit {self._process.poll()}: {rest}") from None


def _pipe() -> tuple[IO[str], IO[bytes]]:
    """Where to read, and where to write."""
    read, write = os.pipe()
    return os.fdopen(read), os.fdopen(write, "wb")


def kill_session(leader: int) -> None:
    """Kill a process and all that it has started, also in process groups of their own.

    Until nobody is found who was not killed before: one may have been started during a look.
    """
    killed: set[int] = set()
    while found := _session(leader) - killed:
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        killed |= found


def _session(leader: int) -> set[int]:
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(ProcessLookupError):
            if os.getsid(int(entry.name)) == leader:
                found.add(int(entry.name))
    return found


def _read(stream: Any, queue: "Queue[str]") -> None:
    for line in stream:
        queue.put(line)


def _rest(queue: "Queue[str]") -> str:
    found = []
    while not queue.empty():
        found.append(queue.get())
    return "".join(found)
