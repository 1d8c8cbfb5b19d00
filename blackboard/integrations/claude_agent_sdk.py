"""Transcripts of the Claude Agent SDK on a board.

    options = ClaudeAgentOptions(session_store=BlackboardSessionStore(board))

Below `<prefix>/<project>/<session>`, each transcript (`main`, or `sub/<subpath>`) has its entries
(`lines`), the uuids of these (`uuids`), and one entry `about` it, which changes with every append:
so two writers of a transcript never overwrite each other's summary.
"""

from collections.abc import Iterator, Sequence
from typing import Any, cast

from blackboard.integrations.framework import framework
from blackboard.integrations.sessions import AnyBoard, Op, Records, readable
from blackboard.limits import COMMIT_BYTES_MAX, OPERATIONS_MAX
from blackboard.ops import ABSENT, Append, KeyAt

with framework("claude-agent-sdk"):
    from claude_agent_sdk import ClaudeSDKError, SessionStore, fold_session_summary
    from claude_agent_sdk.types import (
        SessionKey,
        SessionListSubkeysKey,
        SessionStoreEntry,
        SessionStoreListEntry,
        SessionSummaryEntry,
    )

Line = tuple[SessionStoreEntry, Append]
BATCH_LINES_MAX = OPERATIONS_MAX // 2 - 1
"""Lines of one commit: each is up to two operations, and there is one for `about`."""
BATCH_BYTES_MAX = COMMIT_BYTES_MAX // 2
"""Bytes of them, below what a commit may have, for there are keys and a summary, too."""


class BlackboardSessionStore(SessionStore):
    """A `SessionStore` on `board` (asynchronous, or of `blackboard.sync`), below `prefix`.

    Errors of every method: ClaudeSDKError, with the board's error as its `__cause__`. The SDK
    repeats an append that failed, twice; lines that have a uuid are stored once all the same.
    """

    def __init__(self, board: AnyBoard, *, prefix: str = "public/claude") -> None:
        self._records = Records(board, prefix, lambda error: ClaudeSDKError(str(error)))

    async def append(self, key: SessionKey, entries: list[SessionStoreEntry]) -> None:
        """Add `entries` and fold them into the summary: as one commit, or as several if there are
        more than 500 or 2 MiB. Entries with a uuid that the transcript has are left out. One of
        more than 1 MiB is refused, and all that come with it."""
        place = self._place(key)
        lines = [(entry, self._records.append(f"{place}/lines", entry)) for entry in entries]
        for batch in _batches(lines):
            await self._append(key, place, batch)

    async def _append(self, key: SessionKey, place: str, lines: Sequence[Line]) -> None:
        for _ in range(self._records.attempts_max):
            # Before the marks are read: whatever others append after this changes it, and refuses
            # the commit below.
            about = await self._records.entry(f"{place}/about")
            fresh = await self._fresh(place, lines)
            if not fresh:
                return
            ops: list[Op] = [operation for _, operation in fresh]
            ops += [self._records.put(mark, 1) for e, _ in fresh for mark in self._marks(place, e)]
            before = readable(about)
            ops.append(self._about(key, place, before and before.value, [e for e, _ in fresh]))
            revision = about.mod_revision if about else ABSENT
            if await self._records.accepted(ops, KeyAt(f"{place}/about", revision)):
                return
        raise ClaudeSDKError(f"others append to {key['session_id']!r} all the time")

    def _about(
        self, key: SessionKey, place: str, before: Any, entries: list[SessionStoreEntry]
    ) -> Op:
        about = {"session_id": key["session_id"], "subpath": key.get("subpath")}
        if not key.get("subpath"):
            folded = before and cast(SessionSummaryEntry, {**before["summary"], "mtime": 0})
            about["summary"] = cast(Any, fold_session_summary(folded, key, entries))
        return self._records.put(f"{place}/about", about)

    async def _fresh(self, place: str, lines: Sequence[Line]) -> list[Line]:
        """Those that the transcript does not have, each once."""
        marks = [mark for entry, _ in lines for mark in self._marks(place, entry)]
        known = set(await self._records.entries(marks))
        fresh = []
        for line in lines:
            here = self._marks(place, line[0])
            if known.isdisjoint(here):
                fresh.append(line)
            known.update(here)
        return fresh

    async def load(self, key: SessionKey) -> list[SessionStoreEntry] | None:
        """All entries of a transcript, in order; None if it has none."""
        lines = await self._records.all(f"{self._place(key)}/lines/*")
        return [entry.value for entry in lines] or None

    async def list_sessions(self, project_key: str) -> list[SessionStoreListEntry]:
        """The sessions of a project. `mtime` is the time of the last append, by the board."""
        found = await self._records.all(f"{self._records.key(project_key)}/*/main/about")
        return [{"session_id": e.value["session_id"], "mtime": e.time_ms} for e in found]

    async def list_session_summaries(self, project_key: str) -> list[SessionSummaryEntry]:
        """The summaries of the sessions of a project."""
        found = await self._records.all(f"{self._records.key(project_key)}/*/main/about")
        return [
            cast(SessionSummaryEntry, {**e.value["summary"], "mtime": e.time_ms}) for e in found
        ]

    async def list_subkeys(self, key: SessionListSubkeysKey) -> list[str]:
        """The subpaths of a session, such as those of its subagents."""
        session = self._session(key)
        return [e.value["subpath"] for e in await self._records.all(f"{session}/sub/*/about")]

    async def delete(self, key: SessionKey) -> None:
        """Remove a transcript; that of a session with all of its subagents."""
        place, session = self._place(key), self._session(key)
        # Uuids before their lines: one without a line would keep it from being stored again.
        parts = [f"{place}/uuids", f"{place}/lines"]
        if key.get("subpath"):
            await self._records.drop(place, *parts)
        else:
            await self._records.drop(session, f"{session}/sub", *parts)

    def _session(self, key: SessionKey | SessionListSubkeysKey) -> str:
        return self._records.key(key["project_key"], key["session_id"])

    def _place(self, key: SessionKey) -> str:
        session = self._session(key)
        subpath = key.get("subpath")
        return self._records.below(session, "sub", subpath) if subpath else f"{session}/main"

    def _marks(self, place: str, entry: SessionStoreEntry) -> list[str]:
        """The key that says that the transcript has this entry, if it has a uuid."""
        uuid = entry.get("uuid")
        return [self._records.below(place, "uuids", uuid)] if uuid else []


def _batches(lines: Sequence[Line]) -> Iterator[list[Line]]:
    batch: list[Line] = []
    size_bytes = 0
    for line in lines:
        size_bytes += len(line[1].value)
        if batch and (size_bytes > BATCH_BYTES_MAX or len(batch) == BATCH_LINES_MAX):
            yield batch
            batch, size_bytes = [], len(line[1].value)
        batch.append(line)
    if batch:
        yield batch
