"""Blackboard: the place where a team of AI agents keeps what it knows.

    import blackboard

    async with blackboard.open("data") as client:
        board = client.board("expansion")
        async with board.step("researcher") as step:
            step.put("public/valuation", {"usd_bn": 2900})

Five files tell the story (docs/architecture.md follows it through the others):

1. `client/board.py`                     what people and agents call
2. `core/model.py`                       what a commit means; commit.lua says the same inside Redis
3. `server/feed.py`                      how a change reaches its watchers
4. `server/checkpoints/restore.py`       how a whole team is taken back
5. `runtime/runner.py`                   how an agent's step becomes one commit

Names are loaded when they are first used, so importing the package is cheap.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from blackboard.client.board import Board
    from blackboard.client.client import Client
    from blackboard.client.diff import Diff, KeyChange
    from blackboard.client.documents.document import Document
    from blackboard.client.export import Exported
    from blackboard.client.leases.claim import Claim, Claimed, Task
    from blackboard.client.leases.lock import Lock
    from blackboard.client.leases.presence import Attachment, Presence
    from blackboard.client.remote.documents import document_token
    from blackboard.client.remote.link import connect
    from blackboard.client.step import Step
    from blackboard.client.views import Cause, Change, Entry, Listing, Receipt, Revised, Version
    from blackboard.client.watch import Watch
    from blackboard.core.checkpoints import (
        Checkpoint,
        Origin,
        Policy,
        Pruned,
        Restored,
        Shown,
        Verified,
    )
    from blackboard.core.commit import (
        ABSENT,
        PRESENT,
        Append,
        Delete,
        DeletePrefix,
        Expire,
        Grant,
        HeldFence,
        Increment,
        KeyAt,
        Lease,
        PrefixUnchanged,
        Put,
        Release,
        Renew,
        Waiter,
    )
    from blackboard.embedded import open  # noqa: A004
    from blackboard.errors import (
        AccessDenied,
        AgentInterrupted,
        AttemptTooOld,
        BarrierMissed,
        BlackboardError,
        BoardFrozen,
        CallFailed,
        CallInterrupted,
        Compacted,
        Conflict,
        Corrupt,
        DataDirectoryInUse,
        Diverged,
        DocumentRefused,
        EngineRefused,
        Fenced,
        FutureRevision,
        HeadMoved,
        InvalidRequest,
        InvalidState,
        LeaseHeld,
        LeaseLost,
        LimitExceeded,
        MigrationFailed,
        ModelFailed,
        NoSuchBoard,
        NoSuchCheckpoint,
        NothingToClaim,
        OutcomeUnknown,
        Overloaded,
        RateLimited,
        Rejected,
        Resync,
        RolledBack,
        SchemaTooNew,
        SnapshotFirst,
        StaleEpoch,
        StepSuperseded,
        TypeMismatch,
        Unauthenticated,
        Unavailable,
    )
    from blackboard.runtime.agent import Agent
    from blackboard.runtime.approvals import Decision, Pending
    from blackboard.runtime.board_port import BoardDesk
    from blackboard.runtime.calls import CallRecord, Retry, Terms
    from blackboard.runtime.chat import ChatModel, Endpoint, model_from_environment
    from blackboard.runtime.context import Context, Letter, Reference
    from blackboard.runtime.memory import Recall, Transcript, Turn
    from blackboard.runtime.models import (
        Message,
        Model,
        Prices,
        Prompt,
        Reply,
        ScriptedModel,
        Tool,
        ToolCall,
        Usage,
    )
    from blackboard.runtime.processes import Place, in_processes
    from blackboard.runtime.run import Stay, run_agent
    from blackboard.runtime.runner import Runner, Stepped
    from blackboard.runtime.state import Status
    from blackboard.runtime.supervisor import Care, Ended, Life, live
    from blackboard.runtime.team import run_team, spawn
    from blackboard.runtime.trial import Inputs, Trial, run_step
    from blackboard.wire.codec import decode_value, encode_value

__all__ = [
    "ABSENT",
    "PRESENT",
    "AccessDenied",
    "Agent",
    "AgentInterrupted",
    "Append",
    "Attachment",
    "AttemptTooOld",
    "BarrierMissed",
    "BlackboardError",
    "Board",
    "BoardDesk",
    "BoardFrozen",
    "CallFailed",
    "CallInterrupted",
    "CallRecord",
    "Care",
    "Cause",
    "Change",
    "ChatModel",
    "Checkpoint",
    "Claim",
    "Claimed",
    "Client",
    "Compacted",
    "Conflict",
    "Context",
    "Corrupt",
    "DataDirectoryInUse",
    "Decision",
    "Delete",
    "DeletePrefix",
    "Diff",
    "Diverged",
    "Document",
    "DocumentRefused",
    "Ended",
    "Endpoint",
    "EngineRefused",
    "Entry",
    "Expire",
    "Exported",
    "Fenced",
    "FutureRevision",
    "Grant",
    "HeadMoved",
    "HeldFence",
    "Increment",
    "Inputs",
    "InvalidRequest",
    "InvalidState",
    "KeyAt",
    "KeyChange",
    "Lease",
    "LeaseHeld",
    "LeaseLost",
    "Letter",
    "Life",
    "LimitExceeded",
    "Listing",
    "Lock",
    "Message",
    "MigrationFailed",
    "Model",
    "ModelFailed",
    "NoSuchBoard",
    "NoSuchCheckpoint",
    "NothingToClaim",
    "Origin",
    "OutcomeUnknown",
    "Overloaded",
    "Pending",
    "Place",
    "Policy",
    "PrefixUnchanged",
    "Presence",
    "Prices",
    "Prompt",
    "Pruned",
    "Put",
    "RateLimited",
    "Recall",
    "Receipt",
    "Reference",
    "Rejected",
    "Release",
    "Renew",
    "Reply",
    "Restored",
    "Resync",
    "Retry",
    "Revised",
    "RolledBack",
    "Runner",
    "SchemaTooNew",
    "ScriptedModel",
    "Shown",
    "SnapshotFirst",
    "StaleEpoch",
    "Status",
    "Stay",
    "Step",
    "StepSuperseded",
    "Stepped",
    "Task",
    "Terms",
    "Tool",
    "ToolCall",
    "Transcript",
    "Trial",
    "Turn",
    "TypeMismatch",
    "Unauthenticated",
    "Unavailable",
    "Usage",
    "Verified",
    "Version",
    "Waiter",
    "Watch",
    "connect",
    "decode_value",
    "document_token",
    "encode_value",
    "in_processes",
    "live",
    "model_from_environment",
    "open",
    "run_agent",
    "run_step",
    "run_team",
    "spawn",
]

_HOMES = {
    "blackboard.client.remote.link": ("connect",),
    "blackboard.client.remote.documents": ("document_token",),
    "blackboard.client.documents.document": ("Document",),
    "blackboard.runtime.agent": ("Agent",),
    "blackboard.runtime.chat": ("ChatModel", "Endpoint", "model_from_environment"),
    "blackboard.runtime.memory": ("Recall", "Transcript", "Turn"),
    "blackboard.runtime.models": (
        "Message",
        "Model",
        "Prices",
        "Prompt",
        "Reply",
        "ScriptedModel",
        "Tool",
        "ToolCall",
        "Usage",
    ),
    "blackboard.runtime.processes": ("Place", "in_processes"),
    "blackboard.runtime.supervisor": ("Care", "Ended", "Life", "live"),
    "blackboard.runtime.team": ("run_team", "spawn"),
    "blackboard.runtime.approvals": ("Decision", "Pending"),
    "blackboard.runtime.calls": ("CallRecord", "Retry", "Terms"),
    "blackboard.runtime.context": ("Context", "Letter", "Reference"),
    "blackboard.runtime.board_port": ("BoardDesk",),
    "blackboard.runtime.run": ("Stay", "run_agent"),
    "blackboard.runtime.runner": ("Runner", "Stepped"),
    "blackboard.runtime.state": ("Status",),
    "blackboard.runtime.trial": ("Inputs", "Trial", "run_step"),
    "blackboard.client.board": ("Board",),
    "blackboard.client.client": ("Client",),
    "blackboard.client.leases.claim": ("Claim", "Claimed", "Task"),
    "blackboard.embedded": ("open",),
    "blackboard.client.leases.lock": ("Lock",),
    "blackboard.client.leases.presence": ("Attachment", "Presence"),
    "blackboard.client.step": ("Step",),
    "blackboard.client.diff": ("Diff", "KeyChange"),
    "blackboard.core.checkpoints": (
        "Checkpoint",
        "Origin",
        "Policy",
        "Pruned",
        "Restored",
        "Shown",
        "Verified",
    ),
    "blackboard.client.export": ("Exported",),
    "blackboard.client.views": (
        "Cause",
        "Change",
        "Entry",
        "Listing",
        "Receipt",
        "Revised",
        "Version",
    ),
    "blackboard.client.watch": ("Watch",),
    "blackboard.wire.codec": ("decode_value", "encode_value"),
    "blackboard.core.commit": (
        "ABSENT",
        "PRESENT",
        "Append",
        "Delete",
        "DeletePrefix",
        "Expire",
        "Grant",
        "HeldFence",
        "Increment",
        "KeyAt",
        "Lease",
        "PrefixUnchanged",
        "Put",
        "Release",
        "Renew",
        "Waiter",
    ),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Load a public name from its module; every other one in `__all__` is an error class."""
    if name not in __all__:
        raise AttributeError(f"module 'blackboard' has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF.get(name, "blackboard.errors")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
