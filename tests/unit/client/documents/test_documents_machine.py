"""A Hypothesis machine of replicas that go and come, and of restores, beside a model of words.

Each edit writes a word of its own between others, or deletes one, so that the text tells which
edits are in it. BLACKBOARD_DOCUMENT_EXAMPLES=500 makes it long.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import hypothesis
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, Phase, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test
from pycrdt import Map

import blackboard
from blackboard import Board, Client
from blackboard.errors import DocumentRefused
from blackboard.limits import Limits
from tests.conformance.peers import Peer

EXAMPLES = int(os.environ.get("BLACKBOARD_DOCUMENT_EXAMPLES", "12"))
STEPS = int(os.environ.get("BLACKBOARD_DOCUMENT_STEPS", "30"))
KEY = "public/memo"
REPLICAS = 3
T = TypeVar("T")
_boards = count()
_words = count()
replicas = st.integers(0, REPLICAS - 1)


class Replica:
    """A replica, on the line or not, and what it made that was not acknowledged yet."""

    def __init__(self) -> None:
        self.peer = Peer()
        self.line: AbstractAsyncContextManager[Peer] | None = None
        self.written: set[str] = set()
        self.deleted: set[str] = set()
        self.was_edited = False
        """Whether there is such a thing."""
        self.was_sent = False
        """Whether some of it may have been committed."""

    @property
    def facts(self) -> Map[Any]:
        """A map beside the text."""
        found: Map[Any] = self.peer.doc.get("facts", type=Map)
        return found

    def words(self) -> list[str]:
        """The words of its text, in their order."""
        return str(self.peer.text).split()

    def content(self) -> object:
        """All that it says."""
        return str(self.peer.text), self.facts.to_py()


class DocumentMachine(RuleBasedStateMachine):
    """One document of one board."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        super().__init__()
        self.portal = portal
        self.board: Board = client.board(f"board-{next(_boards)}")
        self.client = client
        self.replicas = [Replica() for _ in range(REPLICAS)]
        self.must: set[str] = set()
        self.gone: set[str] = set()
        """Words whose deletion was acknowledged, perhaps before those who wrote them heard so."""
        self.may: set[str] = set()
        """Words whose edit a restore met on its way: their outcome is unknown."""
        self.checkpoints: dict[str, tuple[object, set[str]]] = {}

    # --- what may happen --------------------------------------------------------------------------

    @rule(number=replicas)
    def connect(self, number: int) -> None:
        """Come to the line, if it is not there, with whatever was made meanwhile."""
        if self.replicas[number].line is None:
            self.portal.call(self._connect, number)

    @rule(number=replicas)
    def leave(self, number: int) -> None:
        """Leave the line, at once."""
        self.portal.call(self._leave, self.replicas[number])

    @rule(number=replicas, place=st.floats(0, 1))
    def write(self, number: int, place: float) -> None:
        """Put a word between two others."""
        replica = self.replicas[number]
        words = replica.words()
        before = words[: round(place * len(words))]
        word = f"w{next(_words)}"
        replica.written.add(word)
        at = sum(len(each) + 1 for each in before)
        self.portal.call(self._edit, replica, lambda: replica.peer.text.insert(at, f"{word} "))

    @rule(number=replicas, place=st.floats(0, 1))
    def delete(self, number: int, place: float) -> None:
        """Delete one word."""
        replica = self.replicas[number]
        words = replica.words()
        if not words:
            return
        index = min(int(place * len(words)), len(words) - 1)
        start = sum(len(each) + 1 for each in words[:index])
        stop = start + len(words[index]) + 1
        replica.deleted.add(words[index])
        self.portal.call(
            self._edit, replica, lambda: replica.peer.text.__delitem__(slice(start, stop))
        )

    @rule(number=replicas, key=st.sampled_from("ab"), value=st.integers(0, 9))
    def put(self, number: int, key: str, value: int) -> None:
        """Set a key of the map."""
        replica = self.replicas[number]
        self.portal.call(self._edit, replica, lambda: replica.facts.__setitem__(key, value))

    @rule(number=replicas)
    def synchronize(self, number: int) -> None:
        """Wait for everything, if it is on the line."""
        replica = self.replicas[number]
        if replica.line is not None:
            self.portal.call(self._synchronize, replica)

    @rule()
    def checkpoint(self) -> None:
        """Name the present, once nothing is on its way."""
        self._settle()
        name = f"checkpoint-{len(self.checkpoints)}"
        self.portal.call(self.board.checkpoint, name)
        self.checkpoints[name] = (self.portal.call(self._read).content(), set(self.must))

    @precondition(lambda self: self.checkpoints)
    @rule(data=st.data())
    def restore(self, data: st.DataObject) -> None:
        """Go back, or to an abandoned future. What was acknowledged since is undone for all."""
        name = data.draw(st.sampled_from(sorted(self.checkpoints)))
        content, words = self.checkpoints[name]
        self._settle()
        self.portal.call(self.board.restore, name)
        self.must, self.gone = set(words), set()
        for replica in self.replicas:
            if replica.was_sent:
                self.may |= replica.written | replica.deleted
            self.portal.call(self._leave, replica)
        assert self.portal.call(self._read).content() == content

    # --- what must hold ---------------------------------------------------------------------------

    def _settle(self) -> None:
        """Nothing of those on the line is on its way any more."""
        for replica in self.replicas:
            if replica.line is not None:
                self.portal.call(self._synchronize, replica)

    def teardown(self) -> None:
        """All are the same, and say everything that was acknowledged, and nothing else."""
        for _ in range(2):
            for number in range(REPLICAS):
                if self.replicas[number].line is None:
                    self.portal.call(self._connect, number)
                self.portal.call(self._synchronize, self.replicas[number])
        found = self.portal.call(self._read)
        words = set(found.words())
        assert self.must - self.may <= words <= self.must | self.may
        assert len(found.words()) == len(words)
        for replica in self.replicas:
            self.portal.call(self._synchronize, replica)
            assert replica.content() == found.content()
            self.portal.call(self._leave, replica)

    # --- on the event loop ------------------------------------------------------------------------

    async def _connect(self, number: int) -> None:
        replica = self.replicas[number]
        line = replica.peer.connected(self.client.link, self.board.name, KEY)
        await line.__aenter__()
        try:
            await replica.peer.sync()
        except DocumentRefused as refused:
            await line.__aexit__(None, None, None)
            if refused.cause != "stale" or not replica.was_edited:
                raise
            self.replicas[number] = Replica()
            return await self._connect(number)
        replica.line = line
        self._acknowledged(replica)
        return None

    async def _leave(self, replica: Replica) -> None:
        if replica.line is not None:
            await replica.line.__aexit__(None, None, None)
            replica.line = None

    async def _edit(self, replica: Replica, edit: Callable[[], None]) -> None:
        replica.was_edited = True
        edits: list[bytes] = []
        subscription = replica.peer.doc.observe(lambda event: edits.append(event.update))
        edit()
        replica.peer.doc.unobserve(subscription)
        if replica.line is not None:
            replica.was_sent = True
            for update in edits:
                await replica.peer.push(update)

    async def _synchronize(self, replica: Replica) -> None:
        await replica.peer.sync_again()
        self._acknowledged(replica)

    def _acknowledged(self, replica: Replica) -> None:
        self.gone |= replica.deleted
        self.must = (self.must | replica.written) - self.gone
        replica.written, replica.deleted = set(), set()
        replica.was_edited = replica.was_sent = False

    async def _read(self) -> Replica:
        """A replica that begins now."""
        found = Replica()
        async with found.peer.connected(self.client.link, self.board.name, KEY):
            await found.peer.sync()
        return found


@pytest.fixture
def portal() -> Iterator[BlockingPortal]:
    """An event loop in a thread of its own."""
    with start_blocking_portal() as portal:
        yield portal


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.limits(document_tail_updates=6, compaction_delay_ms=0)
def test_replicas_agree_and_nothing_acknowledged_is_lost(
    portal: BlockingPortal, tmp_path: Path, seed: int, limits: Limits
) -> None:
    """After any absence, any restore and any number of compactions."""
    settings = hypothesis.settings(
        max_examples=EXAMPLES,
        stateful_step_count=STEPS,
        deadline=None,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    opened = blackboard.open(tmp_path, level="memory", limits=limits)
    with portal.wrap_async_context_manager(opened) as client:

        class Machine(DocumentMachine):
            def __init__(self) -> None:
                super().__init__(portal, client)

        run_state_machine_as_test(hypothesis.seed(seed)(Machine), settings=settings)
