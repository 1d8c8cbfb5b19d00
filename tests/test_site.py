"""The documentation as a site: built without a network, and nothing in it is dead or lost.

Each thing that the check looks for is planted into a small site, and found there.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.source_tree import ROOT
from tools import llms, site, site_check, site_map

MARKS = re.compile(r"^```\w* (?!title=).*$", re.MULTILINE)
ALONE = ["unshare", "--map-root-user", "--net"]
"""Runs a command without any network, where the kernel lets us."""


def alone() -> list[str]:
    """How a command is run without a network, or nothing where that cannot be done."""
    tried = shutil.which(ALONE[0]) and subprocess.run([*ALONE, "true"], check=False).returncode == 0
    return ALONE if tried else []


def test_the_site_is_built_and_nothing_in_it_is_dead(tmp_path: Path) -> None:
    """The documentation of this checkout, without a network: pages, search, and what models read.

    One test, because one worker is to build it once.
    """
    built = site.build(ROOT, tmp_path, alone())
    mapped = [site_map.staged(page.path) for page in site_map.pages(ROOT)]
    assert [path for path in mapped if not (built / path).with_suffix(".html").is_file()] == []
    index = (built / "search.json").read_text("utf-8")
    assert "howto/locks.html" in index
    assert "Why the fence matters" in index
    list_of_pages = (built / "llms.txt").read_text("utf-8")
    assert re.findall(r"^- \[.+?\]\((.+?)\)", list_of_pages, re.MULTILINE) == mapped
    assert [path for path in mapped if not (built / path).is_file()] == []
    full = (built / "llms-full.txt").read_text("utf-8")
    assert 100_000 < len(full.encode()) < llms.FULL_BYTES_MAX
    assert "# Locks and presence" in full
    assert not MARKS.search(full)


GOOD = """# Good

![A picture](picture.svg)

[Other](other.md#there)

```python no-run title="plan.py"
x = 1
```
"""
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg"/>'


def small(root: Path, good: str = GOOD, **more: str) -> Path:
    """A repository with two pages, or with others; returns its root."""
    pages = {
        "index": "# Home\n\n## Pages\n\n- [Good](good.md): it\n- [Other](other.md): too\n",
        "good": good,
        "other": "# Other\n\n## There\n\nEnd.\n",
    }
    (root / "docs").mkdir()
    for name, text in {**pages, **more}.items():
        (root / "docs" / f"{name}.md").write_text(text, "utf-8")
    (root / "docs/picture.svg").write_text(PICTURE, "utf-8")
    return root


def test_a_good_site_is_built(tmp_path: Path) -> None:
    page = site.build(small(tmp_path), tmp_path / "out") / "good.html"
    text = page.read_text("utf-8")
    assert "no-run" not in text
    assert '<span class="filename">plan.py</span>' in text


PLANTED = {
    "a link to no page": (GOOD + "\n[Gone](gone.md)\n", "good.md:11:8"),
    "a link to no heading": (GOOD + "\n[Gone](other.md#gone)\n", "anchor does not exist"),
    "a picture that is not there": (GOOD + "\n![Gone](gone.png)\n", "gone.png"),
    "a picture of another host": (
        GOOD + "\n![Far](https://example.org/far.png)\n",
        "good.html: fetches https://example.org/far.png",
    ),
    "a list that is shown as it was typed": (GOOD + "\nSome:\n- one\n- two\n", "good.html: shows"),
}


@pytest.mark.parametrize(("text", "problem"), PLANTED.values(), ids=PLANTED.keys())
def test_what_is_wrong_with_a_page_is_found(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(site.Refused, match=re.escape(problem)):
        site.build(small(tmp_path, text), tmp_path / "out")


def test_a_page_in_no_navigation_is_found(tmp_path: Path) -> None:
    """Even if another page links to it."""
    root = small(tmp_path, GOOD + "\n[Lost](lost.md)\n", lost="# Lost\n")
    with pytest.raises(site.Refused, match=r"lost\.html: in no navigation"):
        site.build(root, tmp_path / "out")


def test_a_navigation_to_no_page_is_found(tmp_path: Path) -> None:
    root = small(tmp_path, index="# Home\n\n## Pages\n\n- [Gone](gone.md): it\n")
    with pytest.raises(site.Refused):
        site.build(root, tmp_path / "out")


def test_what_is_wrong_with_a_file_is_found(tmp_path: Path) -> None:
    """Whatever has written it: styles, scripts, places in the page itself."""
    (tmp_path / "index.html").write_text(
        "<link rel=stylesheet href=//a.example/x.css><script src=https://b.example/></script>"
        "<link rel=canonical href=https://c.example/><a href=https://d.example/>d</a>"
        "<nav><a href='#top'>no</a></nav><article><p>**bold**</p><h2>1. One</h2></article>"
    )
    (tmp_path / "x.css").write_text("a { background: url( 'https://e.example/y.png' ) }")
    assert site_check.problems(tmp_path) == [
        "index.html: fetches //a.example/x.css",
        "index.html: fetches https://b.example/",
        "index.html: no place #top",
        "index.html: shows '**bold**'",
        "x.css: fetches https://e.example/y.png",
    ]
