"""The same Client, Board, Step, Watch, Lock, Claim and Document without `async`.

    import blackboard.sync

    with blackboard.sync.open("data") as client:
        board = client.board("expansion")
        with board.step("researcher") as step:
            step.put("public/valuation", {"usd_bn": 2900})

For scripts, notebooks, threads, and frameworks without an event loop; also inside the loop of
somebody else, which then waits. All calls of a process are carried out by one event loop, in a
thread of its own (`sync/portal.py`), by the same code as the asynchronous ones. Leases that a
thread holds (`with board.lock(...)`) protect the commits of that thread.

Clients are safe to share between threads; a step, a watch or a lock belongs to one thread. Open or
connect after a fork, in each process. Ctrl-C ends a call as a cancellation would. Callbacks run in
the thread of the loop: they may read documents, and must not wait for a client.
"""

from typing import TYPE_CHECKING, Any

from blackboard._lazy import lazy

if TYPE_CHECKING:
    from blackboard.sync.approvals import answer as answer, ask as ask, pending as pending
    from blackboard.sync.blocks import (
        Attachment as Attachment,
        Claim as Claim,
        Lock as Lock,
        Step as Step,
        Watch as Watch,
    )
    from blackboard.sync.board import Board as Board
    from blackboard.sync.client import Client as Client
    from blackboard.sync.documents import (
        Document as Document,
        SharedList as SharedList,
        SharedMap as SharedMap,
        SharedText as SharedText,
    )
    from blackboard.sync.files import Files as Files
    from blackboard.sync.memory import Memory as Memory
    from blackboard.sync.opening import connect as connect, open as open  # noqa: A004
    from blackboard.sync.workspace import Workspace as Workspace

_HOMES = {
    "blackboard.sync.approvals": ("answer", "ask", "pending"),
    "blackboard.sync.blocks": ("Attachment", "Claim", "Lock", "Step", "Watch"),
    "blackboard.sync.board": ("Board",),
    "blackboard.sync.client": ("Client",),
    "blackboard.sync.documents": ("Document", "SharedList", "SharedMap", "SharedText"),
    "blackboard.sync.files": ("Files",),
    "blackboard.sync.memory": ("Memory",),
    "blackboard.sync.opening": ("connect", "open"),
    "blackboard.sync.workspace": ("Workspace",),
}

__all__ = sorted({name for names in _HOMES.values() for name in names} - {"open"})
"""Without `open`: `from blackboard.sync import *` must not hide Python's own."""


def _other(name: str) -> Any:
    raise AttributeError(f"module 'blackboard.sync' has no attribute {name!r}")


__getattr__ = lazy(globals(), _HOMES, _other)


def __dir__() -> list[str]:
    return sorted([*__all__, "open"])
