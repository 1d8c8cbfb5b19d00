"""kill -9 while two peers type: what was acknowledged, or shown to the other one, is kept.

The peers are of another make and keep what they wrote. After the restart a new peer, which knows
nothing, gets the document first. Then the old ones come back, with older states and with edits that
were under way, and all end with the same text.
"""

import random
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel

from blackboard.client.link import Transport
from blackboard.errors import BlackboardError
from blackboard.wire import ysync
from blackboard.wire.ysync import Step2
from tests.conformance.peers import Peer, state_of
from tests.guarantees.processes import ServiceProcess
from tests.tiers import few_or_many

BOARD, KEY = "main", "public/memo"
KILLS = 40
FEW_KILLS = 4
"""In `make test`."""
KEYS_MAX = 600
"""Keys that both have typed when the service is killed, at most."""


@dataclass
class Typist:
    """A peer that types in bursts. After each it asks for an acknowledgement, and types on."""

    peer: Peer
    drawn: random.Random
    noted: Callable[[], None] = lambda: None
    """Called after each burst."""
    acknowledged: int = 0
    """Its keys that are certainly safe."""
    _asked: list[int] = field(default_factory=list)

    @property
    def keys(self) -> int:
        """What it has typed, in all sessions: a key is one unit."""
        return state_of(self.peer).get(self.peer.doc.client_id, 0)

    async def work(self) -> None:
        """Type until the service is gone."""
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._hear)
                while True:
                    await self._burst()
                    self.noted()
                    await anyio.lowlevel.checkpoint()
        except* BlackboardError:
            self._asked.clear()

    async def _burst(self) -> None:
        at = self.drawn.randint(0, len(self.peer.text))
        for number in range(self.drawn.randint(1, 9)):
            await self.peer.send(ysync.write_update(self.peer.edit("k", at + number)))
        self._asked.append(self.keys)
        await self.peer.send(ysync.write_step1(self.peer.doc.get_state()))

    async def _hear(self) -> None:
        """Take what comes. An answer says that everything before the question is safe."""
        while True:
            if any(isinstance(message, Step2) for message in await self.peer.take()):
                self.acknowledged = self._asked.pop(0)


async def type_until_killed(
    link: Transport, typists: list[Typist], service: ServiceProcess, keys: int
) -> None:
    """Both type. When they have typed so many keys, the service is killed while they go on."""
    reached = anyio.Event()
    until = keys + sum(typist.keys for typist in typists)

    def note() -> None:
        if sum(typist.keys for typist in typists) >= until:
            reached.set()

    async with AsyncExitStack() as stack:
        for typist in typists:
            await stack.enter_async_context(typist.peer.connected(link, BOARD, KEY))
            await typist.peer.sync()
            typist.noted = note
        async with anyio.create_task_group() as tasks:
            for typist in typists:
                tasks.start_soon(typist.work)
            await reached.wait()
            await service.kill()


async def told_to_a_new_peer(link: Transport) -> Peer:
    """A peer that knew nothing, and what the service tells it."""
    peer = Peer()
    async with peer.connected(link, BOARD, KEY):
        await peer.sync()
    return peer


def check_kept(found: Peer, typists: list[Typist]) -> None:
    """A new peer knows what was acknowledged, and what one showed to the other."""
    known = state_of(found)
    for typist, other in zip(typists, reversed(typists), strict=True):
        client = typist.peer.doc.client_id
        assert known.get(client, 0) >= typist.acknowledged
        assert known.get(client, 0) >= state_of(other.peer).get(client, 0)


@few_or_many(FEW_KILLS, KILLS)
async def test_no_edit_that_was_acknowledged_or_shown_is_lost(
    tmp_path: Path, seed: int, rounds: int
) -> None:
    drawn = random.Random(seed)
    typists = [Typist(Peer(), random.Random(drawn.random())) for _ in range(2)]
    async with ServiceProcess("sqlite", tmp_path) as service:
        for _ in range(rounds):
            async with service.connect() as client:
                await type_until_killed(client.link, typists, service, drawn.randint(1, KEYS_MAX))
            await service.start()
            async with service.connect() as client:
                check_kept(await told_to_a_new_peer(client.link), typists)
                for typist in typists:
                    async with typist.peer.connected(client.link, BOARD, KEY) as peer:
                        await peer.sync()
                whole = await told_to_a_new_peer(client.link)
                assert len(whole.text) == sum(typist.keys for typist in typists)
    assert any(typist.acknowledged for typist in typists)
