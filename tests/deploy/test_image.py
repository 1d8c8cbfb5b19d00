"""Dockerfile, .dockerignore and the systemd unit name what is there, and give no right too many.

Each rule lists its offenders, and is tried on the file with one thing broken. No image is built
here: that needs a container runtime.
"""

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import typer.main

from blackboard.cli.main import app
from blackboard.client import contexts
from blackboard.server.settings import CONFIG_VARIABLE, Settings
from tests.deploy.plain_image import IMAGE, Dockerfile
from tests.source_tree import ROOT
from tests.wheels import wheels_in

IGNORED = (ROOT / ".dockerignore").read_text(encoding="utf-8")
ENTRY = (ROOT / "deploy/image/entry.sh").read_text(encoding="utf-8")
UNIT = (ROOT / "deploy/systemd/blackboard.service").read_text(encoding="utf-8")
_BY_DIGEST = re.compile(r"[\w./-]+:[\w.-]+@sha256:[0-9a-f]{64}")

FROM_FILES = set(re.findall(r"\b[A-Z]+_[A-Z_]+\b", ENTRY.partition("; do")[0].partition("for ")[2]))
"""Variables whose value may be in a file: those of the entry command."""
KNOWN = (
    {f"BLACKBOARD_{field.upper()}" for field in Settings.model_fields}
    | {f"{name}_FILE" for name in FROM_FILES}
    | {CONFIG_VARIABLE, contexts.CONFIG_VARIABLE, "BLACKBOARD_LOG_FORMAT"}
)
"""The variables that a service looks at, in a container."""


def admitted() -> list[str]:
    """What .dockerignore lets into the build."""
    return [line[1:] for line in IGNORED.splitlines() if line.startswith("!")]


def loose_bases(file: Dockerfile) -> list[str]:
    """Images that are not pinned to a digest."""
    named = [rest.split(" AS ")[0] for name, rest in file.steps if name == "FROM"]
    return [name for name in named if name != "scratch" and not _BY_DIGEST.fullmatch(name)]


def missing_sources(file: Dockerfile) -> list[str]:
    """What is copied from the checkout, and is not there or does not reach the build."""
    copied = [rest.split() for name, rest in file.steps if name == "COPY" and "--from" not in rest]
    paths = [path for words in copied for path in words[:-1] if path != "."]
    return [
        path
        for path in paths
        if not (ROOT / path).exists()
        or path.rstrip("/") not in {each.rstrip("/") for each in admitted()}
    ]


def missing_stages(file: Dockerfile) -> list[str]:
    """Stages that are copied from, and that nothing makes."""
    made = {rest.split(" AS ")[1] for name, rest in file.steps if name == "FROM" and " AS " in rest}
    return [name for name in re.findall(r"from=(\w+)", file.text) if name not in made]


def rights_of_root(file: Dockerfile) -> list[str]:
    """A user that is root, or whose number is not written."""
    return [] if re.fullmatch(r"[1-9]\d*:[1-9]\d*", file.user) else [file.user]


def missing_files(file: Dockerfile) -> list[str]:
    """Files that the image runs, and does not have; so also a health check that is not there."""
    health = file.health if file.of("HEALTHCHECK") else ["/no health check"]
    words = [word for word in [*file.words("ENTRYPOINT"), *health] if word.startswith("/")]
    own = [word for word in words if word != "/bin/sh"]
    found = {word: file.on_disk(word) for word in own}
    return [word for word, path in found.items() if path is None or not path.is_file()]


def not_writable(file: Dockerfile) -> list[str]:
    """Volumes, and the places of data, that do not belong to the user."""
    places = [*file.of("VOLUME"), *file.of("WORKDIR"), file.environment.get("BLACKBOARD_DATA", "/")]
    places.append(str(Path(file.environment["BLACKBOARD_CONFIG_DIR"]).parent))
    return [place for place in places if place not in file.own]


def other_ports(file: Dockerfile) -> list[str]:
    """A port that is shown, and not the one that it listens on."""
    listens = file.environment["BLACKBOARD_PORT"]
    return [port for port in file.of("EXPOSE") if port != listens]


def unknown_variables(file: Dockerfile) -> list[str]:
    """Variables that nothing looks at."""
    return [
        name for name in file.environment if name.startswith("BLACKBOARD_") and name not in KNOWN
    ]


def unknown_arguments(file: Dockerfile) -> list[str]:
    """Commands and options that `blackboard` does not have."""
    verb, *options = file.words("CMD")
    commands = typer.main.get_group(app).commands
    if verb not in commands:
        return [verb]
    known = {name for option in commands[verb].params for name in option.opts}
    return [option for option in options if option.startswith("-") and option not in known]


Rule = Callable[[Dockerfile], list[str]]
BROKEN: list[tuple[Rule, str, str]] = [
    (loose_bases, "@sha256:7c61", "@sha256:!"),
    (missing_sources, "COPY deploy/image/", "COPY deploy/images/"),
    (missing_sources, "COPY constraints.txt", "COPY Makefile"),
    (missing_stages, "COPY --from=install", "COPY --from=installed"),
    (rights_of_root, "USER 65532:65532\n", ""),
    (rights_of_root, "USER 65532:65532", "USER 0:0"),
    (rights_of_root, "USER 65532:65532", "USER blackboard"),
    (missing_files, "/app/image/entry.sh", "/app/image/enter.sh"),
    (missing_files, "/app/image/health.py", "/app/health.py"),
    (missing_files, "HEALTHCHECK", "LABEL"),
    (not_writable, "--owner 65532 --group 65532 --mode 700", "--owner 0 --group 0 --mode 700"),
    (not_writable, "VOLUME /var/lib/blackboard", "VOLUME /data"),
    (other_ports, "EXPOSE 7420", "EXPOSE 7421"),
    (unknown_variables, "BLACKBOARD_DATA=", "BLACKBOARD_DIRECTORY="),
    (unknown_arguments, 'CMD ["serve"]', 'CMD ["server"]'),
    (unknown_arguments, 'CMD ["serve"]', 'CMD ["serve", "--hots", "0.0.0.0"]'),
]


@pytest.mark.parametrize("rule", dict.fromkeys(rule for rule, _, _ in BROKEN))
def test_the_image_keeps_the_rule(rule: Rule) -> None:
    """No offender is in it."""
    assert rule(IMAGE) == []


@pytest.mark.parametrize(("rule", "good", "bad"), BROKEN)
def test_each_rule_notices_what_is_broken(rule: Rule, good: str, bad: str) -> None:
    """One change of the file, and it has offenders."""
    assert good in IMAGE.text
    assert rule(Dockerfile(IMAGE.text.replace(good, bad))) != []


def test_the_build_gets_all_that_the_wheels_hold(tmp_path: Path) -> None:
    """From what .dockerignore admits, the Dockerfile's commands make the wheels of a checkout."""
    source, built = tmp_path / "source", tmp_path / "built"
    source.mkdir()
    for name in admitted():
        if (ROOT / name).is_dir():
            kept = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, source / name, ignore=kept)
        else:
            shutil.copy(ROOT / name, source / name)
    folders = [
        rest for name, rest in IMAGE.steps if name == "WORKDIR" and rest.startswith("/source")
    ]
    commands = [rest for name, rest in IMAGE.steps if name == "RUN" and "hatchling build" in rest]
    for folder, command in zip(folders[1:], commands, strict=True):
        words = command.replace("/wheels", str(built)).split()
        there = source / folder.removeprefix("/source").strip("/")
        subprocess.run([sys.executable, *words[1:]], cwd=there, check=True, capture_output=True)
    assert held(built) == held(wheels_in(tmp_path / "whole"))


def held(folder: Path) -> dict[str, list[str]]:
    """The files in each wheel of a folder."""
    wheels = sorted(folder.glob("*.whl"))
    assert len(wheels) == 2
    return {wheel.name: sorted(zipfile.ZipFile(wheel).namelist()) for wheel in wheels}


# --- systemd --------------------------------------------------------------------------------------

EXPOSED_MAX = 20
"""Tenths of a point, by `systemd-analyze security`: below 2.0 of 10 it calls a unit safe."""


def unit_problems(text: str, folder: Path) -> list[str]:
    """What a unit says that we or systemd do not know, or that leaves too many rights."""
    variables = re.findall(r"^Environment=(\w+)=", text, re.MULTILINE)
    found = [name for name in variables if name not in KNOWN]
    found += re.findall(r"^User=root$", text, re.MULTILINE)
    found += [] if "ExecStart=/usr/local/bin/blackboard serve\n" in text else ["ExecStart"]
    # The program need not be installed here.
    unit = folder / "blackboard.service"
    unit.write_text(text.replace("/usr/local/bin/blackboard", "/bin/true"))
    checks = ("verify",), ("security", "--offline=true", f"--threshold={EXPOSED_MAX}")
    for check in checks:
        command = ["systemd-analyze", *check, str(unit)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode or done.stderr:
            found.append(f"{check[0]}: {done.stderr or done.stdout.splitlines()[-1]}")
    return found


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here")
@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("User=blackboard", "User=root"),
        ("BLACKBOARD_DATA", "BLACKBOARD_DIRECTORY"),
        ("ProtectSystem=strict", "ProtectSystems=strict"),
        ("CapabilityBoundingSet=\n", ""),
        ("blackboard serve", "blackboard server"),
    ],
)
def test_the_unit_is_understood_and_closed(good: str, bad: str, tmp_path: Path) -> None:
    """By systemd itself; and one change is noticed."""
    assert unit_problems(UNIT, tmp_path) == []
    assert good in UNIT
    assert unit_problems(UNIT.replace(good, bad), tmp_path) != []


def test_everything_waits_as_long_for_the_end() -> None:
    """The unit as the container."""
    compose = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
    assert "TimeoutStopSec=20\n" in UNIT
    assert "stop_grace_period: 20s\n" in compose
