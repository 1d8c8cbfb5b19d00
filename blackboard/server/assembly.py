"""How the parts of a service are put together.

Encryption at rest, set up: a store and an archive that seal what is private.

What it protects, and what it does not, is in docs/security.md.
"""

from typing import Final

from blackboard.archive.base import Archive
from blackboard.core.access import KEYS_BOARD, is_reserved
from blackboard.encryption.archive import SealedArchive
from blackboard.encryption.data_keys import DataKeys
from blackboard.encryption.master_key import Wrapper
from blackboard.encryption.store import SealedStore
from blackboard.engines.base import Store
from blackboard.errors import EngineRefused
from blackboard.limits import DEFAULT, Limits
from blackboard.units import Revision

_NEEDED: Final = "the master key with which values were sealed here (docs/howto/encryption.md)"


async def sealed(
    store: Store,
    archive: Archive | None,
    wrapper: Wrapper | None,
    *,
    public: bool = False,
    limits: Limits = DEFAULT,
) -> tuple[Store, Archive | None]:
    """A store and an archive that seal with data keys wrapped by `wrapper`; without one, as given.

    With `public` they seal the public namespace too. The first time that there is a master key, it
    is recorded what may be in the clear: what was there before.
    Errors: EngineRefused when values were sealed there and no master key is given: nothing could
    read them, and what is written now would lie there in the clear. Corrupt when the master key is
    another one, or a record of data keys was taken away. Unavailable.
    """
    if wrapper is None:
        if KEYS_BOARD in await store.boards():
            raise EngineRefused("master_key", "none", _NEEDED)
        return store, archive
    keys = DataKeys(store, wrapper, limits=limits)
    try:
        await keys.check()
        front = SealedStore(store, keys, public=public, limits=limits)
        await _switch_on(front, archive)
    except BaseException:
        await keys.aclose()
        raise
    return front, None if archive is None else SealedArchive(archive, keys, front.places)


async def _switch_on(front: SealedStore, archive: Archive | None) -> None:
    """From now on nothing in the clear counts where all is sealed; once and for good."""
    switch = front.places.switch
    wanted = [scope for scope in front.places.scopes if not await switch.is_on(scope)]
    if wanted:
        ends = await _ends(front.raw, archive)
        for scope in wanted:
            await switch.turn_on(scope, ends)
    front.keys.switched()


async def _ends(store: Store, archive: Archive | None) -> dict[str, Revision]:
    """Up to where boards go that may have values in the clear, in the engine or in the archive."""
    found = {
        name: (await store.open(name)).revision
        for name in await store.boards()
        if not is_reserved(name)
    }
    for name in () if archive is None else await archive.boards():
        mark = await archive.mark(name) if archive is not None else None
        # The archive may have plain values in revisions that the engine has lost.
        found[name] = max(found.get(name, 0), 0 if mark is None else mark.revision)
    return found
