"""What is wrong with a built site, found in its files: dead links, pages that nothing leads to,
missing pictures, marks of Markdown that were not understood, anything fetched from another host.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_FETCHED: Final = {
    "script": "src",
    "link": "href",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "object": "data",
    "embed": "src",
}
"""The attribute from which a browser fetches, by element. A link to click is none of them."""
_NAMED: Final = {"canonical", "next", "prev", "alternate"}
"""Relations of `link` that name a page and fetch nothing."""
_STYLE_URL: Final = re.compile(r"(?:url\(|@import)\s*[\"']?((?:https?:)?//[^\"')\s]+)")
_MARKDOWN: Final = re.compile(
    r"^(?:[-*] |\d+\. |#{1,6} |\|.*\||```)|\]\([^)]*\)|\*\*\w[^*\n]*\*\*", re.MULTILINE
)
"""A list, heading, table, block, link or bold text that is shown as it was typed."""
_NOT_PROSE: Final = {"code", "pre", "script", "style", "nav", "h1", "h2", "h3", "h4", "h5", "h6"}
_WITHOUT_END: Final = {"br", "hr", "img", "input", "link", "meta", "source", "area", "col", "wbr"}


@dataclass
class Html(HTMLParser):
    """One page as a browser sees it."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    navigation: set[str] = field(default_factory=set)
    """Links within `nav` elements."""
    fetched: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    """The article's text but for code and headings, in pieces."""
    within: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what an element names, links to and fetches."""
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
            if "nav" in self.within:
                self.navigation.add(given["href"])
        if (name := _FETCHED.get(tag)) in given and given.get("rel") not in _NAMED:
            self.fetched.append(given[name or ""])
        if tag not in _WITHOUT_END:
            self.within.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Leave an element, and those inside it that have no end of their own."""
        while tag in self.within and self.within.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        """Note text that people read as text."""
        if "article" in self.within and not _NOT_PROSE.intersection(self.within):
            self.words.append(data)


def problems(site: Path) -> list[str]:
    """Everything that is wrong with the site in the folder `site`, sorted."""
    read = {path: _read(path) for path in sorted(site.rglob("*.html"))}
    found = [
        f"{path.relative_to(site)}: {problem}"
        for path, html in read.items()
        for problem in (*_dead(site, path, read), *_foreign(html.fetched), *_shown(html))
    ]
    found += [f"{path.relative_to(site)}: in no navigation" for path in _unreachable(site, read)]
    for style in site.rglob("*.css"):
        urls = _STYLE_URL.findall(style.read_text("utf-8"))
        found += [f"{style.relative_to(site)}: {problem}" for problem in _foreign(urls)]
    return sorted(set(found))


def _read(path: Path) -> Html:
    html = Html()
    html.feed(path.read_text("utf-8"))
    return html


def _dead(site: Path, path: Path, read: dict[Path, Html]) -> Iterator[str]:
    """Links, and things to fetch, that lead to no file or to no place in it."""
    for url in (*read[path].links, *read[path].fetched):
        parts = urlsplit(url)
        if parts.scheme or parts.netloc:
            continue
        start = site if parts.path.startswith("/") else path.parent
        target = (start / unquote(parts.path).lstrip("/")).resolve() if parts.path else path
        target = target / "index.html" if target.is_dir() else target
        if not target.is_file():
            yield f"no file {url}"
        elif parts.fragment and target in read and unquote(parts.fragment) not in read[target].ids:
            yield f"no place {url}"


def _foreign(urls: list[str]) -> Iterator[str]:
    """What would be fetched from another host."""
    yield from (f"fetches {url}" for url in urls if re.match(r"https?:|//", url))


def _shown(html: Html) -> Iterator[str]:
    """Marks of Markdown that the reader sees."""
    for words in html.words:
        if mark := _MARKDOWN.search(words.strip()):
            yield f"shows {words.strip()[mark.start() :][:60]!r}"


def _unreachable(site: Path, read: dict[Path, Html]) -> list[Path]:
    """Pages to which the navigation of no other page leads."""
    reached = {
        (path.parent / unquote(urlsplit(url).path)).resolve()
        for path, html in read.items()
        for url in html.navigation
        if urlsplit(url).path
    }
    apart = {site / "index.html", site / "404.html"}
    return [path for path in read if path not in reached | apart]
