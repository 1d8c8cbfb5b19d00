"""What happened in a run, line by line: two runs of one seed write the same, byte for byte."""

import asyncio
import hashlib
from dataclasses import dataclass, field


@dataclass(slots=True)
class Trace:
    """Lines of "time what", and how often each kind of thing happened.

    The folder of a run has a new name each time, and errors give the path of a file in it.
    """

    folder: bytes
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

    def short(self, content: bytes) -> str:
        """Bytes as a trace has them: their number and a digest, without the run's folder."""
        content = content.replace(self.folder, b"")
        return f"{len(content)}:{hashlib.sha256(content).hexdigest()[:8]}"
