"""A real S3 API for tests: moto's server in a process of its own."""

import subprocess
import sys
import urllib.request
from types import TracebackType
from typing import Self
from urllib.error import URLError

import anyio.to_thread

from tests.ports import free_port
from tests.waiting import wait_until

_READY_S = 60.0
BUCKET = "blobs"


class S3:
    """A server on loopback with one bucket; `environment` is what S3's clients look at."""

    def __init__(self) -> None:
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Where the bucket's blobs are, for `Blobs.at`."""
        return f"s3://{BUCKET}/board"

    @property
    def endpoint(self) -> str:
        """The server's address."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Variables that lead a client here."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    async def __aenter__(self) -> Self:
        await self.start()
        await anyio.to_thread.run_sync(self.request, "PUT", BUCKET)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()

    async def start(self) -> None:
        """Start it; it remembers nothing of an earlier run."""
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        self._spawn(command)
        await wait_until(self._answers, timeout_s=_READY_S)

    def _spawn(self, command: list[str]) -> None:
        silent = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdout=silent, stderr=silent)

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def request(self, method: str, path: str, body: bytes | None = None) -> bytes:
        """One plain request, such as to put something else into the place of an object."""
        asked = urllib.request.Request(f"{self.endpoint}/{path}", data=body, method=method)
        # Moto asks who it is, and believes it.
        asked.add_header(
            "Authorization",
            "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request,"
            " SignedHeaders=host, Signature=0",
        )
        with urllib.request.urlopen(asked) as answer:
            found: bytes = answer.read()
        return found

    async def _answers(self) -> bool:
        try:
            await anyio.to_thread.run_sync(self.request, "GET", "moto-api/")
        except (URLError, OSError):
            return False
        return True
