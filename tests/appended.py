"""Archives whose pages a process of its own writes."""

from pathlib import Path

from blackboard.archive.appender.pages import ArchivePage
from blackboard.archive.appender.process import Appender
from blackboard.archive.sql import SqlArchive
from blackboard.core.commit import Put
from blackboard.integrity.signing import Seal
from blackboard.limits import Limits
from tests.conformance.archive_suite import SECRET, Place
from tests.conformance.story import Story
from tests.lowered import PATIENT, lowered
from tests.waiting import wait_until

ONE_ENTRY = lowered(PATIENT, archive_process_entries=1)
"""The first page starts the process."""


def appender_of(archive: SqlArchive) -> Appender:
    """What starts the process of an archive."""
    assert archive._appender is not None
    return archive._appender


def is_alive(pid: int) -> bool:
    """Whether a process with this id runs: not one that has ended and that nobody asked for."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return status.rpartition(b")")[2].split()[0] != b"Z"


def page_of(entries: int, *, value: bytes = b"\x01", key: str = "public/a") -> ArchivePage:
    """A page with so many commits of one change."""
    story = Story()
    for _ in range(entries):
        story.tell(Put(key, value))
    return ArchivePage("main", 1, 0, tuple(story.log), {})


async def started(archive: SqlArchive) -> int:
    """Wait until a process writes the pages of `archive`; returns its id."""
    appender = appender_of(archive)
    appender.note(appender._entries_min)

    async def is_there() -> bool:
        return appender.has_process

    await wait_until(is_there)
    assert appender._process is not None
    return appender._process.pid


async def open_appended(path: Path, limits: Limits = ONE_ENTRY) -> SqlArchive:
    """An archive in a directory, for which a process may be started."""
    url, blobs = f"sqlite:///{path}/archive.db", str(path / "blobs")
    return await SqlArchive.open(
        url, blobs=blobs, sealer=Seal(SECRET), limits=limits, may_spawn=True
    )


class AppendedPlace(Place):
    """A place whose archives each have a process that writes their pages."""

    async def open(self, secret: bytes = SECRET, limits: Limits = PATIENT) -> SqlArchive:
        """As `Place.open`. The process is there."""
        archive = await SqlArchive.open(
            self.url,
            blobs=str(self.blobs),
            sealer=Seal(secret),
            limits=lowered(limits, archive_process_entries=1),
            may_spawn=True,
        )
        self._stack.push_async_callback(archive.aclose)
        await started(archive)
        return archive
