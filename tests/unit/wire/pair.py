"""Two sessions that talk to each other without a wire."""

from typing import Any

import pytest

from blackboard.core.watch import Position
from blackboard.wire.frames import JSON, MSGPACK, Encoding
from blackboard.wire.session import Answered, ClientSession, HelloReceived, ServerSession

both = pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda e: e.name)
POSITION = Position("e", 7, "00ff")


class Pair:
    """Both ends of a connection without a wire: frames are carried by hand."""

    def __init__(self, encoding: Encoding = MSGPACK, *, greeted: bool = True) -> None:
        self.client = ClientSession(encoding)
        self.server = ServerSession(encoding, now_ms=0)
        if greeted:
            self.client.send_hello({})
            (hello,) = self.to_server()
            assert isinstance(hello, HelloReceived)
            self.server.welcome(hello.id, {"agent": "ada"})
            assert isinstance(self.to_client()[0], Answered)

    def to_server(self) -> list[Any]:
        """What the server makes of everything that the client wants to send."""
        return [e for f in self.client.bytes_to_send() for e in self.server.receive(f)]

    def to_client(self) -> list[Any]:
        """What the client makes of everything that the server wants to send."""
        return [e for f in self.server.bytes_to_send() for e in self.client.receive(f)]
