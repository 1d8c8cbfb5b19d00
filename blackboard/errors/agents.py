"""What goes wrong in an agent: its models, its calls, its replays, its state."""

from dataclasses import dataclass
from typing import ClassVar

from blackboard.errors.root import BlackboardError


@dataclass(eq=False)
class ModelFailed(BlackboardError):
    """`model` did not answer, or not usably: `reason`. `status` is the HTTP status, if any.

    Temporary failures have already been retried.
    """

    code: ClassVar[str] = "model_failed"
    model: str
    reason: str
    status: int | None = None


@dataclass(eq=False)
class CallFailed(BlackboardError):
    """Call `name` of an agent failed `attempts` times, at last because of `reason`; recorded."""

    code: ClassVar[str] = "call_failed"
    name: str
    attempts: int
    reason: str


@dataclass(eq=False)
class CallInterrupted(BlackboardError):
    """Call `name`, made at most once, was begun; ask where it went, by `idempotency_key`."""

    code: ClassVar[str] = "call_interrupted"
    name: str
    idempotency_key: str


@dataclass(eq=False)
class Diverged(BlackboardError):
    """In a replay, call `number` of a step of `agent` was `found`; recorded is `expected`."""

    code: ClassVar[str] = "diverged"
    agent: str
    number: int
    expected: str
    found: str


@dataclass(eq=False)
class AgentInterrupted(BlackboardError):
    """Something cancelled the work of `agent` though nobody asked for that: `reason`.

    It counts as a crash: what the step had not committed did not happen.
    """

    code: ClassVar[str] = "agent_interrupted"
    agent: str
    reason: str


@dataclass(eq=False)
class SchemaTooNew(BlackboardError):
    """The state of `agent` has schema version `stored`; this code knows versions up to `known`."""

    code: ClassVar[str] = "schema_too_new"
    agent: str
    stored: int
    known: int


@dataclass(eq=False)
class MigrationFailed(BlackboardError):
    """The state of `agent` cannot leave schema version `version`: `reason`. It stays as it is."""

    code: ClassVar[str] = "migration_failed"
    agent: str
    version: int
    reason: str


@dataclass(eq=False)
class InvalidState(BlackboardError):
    """A state of `agent` is not acceptable: `reason`. It was not written, or not taken in."""

    code: ClassVar[str] = "invalid_state"
    agent: str
    reason: str
