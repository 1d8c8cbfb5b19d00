"""Two hooks of hatchling: the files of the client, and the page of a distribution on an index.

Files: those that pyproject.toml at the top keeps out of the wheel of `agent-blackboard` go into the
client, one list for both, so that no file is in two distributions or in none. An sdist has them
beside this file.

The page on an index: a link of a README from file to file leads nowhere there. So links and
pictures are made absolute, as of the tag of the version, where BLACKBOARD_REPOSITORY says at which
address the repository is published; without it a link becomes its text, and pictures are left out.
"""

import os
import re
import tomllib
from pathlib import Path, PurePosixPath
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

REPOSITORY = "BLACKBOARD_REPOSITORY"
"""The variable with the address, as in https://example.org/team/blackboard; the release sets it."""
_CODE_OR_LINK = re.compile(
    r"^```.*?^```$|`[^`\n]*`|(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)",
    re.DOTALL | re.MULTILINE,
)
_ABSOLUTE = re.compile(r"[a-z][a-z+.-]*:|#")


class ClientFiles(BuildHookInterface[Any]):
    """The hook that hatchling runs before it builds an sdist or a wheel of the client."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files. An editable wheel has none: it points at the checkout."""
        if version != "editable":
            here = Path(self.root)
            top = top_of(here)
            named = ["blackboard"] if top == here else client_files(top)
            build_data["force_include"] |= {str(top / name): name for name in named}


class IndexPage(MetadataHookInterface):
    """The hook that hatchling runs for the metadata of either distribution."""

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README and the links. A wheel from an sdist has those of the sdist."""
        if "readme" in metadata:
            metadata.setdefault("urls", {})
            return
        here = Path(self.root)
        address = os.environ.get(REPOSITORY, "").rstrip("/")
        tag = f"v{metadata['version']}"
        folder = here.relative_to(top_of(here)).as_posix()
        text = (here / "README.md").read_text(encoding="utf-8")
        page = index_page(text, folder, f"{address}/{{view}}/{tag}" if address else "")
        metadata["readme"] = {"content-type": "text/markdown", "text": page}
        metadata["urls"] = links(address, tag) if address else {}


def top_of(here: Path) -> Path:
    """The folder in which `blackboard` is: the top of the checkout, or the sdist of the client."""
    return here if (here / "blackboard").is_dir() else here.parents[1]


def client_files(top: Path) -> list[str]:
    """The files and folders of the client in a checkout, as paths from its top."""
    project = tomllib.loads((top / "pyproject.toml").read_text(encoding="utf-8"))
    excluded = project["tool"]["hatch"]["build"]["targets"]["wheel"]["exclude"]
    return [name.strip("/") for name in excluded if name.startswith("/blackboard/")]


def links(address: str, tag: str) -> dict[str, str]:
    """`[project.urls]` of a repository that is published at `address`."""
    return {
        "Source": address,
        "Documentation": f"{address}/blob/{tag}/docs/index.md",
        "Changelog": f"{address}/blob/{tag}/CHANGELOG.md",
        "Issues": f"{address}/issues",
        "Security": f"{address}/blob/{tag}/SECURITY.md",
    }


def index_page(text: str, folder: str, place: str) -> str:
    """A README for an index. `folder` is its own, from the top of the checkout.

    `place` is where files can be seen, with `{view}` for how (`blob`, or `raw` for a picture); or
    it is empty. Code and absolute links stay as they are.
    """

    def absolute(found: re.Match[str]) -> str:
        target = found["target"]
        if target is None or _ABSOLUTE.match(target):
            return found[0]
        if not place:
            return "" if found["picture"] else found["text"]
        view = "raw" if found["picture"] else "blob"
        path = normal(PurePosixPath(folder, target))
        return f"{found['picture']}[{found['text']}]({place.format(view=view)}/{path})"

    return _CODE_OR_LINK.sub(absolute, text)


def normal(path: PurePosixPath) -> str:
    """The path without `..`. Errors: ValueError for one that leads out of the repository."""
    parts = list[str]()
    for part in path.parts:
        if part != "..":
            parts.append(part)
        elif parts:
            parts.pop()
        else:
            raise ValueError(f"{path} is outside the repository")
    return "/".join(parts)
