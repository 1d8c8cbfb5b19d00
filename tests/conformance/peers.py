"""A document peer of another make: it speaks the bare protocol, and sends what a test gives it."""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from pycrdt import Doc, Text

from blackboard.client.link import Pipe, Transport
from blackboard.core.documents import update as crdt
from blackboard.errors import DocumentRefused
from blackboard.units import Key
from blackboard.wire import ysync
from blackboard.wire.ysync import Edit, Step1, Step2
from tests.conformance.team import PATIENCE_S


class Peer:
    """A replica that connects on request, and keeps its edits when it is not."""

    def __init__(self, *, client_id: int | None = None) -> None:
        self.doc: Doc[Any] = Doc(client_id=client_id)
        self.pipe: Pipe | None = None

    @property
    def text(self) -> Text:
        """The text that a Document calls its text."""
        found: Text = self.doc.get("text", type=Text)
        return found

    def edit(self, text: str, at: int = 0) -> bytes:
        """Insert ASCII text, here only; returns the update."""
        before = self.doc.get_state()
        self.text.insert(at, text)
        return self.doc.get_update(before)

    @asynccontextmanager
    async def connected(self, link: Transport, board: str, key: Key) -> AsyncIterator["Peer"]:
        """A connection for the block. `sync` first."""
        async with link.document(board, key) as pipe:
            self.pipe = pipe
            yield self

    async def sync(self) -> None:
        """Exchange everything, both ways. Errors: DocumentRefused."""
        await self.send(ysync.write_step1(self.doc.get_state()))
        lacking = answered = False
        while not (lacking and answered):
            for message in await self.receive():
                match message:
                    case Step1():
                        await self.send(ysync.write_step2(self.doc.get_update(message.state)))
                        # Asked again, it answers when it has taken what was sent.
                        await self.send(ysync.write_step1(self.doc.get_state()))
                        answered = True
                    case Step2() | Edit():
                        self.doc.apply_update(message.update)
                        lacking = lacking or isinstance(message, Step2)
        await self._answer()

    async def sync_again(self) -> None:
        """Wait until what was sent is committed; take what is there. Errors: DocumentRefused."""
        await self.send(ysync.write_step1(self.doc.get_state()))
        await self._answer()

    async def _answer(self) -> None:
        while not any(isinstance(message, Step2) for message in await self.take()):
            pass

    async def take(self) -> list[ysync.Message]:
        """Receive one frame and apply what is in it."""
        messages = await self.receive()
        for message in messages:
            if isinstance(message, Step2 | Edit):
                self.doc.apply_update(message.update)
        return messages

    async def push(self, update: bytes) -> None:
        """Send an update, whatever it is; `refusal` tells what became of it."""
        with contextlib.suppress(DocumentRefused):
            await self.send(ysync.write_update(update))

    async def send(self, frame: bytes) -> None:
        """Send a frame, whatever it is."""
        assert self.pipe is not None
        with anyio.fail_after(PATIENCE_S):
            await self.pipe.send(frame)

    async def receive(self) -> list[ysync.Message]:
        """The messages of the next frame. Errors: DocumentRefused."""
        assert self.pipe is not None
        with anyio.fail_after(PATIENCE_S):
            return ysync.read_frame(await self.pipe.receive())

    async def refusal(self, *, takes: bool = False) -> DocumentRefused:
        """Wait until the connection is ended, and why; `takes` what comes before. Errors:
        Unavailable when nobody says."""
        while True:
            try:
                await (self.take() if takes else self.receive())
            except DocumentRefused as refused:
                return refused


def state_of(peer: Peer) -> dict[int, int]:
    """What a peer knows, by client."""
    return crdt.read_state(peer.doc.get_state())
