"""The port of the archive, and who keeps it."""

from blackboard.archive.base import Archive, Sealer
from blackboard.archive.sql import SqlArchive
from blackboard.integrity.signing import Seal


def test_what_we_ship_fits_the_ports() -> None:
    """Nothing of a port is missing, under the same name."""
    for port, kind in ((Archive, SqlArchive), (Sealer, Seal)):
        wanted = {name for name in vars(port) if not name.startswith("_")}
        assert wanted <= {name for name in dir(kind) if not name.startswith("_")}
        assert wanted
