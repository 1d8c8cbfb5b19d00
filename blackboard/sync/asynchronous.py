"""The classes that those of `blackboard.sync` hand their calls to.

Those of documents are loaded on first use: they need pycrdt, an extra of the client.
"""

from typing import TYPE_CHECKING, Any

from blackboard._lazy import lazy
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.files import Files
from blackboard.client.leases.claim import Claim
from blackboard.client.leases.lock import Lock
from blackboard.client.leases.presence import Attachment
from blackboard.client.step import Step
from blackboard.client.watch import Watch

if TYPE_CHECKING:
    from blackboard.client.documents.document import Document
    from blackboard.client.documents.shared_types import SharedList, SharedMap, SharedText

__all__ = [
    "Attachment",
    "Board",
    "Claim",
    "Client",
    "Document",
    "Files",
    "Lock",
    "SharedList",
    "SharedMap",
    "SharedText",
    "Step",
    "Watch",
]

_HOMES = {
    "blackboard.client.documents.document": ("Document",),
    "blackboard.client.documents.shared_types": ("SharedList", "SharedMap", "SharedText"),
}


def _unknown(name: str) -> Any:
    raise AttributeError(f"module 'blackboard.sync.asynchronous' has no attribute {name!r}")


__getattr__ = lazy(globals(), _HOMES, _unknown)
