"""The result types of boards, agents and models, mostly for annotations.

They are loaded on first use, like the names of `blackboard`.
"""

from typing import TYPE_CHECKING, Any

from blackboard._lazy import lazy

if TYPE_CHECKING:
    from blackboard.client.diff import Diff as Diff, KeyChange as KeyChange
    from blackboard.client.export import Exported as Exported
    from blackboard.client.files import FileInfo as FileInfo, Files as Files
    from blackboard.client.leases.claim import Claim as Claim, Claimed as Claimed, Task as Task
    from blackboard.client.leases.lock import Lock as Lock
    from blackboard.client.leases.presence import Attachment as Attachment, Presence as Presence
    from blackboard.client.memory.memory import Memory as Memory
    from blackboard.client.memory.records import (
        Consolidated as Consolidated,
        MemoryFilter as MemoryFilter,
        MemoryPolicy as MemoryPolicy,
        Remembered as Remembered,
    )
    from blackboard.client.views import (
        Cause as Cause,
        Change as Change,
        Entry as Entry,
        Listing as Listing,
        Receipt as Receipt,
        RevisionEvent as RevisionEvent,
        Version as Version,
    )
    from blackboard.client.watch import Watch as Watch
    from blackboard.client.workspace.workspace import (
        FileChange as FileChange,
        Snapshot as Snapshot,
        Workspace as Workspace,
        WorkspaceFile as WorkspaceFile,
    )
    from blackboard.core.checkpoints import (
        Checkpoint as Checkpoint,
        CheckpointInfo as CheckpointInfo,
        Origin as Origin,
        Pruned as Pruned,
        Restored as Restored,
        Verified as Verified,
    )
    from blackboard.runtime.approvals import Decision as Decision, Pending as Pending
    from blackboard.runtime.calls import CallRecord as CallRecord
    from blackboard.runtime.commands import CommandResult as CommandResult
    from blackboard.runtime.context import InboxMessage as InboxMessage, Reference as Reference
    from blackboard.runtime.files import AgentFiles as AgentFiles
    from blackboard.runtime.models import (
        ModelUsage as ModelUsage,
        Prices as Prices,
        StreamingModel as StreamingModel,
        TextSink as TextSink,
        ToolCall as ToolCall,
    )
    from blackboard.runtime.runner import Stepped as Stepped
    from blackboard.runtime.supervisor import AgentExit as AgentExit, Supervisor as Supervisor
    from blackboard.runtime.transcripts import Turn as Turn
    from blackboard.runtime.trial import Inputs as Inputs, Trial as Trial

_HOMES = {
    "blackboard.client.diff": ("Diff", "KeyChange"),
    "blackboard.client.export": ("Exported",),
    "blackboard.client.files": ("FileInfo", "Files"),
    "blackboard.client.leases.claim": ("Claim", "Claimed", "Task"),
    "blackboard.client.leases.lock": ("Lock",),
    "blackboard.client.leases.presence": ("Attachment", "Presence"),
    "blackboard.client.memory.memory": ("Memory",),
    "blackboard.client.memory.records": (
        "Consolidated",
        "MemoryFilter",
        "MemoryPolicy",
        "Remembered",
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
    "blackboard.client.workspace.workspace": (
        "FileChange",
        "Snapshot",
        "Workspace",
        "WorkspaceFile",
    ),
    "blackboard.core.checkpoints": (
        "Checkpoint",
        "CheckpointInfo",
        "Origin",
        "Pruned",
        "Restored",
        "Verified",
    ),
    "blackboard.runtime.approvals": ("Decision", "Pending"),
    "blackboard.runtime.calls": ("CallRecord",),
    "blackboard.runtime.commands": ("CommandResult",),
    "blackboard.runtime.context": ("InboxMessage", "Reference"),
    "blackboard.runtime.files": ("AgentFiles",),
    "blackboard.runtime.transcripts": ("Turn",),
    "blackboard.runtime.models": ("ModelUsage", "Prices", "StreamingModel", "TextSink", "ToolCall"),
    "blackboard.runtime.runner": ("Stepped",),
    "blackboard.runtime.supervisor": ("AgentExit", "Supervisor"),
    "blackboard.runtime.trial": ("Inputs", "Trial"),
}

__all__ = sorted(name for names in _HOMES.values() for name in names)


def _unknown(name: str) -> Any:
    raise AttributeError(f"module 'blackboard.types' has no attribute {name!r}")


__getattr__ = lazy(globals(), _HOMES, _unknown)


def __dir__() -> list[str]:
    return sorted(__all__)
