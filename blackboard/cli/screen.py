"""The terminal: where words go, and what may not reach it. NO_COLOR is respected (by Rich)."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.console import Console
from rich.text import Text

_STEERING: Final = {
    code: f"\\u{code:04x}"
    for codes in (range(0x20), range(0x7F, 0xA0), range(0x200E, 0x2010), range(0x2028, 0x202F))
    for code in (*codes, *range(0x2066, 0x206A))
}
"""Control characters of both kinds, line separators, and marks that change the direction."""


class _Answers(Console):
    """Rich ends the process with 1 when its reader is gone; exits.py has a code for that."""

    def on_broken_pipe(self) -> None:
        """Let it be known."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console() -> Console:
    """Where answers go."""
    return _Answers(highlight=False)


def say(text: str) -> None:
    """A note for people, on stderr."""
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(text, style="dim"))


def counted(number: float | str, noun: str) -> str:
    """So many of what has a regular plural: "1 key", "2 keys", "0.5 hours" as text."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


@contextmanager
def busy(what: str) -> Iterator[None]:
    """While the block runs, tell a terminal that something is being done."""
    out = Console(stderr=True, highlight=False)
    if not out.is_terminal:
        yield
        return
    with out.status(Text(what, style="dim")):
        yield


def say_error(message: str, fix: str) -> None:
    """What is wrong and what to do next, on stderr."""
    err = Console(stderr=True, highlight=False, soft_wrap=True)
    err.print(Text.assemble(("error: ", "bold red"), safe(message)))
    if fix:
        err.print(Text(f"  {safe(fix)}", style="dim"))


def print_examples(lines: str) -> None:
    """Examples below a command's help: `command  # what it does`, one a line."""
    out = console()
    out.print(" [bold]Examples[/bold]")
    for line in lines.splitlines():
        command, _, remark = line.partition("  # ")
        out.print(
            Text.assemble("   ", (command, "cyan"), (f"   # {remark}" if remark else "", "dim")),
            soft_wrap=True,
        )
    out.print()


def safe(text: str) -> str:
    """`text` with what steers a terminal, or turns lines around, made visible.

    Notes and values are written by agents. In JSON the visible form means the same.
    """
    return text.translate(_STEERING)


def shortened(text: str, width: int) -> str:
    """`text` if it has at most `width` characters, else its beginning and an ellipsis."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "\u2026"
