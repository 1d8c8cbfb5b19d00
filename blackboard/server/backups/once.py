"""A backup that is taken once, by a process that opens the engine and the archive for it."""

from blackboard.archive.base import Archive
from blackboard.backup.place import BackupPlace
from blackboard.backup.ship import Shipped, Shipper
from blackboard.core.access import OWN_BOARDS_ARCHIVED, is_reserved
from blackboard.engines.base import Store
from blackboard.errors import BlackboardError, NoSuchBoard, Unavailable
from blackboard.limits import DEFAULT, Limits
from blackboard.server.archiver import Archiver
from blackboard.server.settings import Settings, make_archive, make_store


async def take_once(settings: Settings, url: str, limits: Limits = DEFAULT) -> Shipped:
    """Add to the backup at `url` everything that the boards of the settings have now.

    Errors: DataDirectoryInUse while a service has the embedded engine; InvalidRequest; Corrupt;
    NewerFormat; Unavailable. A board that fails keeps no other out of the backup.
    """
    place = BackupPlace.at(url, limits)
    store = await make_store(settings, limits)
    try:
        archive = await make_archive(settings, limits, store)
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
    failure: BlackboardError | None = None
    if archive is not None:
        try:
            # A board is shipped as far as its archive goes, so that has to be complete.
            await complete(store, archive, limits)
        except BlackboardError as error:
            failure = error
    shipper = Shipper(place, store, archive, limits)
    try:
        await shipper.begin()
        names = await shipper.boards()
        shipped = await shipper.round(names)
        await shipper.note_removed(names)
    finally:
        await shipper.end()
    if failure is not None:
        raise failure
    return shipped


async def complete(store: Store, archive: Archive, limits: Limits) -> None:
    """Archive everything up to the present head of each board. Errors: Unavailable at once: every
    other board might wait as long; Corrupt: the first one, after the other boards."""
    archiver = Archiver(store, archive, limits)
    failure: BlackboardError | None = None
    try:
        for name in await store.boards():
            if name not in OWN_BOARDS_ARCHIVED and is_reserved(name):
                continue
            try:
                head = await store.open(name)
                # A service that was just killed may have left its lease on the archive.
                await archiver.reached(name, head.revision, archiver.takeover_ms)
            except Unavailable:
                raise
            except NoSuchBoard:  # removed meanwhile
                continue
            except BlackboardError as error:
                failure = failure or error
    finally:
        await archiver.aclose()
    if failure is not None:
        raise failure
