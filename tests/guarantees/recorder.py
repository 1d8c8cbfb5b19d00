"""A TCP proxy on loopback that keeps every byte which the service sends to one client."""

import asyncio
from contextlib import suppress

from tests.faults.tcp_proxy import CHUNK_BYTES, TcpProxy


class Recorder(TcpProxy):
    """Forwards connections to `target_port`: `async with Recorder(port) as tap: ... tap.port`.

    `received` is what came back, over all connections: the handshakes, frames and closing of a
    plain WebSocket. The service sends it without a mask and uncompressed, so text stands in it as
    it is.
    """

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.received = bytearray()

    async def _pump_replies(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        replies = bytearray()  # of this connection: those of two at once must not mix
        try:
            with suppress(OSError):
                while chunk := await reader.read(CHUNK_BYTES):
                    replies += chunk
                    writer.write(chunk)
                    await writer.drain()
        finally:
            self.received += replies
