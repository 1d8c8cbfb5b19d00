"""What is shipped: two wheels that hold `blackboard` alone, with agents, demos and scripts inside,
with metadata that an index can show, and with the lowest versions that `make lowest` tests with.

tests/acceptance/test_installed.py installs them.
"""

import ast
import re
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator
from email import message_from_bytes
from email.message import Message
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import blackboard
from blackboard._checkout import checkout_path
from tests.source_tree import ROOT, Source
from tests.wheels import build
from tools.lowest_constraints import floors

WHOLE, CLIENT = ROOT, ROOT / "clients/python"
ADDRESS = "https://example.org/team/blackboard"
EXTRAS = {
    "pycrdt": ["blackboard.client.documents"],
    "pathspec": ["blackboard.client.workspace"],
    "cryptography": [],
    "numpy": ["blackboard.client.memory.sketches", "blackboard.client.memory.vectors"],
}
"""What the client imports of them when its module is loaded, and where."""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, set[str]]:
    """The names of the files in each wheel built from this checkout."""
    return {project: held(project, tmp_path_factory.mktemp("wheel")) for project in (WHOLE, CLIENT)}


def held(project: Path, folder: Path) -> set[str]:
    """The files in the wheel of a project."""
    build(project, folder, "wheel")
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def shipped(wheels: dict[Path, set[str]]) -> set[str]:
    """The names of the files in both wheels."""
    return wheels[WHOLE] | wheels[CLIENT]


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    """The module with the hooks of both builds."""
    spec = spec_from_file_location("build_hook", CLIENT / "build_hook.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def below(folder: str) -> set[str]:
    """The files of a folder of the checkout, as paths from its top."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    kept = (path for path in found if "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in kept}


def test_only_blackboard_is_importable_from_the_wheels(shipped: set[str]) -> None:
    """The import names `agents` and `demos` are left to others."""
    tops = {name.partition("/")[0] for name in shipped}
    assert tops == {"blackboard"}


def test_everything_in_the_package_is_shipped(shipped: set[str]) -> None:
    """Scripts and the typing marker are there like the modules."""
    assert below("blackboard") <= shipped
    assert "blackboard/py.typed" in shipped


@pytest.mark.parametrize("folder", ["agents", "demos"])
def test_agents_and_demos_land_below_blackboard(shipped: set[str], folder: str) -> None:
    """Each file at the top is in the wheel under its import name."""
    wanted = {f"blackboard/{name}" for name in below(folder) if name != f"{folder}/__init__.py"}
    assert wanted <= shipped


def test_the_page_has_its_client_beside_it(shipped: set[str]) -> None:
    """The modules of clients/js, where the page imports them."""
    source = {Path(name).name for name in below("clients/js/src")}
    assert {f"blackboard/page/client/{name}" for name in source} <= shipped


def test_no_file_is_in_both_wheels(wheels: dict[Path, set[str]]) -> None:
    """So that either can be installed or removed without harm to the other."""
    assert wheels[WHOLE] & wheels[CLIENT] == set()


def project(folder: Path) -> dict[str, Any]:
    """What its pyproject.toml says of a distribution."""
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    found: dict[str, Any] = tomllib.loads(text)["project"]
    return found


def ranges(requirements: Iterable[str]) -> dict[str, str]:
    """The range of each required distribution, by its name."""
    named = (re.match(r"([a-z-]+)(?:\[\w+\])?(.*)", text) for text in requirements)
    return {match[1]: match[2] for match in named if match}


def test_both_distributions_have_one_version_and_the_same_ranges() -> None:
    """And the whole one requires exactly that client, with all that its extras name, but for an
    extra that it has, too: that is the same."""
    whole, client = project(WHOLE), project(CLIENT)
    shared = whole["optional-dependencies"]
    extras = client["optional-dependencies"].items()
    for name, extra in extras:
        assert shared.get(name, extra) == extra
    named = (text for name, extra in extras if name not in shared for text in extra)
    wanted = ranges([*client["dependencies"], *named])
    required = ranges(whole["dependencies"])
    assert required.pop(client["name"]) == f"=={whole['version']}" == f"=={client['version']}"
    assert wanted.items() <= required.items()
    assert (CLIENT / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def loaded(body: list[ast.stmt]) -> Iterator[str]:
    """What a module imports as soon as it is imported: not in functions, nor for types alone."""
    for node in body:
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            case ast.If() if "TYPE_CHECKING" not in ast.unparse(node.test):
                yield from loaded([*node.body, *node.orelse])
            case ast.Try():
                yield from loaded([*node.body, *node.orelse, *node.finalbody])


def test_the_client_needs_nothing_but_itself(wheels: dict[Path, set[str]]) -> None:
    """Neither a file of ours that it does not hold, nor a package that it does not require."""
    needed = {name.replace("-", "_") for name in ranges(project(CLIENT)["dependencies"])}
    offenders = []
    for file in (Source(name, (ROOT / name).read_text()) for name in python(wheels[CLIENT])):
        for name in loaded(file.tree.body):
            top = name.partition(".")[0]
            extra = any(file.module.startswith(home) for home in EXTRAS.get(top, []))
            if top not in {*needed, *sys.stdlib_module_names, "blackboard"} and not extra:
                offenders.append(f"{file.module} -> {name}")
            if paths(name) & python(wheels[WHOLE]):
                offenders.append(f"{file.module} -> {name}")
    assert offenders == []


def python(names: set[str]) -> set[str]:
    """The modules among the files of a wheel."""
    return {name for name in names if name.endswith(".py")}


def paths(imported: str) -> set[str]:
    """The files that an import of that name may load."""
    parts = imported.split(".")
    found = {f"{'/'.join(parts[:count])}.py" for count in range(2, len(parts) + 1)}
    return found | {f"{'/'.join(parts[:count])}/__init__.py" for count in range(1, len(parts) + 1)}


def test_a_checkout_is_known_by_its_name(tmp_path: Path) -> None:
    """A stray pyproject.toml beside a foreign `agents` is not taken for ours."""
    assert checkout_path("agents") == [str(ROOT / "agents")]
    assert checkout_path("agents", tmp_path) == []
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\n')
    assert checkout_path("agents", tmp_path) == []
    (tmp_path / "pyproject.toml").write_text("[tool.black]\n")
    assert checkout_path("agents", tmp_path) == []


# --- what an index shows --------------------------------------------------------------------------

_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.DOTALL | re.MULTILINE)
Metadata = Callable[[Path, str], Message]
_TARGET = re.compile(r"\]\(([^)\s]+)\)")


@pytest.fixture
def metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Metadata:
    """Builds the wheel of a project that is published at an address; returns its metadata."""

    def built(project: Path, address: str) -> Message:
        monkeypatch.setenv("BLACKBOARD_REPOSITORY", address)
        build(project, tmp_path, "wheel")
        (wheel,) = tmp_path.glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            [name] = [each for each in archive.namelist() if each.endswith(".dist-info/METADATA")]
            return message_from_bytes(archive.read(name))

    return built


def targets(page: str) -> list[str]:
    """Where the links and pictures of a page lead."""
    return _TARGET.findall(_CODE.sub("", page))


@pytest.mark.parametrize("project", [WHOLE, CLIENT], ids=["whole", "client"])
def test_no_link_on_an_index_is_relative(project: Path, metadata: Metadata) -> None:
    """Each leads to a file of this repository, as of the tag of the version."""
    found = metadata(project, ADDRESS)
    version = found["Version"]
    page = found.get_payload()
    assert isinstance(page, str)
    urls = [url.partition(", ")[2] for url in found.get_all("Project-URL", [])]
    assert len(targets(page)) >= 1
    assert f"{ADDRESS}/issues" in urls
    for target in [*targets(page), *urls]:
        assert target.startswith("https://"), target
        path = re.fullmatch(rf"{ADDRESS}/(?:blob|raw)/v{version}/([^#]+)(?:#.+)?", target)
        assert path or target in (ADDRESS, f"{ADDRESS}/issues"), target
        assert path is None or (ROOT / path[1]).exists(), target


@pytest.mark.parametrize("project", [WHOLE, CLIENT], ids=["whole", "client"])
def test_without_an_address_nothing_leads_anywhere(project: Path, metadata: Metadata) -> None:
    """A build of a checkout that is published nowhere has the text, and no dead links."""
    found = metadata(project, "")
    page = found.get_payload()
    assert isinstance(page, str)
    assert targets(page) == []
    assert page.startswith("# ")
    assert found.get_all("Project-URL") is None


def test_links_become_absolute(hook: ModuleType) -> None:
    """Pictures as themselves; what is absolute, and what stands in code, stays."""
    text = "[a](docs/a.md#b) ![c](docs/c.png) [d](https://example.org) `[e](f)` [g](#h)\n"
    fence = "```python\n[i](j)\n```\n"
    place = f"{ADDRESS}/{{view}}/v1"
    blob, raw = f"{ADDRESS}/blob/v1", f"{ADDRESS}/raw/v1"
    assert hook.index_page(text + fence, ".", place) == (
        f"[a]({blob}/docs/a.md#b) ![c]({raw}/docs/c.png)"
        " [d](https://example.org) `[e](f)` [g](#h)\n" + fence
    )
    assert hook.index_page(text + fence, ".", "") == (
        "a  [d](https://example.org) `[e](f)` [g](#h)\n" + fence
    )
    up = hook.index_page("[a](../../README.md)", "clients/python", place)
    assert up == f"[a]({blob}/README.md)"
    with pytest.raises(ValueError, match="outside the repository"):
        hook.index_page("[a](../../../README.md)", "clients/python", place)


def test_the_version_is_one() -> None:
    """`blackboard.__version__` is that of the project, and the changelog begins with it."""
    version = project(WHOLE)["version"]
    assert blackboard.__version__ == version
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changes, re.MULTILINE)[0] == version


def declared() -> dict[str, Any]:
    """What pyproject.toml says of the project."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert isinstance(project, dict)
    return project


def pinned(lines: Iterable[str]) -> dict[str, Version]:
    """Version by name, of lines `NAME==VERSION`."""
    found = (line.split("==") for line in lines if "==" in line)
    return {canonicalize_name(name): Version(version) for name, version in found}


def test_the_lowest_versions_that_are_tested_are_those_that_are_admitted() -> None:
    lines = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8").splitlines()
    lowest, admitted = pinned(lines), pinned(floors(declared()))
    assert len(admitted) > 30
    assert {name: lowest.get(name) for name in admitted} == admitted


def test_no_version_is_admitted_that_leaves_a_cancelled_connection_open() -> None:
    needed = {each.name: each.specifier for each in map(Requirement, declared()["dependencies"])}
    assert "2.0.52" not in needed["sqlalchemy"]
    assert "0.22.0" not in needed["aiosqlite"]
