"""Where a process of a test runs: in a network namespace of its own, or simply here."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Host:
    """An address, and how to start a command there: `[*host.enter, program, ...]`.

    The commands keep this process' files and process ids; only their network is another one.
    """

    address: str = "127.0.0.1"
    enter: tuple[str, ...] = ()

    @property
    def is_here(self) -> bool:
        """Whether it is this process' own network."""
        return not self.enter


HERE: Final = Host()
