"""The switch to encryption: up to which revision plain values, or values in an old form, are
accepted.

When encryption is switched on, the newest revision of each board that is there is recorded beside
the data keys, wrapped by the master key. Private values from before may be plain; later values, and
those on later boards, must not be. The public namespace has a switch of its own.

The records are data keys that encrypt no value: for a switch
`system/keys/~sealed/~switch/<scope>/<id>`, and for each board `system/keys/~sealed/~until/<id of
the switch>/<board>/<revision>/<id>`.

Invariants
- The record of a switch is written after those of its boards, which do not count without it.
- Of two concurrent switches, the stricter one counts.
- The record of a removed board goes with its data keys, when no branch needs its history any more.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from blackboard.encryption.data_keys import SWITCH, SWITCHES, UNTIL, DataKey, DataKeys
from blackboard.integrity.envelope import KEY_ID_BYTES
from blackboard.units import Revision

PRIVATE: Final = "private"
PUBLIC: Final = "public"


@dataclass(frozen=True, slots=True)
class _Found:
    """The content of the records."""

    table: Mapping[bytes, DataKey]
    switches: Mapping[str, tuple[bytes, ...]]
    ends: Mapping[tuple[bytes, str], Revision]


@dataclass
class Switch:
    """The records of one engine, read through its data keys."""

    keys: DataKeys
    _found: _Found = field(default_factory=lambda: _Found({}, {}, {}))

    async def is_on(self, scope: str) -> bool:
        """Whether it was switched on for a scope, PRIVATE or PUBLIC."""
        return scope in (await self._look()).switches

    async def turn_on(self, scope: str, ends: Mapping[str, Revision]) -> None:
        """Record that values in a scope are encrypted after the revisions `ends`, by board; on
        other boards from their beginning. Errors: Unavailable, with nothing changed."""
        switch = secrets.token_bytes(KEY_ID_BYTES)
        records = [
            (f"{UNTIL}{switch.hex()}/{board}/{end}", secrets.token_bytes(KEY_ID_BYTES))
            for board, end in ends.items()
            if end > 0
        ]
        await self.keys.switch([*records, (SWITCH + scope, switch)])

    async def end(self, board: str, scope: str) -> Revision | None:
        """The newest revision of a board from before the switch; 0 if there was none; None if it
        was never switched on."""
        found = await self._look()
        switches = found.switches.get(scope)
        if switches is None:
            return None
        return min(found.ends.get((switch, board), 0) for switch in switches)

    async def key(self, key_id: bytes | None = None) -> DataKey | None:
        """The key of a switch, which proves that a service with the master key made it; by default
        the newest one. None if there is none."""
        found = await self._look()
        ids = found.switches.get(PRIVATE, ())
        wanted = key_id if key_id is not None else ids[-1] if ids else b""
        return found.table[wanted] if wanted in ids else None

    async def _look(self) -> _Found:
        table = await self.keys.table(SWITCHES)
        if table is not self._found.table:
            self._found = _read(table)
        return self._found


def _read(table: Mapping[bytes, DataKey]) -> _Found:
    switches: dict[str, tuple[bytes, ...]] = {}
    ends: dict[tuple[bytes, str], Revision] = {}
    for key in sorted(table.values(), key=lambda key: key.order):
        if key.cipher is None:  # there is no proof that we wrote it
            continue
        if key.namespace.startswith(SWITCH):
            scope = key.namespace.removeprefix(SWITCH)
            switches[scope] = (*switches.get(scope, ()), key.id)
        elif key.namespace.startswith(UNTIL):
            switch, board, end = key.namespace.removeprefix(UNTIL).split("/")
            ends[bytes.fromhex(switch), board] = int(end)
    return _Found(table, switches, ends)
