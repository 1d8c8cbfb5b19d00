"""The map of the documentation: docs/index.md, the one place that says which pages there are.

Each item of a list there that begins with a link is a page, with what it is about; `##` and `###`
are the sections. The site takes its navigation from it, llms.txt its list, and a test its account
of pages that nobody would find.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

MAP: Final = "docs/index.md"
_HEADING: Final = re.compile(r"(##|###) (.+)")
_ITEM: Final = re.compile(r"(?:-|\d+\.) \[([^\]]+)\]\(([^)#]+)\)(?:: (.+))?")


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its title in the navigation, its path in the repository, what it is about."""

    title: str
    path: str
    about: str


@dataclass(slots=True)
class Section:
    """A heading of the map, the pages below it, and the sections within it."""

    title: str
    pages: list[Page] = field(default_factory=list)
    parts: list[Self] = field(default_factory=list)

    def walk(self) -> Iterator[Page]:
        """Its pages, then those of its parts."""
        yield from self.pages
        for part in self.parts:
            yield from part.walk()


def sections(root: Path) -> list[Section]:
    """The sections of the map in the repository at `root` that have pages."""
    found: list[Section] = []
    here: Section | None = None
    for line in (root / MAP).read_text("utf-8").splitlines():
        if heading := _HEADING.fullmatch(line):
            here = Section(heading[2])
            (found if heading[1] == "##" else found[-1].parts).append(here)
        elif here is not None and (item := _ITEM.fullmatch(line)):
            here.pages.append(Page(item[1], _from_the_top(item[2]), item[3] or ""))
    for section in found:
        section.parts = [part for part in section.parts if part.pages]
    return [section for section in found if any(section.walk())]


def pages(root: Path) -> list[Page]:
    """Every page of the map, in its order; the map itself is not among them."""
    return [page for section in sections(root) for page in section.walk()]


def _from_the_top(link: str) -> str:
    """The path in the repository of what the map links to."""
    return link.removeprefix("../") if link.startswith("../") else f"docs/{link}"


def staged(path: str) -> str:
    """Where a page of the repository lies in the site: `CHANGELOG.md` becomes `changelog.md`."""
    return path.removeprefix("docs/") if path.startswith("docs/") else path.lower()
