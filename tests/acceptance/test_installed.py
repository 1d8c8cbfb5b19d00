"""Everything that a release publishes, built, installed where nothing else is, and used.

Packages come from the index that pip is configured for, at the versions in constraints.txt; where
there is none, these tests are skipped and say so.
"""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from filelock import FileLock

from tests.acceptance.shell import Running, Shell
from tests.conformance.js.process import needs_npm
from tests.source_tree import ROOT
from tests.wheels import build

DISTRIBUTIONS_MAX = 8
BYTES_MAX = 15_000_000
PATIENCE_S = 600
WHOLE_ONLY = "sqlalchemy obstore cryptography uvicorn typer pycrdt pydantic redis".split()
USES = """
import asyncio, sys, threading
import blackboard, blackboard.sync

async def run():
    async with blackboard.connect() as client:
        board = client.board("installed")
        async with board.watch("public/**") as watch:
            async with board.step() as step:
                step.put("public/a", {"usd": 1})
            assert (await anext(watch)).changes[0].key == "public/a"
        async with board.lock("public/a"):
            await board.increment("public/count", 2)
        await board.append("public/tasks", "read")
        async with board.claim("public/tasks/*") as task:
            assert task.value == "read"
        await board.checkpoint("one")
        assert (await board.get("public/count", at="one")) == 2
        assert (await board.diff("one", "now")) is not None
    for module in sys.argv[1:]:
        assert module not in sys.modules, f"connect loads {module}"

asyncio.run(run())
with blackboard.sync.connect() as client:
    board = client.board("installed")
    with board.lock("public/b"):
        board.put("public/b", 1)
    with board.step() as step:
        step.put("public/c", step.get("public/b"))
    with board.watch("public/**", after=0) as watch:
        assert watch.next(timeout_ms=20_000).changes
assert {"anyio", "msgpack"} <= set(sys.modules)
print(blackboard.__version__)
"""
OPENS = """
import asyncio, tempfile
import blackboard, pottery, pycrdt, redis

async def run():
    with tempfile.TemporaryDirectory() as folder:
        async with blackboard.open(folder) as client:
            board = client.board("whole")
            async with await board.document("public/memo") as memo:
                memo.text().append("Buy.")
            await board.checkpoint("one")
            await board.export("one", folder + "/one")
            print((await board.document_entry("public/memo")).value)

asyncio.run(run())
from blackboard.engines.redis import redlock
import blackboard.agents, blackboard.demos.valuation
"""
EXTRAS = """
import asyncio
import blackboard

async def run():
    async with blackboard.connect() as client:
        board = client.board("extras")
        async with await board.document("public/memo") as memo:
            memo.text().append("Buy.")
            await memo.synced()
        await board.checkpoint("one")
        await board.export("one", "one.blackboard")
        await client.import_board("one.blackboard", "again")
        print((await client.board("again").document_entry("public/memo")).value)

asyncio.run(run())
"""
MISSING = {
    "import blackboard; blackboard.open('data')": (
        "blackboard.open needs agent-blackboard: pip install agent-blackboard"
    ),
    "import blackboard.sync; blackboard.sync.open('data')": (
        "blackboard.sync.open needs agent-blackboard: pip install agent-blackboard"
    ),
    "from blackboard import Agent": (
        "blackboard.Agent needs agent-blackboard: pip install agent-blackboard"
    ),
    "import blackboard; blackboard.run_team": (
        "blackboard.run_team needs agent-blackboard: pip install agent-blackboard"
    ),
    "from blackboard.types import Decision": (
        "blackboard.types.Decision needs agent-blackboard: pip install agent-blackboard"
    ),
    "import blackboard; blackboard.Document": (
        "documents need pycrdt: pip install 'agent-blackboard-client[documents]'"
    ),
    "import blackboard.sync; blackboard.sync.Document": (
        "documents need pycrdt: pip install 'agent-blackboard-client[documents]'"
    ),
    "import runpy; runpy.run_module('blackboard', run_name='__main__')": (
        "the command line needs agent-blackboard: pip install agent-blackboard"
    ),
    "from blackboard.integrity.manifest import is_signed; is_signed(b'', b'', b'')": (
        "checking a signature needs cryptography: pip install 'agent-blackboard-client[export]'"
    ),
}
IMPORTS = """
import importlib, pathlib
import blackboard
root = pathlib.Path(blackboard.__file__).parent
for path in sorted(root.rglob("*.py")):
    parts = path.relative_to(root.parent).with_suffix("").parts
    if parts[-1] != "__main__":
        importlib.import_module(".".join(parts).removesuffix(".__init__"))
print("all")
"""


STORY = """
import asyncio
import blackboard

async def run():
    async with blackboard.connect() as client:
        board = client.board("python")
        async with board.watch("public/**") as watch:
            await board.put("public/plan", {"usd": 1})
            revised = await anext(watch)
            print(revised.revision, revised.changes[0].key)
        await board.checkpoint("before")
        await board.put("public/plan", {"usd": 2})
        restored = await board.restore("before")
        print(restored.put_back, (await board.get("public/plan"))["usd"])

asyncio.run(run())
"""
STORY_IN_JAVASCRIPT = """
import { connect } from 'agent-blackboard'

const client = await connect(process.env.BLACKBOARD_URL, { token: process.env.BLACKBOARD_TOKEN })
const board = client.board('javascript')
const watch = await board.watch('public/**')
await board.put('public/plan', { usd: 1 })
for await (const revised of watch) {
  console.log(revised.revision, revised.changes[0].key)
  break
}
await board.checkpoint('before')
await board.put('public/plan', { usd: 2 })
const restored = await board.restore('before')
console.log(restored.put_back, (await board.get('public/plan')).usd)
client.close()
"""
TOLD = "1 public/plan\n1 1"
"""What both print."""


@dataclass(frozen=True)
class Environment:
    """A virtual environment without pip."""

    folder: Path
    wheels: Path

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin/python"

    @property
    def packages(self) -> Path:
        """Where they are installed."""
        (found,) = self.folder.glob("lib/python*/site-packages")
        return found

    def pip(self, *arguments: str) -> None:
        """Run our own pip for it."""
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
        done = subprocess.run(
            [*pip, "--python", str(self.python), *arguments],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def install(self, *wanted: str) -> None:
        """Install distributions of ours, and what they require: compiled when it is imported."""
        constraints = ROOT / "constraints.txt"
        options = ["-q", "--no-compile", "-c", str(constraints), "--find-links", str(self.wheels)]
        self.pip("install", *options, *wanted)

    def run(
        self, program: str, *arguments: str, environ: dict[str, str] | None = None
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program outside the checkout."""
        return subprocess.run(
            [self.python, "-c", program, *arguments],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env=environ or dict(os.environ),
            timeout=PATIENCE_S,
            check=False,
        )

    def out(self, program: str, *arguments: str, environ: dict[str, str] | None = None) -> str:
        """What a program prints that succeeds."""
        done = self.run(program, *arguments, environ=environ)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def distributions(self) -> set[str]:
        """The names of what is installed."""
        found = self.packages.glob("*.dist-info")
        return {path.name.partition("-")[0].replace("_", "-").lower() for path in found}


def interpreter(version: str) -> str | None:
    """A Python of that version: this one, on PATH, or of pyenv, whose shims may refuse to run."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    named = sorted(map(str, pyenv.glob(f"{version}.*/bin/python{version}")), reverse=True)
    for candidate in (sys.executable, f"python{version}", *named):
        told = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2])"
        try:
            done = subprocess.run(
                [candidate, "-c", told], capture_output=True, text=True, check=False
            )
        except OSError:
            continue
        if done.returncode == 0 and done.stdout.strip() == version:
            return candidate
    return None


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Skips what needs an index where pip can get nothing."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d"]
    folder = str(tmp_path_factory.mktemp("probe"))
    done = subprocess.run(
        [*command, folder, "hatchling>=1.27"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.skip(f"NOT CHECKED: pip can get no packages here: {done.stderr.splitlines()[-1]}")


@pytest.fixture(scope="module")
def release(packages: None, tmp_path_factory: pytest.TempPathFactory, testrun_uid: str) -> Path:
    """What `make dist` makes of this checkout: once, by the first worker that needs it."""
    folder = tmp_path_factory.getbasetemp().parent / f"dist-{testrun_uid}"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            half = folder.with_suffix(".half")
            make_dist(half)
            half.rename(folder)
    return folder


def make_dist(folder: Path) -> None:
    """Make a release in a folder."""
    environ = {**os.environ, "BLACKBOARD_REPOSITORY": "https://example.org/team/blackboard"}
    command = [str(ROOT / "tools/make_dist.sh"), str(folder)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 4, done.stdout  # what twine says of each file
    assert (folder / "notes.md").read_text(encoding="utf-8").strip()


@pytest.fixture
def empty(tmp_path: Path, release: Path) -> Environment:
    """An environment with nothing in it, of another Python than the one that runs the tests: that
    one has everything installed already."""
    python = interpreter("3.13") or interpreter("3.11")
    if python is None:
        pytest.skip("NOT CHECKED: neither Python 3.13 nor 3.11 is on this machine")
    made = Environment(tmp_path / "environment", release / "python")
    subprocess.run([python, "-m", "venv", "--without-pip", str(made.folder)], check=True)
    assert made.distributions() == set()
    return made


@pytest.fixture
def user(tmp_path: Path) -> Iterator[tuple[Shell, Running]]:
    """A user with a service, which runs from this checkout."""
    home = tmp_path / "home"
    home.mkdir()
    shell = Shell(home)
    with shell.service() as running:
        yield shell, running


def size_of(folder: Path) -> int:
    """Bytes in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def environ_of(user: tuple[Shell, Running]) -> dict[str, str]:
    """What the programs of that user see: the address and, by its context, the token."""
    shell, running = user
    return {**shell.environ, "BLACKBOARD_URL": running.url}


def test_the_client_is_small_and_whole(empty: Environment, user: tuple[Shell, Running]) -> None:
    """It does what `connect` promises, and what it lacks says how to get it."""
    empty.install("agent-blackboard-client")
    assert empty.out(USES, *WHOLE_ONLY, environ=environ_of(user)) == "0.1.0"
    found = empty.distributions()
    assert len(found) <= DISTRIBUTIONS_MAX, found
    assert not found & set(WHOLE_ONLY)
    assert size_of(empty.packages) <= BYTES_MAX
    for program, reason in MISSING.items():
        done = empty.run(program)
        assert done.returncode != 0
        assert done.stderr.strip().splitlines()[-1].endswith(reason), done.stderr


def test_the_client_with_its_extras_lacks_nothing_of_its_own(
    empty: Environment, user: tuple[Shell, Running]
) -> None:
    """No file of the client needs one of `agent-blackboard`."""
    empty.install("agent-blackboard-client[documents,export,memory,workspace]")
    assert empty.out(EXTRAS, environ=environ_of(user)) == str({"text": "Buy."})
    assert empty.out(IMPORTS) == "all"


@pytest.mark.timeout(900)  # pip fills an environment
def test_the_whole_adds_files_to_the_client(
    empty: Environment, user: tuple[Shell, Running], tmp_path: Path
) -> None:
    """Redlock and documents need no extra. Without it, the client is as it was."""
    empty.install("agent-blackboard-client")
    before = files_in(empty)
    empty.install("agent-blackboard")
    assert before <= files_in(empty)
    assert empty.out(OPENS) == str({"text": "Buy."})
    serve_and_connect(empty, Shell(tmp_path))
    empty.pip("uninstall", "-q", "-y", "agent-blackboard")
    assert files_in(empty) == before
    assert empty.out(USES, environ=environ_of(user)) == "0.1.0"
    assert "pip install agent-blackboard" in empty.run("from blackboard import open").stderr


def serve_and_connect(installed: Environment, shell: Shell) -> None:
    """The service, the command line and the client, all of them as installed."""
    command = installed.folder / "bin/blackboard"
    with shell.script(f"exec {command} serve --port 0") as running:
        running.wait_for("Ctrl-C stops it.")
        environ = environ_of((shell, running))
        assert installed.out(STORY, environ=environ) == TOLD
        found = subprocess.run(
            [command, "get", "public/plan", "--board", "python", "--json"],
            capture_output=True,
            text=True,
            env=environ,
            check=True,
        )
        assert json.loads(found.stdout) == {"usd": 1}


def files_in(environment: Environment) -> set[str]:
    """The files of ours."""
    found = (environment.packages / "blackboard").rglob("*")
    return {str(path) for path in found if path.is_file() and "__pycache__" not in path.parts}


# --- a release ------------------------------------------------------------------------------------


@needs_npm
def test_the_npm_package_of_a_release_connects(release: Path, user: tuple[Shell, Running]) -> None:
    """Installed into an empty folder; it says where its source is, as provenance demands."""
    shell, _ = user
    [packed] = (release / "npm").glob("*.tgz")
    project = shell.home / "project"
    project.mkdir()
    (project / "package.json").write_text('{"private": true, "type": "module"}')
    flags = ["--no-audit", "--no-fund", "--offline", "--omit=peer", "--omit=optional"]
    subprocess.run(["npm", "install", *flags, packed], cwd=project, check=True, timeout=PATIENCE_S)
    manifest = json.loads((project / "node_modules/agent-blackboard/package.json").read_text())
    assert manifest["repository"] == {
        "type": "git",
        "url": "git+https://example.org/team/blackboard.git",
        "directory": "clients/js",
    }
    (project / "story.js").write_text(STORY_IN_JAVASCRIPT)
    token = (shell.home / "data/token").read_text().strip()
    told = subprocess.run(
        ["node", "story.js"],
        cwd=project,
        env={**environ_of(user), "BLACKBOARD_TOKEN": token},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    assert told.stdout.strip() == TOLD, told.stderr


def test_a_release_of_another_tag_is_refused(tmp_path: Path) -> None:
    """Before anything is built."""
    done = subprocess.run(
        [str(ROOT / "tools/make_dist.sh"), str(tmp_path / "dist")],
        env={**os.environ, "TAG": "v0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "the tag is v0.0.1, and the version is " in done.stderr
    assert not list(tmp_path.glob("dist/*"))


@pytest.mark.parametrize("name", ["agent_blackboard", "agent_blackboard_client"])
def test_a_source_distribution_gives_the_same_wheel(
    release: Path, tmp_path: Path, name: str
) -> None:
    """Which is what an installer builds where it takes no wheel."""
    (packed,) = (release / "python").glob(f"{name}-*.tar.gz")
    subprocess.run(["tar", "xzf", packed, "-C", tmp_path], check=True)
    build(tmp_path / packed.name.removesuffix(".tar.gz"), tmp_path, "wheel")
    (again,) = tmp_path.glob("*.whl")
    assert names_in(again) == names_in(release / "python" / again.name)


def names_in(wheel: Path) -> Sequence[str]:
    """The names of the files in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        return sorted(archive.namelist())
