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

from blackboard._lazy import lazy

if TYPE_CHECKING:
    from blackboard import (
        errors as errors,
        limits as limits,
        names as names,
        ops as ops,
        sync as sync,
        types as types,
    )
    from blackboard.client.board import Board as Board
    from blackboard.client.client import Client as Client
    from blackboard.client.documents.document import Document as Document
    from blackboard.client.remote.documents import document_token as document_token
    from blackboard.client.remote.link import connect as connect
    from blackboard.client.step import Step as Step
    from blackboard.core.checkpoints import RetentionPolicy as RetentionPolicy
    from blackboard.embedded import open as open  # noqa: A004
    from blackboard.errors import (
        BlackboardError as BlackboardError,
        Conflict as Conflict,
        InvalidRequest as InvalidRequest,
        LeaseHeld as LeaseHeld,
        OutcomeUnknown as OutcomeUnknown,
        Rejected as Rejected,
        StaleEpoch as StaleEpoch,
        Unavailable as Unavailable,
    )
    from blackboard.runtime.agent import Agent as Agent
    from blackboard.runtime.approvals import answer as answer, ask as ask, pending as pending
    from blackboard.runtime.board_port import LiveBoardPort as LiveBoardPort
    from blackboard.runtime.calls import CallOptions as CallOptions, Retry as Retry
    from blackboard.runtime.context import Context as Context
    from blackboard.runtime.environment import (
        model_from_environment as model_from_environment,
    )
    from blackboard.runtime.models import (
        ChatMessage as ChatMessage,
        Endpoint as Endpoint,
        Model as Model,
        Prompt as Prompt,
        Reply as Reply,
        ScriptedModel as ScriptedModel,
        Tool as Tool,
    )
    from blackboard.runtime.processes import (
        BoardAddress as BoardAddress,
        in_processes as in_processes,
    )
    from blackboard.runtime.providers import ProviderModel as ProviderModel
    from blackboard.runtime.run import RunOptions as RunOptions, run_agent as run_agent
    from blackboard.runtime.runner import Runner as Runner
    from blackboard.runtime.state import Status as Status
    from blackboard.runtime.supervisor import RestartPolicy as RestartPolicy, supervise as supervise
    from blackboard.runtime.team import run_team as run_team, spawn as spawn
    from blackboard.runtime.transcripts import Recall as Recall, Transcript as Transcript
    from blackboard.runtime.trial import try_step as try_step

    __version__: str

_HOMES = {
    "blackboard.client.board": ("Board",),
    "blackboard.client.client": ("Client",),
    "blackboard.client.documents.document": ("Document",),
    "blackboard.client.remote.documents": ("document_token",),
    "blackboard.client.remote.link": ("connect",),
    "blackboard.client.step": ("Step",),
    "blackboard.core.checkpoints": ("RetentionPolicy",),
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
    "blackboard.runtime.approvals": ("answer", "ask", "pending"),
    "blackboard.runtime.board_port": ("LiveBoardPort",),
    "blackboard.runtime.calls": ("CallOptions", "Retry"),
    "blackboard.runtime.context": ("Context",),
    "blackboard.runtime.environment": ("model_from_environment",),
    "blackboard.runtime.transcripts": ("Recall", "Transcript"),
    "blackboard.runtime.models": (
        "ChatMessage",
        "Endpoint",
        "Model",
        "Prompt",
        "Reply",
        "ScriptedModel",
        "Tool",
    ),
    "blackboard.runtime.processes": ("BoardAddress", "in_processes"),
    "blackboard.runtime.providers": ("ProviderModel",),
    "blackboard.runtime.run": ("RunOptions", "run_agent"),
    "blackboard.runtime.runner": ("Runner",),
    "blackboard.runtime.state": ("Status",),
    "blackboard.runtime.supervisor": ("RestartPolicy", "supervise"),
    "blackboard.runtime.team": ("run_team", "spawn"),
    "blackboard.runtime.trial": ("try_step",),
}

_MODULES = ("errors", "limits", "names", "ops", "sync", "types")
"""Loaded when they are first used, too: `blackboard.ops.Put` needs no import of its own."""

__all__ = sorted(name for names in _HOMES.values() for name in names)
"""Without `open`: `from blackboard import *` must not hide Python's own."""

_RENAMED = {
    "BoardDesk": "blackboard.LiveBoardPort",
    "ChatModel": "blackboard.ProviderModel",
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
"""Names of earlier versions. Others moved, unchanged, to one of `_MODULES`."""


def _other(name: str) -> Any:
    """The version, or a module. Errors: ImportError for an earlier name, with the present one."""
    if name == "__version__":
        from importlib.metadata import version  # ten times the cost of importing this package

        return version("agent-blackboard-client")
    if name in _MODULES:
        return import_module(f"blackboard.{name}")
    if now := _RENAMED.get(name) or _moved(name):
        # No AttributeError: `from blackboard import ...` would put its own message in place of it.
        raise ImportError(f"blackboard.{name} is now {now}")
    raise AttributeError(f"module 'blackboard' has no attribute {name!r}")


def _moved(name: str) -> str | None:
    from importlib.util import find_spec

    # `from blackboard import telemetry` asks here before it imports a module: it loads that only.
    if not name.startswith("_") and find_spec(f"blackboard.{name}") is None:
        for module in ("errors", "ops", "types"):
            if name in import_module(f"blackboard.{module}").__all__:
                return f"blackboard.{module}.{name}"
    return None


__getattr__ = lazy(globals(), {**_HOMES, "blackboard.embedded": ("open",)}, _other)


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES, "__version__", "open"])
