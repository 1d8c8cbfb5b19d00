"""What a restore would do, without doing it.

The journal of an agent's step rewinds with everything else, so calls made after that moment are
forgotten: the agent may make them again, and pay again. `calls` lists them; after a restore with
`keep_calls`, they are answered from the abandoned revisions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from blackboard.client.diff import Diff
from blackboard.client.leases.presence import Presence
from blackboard.client.views import Change, RevisionEvent
from blackboard.core.commit import Lease
from blackboard.core.path import JOURNAL
from blackboard.units import Milliseconds, Revision


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A call that `agent` made: of a model or a tool, which `kind` says; recorded at `revision`."""

    agent: str
    kind: str
    name: str
    revision: Revision
    time_ms: Milliseconds


@dataclass(frozen=True, slots=True)
class RestorePreview:
    """The changes of a restore, the agents it would interrupt, and the calls that may be made
    again,

    as far as you may read them.
    """

    diff: Diff
    agents: Sequence[Presence]
    leases: Sequence[Lease]
    calls: Sequence[MadeCall]


def calls_in(revised: RevisionEvent) -> list[MadeCall]:
    """The calls whose results were recorded by a revision."""
    found = []
    for change in revised.changes:
        agent, record = _record_of(change)
        if agent and record.get("outcome") == "done" and record.get("shared") is not True:
            kind, name = str(record.get("kind")), str(record.get("name"))
            if kind in ("tool", "model"):
                found.append(MadeCall(agent, kind, name, revised.revision, revised.time_ms))
    return found


def _record_of(change: Change) -> tuple[str, dict[str, Any]]:
    """The agent and the record, if a change is one of a journal."""
    match change.key.split("/"), change.kind, change.value:
        case ["private", agent, branch, _], "put", dict(record) if branch == JOURNAL:
            return agent, record
    return "", {}


def was_kept(value: Any, step: int) -> bool:
    """Whether `value`, of a key of a journal, is the result of a call of that step."""
    return isinstance(value, dict) and value.get("outcome") == "done" and value.get("step") == step


def kept_range(value: Any) -> tuple[Revision, Revision] | None:
    """The revisions (after, through) between which the calls were made that a restore kept."""
    match value:
        case {"after": int(after), "through": int(through)}:
            return after, through
    return None
