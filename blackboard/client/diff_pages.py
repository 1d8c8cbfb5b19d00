"""Comparing two moments of a board, page by page, documents as one change each."""

from collections.abc import AsyncIterator

from blackboard.client.diff import Diff, KeyChange
from blackboard.client.link import Transport
from blackboard.client.views import Entry
from blackboard.core.checkpoints import DiffRequest, Moment
from blackboard.core.path import document_of
from blackboard.units import Key


async def differences_by_key(link: Transport, board: str, request: DiffRequest, limit: int) -> Diff:
    """At most `limit` keys that differ; a document is one change, at its own key."""
    found: list[KeyChange] = []
    revisions, document = (0, 0), None
    async for page in difference_pages(link, board, request):
        revisions = (page.a, page.b)
        for change in page.changes:
            last, document = document, document_of(change.key)
            if document is None:
                found.append(change)
            elif document != last:
                found += await _document_change(
                    link, (board, request.other or board), document, page
                )
        if len(found) > limit:
            break
    return Diff(*revisions, tuple(found[:limit]), len(found) > limit)


async def difference_pages(
    link: Transport, board: str, request: DiffRequest
) -> AsyncIterator[Diff]:
    """The pages of one comparison, all between the same two revisions."""
    while True:
        page = await link.differences(board, request)
        more = page.next_key is not None
        yield Diff(page.a, page.b, tuple(map(KeyChange.of, page.differences)), more)
        if not more:
            return
        # Use the revisions of the first page, because "now" advances while we read.
        request = DiffRequest(
            page.a, page.b, request.other, request.pattern, page.next_key, request.limit
        )


async def _document_change(
    link: Transport, boards: tuple[str, str], key: Key, page: Diff
) -> tuple[KeyChange, ...]:
    """What differs in a document, unless only the way it is stored does."""
    before = await document_at(link, boards[0], key, page.a)
    after = await document_at(link, boards[1], key, page.b)
    if before is not None and after is not None and before.value == after.value:
        return ()
    return (KeyChange(key, before, after),)


async def document_at(
    link: Transport, board: str, key: Key, at: Moment | None = None
) -> Entry | None:
    """As `client.documents.inverse.document_at`. Errors: ModuleNotFoundError without pycrdt."""
    # Not imported above: pycrdt is an extra of the client.
    from blackboard.client.documents import inverse

    return await inverse.document_at(link, board, key, at)
