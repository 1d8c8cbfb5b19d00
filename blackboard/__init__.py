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

from typing import TYPE_CHECKING, Any

from blackboard._lazy import lazy

if TYPE_CHECKING:
    from blackboard import errors as errors
    from blackboard import limits as limits
    from blackboard import ops as ops
    from blackboard import types as types
    from blackboard.client.board import Board
    from blackboard.client.client import Client
    from blackboard.client.documents.document import Document
    from blackboard.client.remote.documents import document_token
    from blackboard.client.remote.link import connect
    from blackboard.client.step import Step
    from blackboard.core.checkpoints import RetentionPolicy
    from blackboard.embedded import open as open  # noqa: A004
    from blackboard.errors import (
        BlackboardError,
        Conflict,
        InvalidRequest,
        LeaseHeld,
        OutcomeUnknown,
        Rejected,
        StaleEpoch,
        Unavailable,
    )
    from blackboard.runtime.agent import Agent
    from blackboard.runtime.approvals import answer, pending
    from blackboard.runtime.board_port import LiveBoardPort
    from blackboard.runtime.calls import CallOptions, Retry
    from blackboard.runtime.chat import ChatModel, Endpoint, model_from_environment
    from blackboard.runtime.context import Context
    from blackboard.runtime.memory import Recall, Transcript
    from blackboard.runtime.models import ChatMessage, Model, Prompt, Reply, ScriptedModel, Tool
    from blackboard.runtime.processes import BoardAddress, in_processes
    from blackboard.runtime.run import RunOptions, run_agent
    from blackboard.runtime.runner import Runner
    from blackboard.runtime.state import Status
    from blackboard.runtime.supervisor import RestartPolicy, supervise
    from blackboard.runtime.team import run_team, spawn
    from blackboard.runtime.trial import Inputs, try_step

    __version__: str

__all__ = [
    "Agent",
    "BlackboardError",
    "Board",
    "BoardAddress",
    "CallOptions",
    "ChatMessage",
    "ChatModel",
    "Client",
    "Conflict",
    "Context",
    "Document",
    "Endpoint",
    "Inputs",
    "InvalidRequest",
    "LeaseHeld",
    "LiveBoardPort",
    "Model",
    "OutcomeUnknown",
    "Prompt",
    "Recall",
    "Rejected",
    "Reply",
    "RestartPolicy",
    "RetentionPolicy",
    "Retry",
    "RunOptions",
    "Runner",
    "ScriptedModel",
    "StaleEpoch",
    "Status",
    "Step",
    "Tool",
    "Transcript",
    "Unavailable",
    "answer",
    "connect",
    "document_token",
    "in_processes",
    "model_from_environment",
    "pending",
    "run_agent",
    "run_team",
    "spawn",
    "supervise",
    "try_step",
]

_HOMES = {
    "blackboard.client.board": ("Board",),
    "blackboard.client.client": ("Client",),
    "blackboard.client.documents.document": ("Document",),
    "blackboard.client.remote.documents": ("document_token",),
    "blackboard.client.remote.link": ("connect",),
    "blackboard.client.step": ("Step",),
    "blackboard.core.checkpoints": ("RetentionPolicy",),
    "blackboard.embedded": ("open",),
    "blackboard.errors": (
        "BlackboardError",
        "Conflict",
        "InvalidRequest",
        "LeaseHeld",
        "OutcomeUnknown",
        "Rejected",
        "StaleEpoch",
        "Unavailable",
    ),
    "blackboard.runtime.agent": ("Agent",),
    "blackboard.runtime.approvals": (
        "answer",
        "pending",
    ),
    "blackboard.runtime.board_port": ("LiveBoardPort",),
    "blackboard.runtime.calls": (
        "CallOptions",
        "Retry",
    ),
    "blackboard.runtime.chat": (
        "ChatModel",
        "Endpoint",
        "model_from_environment",
    ),
    "blackboard.runtime.context": ("Context",),
    "blackboard.runtime.memory": (
        "Recall",
        "Transcript",
    ),
    "blackboard.runtime.models": (
        "ChatMessage",
        "Model",
        "Prompt",
        "Reply",
        "ScriptedModel",
        "Tool",
    ),
    "blackboard.runtime.processes": (
        "BoardAddress",
        "in_processes",
    ),
    "blackboard.runtime.run": (
        "RunOptions",
        "run_agent",
    ),
    "blackboard.runtime.runner": ("Runner",),
    "blackboard.runtime.state": ("Status",),
    "blackboard.runtime.supervisor": (
        "RestartPolicy",
        "supervise",
    ),
    "blackboard.runtime.team": (
        "run_team",
        "spawn",
    ),
    "blackboard.runtime.trial": (
        "Inputs",
        "try_step",
    ),
}

_MODULES = ("errors", "limits", "ops", "types")
"""Loaded when they are first used, too: `blackboard.ops.Put` needs no import of its own."""

_MOVED = {
    "ops": (
        "ABSENT",
        "Append",
        "Delete",
        "DeletePrefix",
        "Expire",
        "Grant",
        "HeldFence",
        "Increment",
        "KeyAt",
        "Lease",
        "PRESENT",
        "PrefixUnchanged",
        "Put",
        "Release",
        "Renew",
        "Waiter",
        "decode_value",
        "encode_value",
    ),
    "errors": (
        "AccessDenied",
        "AgentInterrupted",
        "AttemptTooOld",
        "BarrierMissed",
        "BoardFrozen",
        "CallFailed",
        "CallInterrupted",
        "Compacted",
        "Corrupt",
        "DataDirectoryInUse",
        "Diverged",
        "DocumentRefused",
        "EngineRefused",
        "Fenced",
        "FutureRevision",
        "HeadMoved",
        "InvalidState",
        "LeaseLost",
        "LimitExceeded",
        "MigrationFailed",
        "ModelFailed",
        "NoSuchBoard",
        "NoSuchCheckpoint",
        "NothingToClaim",
        "Overloaded",
        "RateLimited",
        "Resync",
        "RolledBack",
        "SchemaTooNew",
        "SnapshotFirst",
        "StepSuperseded",
        "TypeMismatch",
        "Unauthenticated",
    ),
    "types": (
        "Attachment",
        "CallRecord",
        "Cause",
        "Change",
        "Checkpoint",
        "Claim",
        "Claimed",
        "Decision",
        "Diff",
        "Entry",
        "Exported",
        "KeyChange",
        "Listing",
        "Lock",
        "Origin",
        "Pending",
        "Presence",
        "Prices",
        "Pruned",
        "Receipt",
        "Reference",
        "Restored",
        "Stepped",
        "Task",
        "ToolCall",
        "Trial",
        "Turn",
        "Verified",
        "Version",
        "Watch",
    ),
}
_RENAMED = {
    "BoardDesk": "blackboard.LiveBoardPort",
    "Care": "blackboard.RestartPolicy",
    "Ended": "blackboard.types.AgentExit",
    "Letter": "blackboard.types.InboxMessage",
    "Life": "blackboard.types.Supervisor",
    "Message": "blackboard.ChatMessage",
    "Place": "blackboard.BoardAddress",
    "Policy": "blackboard.RetentionPolicy",
    "Revised": "blackboard.types.RevisionEvent",
    "Shown": "blackboard.types.CheckpointInfo",
    "Stay": "blackboard.RunOptions",
    "Terms": "blackboard.CallOptions",
    "Usage": "blackboard.types.ModelUsage",
    "live": "blackboard.supervise",
    "run_step": "blackboard.try_step",
}
_NEW_NAMES = {
    name: f"blackboard.{module}.{name}" for module, names in _MOVED.items() for name in names
} | _RENAMED
"""Where a name of before is now."""


def _other(name: str) -> Any:
    """The version, or a module. Errors: ImportError for a name of before, naming the new one."""
    if name == "__version__":
        from importlib.metadata import version

        return version("agent-blackboard")
    if name in _MODULES:
        from importlib import import_module

        return import_module(f"blackboard.{name}")
    if name in _NEW_NAMES:
        # No AttributeError: `from blackboard import ...` would put its own message in place of it.
        raise ImportError(f"blackboard.{name} is now {_NEW_NAMES[name]}")
    raise AttributeError(f"module 'blackboard' has no attribute {name!r}")


__getattr__ = lazy(globals(), _HOMES, _other)


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__", "open"])
