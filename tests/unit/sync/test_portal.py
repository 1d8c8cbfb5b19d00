"""Ctrl-C at each step of a call of `blackboard.sync`: the loop's thread goes on."""

import asyncio
import gc
import inspect
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from blackboard import sync
from blackboard.errors import Unavailable
from blackboard.sync.portal import Portal

PATIENCE_S = 30
STEPS_MAX = 2_000


class Interrupt:
    """Raises KeyboardInterrupt in this thread at its n-th line, call or return."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __enter__(self) -> None:
        sys.settrace(self._step)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        if _cannot_be_interrupted(frame, event):
            return self._step
        self.left -= 1
        if self.left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return self._step


def _cannot_be_interrupted(frame: FrameType, event: str) -> bool:
    """A generator is not interrupted in its `yield`; nor does the callback of a weak reference
    raise anything."""
    is_generator = bool(frame.f_code.co_flags & inspect.CO_GENERATOR)
    return (is_generator and event == "return") or frame.f_code.co_name == "_remove"


def answers(portal: Portal) -> bool:
    """Whether the loop's thread still works, asked in a thread that may be left behind."""
    asking = threading.Thread(target=portal.call, args=(lambda: None,), daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    return not asking.is_alive()


def interrupted_everywhere(portal: Portal, call: Callable[[], object]) -> int:
    """How many steps `call` has, each of which was interrupted once."""
    for at in range(1, STEPS_MAX):
        interrupt = Interrupt(at)
        try:
            with interrupt:
                call()
        except KeyboardInterrupt:
            pass
        assert answers(portal), f"interrupted at step {at}, and the loop's thread hangs"
        if interrupt.left > 0:
            return at - 1
    raise AssertionError(f"more than {STEPS_MAX} steps")


async def nothing() -> None:
    """A call that has nothing to wait for."""


@pytest.mark.parametrize(
    "call",
    [
        lambda portal: portal.run(nothing),
        lambda portal: portal.call(lambda: None),
    ],
    ids=["run", "call"],
)
def test_an_interrupt_at_any_step_leaves_the_loop_running(
    call: Callable[[Portal], object], request: pytest.FixtureRequest
) -> None:
    # A collection calls others back in this thread, where nothing may raise.
    request.addfinalizer(gc.enable)
    gc.disable()
    portal = Portal()
    assert interrupted_everywhere(portal, lambda: call(portal)) > 10
    portal.close()


def test_a_call_that_the_loop_never_began_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread may call while the interpreter exits, and is waited for: it must not wait itself."""
    portal, stopped, submitted, errors = Portal(), threading.Event(), threading.Event(), []
    submit = portal._submit

    def noted(work: Callable[[], object]) -> None:
        submit(work)
        submitted.set()

    def call() -> None:
        stopped.wait(PATIENCE_S)
        try:
            portal.call(lambda: None)
        except Unavailable as error:
            errors.append(error.reason)

    monkeypatch.setattr(portal, "_submit", noted)
    calling = threading.Thread(target=call, daemon=True)
    calling.start()
    submit(portal._loop.stop)
    portal._thread.join()
    stopped.set()
    assert submitted.wait(PATIENCE_S)
    portal.close()
    calling.join(PATIENCE_S)
    assert errors == ["the interpreter is exiting"]


def interrupt_too_late(monkeypatch: pytest.MonkeyPatch, calls: int = 1) -> None:
    """Let Ctrl-C come when the next call, or a later one, has just been carried out."""
    wait, left = Portal._await, [*range(calls)]

    def late(self: Portal, outcome: Any) -> None:
        wait(self, outcome)
        if left and left.pop() == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(Portal, "_await", late)


@pytest.mark.parametrize(
    "block",
    [
        lambda board: board.lock("public/deploy"),
        lambda board: board.claim("public/tasks/*"),
        lambda board: board.attach("ada"),
    ],
    ids=["lock", "claim", "attach"],
)
def test_an_interrupt_that_comes_too_late_leaves_nothing_held(
    block: Callable[[sync.Board], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block was not entered, so nothing would release it."""
    with sync.open(tmp_path, level="memory") as client:
        board = client.board("expansion")
        board.put("public/tasks/1", {})
        interrupt_too_late(monkeypatch)
        with pytest.raises(KeyboardInterrupt), block(board):
            pytest.fail("it was entered")
        assert list(board.leases("**")) == []
        with block(board):
            assert list(board.leases("**")) != []


def test_an_interrupt_that_comes_too_late_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a directory, nor a document."""
    interrupt_too_late(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        sync.open(tmp_path, level="memory")
    with sync.open(tmp_path, level="memory") as client:
        board = client.board("expansion")
        interrupt_too_late(monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            board.document("public/memo")
        names = board._portal.call(lambda: [task.get_name() for task in asyncio.all_tasks()])
        assert "replica of public/memo" not in names


def test_an_interrupt_as_a_transaction_begins_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Edits after it would belong to that one, and not be sent for as long as something keeps the
    exception, as a notebook does."""
    with sync.open(tmp_path, level="memory") as client:
        board = client.board("expansion")
        with board.document("public/memo") as doc:
            text = doc.text()
            interrupt_too_late(monkeypatch, calls=2)
            with pytest.raises(KeyboardInterrupt) as kept, doc.transaction():
                pytest.fail("it has begun")
            text.append("We should buy.")
            doc.synced()
            with board.document("public/memo") as other:
                assert str(other.text()) == "We should buy."
        assert kept.tb is not None


def test_an_interrupt_while_another_thread_edits_does_not_end_its_transaction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its edits would wait for the loop's thread, which waits for them."""
    portal, begun, interrupted, edits = Portal(), threading.Event(), threading.Event(), []
    wait = portal._await

    def edit() -> None:
        with portal.exclusively():
            begun.set()
            interrupted.wait(PATIENCE_S)
            portal.call(lambda: edits.append("made"))

    def late(outcome: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        wait(outcome)

    editing = threading.Thread(target=edit, daemon=True)
    editing.start()
    assert begun.wait(PATIENCE_S)
    with monkeypatch.context() as patch:
        patch.setattr(portal, "_await", late)
        with pytest.raises(KeyboardInterrupt), portal.exclusively():
            pytest.fail("it has begun")
    interrupted.set()
    editing.join(PATIENCE_S)
    assert edits == ["made"]
    portal.close()
