"""How the parts of a service are put together."""

from pathlib import Path

from sqlalchemy import URL

from blackboard.archive.base import Archive
from blackboard.archive.sql import SqlArchive
from blackboard.integrity.signing import Seal, make_key


async def archive_beside(directory: Path) -> Archive:
    """The archive of an embedded engine, its blobs and its signing key: all in its directory.

    Errors: Unavailable; Corrupt; InvalidRequest when the key cannot be used.
    """
    seal = Seal(make_key(directory / "signing_key"))
    blobs = str(directory / "blobs")
    return await SqlArchive.open(archive_url(directory), blobs=blobs, sealer=seal)


def archive_url(directory: Path) -> str:
    """Where the archive of an embedded engine is."""
    return URL.create("sqlite", database=str(directory / "archive.db")).render_as_string()
