"""The port of the archive, and who keeps it."""

from blackboard.service.seal import Seal
from blackboard.store.archive import Archive, Sealer
from blackboard.store.archive_sql import SqlArchive


def test_what_we_ship_fits_the_ports() -> None:
    """Nothing of a port is missing, under the same name."""
    for port, kind in ((Archive, SqlArchive), (Sealer, Seal)):
        wanted = {name for name in vars(port) if not name.startswith("_")}
        assert wanted <= {name for name in dir(kind) if not name.startswith("_")}
        assert wanted
