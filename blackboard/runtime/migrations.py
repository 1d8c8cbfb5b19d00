"""Checks before a deployment that the new code can read every stored state of a board.

`blackboard migrate MODULE --check` uses it; without `--check` it also rewrites the states.

Invariants
- A state that cannot be migrated, or fits no class of the module, or whose class cannot make an
  agent of its name alone, is not changed, and reported.
- A state is written only if its agent took no step since it was read.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, Literal

from blackboard.client.board import Board
from blackboard.client.views import Entry
from blackboard.core.commit import KeyAt, Put
from blackboard.errors import BlackboardError, Conflict, InvalidRequest, LimitExceeded
from blackboard.runtime.agent import Agent
from blackboard.runtime.state import Schema, StoredState, error_line, stored_in
from blackboard.wire.codec import encode_value

Verdict = Literal["current", "migrates", "migrated", "fails", "unknown", "busy"]
"""`current`: nothing to do. `unknown`: no class of that kind in the module. `busy`: its agent took
a step at the same time; run it again."""


@dataclass(frozen=True, slots=True)
class MigrationFinding:
    """The result for the state of one agent; `reason` says why it fails."""

    agent: str
    kind: str
    version: int
    to: int
    verdict: Verdict
    reason: str = ""

    @property
    def good(self) -> bool:
        """Whether the finding permits the deployment."""
        return self.verdict in ("current", "migrates", "migrated", "unknown")


def kinds_in(module: ModuleType) -> Mapping[str, type[Agent[Any]]]:
    """The agents of a module, by kind: its own classes and those that it imports.

    Errors: InvalidRequest when two of them have the same kind, or there is none.
    """
    found: dict[str, type[Agent[Any]]] = {}
    for _, kind in inspect.getmembers(module, inspect.isclass):
        if not (issubclass(kind, Agent) and hasattr(kind, "state_model")):
            continue
        if found.setdefault(kind.kind, kind) is not kind:
            reason = f"two classes of kind {kind.kind!r}"
            raise InvalidRequest(field="module", reason=reason)
    if not found:
        raise InvalidRequest(field="module", reason=f"{module.__name__} has no class of agents")
    return found


async def migrate(
    board: Board, kinds: Mapping[str, type[Agent[Any]]], *, write: bool
) -> Sequence[MigrationFinding]:
    """Check every readable stored state against `kinds`, by agent; with `write`, rewrite it.

    An operator can read all of them, an agent only its own.
    """
    return [
        await _migrate(board, entry, kinds, write=write)
        async for entry in board.scan("private/*/~state")
    ]


async def _migrate(
    board: Board, entry: Entry, kinds: Mapping[str, type[Agent[Any]]], *, write: bool
) -> MigrationFinding:
    name = entry.key.split("/")[1]
    try:
        stored = stored_in(entry)
    except BlackboardError as error:
        return MigrationFinding(name, "", 0, 0, "fails", str(error))
    known = kinds.get(stored.kind)
    if known is None:
        return MigrationFinding(name, stored.kind, stored.version, stored.version, "unknown")
    try:
        schema = known(name).schema
    except Exception as error:  # noqa: BLE001 - the agent's own code may raise what it likes
        why = f"its class does not make it of its name: {error_line(error)}"
        return MigrationFinding(
            name, stored.kind, stored.version, known.schema_version, "fails", why
        )
    try:
        # Also for a mere check: what could be read but not written again is found here.
        plain = schema.dump(name, schema.revive(name, stored))
        after = stored.model_copy(update={"version": schema.version, "state": plain})
        put = Put(entry.key, encode_value(after.plain()))
    except BlackboardError as error:
        return _finding(name, stored, schema, "fails", str(error))
    if stored.version == schema.version:
        return _finding(name, stored, schema, "current")
    if not write:
        return _finding(name, stored, schema, "migrates")
    return await _write(board, entry, _finding(name, stored, schema, "migrated"), put)


def _finding(
    name: str, stored: StoredState, schema: Schema[Any], verdict: Verdict, reason: str = ""
) -> MigrationFinding:
    return MigrationFinding(name, stored.kind, stored.version, schema.version, verdict, reason)


async def _write(board: Board, entry: Entry, found: MigrationFinding, put: Put) -> MigrationFinding:
    """Rewrite the state, as its agent. A running agent reads it before its next commit."""
    try:
        await board.as_agent(found.agent).commit(
            [put],
            conditions=[KeyAt(entry.key, entry.mod_revision)],
            note=f"schema version {found.version} -> {found.to}",
        )
    except Conflict as error:
        return replace(found, verdict="busy", reason=str(error))
    except LimitExceeded as error:  # for instance of the bytes in its namespace
        return replace(found, verdict="fails", reason=str(error))
    return found
