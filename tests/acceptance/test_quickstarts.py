"""The quickstarts, followed word for word in an empty folder by a user with no configuration."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.shell import Shell
from tests.ports import free_port
from tests.snippets import blocks
from tests.source_tree import Source, sources
from tests.walk import Walk

PAGES = sources("docs/quickstart", suffix=".md")
RUNS = '```sh title="Terminal 1"\n{}\n```\n'
READ_LINE = '```text title="Terminal 1, type"\nb\n```\n'
SHOWS_B = '```text title="Terminal 1 shows"\nb\n```\n'
OUTPUT = "```text output\n{}\n```\n"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name == "nt", reason="there are no pseudo-terminals"),
]


@pytest.fixture
def walk(tmp_path: Path) -> Iterator[Walk]:
    """A reader with Blackboard installed and an empty board."""
    port = free_port()
    walk = Walk(tmp_path, {**Shell(tmp_path).environ, "BLACKBOARD_PORT": str(port)}, port)
    yield walk
    walk.close()


@pytest.mark.parametrize("page", PAGES, ids=[Path(page.path).stem for page in PAGES])
def test_a_quickstart_does_what_it_says(page: Source, walk: Walk) -> None:
    """It has a title for every block, and all that is typed shows what it promises."""
    assert sum(block.title.startswith("Terminal") for block in blocks(page)) >= 4
    walk.go(page)


@pytest.mark.parametrize(
    "text",
    [
        RUNS.format("echo a; cat") + OUTPUT.format("a") + READ_LINE + SHOWS_B,
        RUNS.format("echo a \\\n  b") + OUTPUT.format("a b"),
        RUNS.format("echo 'error: a'; false") + OUTPUT.format("error: a"),
        RUNS.format("sh -c 'kill -9 $$'") + OUTPUT.format("...Killed..."),
    ],
    ids=["shows", "two lines", "fails", "killed"],
)
def test_a_promise_that_is_kept(text: str, walk: Walk) -> None:
    walk.patience_s = 30.0
    walk.go(Source("p.md", text))


@pytest.mark.parametrize(
    "text",
    [
        RUNS.format("echo a") + OUTPUT.format("b"),
        RUNS.format("false"),
        RUNS.format("false") + RUNS.format("true"),
        RUNS.format("echo a; false") + OUTPUT.format("a"),
        RUNS.format("echo 'error: a'; echo b; false") + OUTPUT.format("error: a\nb"),
        RUNS.format("echo Traceback"),
        RUNS.format("cat"),
        RUNS.format("read x") + SHOWS_B,
        "```python\nprint(1)\n```\n",
        "```sh\ntrue\n```\n",
    ],
    ids=[
        "another output",
        "fails",
        "fails early",
        "fails after its output",
        "fails after an error that is not the end",
        "traceback",
        "never ends",
        "never comes",
        "file without a name",
        "commands without a terminal",
    ],
)
def test_a_promise_that_is_broken_is_noticed(text: str, walk: Walk) -> None:
    """With the line of the page."""
    walk.patience_s = 1.0
    with pytest.raises(AssertionError, match=r"^p\.md:\d+: "):
        walk.go(Source("p.md", text))
