"""The private state of an agent: its key, its schema version, and how it is read.

Invariants
- A state is validated in the form in which it will be read: one that its model would refuse is
  never written.
- A migration works on a copy, so a failed one does not change the stored state.
- No name of a class or a module is ever used to load code; `kind` is only compared.
"""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticSerializationError, from_json, to_json

from blackboard.client.views import Entry
from blackboard.core.commit import ABSENT, KeyAt
from blackboard.core.path import JOURNAL
from blackboard.errors import Corrupt, InvalidState, MigrationFailed, SchemaTooNew, line_of
from blackboard.runtime.calls import in_order
from blackboard.units import Key, Prefix, Revision

S = TypeVar("S", bound=BaseModel)
Migration = Callable[[dict[str, Any]], dict[str, Any]]
"""From the state of one schema version, as plain data, to that of the next."""


def state_key(agent: str) -> Key:
    """The key of the private state of `agent`."""
    return f"private/{agent}/~state"


def journal_prefix(agent: str) -> Prefix:
    """The prefix of the calls of the step that `agent` is taking."""
    return f"private/{agent}/{JOURNAL}"


def declared_key(agent: str) -> Key:
    """The key of the declaration of `agent`: kind, versions, parameters. Checkpoints keep a
    copy."""
    return f"public/~declared/{agent}"


class Status(StrEnum):
    """The status of an agent in its stored state."""

    RUNNING = "running"
    WAITING = "waiting"
    WAITING_FOR_APPROVAL = "waiting_for_approval"
    DONE = "done"


class StoredState(BaseModel):
    """The value at `state_key`.

    `step` counts the steps that were committed. `waiting` has the patterns that the agent waits
    for, `outcome` its outcome when it was done.
    """

    model_config = ConfigDict(frozen=True)

    kind: str
    version: int = Field(ge=1)
    step: int = Field(default=0, ge=0)
    status: Status = Status.RUNNING
    waiting: tuple[str, ...] = ()
    outcome: str = ""
    state: dict[str, Any]

    def plain(self) -> dict[str, Any]:
        """As it is kept."""
        return self.model_dump(mode="json") | {"state": self.state}


@dataclass(frozen=True, slots=True)
class Schema(Generic[S]):
    """The code's schema of the states of one kind of agent.

    `migrations[n]` makes version n+1 of version n; `check` raises ValueError (or fails to assert)
    when a state fits the model but is inconsistent.
    """

    kind: str
    version: int
    model: type[S]
    migrations: Mapping[int, Migration] = field(default_factory=dict)
    check: Callable[[S], None] = lambda _: None

    def revive(self, agent: str, stored: StoredState) -> S:
        """The stored state, in the schema version of the code.

        Errors: SchemaTooNew, MigrationFailed, InvalidState. The stored state is not changed.
        """
        if stored.kind != self.kind:
            raise InvalidState(agent, f"it is the state of a {stored.kind}, not of a {self.kind}")
        if stored.version > self.version:
            raise SchemaTooNew(agent, stored.version, self.version)
        plain = stored.state
        if stored.version < self.version:
            plain = deepcopy(plain)  # a migration may change what it is given
        for version in range(stored.version, self.version):
            plain = self._migrated(agent, version, plain)
        # From JSON, as `dump` checks it: strict models take a list for a tuple only there.
        try:
            text = to_json(plain)
        except (ValueError, TypeError) as error:  # a migration may make of it what it likes
            raise InvalidState(agent, error_line(error)) from error
        return self._load(agent, text)

    def _migrated(self, agent: str, version: int, plain: dict[str, Any]) -> dict[str, Any]:
        migration = self.migrations.get(version)
        if migration is None:
            raise MigrationFailed(agent, version, "the code has no migration from it")
        try:
            migrated = migration(plain)
        except Exception as error:
            raise MigrationFailed(agent, version, error_line(error)) from error
        if not isinstance(migrated, dict):
            kind = type(migrated).__name__
            raise MigrationFailed(agent, version, f"it returned a {kind}, not a dict")
        return migrated

    def _load(self, agent: str, text: bytes) -> S:
        try:
            state = self.model.model_validate_json(text)
            self.check(state)
        except Exception as error:  # validators and `check` are the agent's own code
            raise InvalidState(agent, error_line(error)) from error
        return state

    def dump(self, agent: str, state: S) -> dict[str, Any]:
        """`state` as plain data, after it was read back from exactly that.

        Errors: InvalidState, and nothing should be written.
        """
        try:
            # By default pydantic only warns of a value that does not fit its field, and writes it.
            text = state.model_dump_json(warnings="error").encode()
        except PydanticSerializationError as error:
            raise InvalidState(agent, error_line(error)) from error
        self._load(agent, text)
        # Sets have another order in each process: an idle step would seem to change the state.
        plain = in_order(state, from_json(text))
        assert isinstance(plain, dict)
        return plain


def error_line(error: BaseException) -> str:
    """An error as one line; for a validation error, with the location of the first problem."""
    if isinstance(error, ValidationError):
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "it"
        return f"{where}: {first['msg']}"
    return line_of(error)


def stored_in(entry: Entry) -> StoredState:
    """Parse the entry at a `state_key`. Errors: Corrupt when it is malformed."""
    try:
        return StoredState.model_validate(entry.value)
    except ValidationError as error:
        raise Corrupt(what=entry.key, reason=error_line(error)) from error


def guard(agent: str, revision: Revision) -> KeyAt:
    """The condition that `agent` took no step since its state was read at `revision`."""
    return KeyAt(state_key(agent), revision or ABSENT)
