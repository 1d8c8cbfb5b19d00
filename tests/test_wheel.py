"""What is shipped: the wheel holds `blackboard` alone, with agents, demos and scripts inside."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from blackboard._checkout import checkout_path
from tests.source_tree import ROOT

BUILD = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d"]


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of the files in a wheel built from this checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([*BUILD, str(folder)], cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def below(folder: str) -> set[str]:
    """The files of a folder of the checkout, as paths from its top."""
    found = (path for path in (ROOT / folder).rglob("*") if path.is_file())
    kept = (path for path in found if "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in kept}


def test_only_blackboard_is_importable_from_the_wheel(shipped: set[str]) -> None:
    """The import names `agents` and `demos` are left to others."""
    tops = {name.partition("/")[0] for name in shipped}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"blackboard"}


def test_everything_in_the_package_is_shipped(shipped: set[str]) -> None:
    """Scripts and the typing marker are there like the modules."""
    assert below("blackboard") <= shipped
    assert "blackboard/py.typed" in shipped


@pytest.mark.parametrize("folder", ["agents", "demos"])
def test_agents_and_demos_land_below_blackboard(shipped: set[str], folder: str) -> None:
    """Each file at the top is in the wheel under its import name."""
    wanted = {f"blackboard/{name}" for name in below(folder) if name != f"{folder}/__init__.py"}
    assert wanted <= shipped


def test_a_checkout_is_known_by_its_name(tmp_path: Path) -> None:
    """A stray pyproject.toml beside a foreign `agents` is not taken for ours."""
    assert checkout_path("agents") == [str(ROOT / "agents")]
    assert checkout_path("agents", tmp_path) == []
    (tmp_path / "pyproject.toml").write_text('[project]\nname = "another"\n')
    assert checkout_path("agents", tmp_path) == []
    (tmp_path / "pyproject.toml").write_text("[tool.black]\n")
    assert checkout_path("agents", tmp_path) == []
