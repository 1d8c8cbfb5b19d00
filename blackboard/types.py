"""The result types of boards, agents and models, mostly for annotations.

They are loaded on first use, like the names of `blackboard`.
"""

from typing import TYPE_CHECKING, Any

from blackboard._lazy import lazy

if TYPE_CHECKING:
    from blackboard.client.diff import Diff, KeyChange
    from blackboard.client.export import Exported
    from blackboard.client.leases.claim import Claim, Claimed, Task
    from blackboard.client.leases.lock import Lock
    from blackboard.client.leases.presence import Attachment, Presence
    from blackboard.client.views import (
        Cause,
        Change,
        Entry,
        Listing,
        Receipt,
        RevisionEvent,
        Version,
    )
    from blackboard.client.watch import Watch
    from blackboard.core.checkpoints import (
        Checkpoint,
        CheckpointInfo,
        Origin,
        Pruned,
        Restored,
        Verified,
    )
    from blackboard.runtime.approvals import Decision, Pending
    from blackboard.runtime.calls import CallRecord
    from blackboard.runtime.context import InboxMessage, Reference
    from blackboard.runtime.memory import Turn
    from blackboard.runtime.models import ModelUsage, Prices, ToolCall
    from blackboard.runtime.runner import Stepped
    from blackboard.runtime.supervisor import AgentExit, Supervisor
    from blackboard.runtime.trial import Trial

__all__ = [
    "AgentExit",
    "Attachment",
    "CallRecord",
    "Cause",
    "Change",
    "Checkpoint",
    "CheckpointInfo",
    "Claim",
    "Claimed",
    "Decision",
    "Diff",
    "Entry",
    "Exported",
    "InboxMessage",
    "KeyChange",
    "Listing",
    "Lock",
    "ModelUsage",
    "Origin",
    "Pending",
    "Presence",
    "Prices",
    "Pruned",
    "Receipt",
    "Reference",
    "Restored",
    "RevisionEvent",
    "Stepped",
    "Supervisor",
    "Task",
    "ToolCall",
    "Trial",
    "Turn",
    "Verified",
    "Version",
    "Watch",
]

_HOMES = {
    "blackboard.client.diff": (
        "Diff",
        "KeyChange",
    ),
    "blackboard.client.export": ("Exported",),
    "blackboard.client.leases.claim": (
        "Claim",
        "Claimed",
        "Task",
    ),
    "blackboard.client.leases.lock": ("Lock",),
    "blackboard.client.leases.presence": (
        "Attachment",
        "Presence",
    ),
    "blackboard.client.views": (
        "Cause",
        "Change",
        "Entry",
        "Listing",
        "Receipt",
        "RevisionEvent",
        "Version",
    ),
    "blackboard.client.watch": ("Watch",),
    "blackboard.core.checkpoints": (
        "Checkpoint",
        "CheckpointInfo",
        "Origin",
        "Pruned",
        "Restored",
        "Verified",
    ),
    "blackboard.runtime.approvals": (
        "Decision",
        "Pending",
    ),
    "blackboard.runtime.calls": ("CallRecord",),
    "blackboard.runtime.context": (
        "InboxMessage",
        "Reference",
    ),
    "blackboard.runtime.memory": ("Turn",),
    "blackboard.runtime.models": (
        "ModelUsage",
        "Prices",
        "ToolCall",
    ),
    "blackboard.runtime.runner": ("Stepped",),
    "blackboard.runtime.supervisor": (
        "AgentExit",
        "Supervisor",
    ),
    "blackboard.runtime.trial": ("Trial",),
}


def _unknown(name: str) -> Any:
    raise AttributeError(f"module 'blackboard.types' has no attribute {name!r}")


__getattr__ = lazy(globals(), _HOMES, _unknown)


def __dir__() -> list[str]:
    return sorted(__all__)
