"""A service to attack, and parts of bad requests."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blackboard.net.tokens import issue, new_secret
from blackboard.service import access
from blackboard.wire.codec import encode_value

CHILD = """
import json, sys
from blackboard.net import config, server
server.run(config.load(json.loads(sys.argv[1])))
"""
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
