"""A document as it was, for whoever compares two moments: what it says, and who wrote last."""

from blackboard.client.documents.inverse import content
from blackboard.client.documents.replica import DamagedError
from blackboard.client.link import Link
from blackboard.client.views import Entry
from blackboard.core.checkpoints import Moment
from blackboard.core.commit import Entry as Kept
from blackboard.core.documents.keys import document_prefix
from blackboard.errors import Corrupt
from blackboard.types import LIST_ENTRIES_MAX, Key


async def document_at(link: Link, board: str, key: Key, at: Moment) -> Entry | None:
    """The document at `key` as an entry whose value is its content by root; None if there was none.

    Takes memory and time for all of it. Errors: as of `Link.list`; Corrupt.
    """
    found: dict[Key, Kept] = {}
    after: Key | None = None
    while True:
        reading = await link.list(
            board, f"{document_prefix(key)}/**", after=after, limit=LIST_ENTRIES_MAX, at=at
        )
        found |= {entry.key: entry for entry in reading.entries}
        after = reading.next_key
        if after is None:
            break
    if not found:
        return None
    last = max(found.values(), key=lambda entry: entry.mod_revision)
    try:
        value = content(key, {path: entry.value for path, entry in found.items()})
    except DamagedError as error:
        raise Corrupt(what=f"document {key}", reason=str(error)) from error
    born = min(entry.create_revision for entry in found.values())
    return Entry(key, value, last.mod_revision, born, last.author, last.time_ms)
