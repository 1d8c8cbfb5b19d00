"""The open documents of a process, each in its own room."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from blackboard.core import access
from blackboard.core.access import Principal, Right
from blackboard.core.path import check_document, document_prefix, is_decision, updates_prefix
from blackboard.errors import LimitExceeded, RateLimited
from blackboard.limits import DEFAULT, Limits
from blackboard.server.documents.awareness import Publishing
from blackboard.server.documents.room import Linking, Room
from blackboard.server.documents.session import Session
from blackboard.units import Key


class Documents:
    """Opens a room for the first peer of a document, and closes it after the last one has left."""

    def __init__(
        self,
        link: Linking,
        publishing: Publishing | None = None,
        limits: Limits = DEFAULT,
    ) -> None:
        self._link = link
        self._publishing = publishing
        self._limits = limits
        self._rooms: dict[tuple[str, Key], Room] = {}

    @asynccontextmanager
    async def join(
        self,
        board: str,
        key: Key,
        principal: Principal,
        check: Callable[[], None] = lambda: None,
        pay: Callable[[int], RateLimited | None] = lambda _: None,
    ) -> AsyncIterator[Session]:
        """A session of `principal` with the document at `key`, which begins empty.

        It ends with the first message, in either direction, for which `check` raises
        Unauthenticated. `pay` charges the bytes of an edit; if it returns a refusal, the edit
        waits as long as that says and is charged then.

        Errors: AccessDenied unless everything below `<key>/~doc` may be read; LimitExceeded above
        DOCUMENTS_MAX documents or DOCUMENT_SESSIONS_MAX sessions with this one; InvalidRequest;
        Unavailable; Corrupt.
        """
        prefix = document_prefix(check_document(key))
        access.require_below(principal, Right.READ, prefix)
        can_edit = _can_edit(principal, key)
        room = self._room(board, key)
        # Counted while it loads: another user that gives up must not close it.
        room.users += 1
        try:
            await room.ready()
            session = Session(room, principal, can_edit=can_edit, check=check, pay=pay)
            serving = asyncio.create_task(session.run(), name=f"session with {key}")
            try:
                yield session
            finally:
                await session.leave(serving)
        finally:
            room.users -= 1
            if not room.users:
                await self._close(room)

    def _room(self, board: str, key: Key) -> Room:
        """The room, loading or loaded: simultaneous callers get the same one."""
        room = self._rooms.get((board, key))
        if room is not None:
            most = self._limits.documents.document_sessions_max
            if room.users >= most:
                raise LimitExceeded("DOCUMENT_SESSIONS_MAX", room.users + 1, most, key)
            return room
        most = self._limits.documents.documents_max
        if len(self._rooms) >= most:
            raise LimitExceeded("DOCUMENTS_MAX", len(self._rooms) + 1, most)
        room = Room(self._link, board, key, self._publishing, self._limits)
        self._rooms[board, key] = room
        room.start(self._forget)
        return room

    def _forget(self, room: Room) -> None:
        # The document may have been opened again: its next room has the same key.
        if self._rooms.get((room.board, room.key)) is room:
            del self._rooms[room.board, room.key]

    async def _close(self, room: Room) -> None:
        self._forget(room)
        await room.aclose()

    async def end(self, board: str) -> None:
        """End every room of a board, and disconnect its members."""
        rooms = [room for (place, _), room in self._rooms.items() if place == board]
        await asyncio.gather(*map(self._close, rooms))

    async def aclose(self) -> None:
        """End every room, and disconnect its members."""
        await asyncio.gather(*(self._close(room) for room in list(self._rooms.values())))


def _can_edit(principal: Principal, key: Key) -> bool:
    """Whether `principal` may edit the document at `key`: as if it appended the updates itself."""
    updates, grants = updates_prefix(key), principal.grants
    may_decide = (
        not is_decision(key)
        or access.allows_below(grants, Right.ADMIN, updates)
        or access.allows_below(grants, Right.APPROVE, updates)
    )
    return may_decide and access.allows_below(grants, Right.APPEND, updates)
