"""Build the documentation as a site, without a network: `make site`, or `python -m tools.site`.

The pages are those of docs/index.md, which is also the navigation. They are copied, because two of
them lie outside docs/ and because GitHub and the builder differ in small things; then Zensical
builds them, with its own strict check of links, and site_check.py looks at the result.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tools import llms, site_check, site_map

ROOT: Final = Path(__file__).resolve().parent.parent
OUT: Final = ROOT / "build" / "site"
_SETTINGS: Final = Path(__file__).with_name("site.toml")
_STYLE: Final = Path(__file__).with_name("site.css")
_PICTURES: Final = (".svg", ".png")
_FENCE: Final = re.compile(r"^(```\w+)(?: (?!title=)\S+)*( title=\"[^\"]*\")?.*$", re.MULTILINE)
"""The first line of a block: its language, marks of ours, and a title, which the builder shows."""
_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
_LINK: Final = re.compile(r"(?<=\]\()([^)\s:#]+)(?=[)#])")


class Refused(Exception):
    """The site is not as it should be; the text has a line for each problem."""


def build(root: Path = ROOT, out: Path = OUT, run_by: Sequence[str] = ()) -> Path:
    """Build the site of the repository at `root` below `out`; returns the folder to serve.

    `run_by` is a command that runs the builder, such as one that takes the network away.

    Errors: Refused, with what is wrong; what was built is left to look at.
    """
    shutil.rmtree(out, ignore_errors=True)
    sources, site = out / "pages", out / "html"
    _stage(root, sources)
    (out / "zensical.toml").write_text(_settings(root), "utf-8")
    command = [*run_by, sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=out, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Refused(_COLOUR.sub("", done.stdout + done.stderr.partition("Traceback")[0]))
    llms.write(root, sources, site)
    if found := site_check.problems(site):
        raise Refused("\n".join(found))
    return site


def _stage(root: Path, sources: Path) -> None:
    """Copy the pages and pictures, with links and blocks as the builder understands them."""
    docs = root / "docs"
    sources.mkdir(parents=True)
    shutil.copyfile(_STYLE, sources / _STYLE.name)
    inside = [path for path in docs.rglob("*") if path.suffix in (".md", *_PICTURES)]
    outside = [
        root / page.path for page in site_map.pages(root) if not page.path.startswith("docs/")
    ]
    for path in (*inside, *outside):
        name = path.relative_to(root).as_posix()
        copy = sources / site_map.staged(name)
        copy.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            copy.write_text(_staged_text(root, name, path.read_text("utf-8")), "utf-8")
        else:
            shutil.copyfile(path, copy)


def _staged_text(root: Path, name: str, text: str) -> str:
    """The text of the page `name`, as it is in the site."""
    here, staged_here = (root / name).parent, Path(site_map.staged(name)).parent

    def moved(link: re.Match[str]) -> str:
        target = (here / link[1]).resolve()
        if not (target.is_file() and target.is_relative_to(root)):
            return link[1]
        staged = site_map.staged(target.relative_to(root).as_posix())
        return Path(os.path.relpath(staged, staged_here)).as_posix()

    return _FENCE.sub(r"\1\2", _LINK.sub(moved, text))


def _settings(root: Path) -> str:
    """zensical.toml: site.toml, with the navigation that the map gives."""
    entries = [{"Home": "index.md"}, *map(_entry, site_map.sections(root))]
    return _SETTINGS.read_text("utf-8").replace("nav = []", f"nav = {_toml(entries)}")


def _entry(section: site_map.Section) -> dict[str, object]:
    pages: list[dict[str, object]] = [
        {page.title: site_map.staged(page.path)} for page in section.pages
    ]
    return {section.title: pages + [_entry(part) for part in section.parts]}


def _toml(value: object) -> str:
    """Lists, tables and texts as TOML, whose basic strings are JSON's."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


def main() -> None:
    """Build the site, or say what is wrong and exit with 1."""
    try:
        site = build()
    except Refused as refused:
        sys.exit(str(refused))
    print(f"the site is in {site.relative_to(ROOT)}: open {site.relative_to(ROOT)}/index.html")


if __name__ == "__main__":
    main()
