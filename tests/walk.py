"""Walks a reader's way through a page: literally, in an empty directory.

Every block with a title is a thing to do, in order:

    ```python title="a.py"             save this file
    ```sh title="Terminal 1"           type these lines at the prompt of that terminal, one by one
    ```text title="Terminal 1, type"   type this where a program asks
    ```text title="Terminal 1 shows"   what stands there since the last that was typed
    ```text title="The page: Feed"     what stands in that view (of a board: `Feed of cheaper`)
    ```text output                     below the others: what then stands in that terminal
    ![...](name.png)                   a picture of the page, as it is now

`...` in what is promised stands for anything, as in doctest; on a line of its own, for any lines.
Every command has to end with 0, but where an error, or a kill, is part of what is promised. At the
end of a page nothing runs any more but what a block "shows" as it runs.
"""

import codecs
import os
import pty
import re
import select
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fcntl import ioctl
from pathlib import Path
from typing import Protocol

from tests.acceptance.shell import kill_session
from tests.snippets import Block, blocks
from tests.source_tree import Source

PATIENCE_S = 120.0
"""How long a promise may take, on a machine that does other things."""
ROWS, COLUMNS = 40, 110
PROMPT = "\x1b]133;D;"
"""What a shell writes before a prompt, followed by the exit code: a mark that terminals know."""
_PROMPTED = re.compile(rf"{re.escape(PROMPT)}\d+\x07")
_FAILS = re.compile(r"^error: .*\n(?:  .*\n)*\Z|Killed", re.MULTILINE)
"""What is promised of a command that fails: an error at the end, or that it was killed."""
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
_PICTURE = re.compile(r"^!\[[^\]]*\]\((\w+)\.png\)$", re.MULTILINE)
_PLACE = re.compile(r"(Terminal \d)(, type| shows)?")
_VIEW = re.compile(r"The page: (\w+)(?: of (\S+))?")


def pattern(promised: str) -> re.Pattern[str]:
    """What matches the text that a page promises, and nothing else."""
    lines = promised.rstrip().splitlines()
    parts = [
        r"(?:.*\n)*" if line == "..." else re.escape(line.rstrip()).replace(r"\.\.\.", ".*") + r"\n"
        for line in lines
    ]
    return re.compile("".join(parts))


def plain(shown: str) -> str:
    """What a terminal shows, as a page prints it: without colours, marks and spaces at ends."""
    text = _CONTROL.sub("", re.sub(rf"{re.escape(PROMPT)}\d+\x07", "", shown))
    kept = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    return kept.strip("\n") + "\n"


class Terminal:
    """A shell at a terminal of its own. Nothing in it is a fake: job control, echo, Ctrl-C."""

    def __init__(
        self, folder: Path, environ: Mapping[str, str], patience_s: float = PATIENCE_S
    ) -> None:
        self._patience_s = patience_s
        self._leader, follower = pty.openpty()
        ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc", "--noediting", "-i"],
            stdin=follower,
            stdout=follower,
            stderr=follower,
            cwd=folder,
            env={**environ, "PS1": "", "PROMPT_COMMAND": f"printf '{PROMPT}%s\\007' $?"},
            preexec_fn=_controls_the_terminal,
            start_new_session=True,
        )
        os.close(follower)
        self._text, self._came = "", threading.Condition()
        self.may_fail = False
        self.runs_on = False
        """Whether what was typed last was shown while it runs."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.at_prompt()

    def at_prompt(self) -> str:
        """Wait for the prompt; returns what stands above it, from the last line typed on.

        Errors: AssertionError if that command failed, and nobody said that it would.
        """
        text = self.until(_PROMPTED.search, "the prompt")
        code = text.rpartition(PROMPT)[2].partition("\x07")[0]
        assert self.may_fail or code == "0", f"exit code {code}:\n{plain(text)}"
        assert "Traceback" not in text, plain(text)
        return plain(text.partition("\n")[2])

    def type(self, line: str, *, may_fail: bool) -> None:
        """Type a line: to the shell, or to the program that runs in it."""
        with self._came:
            self._text, self.may_fail, self.runs_on = "", may_fail, False
        os.write(self._leader, f"{line}\n".encode())

    def shows(self, promised: str, above: str = "") -> None:
        """Wait until that stands there: `above`, and what is below the last line that was typed.
        Errors: AssertionError."""
        wanted = pattern(promised)
        self.until(
            lambda text: wanted.fullmatch(plain(above + plain(text.partition("\n")[2]))),
            f"{promised}\nabove the last line: {above!r}" if above else promised,
        )

    def until(self, holds: "Check", what: str) -> str:
        """Wait until what came since the last line that was typed is as wanted; returns it."""
        with self._came:
            if not self._came.wait_for(lambda: holds(self._text), self._patience_s):
                raise AssertionError(f"promised:\n{what}\nshown:\n{plain(self._text)}")
            return self._text

    def close(self) -> None:
        """Kill all that was started in it."""
        kill_session(self.shell.pid)
        self.shell.wait()
        self._reader.join()
        os.close(self._leader)

    def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        while True:
            try:
                select.select([self._leader], [], [])
                data = os.read(self._leader, 1 << 16)
            except OSError:  # its last process has ended
                return
            with self._came:
                self._text += decoder.decode(data)
                self._came.notify_all()


class Check(Protocol):
    """Whether a text is as wanted."""

    def __call__(self, text: str, /) -> object:
        """True, or what stands for it."""


def _controls_the_terminal() -> None:
    ioctl(0, termios.TIOCSCTTY, 0)


class Page(Protocol):
    """The page of the service, in a browser."""

    def shows(self, view: str, board: str | None, lines: list[str]) -> None:
        """Go to a view, and wait until each of the lines stands there."""

    def picture(self, name: str) -> None:
        """Take a picture of it."""


@dataclass
class Walk:
    """A reader with terminals and perhaps a page. `spent_s` is the time of each heading."""

    folder: Path
    environ: Mapping[str, str]
    port: int
    page: Page | None = None
    patience_s: float = PATIENCE_S
    terminals: dict[str, Terminal] = field(default_factory=dict)
    spent_s: dict[str, float] = field(default_factory=dict)

    def before(self, line: str) -> None:
        """Called before a line is typed into a shell."""

    def after(self, block: Block) -> None:
        """Called after a block."""

    def go(self, source: Source) -> None:
        """Do all that the page says. Errors: AssertionError with the line of the page."""
        pictures = iter(sorted(_lines_of_pictures(source)))
        waiting = next(pictures, None)
        for block in blocks(source):
            while waiting is not None and waiting[0] < block.line:
                self._look(waiting[1])
                waiting = next(pictures, None)
            began = time.monotonic()
            with _at_line(source, block.line):
                self.do(block)
            heading = _heading_of(source, block.line)
            self.spent_s[heading] = self.spent_s.get(heading, 0) + time.monotonic() - began
        if waiting is not None:
            self._look(waiting[1])
        with _at_line(source, source.text.count("\n")):
            for terminal in self.terminals.values():
                if not terminal.runs_on:
                    terminal.at_prompt()

    def do(self, block: Block) -> None:
        """Do what one block says."""
        if place := _PLACE.fullmatch(block.title):
            self._at(self.terminal(place[1]), place[2], block)
        elif view := _VIEW.fullmatch(block.title):
            if self.page is not None:
                self.page.shows(view[1], view[2], block.text.splitlines())
        else:
            assert block.title, "what is to be done with this block?"
            (self.folder / block.title).write_text(block.text)
        self.after(block)

    def terminal(self, name: str) -> Terminal:
        """The terminal of that name, opened when it is first used."""
        if name not in self.terminals:
            self.terminals[name] = Terminal(self.folder, self.environ, self.patience_s)
        return self.terminals[name]

    def close(self) -> None:
        """End all that was started."""
        for terminal in self.terminals.values():
            terminal.close()

    def _at(self, terminal: Terminal, how: str | None, block: Block) -> None:
        if how == " shows":
            terminal.shows(self._here(block.text))
            terminal.may_fail |= _FAILS.search(block.text) is not None
            terminal.runs_on = True
            return
        above, may_fail = "", _FAILS.search(block.output or "") is not None
        for number, line in enumerate(block.text.replace("\\\n", "").splitlines()):
            if how is None:
                before = terminal.at_prompt()
                above += before if number else ""
                self.before(line)
            terminal.type(line, may_fail=may_fail)
        if block.output is not None:
            terminal.shows(self._here(block.output), above)

    def _look(self, name: str) -> None:
        if self.page is not None:
            self.page.picture(name)

    def _here(self, text: str) -> str:
        return text.replace("7420", str(self.port))


@contextmanager
def _at_line(source: Source, line: int) -> Iterator[None]:
    """Says at which line of a page something is not as promised."""
    try:
        yield
    except AssertionError as error:
        raise AssertionError(f"{source.path}:{line}: {error}") from error


def _lines_of_pictures(source: Source) -> Iterator[tuple[int, str]]:
    for found in _PICTURE.finditer(source.text):
        yield source.text.count("\n", 0, found.start()) + 1, found[1]


def _heading_of(source: Source, line: int) -> str:
    above = source.text.splitlines()[:line]
    return next((text.lstrip("# ") for text in reversed(above) if text.startswith("#")), "")
