"""A service to attack, and parts of bad requests."""

import contextlib
import json
import re
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blackboard.core import access
from blackboard.integrity.tokens import issue, new_secret
from blackboard.wire.codec import encode_value
from tests.source_tree import ROOT
from tests.unit.server.http.conversation import PATIENCE_S

CHILD = """
import json, sys
from blackboard.server import settings as config
from blackboard.server.http import serve as server
from tests.lowered import lowered
limits = lowered(**json.loads(sys.argv[2]))
server.run(config.load(json.loads(sys.argv[1])), limits=limits)
"""
FEW_STRANGERS = {"ungreeted_max": 8, "ungreeted_per_peer_max": 8, "handshake_timeout_ms": 600_000}
"""Limits: so many connections may be open that have not sent a token, and for so long."""
SECRET = new_secret()
BOARD = "b"
ADA = issue(SECRET, access.agent("ada"), 3_600_000)
OPERATOR = issue(SECRET, access.operator(), 3_600_000)
SHORT_LEASE = {"kind": "grant", "key": "public/x", "holder": "ada", "ttl_ms": 1}
OTHER_LIFE = {"watch": 1, "patterns": ["**"], "after": "e:999999999:00"}
PUT = {"kind": "put", "key": "public/x", "value": 1}


@dataclass(frozen=True)
class Target:
    """The service under attack."""

    port: int
    pid: int

    @property
    def url(self) -> str:
        """Its address."""
        return f"ws://127.0.0.1:{self.port}"

    def memory_bytes(self) -> int:
        """Its resident memory."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(re.findall(r"VmRSS:\s+(\d+) kB", status)[0]) * 1024


@contextlib.contextmanager
def service_at(data: Path, limits: Mapping[str, int] | None = None) -> Iterator[Target]:
    """A service in a process of its own, with other values of these limits, which must be there at
    the end."""
    settings = {"data": str(data), "port": 0, "secret": SECRET}
    command = [sys.executable, "-c", CHILD, json.dumps(settings), json.dumps(limits or {})]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        banner = process.stderr.readline().decode()
        # What it logs of all that must not fill the pipe: it would wait for ever.
        rest = threading.Thread(target=process.stderr.read)
        rest.start()
        try:
            yield Target(int(banner.rpartition(":")[2]), process.pid)
            assert process.poll() is None, "the service is gone"
        finally:
            process.terminate()
            process.wait(PATIENCE_S)
            rest.join()


def op(key: Any, value: Any = 1) -> dict[str, Any]:
    """A commit's member `ops` with one put."""
    return {"ops": [{"kind": "put", "key": key, "value": value}]}


def key_at(key: str, revision: int) -> dict[str, Any]:
    """A commit's member `conditions` about one key."""
    return {"conditions": [{"kind": "key_at", "key": key, "revision": revision}]}


def unchanged(prefix: str, since: int) -> dict[str, Any]:
    """A commit's member `conditions` about one prefix."""
    return {"conditions": [{"kind": "prefix_unchanged", "prefix": prefix, "since": since}]}


def fence(key: str) -> dict[str, Any]:
    """A commit's member `fences` with one that nobody has."""
    return {"fences": [{"key": key, "holder": "ada", "fence": 5}]}


def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """A request about the board."""
    return {"id": 1, "method": method, "params": {"board": BOARD, **params}}


def with_packed_values(ops: Any) -> Any:
    """Values as msgpack carries them."""
    if not isinstance(ops, list):
        return ops
    return [
        {**op, "value": encode_value(op["value"])} if isinstance(op, dict) and "value" in op else op
        for op in ops
    ]
