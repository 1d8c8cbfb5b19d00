"""An agent: a function of its state.

    class Notes(BaseModel):
        round: int = 0

    class Researcher(Agent[Notes]):
        async def step(self, ctx: Context[Notes]) -> None:
            ctx.state.round += 1
            ctx.put("public/round", ctx.state.round)

All state is on the board: any process with the class and the name can continue where the last one
stopped.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, get_args, get_origin

from pydantic import BaseModel

from blackboard.core.path import check_name
from blackboard.runtime.context import Context
from blackboard.runtime.state import Migration, S, Schema


class Agent(ABC, Generic[S]):
    """Subclass it as `Agent[YourState]`, a pydantic model, and write `step`.

    `kind` names what is stored (by default the class); keep it when the class is renamed. Raise
    `schema_version` when the model changes, with a migration from each earlier version:
    `migrations[1]` makes version 2 of version 1, as plain data. `package` and `parameters` are
    published together with the versions, and kept by checkpoints.
    """

    kind: ClassVar[str] = ""
    schema_version: ClassVar[int] = 1
    migrations: ClassVar[Mapping[int, Migration]] = {}
    package: ClassVar[str] = ""
    parameters: ClassVar[Mapping[str, Any]] = {}
    state_model: ClassVar[type[BaseModel]]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # Not that of its base: a subclass is another kind, unless it says so itself.
        cls.kind = cls.__dict__.get("kind", cls.__name__)
        for base in getattr(cls, "__orig_bases__", ()):
            if isinstance(origin := get_origin(base), type) and issubclass(origin, Agent):
                model = get_args(base)[0]
                if isinstance(model, type) and issubclass(model, BaseModel):
                    cls.state_model = model
        # Here, not when a state is read: a missing migration would otherwise show after the
        # deployment, with the first agent whose state is of that version.
        known = set(cls.migrations)
        if known and known != set(range(min(known), cls.schema_version)):
            wanted = f"{min(known)}..{cls.schema_version - 1}"
            raise TypeError(f"{cls.__name__} has migrations from {sorted(known)}, not {wanted}")

    def __init__(self, name: str | None = None) -> None:
        """Errors: InvalidRequest when `name` (by default the kind, in lower case) is not valid."""
        self.name = check_name(self.kind.lower() if name is None else name, "agent")

    @abstractmethod
    async def step(self, ctx: Context[S]) -> None:
        """Read, call, change `ctx.state`, write; all of it is one commit after this returns.

        It may run several times until it is committed, so every outside effect must go through
        `ctx`. A step that raises commits nothing.
        """

    def first(self) -> S:
        """The state of a new agent."""
        model: Any = self.state_model
        state: S = model()
        return state

    def check(self, state: S) -> None:
        """Raise a ValueError for a state that fits the model but is inconsistent.

        It is called before every write, and after every migration.
        """

    def workspace(self) -> str | Path | None:
        """The directory of this agent's files on this machine, for `ctx.files`; each agent has one
        of its own. None: it has no files."""
        return None

    @property
    def schema(self) -> Schema[S]:
        """The schema of this kind of agent's state."""
        model: Any = self.state_model
        return Schema(self.kind, self.schema_version, model, self.migrations, self.check)

    def declared(self) -> dict[str, Any]:
        """The agent's public declaration."""
        return {
            "kind": self.kind,
            "schema_version": self.schema_version,
            "package": self.package,
            "parameters": dict(self.parameters),
        }

    def __repr__(self) -> str:
        return f"<{self.kind} {self.name!r}>"
