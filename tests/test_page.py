"""The page's files: types, size, what they load, and where the vendored ones come from."""

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from blackboard.server.http.page import FOLDER, client_folder
from tests.conformance.js.process import FOLDER as PACKAGES, get_packages, needs_npm
from tests.source_tree import ROOT

VENDOR = FOLDER / "vendor"
CODE_LINES_MAX = 3050
"""Of the page itself: what is more belongs to the service, or into another page."""
MODULE_LINES_MAX = 400
TIMEOUT_S = 250


def own(*suffixes: str) -> list[Path]:
    """Our files of those kinds."""
    found = (path for path in sorted(FOLDER.rglob("*")) if path.suffix in suffixes)
    return [path for path in found if VENDOR not in path.parents]


def test_vendored_files_are_those_that_were_fetched() -> None:
    """Each with its digest, its versions and licences; `tools/get_page_vendor.sh` writes them."""
    known = json.loads((VENDOR / "vendor.json").read_text())
    assert {path.name for path in VENDOR.glob("*.js")} == set(known)
    for name, told in known.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == told["sha256"], name
        licences = (VENDOR / name).with_suffix(".LICENSES.txt").read_text()
        for package, facts in told["packages"].items():
            assert f"--- {package}@{facts['version']}" in licences
            assert facts["licence"] in {"MIT", "Apache-2.0", "BSD-3-Clause", "ISC"}


@needs_npm
def test_its_types_are_right(tmp_path: Path) -> None:
    """For TypeScript at its strictest, together with the client that it uses."""
    get_packages()
    page = shutil.copytree(FOLDER, tmp_path / "page")
    shutil.copytree(client_folder(), page / "client", dirs_exist_ok=True)
    shutil.copy(ROOT / "tests/page/tsconfig.json", tmp_path)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    (tmp_path / "node_modules").symlink_to(PACKAGES / "node_modules")
    command: list[str | Path] = ["node", PACKAGES / "node_modules/typescript/bin/tsc", "-p", "."]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_it_stays_small() -> None:
    """All of it, and each module."""
    lines = {path: len(path.read_text().splitlines()) for path in own(".js", ".css", ".html")}
    assert sum(lines.values()) <= CODE_LINES_MAX, lines
    assert max(lines.values()) <= MODULE_LINES_MAX, lines


@pytest.mark.parametrize("path", own(".js", ".css", ".html"), ids=lambda path: path.name)
def test_it_names_no_other_host_and_writes_no_markup(path: Path) -> None:
    """What the browser refuses is not even there: inline code, markup made of text, other hosts."""
    text = path.read_text()
    assert not re.search(r"(?:https?:)?//(?!www\.w3\.org/)[a-z0-9-]+\.[a-z]{2,}", text)
    assert not re.search(r"(inner|outer|Adjacent)HTML|dangerously|document\.write", text)
    assert not re.search(r"\beval\(|new Function|<script>|<style| style=\"| on[a-z]+=\"", text)


def test_what_it_imports_is_there() -> None:
    """A module that is missing would leave a blank page."""
    for path in own(".js"):
        for name in re.findall(r"(?:from|import\()\s*'(\.[^']+)'", path.read_text()):
            target = (path.parent / name).resolve()
            if FOLDER / "client" in target.parents:
                target = client_folder() / target.relative_to(FOLDER / "client")
            assert target.is_file(), f"{path.name} imports {name}"
