"""The terminal: output, and the characters that must not reach it. NO_COLOR is respected (by Rich).

Invariants
- All output of a command goes through here, or through `render.print_raw`.
- Text from agents or services cannot control the terminal or reverse lines: such characters are
  printed as escapes, which mean the same in JSON. Output to a pipe is treated likewise, because a
  pipe often ends at a terminal.
"""

import codecs
import errno
import io
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

_RANGES: Final = (
    (0x00, 0x1F),  # C0: escape, bell, carriage return, ...
    (0x7F, 0x9F),  # delete, and C1: CSI and OSC in one character
    (0xAD, 0xAD),  # soft hyphen
    (0x061C, 0x061C),  # Arabic letter mark
    (0x180E, 0x180E),  # Mongolian vowel separator
    (0x200B, 0x200B),  # zero-width space; its neighbours join letters and emoji, and stay
    (0x200E, 0x200F),  # left-to-right and right-to-left mark
    (0x2028, 0x202E),  # line and paragraph separator, embeddings and overrides
    (0x2060, 0x206F),  # word joiner, isolates, and what they replaced
    (0xD800, 0xDFFF),  # surrogates: no text, and no UTF-8
    (0xFEFF, 0xFEFF),  # zero-width no-break space
    (0xFFF9, 0xFFFB),  # annotations
    (0xE0000, 0xE007F),  # tags: text that nobody sees
)


def _escape(code: int) -> str:
    """As JSON writes it: a surrogate pair beyond U+FFFF."""
    units = chr(code).encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


_STEERING: Final = {
    code: _escape(code) for first, last in _RANGES for code in range(first, last + 1)
}
"""Control and format characters, which are invisible but change how others look."""
_BESIDE_LINES: Final = {code: text for code, text in _STEERING.items() if code != ord("\n")}


class _Answers(Console):
    """A console in which only its own styles control the terminal.

    Rich exits with 1 when its reader is gone; cli/errors.py has a code for that.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As Rich renders it, with control characters made visible."""
        for segment in super().render(renderable, options):
            if segment.control is None:
                shown = segment.text.translate(_BESIDE_LINES)
                yield segment if shown == segment.text else Segment(shown, segment.style)
            else:
                yield segment

    def on_broken_pipe(self) -> None:
        """Raise the error, for cli/errors.py."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class NotWrittenError(OSError):
    """Standard output takes no more: the disk is full, for example. Not: its reader is gone."""


class _Output(io.FileIO):
    """Standard output. Its errors have a type of their own, so that nobody takes them for those of
    another file."""

    def write(self, data: Any) -> int:
        """As of any file."""
        try:
            return super().write(data)
        except BrokenPipeError:
            raise
        except OSError as error:
            raise NotWrittenError(*error.args) from error


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """Instead of characters that the encoding of a stream lacks: their escapes in JSON."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_escape(ord(each)) for each in lacking), error.end


def ready_streams() -> None:
    """Make the three streams usable, however this process was started.

    One that is closed leads to the null device: else a file that is opened later gets its number,
    and with it what is meant for the stream. Standard input then cannot be read.
    """
    codecs.register_error("blackboard.escaped", _escaped)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_WRONLY)
            mode = "w" if number else "r"
            setattr(sys, name, open(handle, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    for name, kind in (("stdout", _Output), ("stderr", io.FileIO)):
        stream = getattr(sys, name)
        # A stream that somebody has put in its place, such as a test, is left alone.
        is_own = stream is getattr(sys, f"__{name}__") and os.name != "nt"
        if is_own and isinstance(stream, io.TextIOWrapper):
            setattr(sys, name, _reopened(stream, kind))


def _reopened(stream: io.TextIOWrapper, kind: type[io.FileIO]) -> io.TextIOWrapper:
    """The same stream, as a file of that kind; its encoding lacks no character."""
    file = kind(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        # Under PYTHONUNBUFFERED each line goes out at once, as the interpreter has it then.
        file if stream.write_through else io.BufferedWriter(file),
        encoding=stream.encoding,
        errors="blackboard.escaped",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def discard_output() -> None:
    """Lead standard output to the null device: the interpreter flushes it once more at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def console() -> Console:
    """The console for answers (stdout)."""
    return _Answers(highlight=False)


def answer(text: str) -> None:
    """Lines of an answer, on stdout."""
    sys.stdout.write(text.translate(_BESIDE_LINES) + "\n")


def answer_error(text: str) -> None:
    """Lines for a program that reads stderr."""
    sys.stderr.write(text.translate(_BESIDE_LINES) + "\n")


def say(text: str) -> None:
    """A note for people, on stderr."""
    notes(soft_wrap=True).print(Text(text, style="dim"))


def notes(*, soft_wrap: bool = False) -> Console:
    """The console for notes (stderr)."""
    return _Answers(stderr=True, highlight=False, soft_wrap=soft_wrap)


def counted(number: float | str, noun: str) -> str:
    """A number with a regular noun: "1 key", "2 keys", "0.5 hours" as text."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}s"


def revision_in_words(revision: int | None) -> str:
    """A revision of a board that was made, which may not have been read."""
    return "a revision that cannot be read now" if revision is None else f"revision {revision}"


@contextmanager
def busy(what: str) -> Iterator[None]:
    """Show on a terminal that something is in progress while the block runs."""
    out = notes()
    if not out.is_terminal:
        yield
        return
    with out.status(Text(what, style="dim")):
        yield


def progress(what: str, total_bytes: int) -> AbstractContextManager[Callable[[int], None]]:
    """Show on a terminal how many bytes of something are done; the block gets what to call with
    their number."""
    from rich.progress import BarColumn, DownloadColumn, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn()
    return _moving(what, total_bytes, columns)


def counting(what: str, unit: str) -> AbstractContextManager[Callable[[int], None]]:
    """Show on a terminal how many of something are done; the block gets what to call with their
    number."""
    from rich.progress import SpinnerColumn, TextColumn

    count = TextColumn("{task.completed} " + unit)
    return _moving(what, None, (SpinnerColumn(), TextColumn("{task.description}"), count))


@contextmanager
def _moving(
    what: str, total: int | None, columns: "Sequence[ProgressColumn]"
) -> Iterator[Callable[[int], None]]:
    from rich.progress import Progress

    with Progress(*columns, console=notes(), disable=not notes().is_terminal) as shown:
        task = shown.add_task(safe(what), total=total)
        yield lambda done: shown.update(task, completed=done)


def say_error(message: str, fix: str) -> None:
    """An error and what to do next, on stderr."""
    err = notes(soft_wrap=True)
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
    """`text` as one line, with control characters made visible.

    Agents write notes and values. In JSON the visible form means the same.
    """
    return text.translate(_STEERING)


def safe_lines(text: str) -> str:
    """As `safe`, for a text that may have several lines, and tabs."""
    return text.translate({**_BESIDE_LINES, ord("\t"): "\t"})


def shortened(text: str, width: int) -> str:
    """`text` if it has at most `width` characters, else its beginning and an ellipsis."""
    return text if len(text) <= width else text[: max(0, width - 1)] + "\u2026"
