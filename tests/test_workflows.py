"""The workflows of .github: valid, pinned, with few rights, and naming nothing that is not there.

They are checked against the schema of workflows, and by zizmor, which knows how workflows are
attacked. Each rule of ours is a function that lists its offenders, and is itself tried on bad
snippets. What a runner does with a valid file is not tested here.
"""

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.source_tree import ROOT, Source

WORKFLOWS = [
    Source(path.name, path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / ".github/workflows").glob("*.yml"))
]
RIGHTS = {
    "ci.yml": {"contents": "read"},
    "release.yml": {"contents": "read"},
    "release.yml build": {"attestations": "write", "contents": "read", "id-token": "write"},
    "release.yml python": {"id-token": "write"},
    "release.yml npm": {"id-token": "write"},
    "release.yml image": {
        "attestations": "write",
        "contents": "read",
        "id-token": "write",
        "packages": "write",
    },
    "release.yml page": {"contents": "write"},
}
"""All that a workflow, or a job of it, may do. A job that is not here has its workflow's rights."""
SECRETS = {"GITHUB_TOKEN"}
"""What ends with the run. Publishing needs no other one: the indexes trust the workflow."""
BUILT = "dist/"
"""What `make dist` makes, and a checkout does not have."""
_PINNED = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
_IMAGE = re.compile(r"\b[\w.-]+(?:/[\w.-]+)+:[\w.-]+(?:@sha256:[0-9a-f]+)?")
_IMAGE_PINNED = re.compile(r".+@sha256:[0-9a-f]{64}")
_OWN = re.compile(r"uses: \./(\S+)")
_VERB = re.compile(r"\bmake ([a-z-]+)")
_VERBS = re.compile(r"^([a-z-]+):.*?## ", re.MULTILINE)
_PATH = re.compile(r"(?:^|(?<=[\s'\"=]))(?:\./)?([\w.-]+/[\w./*-]*)")

Rule = Callable[[Source], list[str]]


def parsed(workflow: Source) -> dict[str, Any]:
    """The file as data."""
    found: dict[str, Any] = yaml.safe_load(workflow.text)
    return found


def jobs(workflow: Source) -> dict[str, dict[str, Any]]:
    """The jobs by their names."""
    found: dict[str, dict[str, Any]] = parsed(workflow)["jobs"]
    return found


def steps(workflow: Source) -> Iterator[dict[str, Any]]:
    """The steps of all jobs."""
    return (step for job in jobs(workflow).values() for step in job.get("steps", ()))


def scripts(workflow: Source) -> str:
    """Everything that a shell runs."""
    return "\n".join(step["run"] for step in steps(workflow) if "run" in step)


def loose_actions(workflow: Source) -> list[str]:
    """Actions that are not pinned to a commit, with its version beside it."""
    used = re.findall(r"uses: .*", workflow.text)
    return [each for each in used if not _PINNED.fullmatch(each) and not _OWN.fullmatch(each)]


def loose_images(workflow: Source) -> list[str]:
    """Container images in variables of a job that are not pinned to a digest."""
    values = [str(each) for job in jobs(workflow).values() for each in job.get("env", {}).values()]
    named = [value for value in values if _IMAGE.fullmatch(value)]
    return [value for value in named if not _IMAGE_PINNED.fullmatch(value)]


def other_rights(workflow: Source) -> list[str]:
    """Permissions that are not those in `RIGHTS`; a workflow has to name its own."""
    said = {workflow.path: parsed(workflow).get("permissions")}
    for name, job in jobs(workflow).items():
        if "permissions" in job or f"{workflow.path} {name}" in RIGHTS:
            said[f"{workflow.path} {name}"] = job.get("permissions")
    return [f"{where}: {rights}" for where, rights in said.items() if rights != RIGHTS.get(where)]


def unknown_verbs(workflow: Source) -> list[str]:
    """`make VERB` without such a verb in the Makefile's list."""
    known = _VERBS.findall((ROOT / "Makefile").read_text(encoding="utf-8"))
    return [verb for verb in _VERB.findall(scripts(workflow)) if verb not in known]


def missing_paths(workflow: Source) -> list[str]:
    """Files and folders that are named and not there, but for what is built."""
    options = [str(value) for step in steps(workflow) for value in step.get("with", {}).values()]
    own = _OWN.findall(workflow.text)
    text = "\n".join([scripts(workflow), *options]).replace("${{", "").replace("}}", "")
    named = [*own, *(path for path in _PATH.findall(text) if "linux/" not in path)]
    return [path for path in named if not path.startswith(BUILT) and not (ROOT / path).exists()]


def other_secrets(workflow: Source) -> list[str]:
    """Secrets other than the run's own token."""
    return sorted(set(re.findall(r"secrets\.(\w+)", workflow.text)) - SECRETS)


def endless_jobs(workflow: Source) -> list[str]:
    """Jobs without a limit of time; a job that is a workflow has those of its jobs."""
    return [
        name
        for name, job in jobs(workflow).items()
        if "timeout-minutes" not in job and "uses" not in job
    ]


def artifacts_of_nobody(workflow: Source) -> list[str]:
    """Artifacts that a job takes, and that no job which it needs has made."""
    made = {
        (name, step["with"]["name"])
        for name, job in jobs(workflow).items()
        for step in job.get("steps", ())
        if "upload-artifact" in step.get("uses", "")
    }
    return [
        f"{name}: {step['with']['name']}"
        for name, job in jobs(workflow).items()
        for step in job.get("steps", ())
        if "download-artifact" in step.get("uses", "")
        and not {(each, step["with"]["name"]) for each in needed(name, jobs(workflow))} & made
    ]


def needed(name: str, among: dict[str, dict[str, Any]]) -> set[str]:
    """The jobs that have ended when the job `name` begins."""
    needs = among[name].get("needs", [])
    direct = {needs} if isinstance(needs, str) else set(needs)
    return direct.union(*(needed(each, among) for each in direct))


RULES: list[Rule] = [
    loose_actions,
    loose_images,
    other_rights,
    unknown_verbs,
    missing_paths,
    other_secrets,
    endless_jobs,
    artifacts_of_nobody,
]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=[each.path for each in WORKFLOWS])
@pytest.mark.parametrize("rule", RULES)
def test_workflows_keep_the_rule(rule: Rule, workflow: Source) -> None:
    """No offender is in any of them."""
    assert rule(workflow) == []


def job(body: str) -> str:
    """A workflow with one job, of which `body` is a part."""
    return f"permissions: {{contents: read}}\njobs:\n  a:\n    timeout-minutes: 1\n{body}"


def run(script: str) -> str:
    """A workflow that runs one line."""
    return job(f"    steps: [run: {script}]\n")


TAKES = """\
    needs: b
    steps:
      - uses: actions/download-artifact@x
        with: {name: dist}
  b:
    steps:
      - uses: actions/upload-artifact@x
        with: {name: NAME}
"""
BAD: list[tuple[Rule, str, str]] = [
    (loose_actions, job("    uses: a/b@v1\n"), job(f"    uses: a/b@{'0' * 40} # v1.2.3\n")),
    (loose_actions, job(f"    uses: a/b@{'0' * 40}\n"), job("    uses: ./a.yml\n")),
    (loose_images, job("    env: {A: b/c:1}\n"), job(f"    env: {{A: b/c:1@sha256:{'0' * 64}}}\n")),
    (other_rights, run("a").replace("read", "write"), run("a")),
    (other_rights, run("a").partition("\n")[2], run("a")),
    (other_rights, job("    permissions: {id-token: write}\n"), run("a")),
    (unknown_verbs, run("make it"), run("make check")),
    (missing_paths, run("tools/nothing.sh"), run("tools/audit.sh dist/python/*")),
    (missing_paths, job("    uses: ./.github/nothing.yml\n"), run(".ci/run")),
    (other_secrets, run("${{ secrets.PASSWORD }}"), run("${{ secrets.GITHUB_TOKEN }}")),
    (endless_jobs, run("a").replace("timeout-minutes", "name"), run("a")),
    (artifacts_of_nobody, job(TAKES.replace("NAME", "x")), job(TAKES.replace("NAME", "dist"))),
]


@pytest.mark.parametrize(("rule", "bad", "good"), BAD)
def test_each_rule_tells_bad_from_good(rule: Rule, bad: str, good: str) -> None:
    """One offender is reported once."""
    assert len(rule(Source("ci.yml", bad))) == 1
    assert rule(Source("ci.yml", good)) == []


def checker(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a program that checks workflows, without a network."""
    program = Path(sys.executable).with_name(name)
    return subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )


SCHEMA = ("check-jsonschema", "--builtin-schema", "vendor.github-workflows")
ATTACKS = ("zizmor", "--offline", "--no-config", "--min-severity", "medium")


@pytest.mark.parametrize("command", [SCHEMA, ATTACKS], ids=["schema", "attacks"])
def test_checkers_of_workflows_find_nothing(command: tuple[str, ...], tmp_path: Path) -> None:
    """No breach of the schema, and no way to attack; each finds what is planted."""
    folder = ROOT / ".github/workflows"
    done = checker(*command, *(str(folder / each.path) for each in WORKFLOWS))
    assert done.returncode == 0, done.stdout + done.stderr
    bad = tmp_path / "bad.yml"
    bad.write_text(
        "on: pull_request_target\njobs:\n  a:\n    runs-on: ubuntu-latest\n    minutes: 1\n"
        "    steps:\n      - run: echo ${{ github.event.pull_request.title }}\n"
    )
    done = checker(*command, str(bad))
    found = done.stdout + done.stderr
    assert done.returncode != 0, found
    assert "minutes" in found if command is SCHEMA else "template-injection" in found
