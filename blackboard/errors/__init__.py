"""The one error tree. Fields, not prose: `code` and `fields()` are stable, the message is derived.

    BlackboardError
    |-- Rejected              nothing changed; the answer is final for this request
    |   |-- Conflict          a condition on a key or a prefix did not hold
    |   |-- Fenced            a lease that the commit relies on was granted again, ended or voided
    |   |-- LeaseHeld         another holder has the lease
    |   |-- NothingToClaim    no entry that could be claimed was free in time
    |   |-- StaleEpoch        the board was restored, or its engine came back, since you looked
    |   |-- HeadMoved         somebody committed since a restore was prepared
    |   |-- SnapshotFirst     a checkpoint waits for this agent to bring in what it knows
    |   |-- BoardFrozen       an admin froze the board; commits wait for the thaw
    |   |-- NoSuchBoard       there is no such board, and you cannot begin it
    |   |-- NoSuchCheckpoint  no checkpoint has that name
    |   |-- BarrierMissed     agents did not bring in their state in time
    |   |-- AttemptTooOld     not applied, and perhaps a late copy: send it with a newer `known`
    |   |-- StepSuperseded    this step number was already followed by a later one
    |   |-- DocumentRefused   an edit of a document cannot be taken; start from a fresh copy
    |   |-- TypeMismatch      the operation does not fit the value that is there
    |   |-- LimitExceeded     a named limit of blackboard/limits.py
    |   |-- AccessDenied      the principal has no such right on this key
    |   |-- InvalidRequest    not a request that could ever be accepted
    |   |-- Unauthenticated   no token, or one that is not valid (any more)
    |   |-- Compacted         the log no longer reaches back to that revision
    |   |-- FutureRevision    that revision does not exist yet
    |   |-- RolledBack        what you saw was lost or abandoned; start from the new head
    |   `-- Resync              a restore changed too much for a delivery; read the state again
    |-- LeaseLost             a lease was lost while a block relied on it; its commits are Fenced
    |-- Unavailable           not done, the engine or the service cannot be reached; try again
    |   `-- Overloaded        not done, the service has too much to do; try again later
    |       `-- RateLimited   not done, the principal asked for more than its rate
    |-- OutcomeUnknown        sent, no answer: retry under the same name to find out
    |-- LocalProtocolError    this side was used wrongly
    |-- RemoteProtocolError   the peer sent something that is not the protocol
    |-- ModelFailed           a model did not answer, or not usably
    |-- CallFailed            a tool of an agent failed, as often as it may be tried
    |-- CallInterrupted       a call that may be made once only was begun, and its end is unknown
    |-- Diverged              an agent that was replayed did something else than is recorded
    |-- AgentInterrupted      an agent was cancelled though nobody had asked for that
    |-- SchemaTooNew          the state of an agent was written by newer code
    |-- MigrationFailed       the state of an agent cannot be brought to the version of the code
    |-- InvalidState          the state of an agent is not one that its code accepts
    |-- Corrupt               stored bytes are not what was written; never retried
    |-- NewerFormat           stored bytes are of a newer version; unchanged, never half read
    |-- OlderFormat           stored bytes are of a version that is read no more; unchanged
    |-- EngineRefused         the engine's settings would lose data
    `-- DataDirectoryInUse    another process owns the data directory

`Rejected` and what is below it stands in rejected.py, what concerns agents in agents.py, the rest
in failed.py; all of it is imported from here. Errors hold primitives only, so this floor imports
nothing from the package and every error can cross a process boundary: `fields` on one side,
`from_fields` on the other.
"""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from blackboard.errors.agents import (
    AgentInterrupted,
    CallFailed,
    CallInterrupted,
    Diverged,
    InvalidState,
    MigrationFailed,
    ModelFailed,
    SchemaTooNew,
)
from blackboard.errors.failed import (
    Corrupt,
    DataDirectoryInUse,
    EngineRefused,
    LeaseLost,
    LocalProtocolError,
    NewerFormat,
    OlderFormat,
    OutcomeUnknown,
    Overloaded,
    RateLimited,
    RemoteProtocolError,
    Unavailable,
)
from blackboard.errors.rejected import (
    AccessDenied,
    AttemptTooOld,
    BarrierMissed,
    BoardFrozen,
    Compacted,
    Conflict,
    DocumentRefused,
    Fenced,
    FutureRevision,
    HeadMoved,
    InvalidRequest,
    LeaseHeld,
    LimitExceeded,
    NoSuchBoard,
    NoSuchCheckpoint,
    NothingToClaim,
    Rejected,
    Resync,
    RolledBack,
    SnapshotFirst,
    StaleEpoch,
    StepSuperseded,
    TypeMismatch,
    Unauthenticated,
)
from blackboard.errors.root import BlackboardError

__all__ = [
    "BY_CODE",
    "AccessDenied",
    "AgentInterrupted",
    "AttemptTooOld",
    "BarrierMissed",
    "BlackboardError",
    "BoardFrozen",
    "CallFailed",
    "CallInterrupted",
    "Compacted",
    "Conflict",
    "Corrupt",
    "DataDirectoryInUse",
    "Diverged",
    "DocumentRefused",
    "EngineRefused",
    "Fenced",
    "FutureRevision",
    "HeadMoved",
    "InvalidRequest",
    "InvalidState",
    "LeaseHeld",
    "LeaseLost",
    "LimitExceeded",
    "LocalProtocolError",
    "MigrationFailed",
    "ModelFailed",
    "NewerFormat",
    "NoSuchBoard",
    "NoSuchCheckpoint",
    "NothingToClaim",
    "OlderFormat",
    "OutcomeUnknown",
    "Overloaded",
    "RateLimited",
    "Rejected",
    "RemoteProtocolError",
    "Resync",
    "RolledBack",
    "SchemaTooNew",
    "SnapshotFirst",
    "StaleEpoch",
    "StepSuperseded",
    "TypeMismatch",
    "Unauthenticated",
    "Unavailable",
    "from_fields",
]


def _concrete(base: type[BlackboardError]) -> dict[str, type[BlackboardError]]:
    found: dict[str, type[BlackboardError]] = {}
    for kind in base.__subclasses__():
        found[kind.code] = kind
        found.update(_concrete(kind))
    return found


BY_CODE: Mapping[str, type[BlackboardError]] = _concrete(BlackboardError)
"""Every concrete error by its stable code."""


def from_fields(code: str, values: Mapping[str, Any]) -> BlackboardError:
    """Rebuild an error that another process described; unknown codes become RemoteProtocolError."""
    kind = BY_CODE.get(code)
    names = {field.name for field in fields(kind)} if kind else set()
    try:
        if kind is None:
            raise TypeError(code)
        return kind(**{name: value for name, value in values.items() if name in names})
    except TypeError:
        return RemoteProtocolError(reason=f"error {code!r} with fields {sorted(values)}")
