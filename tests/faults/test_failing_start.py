"""`blackboard serve` while the disk cannot write one of its small files: it says which, leaves no
half file, and the next start works."""

import errno
import os
import signal
from pathlib import Path

import pytest

from tests.faults.preloaded import built
from tests.prepared import prepared

SOURCE = Path(__file__).with_name("failing_files.c")
SOON_S = 120
NOTHING = Path(os.devnull)
WHOLE = {
    *("config/contexts.json", "config/contexts.lock"),
    *("data/archive.db", "data/archive.db.lock", "data/lock", "data/secret", "data/signing_key"),
    *("data/token", "data/owner.json"),
}


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is laid before the C library."""
    return built(SOURCE, tmp_path_factory.mktemp("library"))


def serve(environ: dict[str, str], folder: Path) -> tuple[bool, str]:
    """Run it until it says that it serves, and stop it; or until it ends by itself. Returns which,
    and its standard error."""
    log, (read, write) = folder / "log", os.pipe()
    with os.fdopen(read) as output:
        with os.fdopen(write) as into, log.open("wb") as errors, NOTHING.open("rb") as nothing:
            streams = [nothing.fileno(), into.fileno(), errors.fileno()]
            command = ["blackboard", "serve", "--port", "0"]
            process = prepared(environ).start(command, streams, folder, environ)
        with process:
            try:
                serves = any("Ctrl-C" in line for line in output)
                if serves:
                    os.kill(process.pid, signal.SIGINT)
                output.read()
                process.wait(SOON_S)
            except BaseException:
                os.kill(process.pid, signal.SIGKILL)
                raise
    return serves, log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize(
    ("part", "serves"),
    [
        ("config/contexts", True),  # boards can be read all the same
        ("data/owner.json", None),  # for lack of room, it is left out
        ("data/token", False),
        ("data/secret", False),
        ("data/signing_key", False),
        ("data/archive.db", False),
        ("data/lock", False),
    ],
)
def test_a_small_file_that_cannot_be_written(
    library: Path, tmp_path: Path, number: int, part: str, serves: bool | None
) -> None:
    flag = tmp_path / "flag"
    flag.write_text(f"write {number} {tmp_path / part}")
    kept = {name: text for name, text in os.environ.items() if "BLACKBOARD" not in name}
    environ = {
        **kept,
        "BLACKBOARD_CONFIG_DIR": str(tmp_path / "config"),
        "BLACKBOARD_DATA": str(tmp_path / "data"),
        "LD_PRELOAD": str(library),
        "FAILING_FILES": str(flag),
    }
    served, said = serve(environ, tmp_path)
    assert served == (number == errno.ENOSPC if serves is None else serves), said
    assert part in said, said
    assert os.strerror(number) in said
    assert "Traceback" not in said
    assert files_in(tmp_path) <= WHOLE
    flag.unlink()
    served, said = serve(environ, tmp_path)
    assert served, said
    assert said == ""
    assert WHOLE - files_in(tmp_path) == {"data/owner.json"}


def files_in(top: Path) -> set[str]:
    """Those in a data directory, and of the contexts."""
    paths = (path for name in ("config", "data") for path in (top / name).rglob("*"))
    return {str(path.relative_to(top)) for path in paths if path.is_file()}
