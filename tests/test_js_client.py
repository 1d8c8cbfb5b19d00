"""The JavaScript client fits the rest: generated files, version, licence, types, unit tests."""

import json
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.conformance.js.process import FOLDER, get_packages, needs_node, needs_npm
from tests.source_tree import ROOT
from tools import js_methods

PACKAGE = ROOT / "clients" / "js"
TIMEOUT_S = 250


def run(*command: str | Path, folder: Path) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_generated_files_are_those_of_the_tables() -> None:
    """If not: `python -m tools.js_methods`."""
    for path, text in js_methods.files().items():
        assert path.read_text(encoding="utf-8") == text, path.name


def test_it_is_the_same_version_under_the_same_licence() -> None:
    """It speaks the protocol of this version, and depends on nothing."""
    theirs = json.loads((PACKAGE / "package.json").read_text())
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (theirs["version"], theirs["license"]) == (ours["version"], ours["license"])
    assert (theirs["name"], "dependencies" in theirs) == (ours["name"], False)
    assert (PACKAGE / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


@needs_npm
def test_its_types_are_right(tmp_path: Path) -> None:
    """For TypeScript at its strictest, and for a program that uses them."""
    get_packages()
    for name in ("src", "package.json", "tsconfig.json"):
        copy = shutil.copytree if (PACKAGE / name).is_dir() else shutil.copy
        copy(PACKAGE / name, tmp_path / name)
    (tmp_path / "node_modules").symlink_to(FOLDER / "node_modules")
    tsc = FOLDER / "node_modules/typescript/bin/tsc"
    run("node", tsc, "-p", ".", folder=tmp_path)
    (tmp_path / "use.ts").write_text(USE)
    options = ["--noEmit", "--strict", "--module", "nodenext", "--target", "es2022"]
    run("node", tsc, *options, "use.ts", folder=tmp_path)


USE = """
import { connect, Conflict, type Entry, type Methods } from './types/index.js'
const client = await connect('ws://127.0.0.1:7420', { token: () => 'x' })
const entry: Entry | null = await client.board().entry('public/a', { at: new Date() })
const revision: number | undefined = entry?.mod_revision
const { entries } = await client.board().step(async step => await step.list('**'))
const length: number = entries.length
const params: Methods['read']['params'] = { board: 'main', keys: ['public/a'] }
// @ts-expect-error: there is no such option
await client.board().put('public/a', 1, { ttl: 5 })
// @ts-expect-error: keys are texts
await client.board().get(5)
try { await client.board().put('public/a', 1) } catch (error) {
  if (error instanceof Conflict) console.log(error.key.length, error.actual + 1)
  console.log(revision, length, params)
}
"""


@needs_node
@pytest.mark.parametrize("name", ["pure", "hostile"])
def test_its_own_tests_pass(name: str) -> None:
    """Those that are written in JavaScript."""
    run("node", "--test", f"test/{name}.test.js", folder=PACKAGE)
