"""The classes that those of `blackboard.sync` hand their calls to.

Those of documents and workspaces are loaded on first use: they need extras of the client.
"""

from typing import TYPE_CHECKING, Any

from blackboard._lazy import lazy
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.files import Files
from blackboard.client.leases.claim import Claim
from blackboard.client.leases.lock import Lock
from blackboard.client.leases.presence import Attachment
from blackboard.client.memory.memory import Memory
from blackboard.client.step import Step
from blackboard.client.watch import Watch

if TYPE_CHECKING:
    from blackboard.client.documents.document import Document
    from blackboard.client.documents.shared_types import SharedList, SharedMap, SharedText
    from blackboard.client.workspace.workspace import Workspace

__all__ = [
    "Attachment",
    "Board",
    "Claim",
    "Client",
    "Document",
    "Files",
    "Lock",
    "Memory",
    "SharedList",
    "SharedMap",
    "SharedText",
    "Step",
    "Watch",
    "Workspace",
]

_HOMES = {
    "blackboard.client.documents.document": ("Document",),
    "blackboard.client.documents.shared_types": ("SharedList", "SharedMap", "SharedText"),
    "blackboard.client.workspace.workspace": ("Workspace",),
}


def _unknown(name: str) -> Any:
    raise AttributeError(f"module 'blackboard.sync.asynchronous' has no attribute {name!r}")


__getattr__ = lazy(globals(), _HOMES, _unknown)
