"""What a notebook shows of our objects: tables of HTML, in which nothing runs."""

import html
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import blackboard.sync
from blackboard.limits import TABLE_CELL_CHARACTERS_MAX, TABLE_ROWS_MAX
from blackboard.tables import moment, table, text_of
from tests.acceptance.shell import TIMEOUT_S
from tests.snippets import blocks
from tests.source_tree import ROOT, Source

RUN = """
import sys, nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient
page = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(page, km=AsyncKernelManager(transport="ipc")).execute()
nbformat.write(page, sys.argv[1])
"""
"""Runs a notebook in its place. The kernel's sockets are files: of the ports that Jupyter chooses
some are taken until it binds them."""
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\"'&\u202e"


class _Elements(HTMLParser):
    """Collects the names of elements, and the text."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append(tag)
        assert {name for name, _ in attrs} <= {"style", "colspan"}

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def shown(thing: Any) -> list[str]:
    """The texts of what a notebook shows of it."""
    page = _Elements()
    page.feed(thing._repr_html_())
    page.close()
    assert set(page.found) <= {"table", "caption", "tr", "th", "td"}
    return page.text


@pytest.fixture
def client(tmp_path: Path) -> Iterator[blackboard.sync.Client]:
    """A client over an empty data directory."""
    with blackboard.sync.open(tmp_path / "data") as found:
        yield found


def test_everything_that_a_call_returns_is_a_table(client: blackboard.sync.Client) -> None:
    """A board, its entries and log, its checkpoints, differences and history, and a watch."""
    board = client.board("expansion")
    board.put("public/valuation", {"usd_bn": 2900}, note="first guess")
    taken = board.checkpoint("good", note="all agree")
    board.put("public/valuation", {"usd_bn": 29})
    board.put("public/gone", 1)
    board.delete("public/gone")
    assert {"public/valuation", '{"usd_bn": 29}'} <= set(shown(board))
    assert "board expansion, as operator: revision 5" in " ".join(shown(board))
    assert '{"usd_bn": 29}' in shown(board.list("public/**"))
    assert {"put", "public/valuation"} <= set(shown(board.log()[0]))
    assert "first guess" in shown(board.log()[0])[0]
    assert {"good", "all agree"} <= set(shown(taken))
    assert {"good", "all agree"} <= set(shown(board.checkpoints()))
    assert {"good", "agent"} <= set(shown(board.show("good")))
    assert "usd_bn: 2900 -> 29" in shown(board.diff("good"))
    assert "usd_bn: 2900 -> 29" in shown(next(iter(board.diff("good"))))
    assert {'{"usd_bn": 29}', '{"usd_bn": 2900}'} <= set(shown(board.history("public/valuation")))
    assert "(removed)" in shown(board.history("public/gone"))
    assert "removed by" in shown(board.history("public/gone")[0])
    assert "public/valuation" in shown(board.history("public/valuation")[0])
    with board.watch("public/**", snapshot=True) as watch:
        assert {"public/valuation", '{"usd_bn": 29}'} <= set(shown(watch))


def test_a_board_that_cannot_be_read_shows_why(client: blackboard.sync.Client) -> None:
    """A notebook shows it at the end of a cell, which must not fail."""
    board = client.board("expansion")
    client.close()
    assert "error" in shown(board)


async def test_a_board_without_a_loop_of_its_own_shows_its_user(tmp_path: Path) -> None:
    """Reading it takes an await, which showing cannot do."""
    async with blackboard.open(tmp_path / "data") as client:
        assert shown(client.board("expansion").as_agent("ada"))[-2:] == ["ada", "ada"]


def test_what_is_on_a_board_cannot_run(client: blackboard.sync.Client) -> None:
    """Values and notes are text, whatever they look like."""
    board = client.board("expansion")
    board.put("public/a", HOSTILE, note=HOSTILE)
    board.checkpoint("good", note=HOSTILE)
    assert HOSTILE in shown(board)
    for thing in (board.checkpoints(), board.log()[0], board.history("public/a")):
        assert HOSTILE in "".join(shown(thing))


def test_a_table_has_an_end() -> None:
    """Rows and characters at their limits, and one more."""
    whole = table("all", ("n",), ((n,) for n in range(TABLE_ROWS_MAX)))
    assert (whole.count("<tr>"), "and more" in whole) == (TABLE_ROWS_MAX + 1, False)
    cut = table("all", ("n",), ((n,) for n in range(TABLE_ROWS_MAX + 1)))
    assert (cut.count("<tr>"), "and more" in cut) == (TABLE_ROWS_MAX + 2, True)
    for length, end in ((TABLE_CELL_CHARACTERS_MAX, "x"), (TABLE_CELL_CHARACTERS_MAX + 1, "…")):
        [cell] = re.findall("<td[^>]*>(.*?)</td>", table("", ("a",), [("x" * length,)]))
        assert html.unescape(cell) == ("x" * length)[:TABLE_CELL_CHARACTERS_MAX] + end.strip("x")


def test_any_value_and_any_time_have_a_text() -> None:
    """Bytes, numbers that JSON does not have, and times without a date."""
    assert text_of(b"\x00") == "b'\\x00'"
    assert text_of(float("nan")) == "NaN"
    assert moment(0) == "1970-01-01 00:00:00"
    assert moment(2**53) == str(2**53)


def test_the_page_runs_as_a_notebook(tmp_path: Path) -> None:
    """Its cells in a kernel, as Jupyter runs them; those that end in an object show a table."""
    page = ROOT / "docs" / "howto" / "notebooks.md"
    cells = [block for block in blocks(Source(page.name, page.read_text("utf-8"))) if block.runs]
    file = tmp_path / "page.ipynb"
    file.write_text(notebook([cell.text for cell in cells]), encoding="utf-8")
    # In a process of its own: its libraries give warnings, which are errors here.
    command = [sys.executable, "-c", RUN, str(file)]
    with tempfile.TemporaryDirectory(dir="/tmp") as short:  # a socket's path has 107 characters
        environ = {**os.environ, "IPYTHONDIR": short, "TMPDIR": short}
        done = subprocess.run(
            command, cwd=tmp_path, env=environ, capture_output=True, timeout=TIMEOUT_S, check=False
        )
    assert done.returncode == 0, done.stderr.decode()
    tables = []
    for cell, ran in zip(cells, json.loads(file.read_text("utf-8"))["cells"], strict=True):
        printed = "".join("".join(out["text"]) for out in ran["outputs"] if "text" in out)
        assert printed.strip() == (cell.output or "").strip()
        tables += ["".join(out["data"]["text/html"]) for out in ran["outputs"] if "data" in out]
    assert len(tables) == 3
    assert "board expansion, as operator" in tables[0]
    assert "usd_bn: 2900 -&gt; 29" in tables[1]
    assert "history of public/valuation" in tables[2]


def notebook(cells: list[str]) -> str:
    """A notebook with these cells, as Jupyter stores it."""
    made: list[dict[str, Any]] = [
        {"cell_type": "code", "id": f"cell-{number}", "source": text, "metadata": {}}
        | {"outputs": [], "execution_count": None}
        for number, text in enumerate(cells)
    ]
    kernel = {"name": "python3", "display_name": "Python", "language": "python"}
    return json.dumps(
        {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": kernel}, "cells": made}
    )
