"""Facts about the machine and the versions that a set of figures belongs to."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.figures import quantile
from bench.servers import UnavailableError, find_binary, version_of

CLIENTS = (
    "agent-blackboard",
    "aetcd",
    "grpcio",
    "langgraph",
    "nats-py",
    "redis",
    "hiredis",
    "websockets",
)
SERVERS = ("etcd", "nats-server", "redis-server")
PROBE_WRITES = 150
PROBE_BYTES = 512


@dataclass(frozen=True, slots=True)
class Facts:
    """What has to be said beside the figures; times in milliseconds."""

    processor: str
    cores: int
    kernel: str
    python: str
    servers: Mapping[str, str]
    clients: Mapping[str, str]
    load_before: float
    fdatasync_p50_ms: float
    fdatasync_p99_ms: float

    def conditions(self, rounds: int) -> str:
        """For a published table: in one line, what the figures depend on."""
        servers = ", ".join(f"{name} {known}" for name, known in self.servers.items())
        return (
            f"{rounds} rounds, {self.processor}, {self.cores} cores, Python {self.python},"
            f" load before {self.load_before:.1f}, a sync takes {self.fdatasync_p50_ms:.2f} ms;"
            f" {servers}"
        )

    def lines(self) -> list[str]:
        """For people: one fact a line."""
        return [
            f"{self.processor}, {self.cores} cores, Linux {self.kernel}, Python {self.python}",
            "servers: " + ", ".join(f"{name} {known}" for name, known in self.servers.items()),
            "clients: " + ", ".join(f"{name} {known}" for name, known in self.clients.items()),
            f"fdatasync of {PROBE_BYTES} bytes: p50 {self.fdatasync_p50_ms:.2f} ms, "
            f"p99 {self.fdatasync_p99_ms:.2f} ms; load before the run {self.load_before:.1f}",
        ]


def gather_facts(folder: Path) -> Facts:
    """Look around; `folder` must lie on the disk that the servers write to."""
    delays_ms = probe_disk(folder / "probe")
    return Facts(
        processor=_processor(),
        cores=os.cpu_count() or 0,
        kernel=platform.release(),
        python=platform.python_version(),
        servers={name: _server_version(name) for name in SERVERS},
        clients=_client_versions(),
        load_before=os.getloadavg()[0],
        fdatasync_p50_ms=quantile(delays_ms, 0.5),
        fdatasync_p99_ms=quantile(delays_ms, 0.99),
    )


def probe_disk(path: Path) -> Sequence[float]:
    """Milliseconds of each of 150 small appends that are synced to the disk."""
    delays_ms = []
    with path.open("wb", buffering=0) as probe:
        for _ in range(PROBE_WRITES):
            probe.write(bytes(PROBE_BYTES))
            started = time.monotonic()
            os.fdatasync(probe.fileno())
            delays_ms.append((time.monotonic() - started) * 1e3)
    path.unlink()
    return delays_ms


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _server_version(name: str) -> str:
    try:
        binary = find_binary(name, fetch=False)
        kind = " (Valkey)" if "valkey" in binary.name else ""
        return f"{version_of(binary)}{kind}"
    except UnavailableError:
        return "absent"


def _client_versions() -> dict[str, str]:
    versions = {}
    for name in CLIENTS:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "absent"
    return versions
