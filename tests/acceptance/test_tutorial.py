"""The tutorial, done as it stands: its files, its commands, its answers, its page, its kill -9.

After a change of the page, `make pictures` takes its pictures again.
"""

import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser import PATIENCE_MS, SCREENSHOTS, chromium
from tests.ports import free_port
from tests.snippets import blocks
from tests.source_tree import ROOT, Source
from tests.walk import Terminal, Walk, pattern, plain
from tests.wheels import wheels_in

PAGE = Source("docs/tutorial.md", (ROOT / "docs/tutorial.md").read_text(encoding="utf-8"))
PICTURE_BYTES_MAX = 200_000
SHOWS = """
words => [document.querySelector('#app').textContent, document.querySelector('#app').innerText]
    .some(text => text.replace(/\\s+/g, ' ').includes(words))
"""
pytestmark = pytest.mark.skipif(os.name == "nt", reason="there are no pseudo-terminals")


@dataclass
class Browser:
    """The page in Chromium, opened by the link that the service prints."""

    page: Any
    terminal: Terminal
    errors: list[str] = field(default_factory=list)
    is_open: bool = False

    def shows(self, view: str, board: str | None, lines: list[str]) -> None:
        """What a reader would click, and look for."""
        if not self.is_open:
            self._open()
        if board is not None:
            self.page.reload()
            self.page.wait_for_selector(f".board option:text-is('{board}')", state="attached")
            self.page.select_option(".board select", board)
        self.page.click(f"nav >> text={view}")
        for line in lines:
            self.page.wait_for_function(SHOWS, arg=line)

    def picture(self, name: str) -> None:
        """As a file that `make pictures` copies."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")
        assert 5_000 < (SCREENSHOTS / f"{name}.png").stat().st_size < PICTURE_BYTES_MAX

    def _open(self) -> None:
        shown = self.terminal.until(lambda text: "#once=" in text, "the link of the page")
        line = next(line for line in plain(shown).splitlines() if "#once=" in line)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.goto(line.split()[1])
        self.page.wait_for_selector("nav")
        self.is_open = True


class Reader(Walk):
    """A reader whose pip installs the wheels of this checkout, without a network."""

    def before(self, line: str) -> None:
        """Packages that ours need are there already: those of this environment."""
        if line.startswith("pip install"):
            (packages,) = (self.folder / ".venv").glob("lib/python*/site-packages")
            (packages / "others.pth").write_text(str(others(self.folder.parent / "others")))
        if self.page is None and "blackboard serve" in line:
            self.page = self.with_page(self.terminal("Terminal 1"))

    def with_page(self, terminal: Terminal) -> Browser | None:
        """The page, where there is a browser."""
        try:
            path = chromium()
        except pytest.skip.Exception:
            return None
        from playwright.sync_api import sync_playwright

        driver = STACK.enter_context(sync_playwright())
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        STACK.callback(browser.close)
        return Browser(browser.new_page(viewport={"width": 1120, "height": 460}), terminal)


STACK = ExitStack()


def others(folder: Path) -> Path:
    """A folder with every installed package but ours."""
    folder.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not entry.name.startswith(("agent_blackboard", "_agent_blackboard", "pip")):
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """Somebody in an empty directory, with a home of their own."""
    port = free_port()
    home, folder = tmp_path / "home", tmp_path / "team"
    home.mkdir()
    folder.mkdir()
    unset = ("BLACKBOARD", "PYTHON", "VIRTUAL_ENV", "XDG_", "PIP_")
    environ = {name: text for name, text in os.environ.items() if not name.startswith(unset)}
    environ |= {
        "HOME": str(home),
        "PATH": f"{Path(sys.executable).parent}:{environ['PATH']}",
        "BLACKBOARD_PORT": str(port),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(wheels_in(tmp_path / "wheels")),
        "VIRTUAL_ENV_DISABLE_PROMPT": "1",
        "TERM": "xterm-256color",
    }
    made = Reader(folder, environ, port)
    with STACK:
        yield made
        made.close()


def test_the_tutorial_does_what_it_says(
    reader: Reader, record_property: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each file, command, answer and promise, from an empty directory to the last picture."""
    try:
        reader.go(PAGE)
    finally:
        told = "".join(f"{seconds:6.1f} s  {title}\n" for title, seconds in reader.spent_s.items())
        total = f"{sum(reader.spent_s.values()):6.1f} s  {PAGE.path} in all\n"
        record_property("tutorial", told + total)
        with capsys.disabled():
            sys.stdout.write(f"\n{told}{total}")
    if reader.page is None:
        pytest.skip("walked to its end, but NOT CHECKED on the page: there is no browser")
    assert isinstance(reader.page, Browser)
    assert reader.page.errors == []


def test_the_tutorial_leaves_nothing_to_the_reader() -> None:
    """Each block is walked, every file of it is run, and what stands there is short."""
    found = blocks(PAGE)
    assert [block.line for block in found if not block.title] == []
    typed = "\n".join(block.text for block in found if block.language == "sh")
    files = [block.title for block in found if block.title.endswith(".py")]
    assert len(files) == 4
    assert all(f"python {name}" in typed for name in files)
    assert all(len(block.text.splitlines()) <= 40 for block in found)
    assert "kill -9" in typed


@pytest.mark.parametrize(
    ("promised", "shown", "holds"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\n", "a\nb\n", False),
        ("a\nb\n", "a\n", False),
        ("a...\n", "a, seven\n", True),
        ("a...\n", "b, seven\n", False),
        ("...\nz\n", "x\ny\nz\n", True),
        ("...\nz\n", "x\ny\n", False),
        ("a [x]*\n", "a [x]*\n", True),
    ],
)
def test_promises_are_compared(promised: str, shown: str, holds: bool) -> None:
    """Whole lines, from the first to the last."""
    assert bool(pattern(promised).fullmatch(shown)) == holds
