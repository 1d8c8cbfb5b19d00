"""Dockerfile as data, and what it makes in a plain directory, for machines without containers.

`PlainImage` has the files of the last stage, installed from the wheels of this checkout, where
nobody but root can write, and runs its commands as a user without rights. It is not a container:
the base image, its Python, and the rest of the machine's files are not tried by it.
"""

import json
import os
import re
import shlex
import shutil
import site
import subprocess
import sys
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tests.source_tree import ROOT
from tests.wheels import wheels_in

NOBODY = 65534
_CONTINUED = re.compile(r"\\\n\s*")
# In the last stage, a file of the checkout.
_COPIED = re.compile(r"(?!--from)(\S+) (\S+)")
_STOP_S = 20
"""Of docker-compose.yml and the unit of systemd; a test compares them."""


@dataclass(frozen=True)
class Dockerfile:
    """Its text, and the instructions in it."""

    text: str

    @cached_property
    def steps(self) -> list[tuple[str, str]]:
        """Instruction and arguments, in order."""
        lines = _CONTINUED.sub("", re.sub(r"^#.*\n", "", self.text, flags=re.MULTILINE))
        pairs = (line.partition(" ") for line in lines.splitlines() if line)
        return [(name, rest) for name, _, rest in pairs]

    @cached_property
    def last(self) -> list[tuple[str, str]]:
        """The instructions of the last stage."""
        begins = max(n for n, (name, _) in enumerate(self.steps) if name == "FROM")
        return self.steps[begins:]

    def of(self, instruction: str) -> list[str]:
        """The arguments of each such instruction of the last stage."""
        return [rest for name, rest in self.last if name == instruction]

    def words(self, instruction: str) -> list[str]:
        """The arguments of the only such instruction, which is written as a list."""
        [found] = self.of(instruction)
        words: list[str] = json.loads(found)
        return words

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the image."""
        pairs = (word.partition("=") for rest in self.of("ENV") for word in shlex.split(rest))
        return {name: value for name, _, value in pairs}

    @property
    def health(self) -> list[str]:
        """The command that says whether it is healthy."""
        [found] = self.of("HEALTHCHECK")
        words: list[str] = json.loads(found.partition("CMD ")[2])
        return words

    @property
    def user(self) -> str:
        """The user of the image; root if it names none."""
        return (self.of("USER") or ["0:0"])[-1]

    @property
    def own(self) -> set[str]:
        """The folders that it makes for that user."""
        owner = self.user.replace(":", " --group ")
        made = re.findall(
            rf"install --directory --owner {owner} --mode \d+ (\S+)", "\n".join(self.of("RUN"))
        )
        return set(made)

    @property
    def copied(self) -> list[tuple[str, str]]:
        """What the last stage takes from the checkout, and where it goes."""
        found = (_COPIED.match(rest) for rest in self.of("COPY"))
        return [(match[1], match[2]) for match in found if match]

    def on_disk(self, path: str) -> Path | None:
        """The file of the checkout that is at `path` in the image."""
        for source, target in self.copied:
            if path.startswith(target):
                return ROOT / source / path.removeprefix(target)
        return None


IMAGE = Dockerfile((ROOT / "Dockerfile").read_text(encoding="utf-8"))


class PlainImage:
    """The image's files below `root`; `variables` are added to its own."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        wheels = [str(path) for path in sorted(wheels_in(folder).glob("*.whl"))]
        venv.create(root / "app", symlinks=True)
        python = root / "app/bin/python"
        install = ["install", "--quiet", "--no-deps", "--no-index", *wheels]
        pip = [sys.executable, "-m", "pip", "--python", str(python), *install]
        subprocess.run(pip, check=True, capture_output=True)
        [packages] = (root / "app/lib").glob("python*/site-packages")
        # What the wheels require is installed here already.
        (packages / "required.pth").write_text("\n".join(site.getsitepackages()) + "\n")
        for source, target in IMAGE.copied:
            shutil.copytree(ROOT / source, root / target.strip("/"))
        for path in IMAGE.own:
            self.path(path).mkdir(parents=True)
        self._close()

    def path(self, inside: str) -> Path:
        """Where a path of the image is."""
        return self.root / inside.strip("/")

    def files(self) -> dict[str, int]:
        """What is outside of the folders of its user, with the times of change."""
        own = [self.path(path) for path in IMAGE.own]
        every = (path for path in self.root.rglob("*") if not path.is_symlink())
        kept = (path for path in every if not any(path.is_relative_to(one) for one in own))
        return {str(path): path.stat().st_mtime_ns for path in kept}

    def environ(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The environment of its processes: of this one they have nothing."""
        inside = {**IMAGE.environment, **variables}
        return {name: self._moved(value) for name, value in inside.items()}

    def start(
        self, words: Sequence[str], variables: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        """Run a command as a user without rights, in the image's folder."""
        [folder] = IMAGE.of("WORKDIR")
        return subprocess.Popen(
            [*_as_nobody(), *(self._moved(word) for word in words)],
            cwd=self.path(folder),
            env=self.environ(variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def run(self, words: Sequence[str], variables: Mapping[str, str]) -> tuple[int, str]:
        """The exit code of a command, and what it printed."""
        with self.start(words, variables) as process:
            printed, _ = process.communicate(timeout=60)
        return process.returncode, printed.decode()

    def stop(self, process: "subprocess.Popen[bytes]") -> tuple[int, str]:
        """End it as `docker stop` does: its exit code, and all that it printed."""
        process.terminate()
        try:
            printed, _ = process.communicate(timeout=_STOP_S)
        finally:
            process.kill()
        return process.returncode, printed.decode()

    def _moved(self, value: str) -> str:
        """A value with the image's own paths in it, as they are here."""
        return re.sub(r"(?<![\w/.])/(?=app/|run/|var/lib/)", f"{self.root}/", value)

    def _close(self) -> None:
        """Nobody but root can change the tree; its user has the rest."""
        for path in self.root.rglob("*"):
            if not path.is_symlink():
                path.chmod(path.stat().st_mode & ~0o222 | 0o444)
        for own in IMAGE.own:
            self.path(own).chmod(0o700)
            if os.geteuid() == 0:
                os.chown(self.path(own), NOBODY, NOBODY)


def _as_nobody() -> list[str]:
    """What is put before a command, so that it has no right of root but to read everything: the
    Python that runs these tests may be in a directory of root."""
    if os.geteuid() != 0:
        return []
    ids = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs"]
    rights = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search"]
    return ["setpriv", *ids, *rights]
