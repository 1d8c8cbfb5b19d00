"""What may reach a terminal, and how many of what."""

import ast
import io
import json
import unicodedata

from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from blackboard.cli import screen
from blackboard.cli.screen import counted, safe, safe_lines
from tests.source_tree import sources

EVERY = "".join(map(chr, range(0x110000)))
JOINERS = "\u200c\u200d"
"""Persian and emoji cannot be written without them."""
SEEN = (
    {*range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD}
    | {*range(0x13430, 0x13440), *range(0x1BCA0, 0x1BCA4), *range(0x1D173, 0x1D17B)}
)  # fmt: skip
"""Characters of format that are signs of a script, or arrange those of one."""


def test_no_character_of_control_or_format_is_left() -> None:
    """Of all that Unicode has, but for those that writing needs."""
    unseen = ("Cc", "Cf", "Zl", "Zp", "Cs")
    left = {ord(c) for c in safe(EVERY) if unicodedata.category(c) in unseen}
    assert left <= SEEN | set(map(ord, JOINERS)), "which of them there are is up to the version"
    assert safe(JOINERS) == JOINERS


def test_what_is_shown_means_the_same_in_json() -> None:
    """So a pipe loses nothing."""
    text = "".join(c for c in EVERY if unicodedata.category(c) != "Cs")
    assert json.loads(safe(json.dumps(text, ensure_ascii=False))) == text


def test_text_with_lines_keeps_them() -> None:
    """And its tabs; a carriage return would write over the line."""
    assert safe_lines("a\tb\r\n\x1b[2Jc") == "a\tb\\u000d\n\\u001b[2Jc"


def test_nothing_gets_through_a_console_whatever_it_is_in() -> None:
    """A table, a panel, markup: only the console's own styles steer the terminal."""
    hostile = "\x1b]0;x\x07\x9b31m\u202ea"
    table = Table("name")
    table.add_row(Text(hostile))
    out = screen.notes()
    out.file = io.StringIO()
    for shown in (hostile, Text(hostile, style="bold red"), table, Panel(hostile), [hostile]):
        out.print(shown)
    told = out.file.getvalue()
    assert not {"\x07", "\x9b", "\u202e"} & set(told)
    assert "\x1b]" not in told


def test_every_word_goes_through_the_screen() -> None:
    """No command prints past it; what `blackboard new` writes is a program of its user."""
    found = []
    ours = [one for one in sources("blackboard/cli") if "first_steps/project" not in str(one.path)]
    for source in ours:
        for node in ast.walk(source.tree):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if called in ("print", "sys.stdout.write", "sys.stderr.write", "Console", "typer.echo"):
                found.append(f"{source.path}: {called}")
    allowed = ["render.py: sys.stdout.write"] * 2 + ["screen.py: sys.stdout.write"]
    allowed += ["screen.py: sys.stderr.write"]
    assert sorted(found) == sorted(f"blackboard/cli/{line}" for line in allowed)


def test_one_of_something_is_not_many() -> None:
    """Numbers before nouns, also those that were written already."""
    assert [counted(number, "key") for number in (0, 1, 2)] == ["0 keys", "1 key", "2 keys"]
    assert [counted(number, "hour") for number in ("1", "0.5")] == ["1 hour", "0.5 hours"]
