"""What happened in a run, line by line: two runs of one seed write the same, byte for byte."""

import asyncio
import hashlib
from dataclasses import dataclass, field


@dataclass(slots=True)
class Trace:
    """Lines of "time what", and how often each kind of thing happened."""

    lines: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def note(self, kind: str, text: str = "") -> None:
        """Something happened now."""
        now_ms = asyncio.get_running_loop().time() * 1000
        self.lines.append(f"{now_ms:.3f} {kind} {text}")
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def digest(self) -> str:
        """A name for all of it."""
        return hashlib.sha256("\n".join(self.lines).encode()).hexdigest()


def short(content: bytes) -> str:
    """Bytes as a trace has them: their number and a digest."""
    return f"{len(content)}:{hashlib.sha256(content).hexdigest()[:8]}"
