"""The classes that those of `blackboard.sync` hand their calls to."""

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.documents.document import Document
from blackboard.client.documents.shared_types import SharedList, SharedMap, SharedText
from blackboard.client.files import Files
from blackboard.client.leases.claim import Claim
from blackboard.client.leases.lock import Lock
from blackboard.client.leases.presence import Attachment
from blackboard.client.step import Step
from blackboard.client.watch import Watch

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
