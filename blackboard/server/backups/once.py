"""A backup that is taken once, by a process that opens the engine and the archive for it."""

from blackboard.archive.base import Archive
from blackboard.backup.place import BackupPlace
from blackboard.backup.ship import Shipped, Shipper
from blackboard.core.access import OWN_BOARDS_ARCHIVED, is_reserved
from blackboard.engines.base import Store
from blackboard.limits import DEFAULT, Limits
from blackboard.server.archiver import Archiver
from blackboard.server.settings import Settings, make_archive, make_store


async def take_once(settings: Settings, url: str, limits: Limits = DEFAULT) -> Shipped:
    """Add to the backup at `url` everything that the boards of the settings have now.

    Errors: DataDirectoryInUse while a service has the embedded engine; InvalidRequest; Corrupt;
    NewerFormat; Unavailable.
    """
    place = BackupPlace.at(url, limits)
    store = await make_store(settings, limits)
    try:
        archive = await make_archive(settings, limits)
        try:
            return await _take(place, store, archive, limits)
        finally:
            if archive is not None:
                await archive.aclose()
    finally:
        await store.aclose()


async def _take(
    place: BackupPlace, store: Store, archive: Archive | None, limits: Limits
) -> Shipped:
    if archive is not None:
        # A board is shipped as far as its archive goes, so that has to be complete.
        await complete(store, archive, limits)
    shipper = Shipper(place, store, archive, limits)
    try:
        await shipper.begin()
        names = await shipper.boards()
        shipped = await shipper.round(names)
        await shipper.note_removed(names)
    finally:
        await shipper.end()
    return shipped


async def complete(store: Store, archive: Archive, limits: Limits) -> None:
    """Archive everything up to the present head of each board. Errors: Unavailable; Corrupt."""
    archiver = Archiver(store, archive, limits)
    try:
        for name in await store.boards():
            if name in OWN_BOARDS_ARCHIVED or not is_reserved(name):
                head = await store.open(name)
                # A service that was just killed may have left its lease on the archive.
                await archiver.reached(name, head.revision, archiver.takeover_ms)
    finally:
        await archiver.aclose()
