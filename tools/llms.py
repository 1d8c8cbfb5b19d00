"""Write what language models read of the site: llms.txt, llms-full.txt, and each page as Markdown.

llms.txt is the map with a link to each page (https://llmstxt.org). llms-full.txt is the text of the
pages that teach; reference and inside would make it too long to be read in one go.
"""

import shutil
from pathlib import Path
from typing import Final

from tools import site_map

FULL: Final = ("Start", "Quickstarts", "How to", "Operate")
"""The sections whose pages are in llms-full.txt."""
FULL_BYTES_MAX: Final = 400_000
"""About 100,000 tokens: what a model can be given as a whole."""
_HEAD: Final = """# Blackboard

> A durable, shared board for teams of AI agents: each step of an agent is one atomic commit to one
> ordered log, everybody can watch the changes, and the whole team can be taken back to any moment.
"""


def write(root: Path, sources: Path, site: Path) -> None:
    """Write them into the folder `site`, from the copied pages in `sources`."""
    for page in sources.rglob("*.md"):
        copy = site / page.relative_to(sources)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, copy)
    sections = site_map.sections(root)
    (site / "llms.txt").write_text(_HEAD + "".join(map(_listed, sections)), "utf-8")
    texts = (
        (sources / site_map.staged(page.path)).read_text("utf-8")
        for section in sections
        if section.title in FULL
        for page in section.walk()
    )
    (site / "llms-full.txt").write_text(_HEAD + "".join(f"\n{text}" for text in texts), "utf-8")


def _listed(section: site_map.Section) -> str:
    lines = (
        f"- [{page.title}]({site_map.staged(page.path)})"
        + (f": {page.about}" if page.about else "")
        for page in section.walk()
    )
    return f"\n## {section.title}\n\n" + "\n".join(lines) + "\n"
