"""Comparisons of two moments, page by page, with documents as one change each; and what a restore
would do, without doing it.

The journal of an agent's step rewinds with everything else, so calls made after that moment are
forgotten: the agent may make them again, and pay again. `calls` lists them; after a restore with
`keep_calls`, they are answered from the abandoned revisions.
"""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec.structs import replace

from blackboard.client.diff import Diff, KeyChange
from blackboard.client.leases.presence import Presence
from blackboard.client.link import Transport
from blackboard.client.views import Change, Entry, RevisionEvent
from blackboard.core.checkpoints import DiffRequest, Moment
from blackboard.core.commit import Lease
from blackboard.core.path import (
    JOURNAL,
    document_of,
    file_info_key,
    file_of,
    tree_head_key,
    tree_of,
)
from blackboard.errors import Compacted
from blackboard.units import Key, Milliseconds, Revision


async def differences_by_key(link: Transport, board: str, request: DiffRequest, limit: int) -> Diff:
    """At most `limit` keys that differ; a document and a file are one change, at their own key, and
    a workspace is one, at its head."""
    found: list[KeyChange] = []
    revisions, document = (0, 0), None
    async for page in difference_pages(link, board, request):
        revisions = (page.a, page.b)
        for change in page.changes:
            last, document = document, document_of(change.key)
            if (file := file_of(change.key)) is not None:
                found += _file_change(file, change)
            elif document is None:
                tree = tree_of(change.key)
                if tree is None or change.key == tree_head_key(tree):
                    found.append(change)
            elif document != last:
                # In key order the entries of a document are neighbours: the last one is enough.
                found += await _document_change(
                    link, (board, request.other or board), document, page
                )
        # One more than is shown, so that `more` is known.
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
    """The differences of a document; none if only the way it is stored differs."""
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


def _file_change(key: Key, change: KeyChange) -> tuple[KeyChange, ...]:
    """The difference of a file: its describing entry, as that of the key, without its parts."""
    if change.key != file_info_key(key):
        return ()
    sides = (change.before, change.after)
    return (KeyChange(key, *(side and replace(side, key=key) for side in sides)),)


# --- before a restore -----------------------------------------------------------------------------


class Log(Protocol):
    """`Board.log`."""

    async def __call__(self, *, after: Revision) -> Sequence[RevisionEvent]: ...


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call that `agent` made: of a model or a tool, which `kind` says; recorded at `revision`."""

    agent: str
    kind: str
    name: str
    revision: Revision
    time_ms: Milliseconds


@dataclass(frozen=True, slots=True)
class RestorePreview:
    """The changes of a restore, the agents it would interrupt, and the calls that may be made
    again,

    as far as you may read them.
    """

    diff: Diff
    agents: Sequence[Presence]
    leases: Sequence[Lease]
    calls: Sequence[MadeCall]


async def calls_since(log: Log, after: Revision, until: Revision) -> list[MadeCall]:
    """All calls that were recorded after a revision, up to `until` or a little later, but for those
    whose history was pruned. On a busy board, each page may find something, without end."""
    found: list[MadeCall] = []
    while after < until:
        try:
            page = await log(after=after)
        except Compacted as gone:  # a checkpoint may be kept without the history after it
            after = max(after + 1, gone.oldest - 1)
            continue
        if not page:
            break
        for revised in page:
            found += calls_in(revised)
        after = page[-1].revision
    return found


def calls_in(revised: RevisionEvent) -> list[MadeCall]:
    """The calls whose results were recorded by a revision."""
    found = []
    for change in revised.changes:
        agent, record = _record_of(change)
        if agent and record.get("outcome") == "done" and record.get("shared") is not True:
            kind, name = str(record.get("kind")), str(record.get("name"))
            if kind in ("tool", "model"):
                found.append(MadeCall(agent, kind, name, revised.revision, revised.time_ms))
    return found


def _record_of(change: Change) -> tuple[str, dict[str, Any]]:
    """The agent and the record, if a change is one of a journal."""
    match change.key.split("/"), change.kind, change.value:
        case ["private", agent, branch, _], "put", dict(record) if branch == JOURNAL:
            return agent, record
    return "", {}


def was_kept(value: Any, step: int) -> bool:
    """Whether `value`, of a key of a journal, is the result of a call of that step."""
    return isinstance(value, dict) and value.get("outcome") == "done" and value.get("step") == step


def kept_range(value: Any) -> tuple[Revision, Revision] | None:
    """The revisions (after, through) between which the calls were made that a restore kept."""
    match value:
        case {"after": int(after), "through": int(through)}:
            return after, through
    return None
