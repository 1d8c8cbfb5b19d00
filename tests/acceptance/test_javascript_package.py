"""The JavaScript package as its users have it: packed, installed into an empty project, and run."""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.acceptance.shell import Running, Shell
from tests.conformance.js.process import FOLDER, get_packages, needs_npm
from tests.source_tree import ROOT

pytestmark = [needs_npm, pytest.mark.slow]
PACKAGE = ROOT / "clients" / "js"
PAGE = ROOT / "docs/howto/javascript.md"
TIMEOUT_S = 120


def run(*command: str | Path, folder: Path, **environ: str) -> str:
    """What a command prints; it must succeed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty project into which the packed package was installed."""
    get_packages()
    source = tmp_path_factory.mktemp("source") / "js"
    shutil.copytree(PACKAGE, source, ignore=shutil.ignore_patterns("types", "node_modules"))
    (source / "node_modules").symlink_to(FOLDER / "node_modules")
    [packed] = json.loads(run("npm", "pack", "--json", "--silent", folder=source))
    files = {file["path"] for file in packed["files"]}
    assert {"package.json", "README.md", "LICENSE", "src/index.js", "types/index.d.ts"} <= files
    assert not any(file.startswith(("test", "node_modules")) for file in files)
    project = tmp_path_factory.mktemp("project")
    (project / "package.json").write_text('{"private": true, "type": "module"}')
    flags = ["--no-audit", "--no-fund", "--offline", "--omit=peer", "--omit=optional"]
    run("npm", "install", *flags, source / packed["filename"], folder=project)
    assert [path.name for path in (project / "node_modules").iterdir() if path.is_dir()] == [
        "agent-blackboard"
    ]
    return project


def token_of(shell: Shell) -> str:
    """The operator's token."""
    return (Path(shell.environ["BLACKBOARD_DATA"]) / "token").read_text().strip()


@pytest.mark.parametrize("flags", [[], ["--experimental-websocket"]])
def test_the_page_runs(project: Path, shell: Shell, service: Running, flags: list[str]) -> None:
    """Also with the WebSocket of the platform in place of ours."""
    text = PAGE.read_text(encoding="utf-8")
    program = re.findall(r"```javascript\n(.*?)```", text, re.DOTALL)[0]
    [output] = re.findall(r"```text output\n(.*?)```", text, re.DOTALL)
    (project / "page.js").write_text(program)
    environ = {"BLACKBOARD_URL": service.url, "BLACKBOARD_TOKEN": token_of(shell)}
    found = run("node", "--no-warnings", *flags, "page.js", folder=project, **environ)
    assert found == output


LATER = """
import { WebSocket } from 'ws'
import { connect, documentToken, narrowed, AccessDenied, LocalProtocolError } from './src/index.js'
const url = process.env.BLACKBOARD_URL, token = process.env.BLACKBOARD_TOKEN
const client = await connect(url, { token })
const board = client.board()
await board.put('public/plan', { usd: 1 })
BODY
client.close()
"""
DOCUMENT = """
const ann = await client.document('public/memo', { WebSocket })
const ben = await client.document('public/memo', { WebSocket })
const came = new Promise(resolve => ben.text().observe(resolve))
ann.text().insert(0, 'We should buy.')
await came
console.log(String(ben.text()))
const reader = await client.document('public/memo', { WebSocket, can_edit: false })
console.log(String(reader.text()))
"""
TOKENS = """
const grants = [['public/**', ['read']]]
const less = await narrowed(token, { name: 'operator.me', grants, boards: ['main'] })
const other = await connect(url, { token: less })
console.log(other.agent, (await other.board().get('public/plan')).usd)
await other.board().put('public/plan', 2).catch(error => console.log(error instanceof AccessDenied))
other.close()
let calls = 0
const kept = await connect(url, { token: async () => { calls++; return token } })
console.log((await kept.whoami()).principal, calls >= 1)
const issued = await kept.token('kim', { grants: [{ pattern: 'public/**', rights: ['read'] }] })
kept.close()
const kim = await connect(url, { token: issued })
console.log(kim.board().agent, await kim.board().get('public/plan') !== undefined)
await kim.token('bob').catch(error => console.log(error.code))
kim.close()
"""
LOCK = """
await board.withLock('public/plan', async lock => {
  const plan = await lock.board.get('public/plan')
  await lock.board.put('public/plan', { ...plan, checked: true })
  const twice = lock.board.withLock('public/plan', () => {})
  await twice.catch(error => console.log(error instanceof LocalProtocolError))
  const [{ key, holder, fence }] = await board.leases('public/plan')
  await board.commit([{ kind: 'release', key, holder, fence }])
  await lock.board.put('public/plan', 'unprotected').catch(error => console.log(error.code))
}).catch(error => console.log(error.code))
console.log(JSON.stringify(await board.get('public/plan')), (await board.leases()).length)
"""


@pytest.mark.parametrize(
    ("body", "output"),
    [
        pytest.param(DOCUMENT, "We should buy.\nWe should buy.\n", id="documents"),
        pytest.param(
            TOKENS, "operator.me 1\ntrue\noperator true\nkim true\naccess_denied\n", id="tokens"
        ),
        pytest.param(
            LOCK, 'true\nfenced\nlease_lost\n{"usd":1,"checked":true} 0\n', id="a lost lock"
        ),
    ],
)
def test_programs_do_what_they_say(
    tmp_path: Path, shell: Shell, service: Running, body: str, output: str
) -> None:
    """With Yjs beside the client, where the program opens documents."""
    get_packages()
    folder = tmp_path / "program"
    shutil.copytree(PACKAGE / "src", folder / "src")
    (folder / "node_modules").symlink_to(FOLDER / "node_modules")
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "main.js").write_text(LATER.replace("BODY", body))
    environ = {"BLACKBOARD_URL": service.url, "BLACKBOARD_TOKEN": token_of(shell)}
    assert run("node", "main.js", folder=folder, **environ) == output
