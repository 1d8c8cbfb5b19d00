"""A service with OpenAI's embeddings, in this process: real HTTP, and a model that counts words."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.unit.client.memory.toy import vector


@dataclass
class EmbeddingService:
    """What it was asked, and what it answers in place of vectors, if anything."""

    url: str = ""
    asked: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    instead: tuple[int, bytes] | None = None

    def answer(self, request: dict[str, Any], key: str | None) -> tuple[int, bytes]:
        """Status and body."""
        self.asked.append(request)
        self.keys.append(key)
        if self.instead is not None:
            return self.instead
        rows = [
            {"object": "embedding", "index": index, "embedding": vector(text)}
            for index, text in enumerate(request["input"])
        ]
        return 200, json.dumps({"object": "list", "data": rows[::-1]}).encode()


class _Handler(BaseHTTPRequestHandler):
    def __init__(self, service: EmbeddingService, *arguments: Any) -> None:
        self._service = service
        super().__init__(*arguments)

    def do_POST(self) -> None:
        """One request."""
        content = self.rfile.read(int(self.headers["content-length"]))
        status, body = 404, b"not here"
        if self.path == "/v1/embeddings":
            key = self.headers["authorization"]
            status, body = self._service.answer(json.loads(content), key)
        self.send_response(status)
        if status == 307:
            self.send_header("location", self._service.url + "/embeddings")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Nothing."""


@contextmanager
def embedding_service() -> Iterator[EmbeddingService]:
    """The service, until the block ends."""
    service = EmbeddingService()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Handler, service)) as server:
        service.url = f"http://127.0.0.1:{server.server_port}/v1"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield service
        finally:
            server.shutdown()
            thread.join()
