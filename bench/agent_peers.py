"""LangGraph's savers as rows of bench/agents.py: one node that loops, a checkpoint for each step.

`durability="sync"`: the checkpoint of a step is written before the next one begins. SQLite's
connection is the saver's own (WAL, synchronous=FULL: a commit is synced); PostgreSQL has its
defaults (fsync=on, synchronous_commit=on). "delta" rows use the beta DeltaChannel in place of a
reducer over the whole list.
"""

from __future__ import annotations

import asyncio
import operator
import os
import pwd
import shutil
import subprocess
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, ClassVar

from bench.agent_rows import AgentRow, message, size_of
from bench.rows import LOOPBACK, client_module
from bench.servers import Lab, UnavailableError

FULL = 2
"""What SQLite calls synchronous=FULL."""


def graph_of(saver: Any, steps: int, *, delta: bool, as_text: bool = False) -> Any:
    """The agent as a graph; with `as_text` it keeps texts in place of dicts."""
    if delta:
        reducer = client_module("langgraph.channels").DeltaChannel(_extended, list)
    else:
        reducer = operator.add
    # Made at run time, and so by a name that no type checker knows.
    made = client_module("typing").TypedDict
    state = made("State", {"messages": Annotated[list[Any], reducer], "n": int})

    async def agent(found: dict[str, Any]) -> dict[str, Any]:
        n = found.get("n", 0)
        said = {"role": "assistant", "id": n, "content": message(n)}
        return {"messages": [said["content"] if as_text else said], "n": n + 1}

    return looped(saver, state, agent, steps)


def looped(saver: Any, state: Any, agent: Any, steps: int) -> Any:
    """A graph of one node, `agent`, which counts in `n` how often it was called."""
    graphs = client_module("langgraph.graph")
    graph = graphs.StateGraph(state)
    graph.add_node("agent", agent)
    graph.add_edge(graphs.START, "agent")
    graph.add_conditional_edges(
        "agent", lambda found: graphs.END if found["n"] >= steps else "agent"
    )
    return graph.compile(checkpointer=saver)


def _extended(found: list[Any], writes: Sequence[list[Any]]) -> list[Any]:
    return [*found, *(item for write in writes for item in write)]


class LangGraphRow(AgentRow):
    """A saver of LangGraph."""

    delta: ClassVar[bool] = False

    @abstractmethod
    def saver(self) -> Any:
        """An async context manager: a saver that is ready."""

    async def take(self, name: str, steps: int) -> float:
        config = {"configurable": {"thread_id": name}, "recursion_limit": steps + 10}
        async with self.saver() as saver:
            graph = graph_of(saver, steps, delta=self.delta)
            began = time.monotonic()
            await graph.ainvoke({"n": 0}, config, durability="sync")
            return time.monotonic() - began


class LangGraphSqlite(LangGraphRow):
    """A file of its own."""

    name: ClassVar[str] = "langgraph-sqlite"

    async def start(self, lab: Lab) -> None:
        client_module("langgraph.checkpoint.sqlite.aio")
        self._folder = lab.data_folder(self.name)

    @asynccontextmanager
    async def saver(self) -> AsyncIterator[Any]:
        savers = client_module("langgraph.checkpoint.sqlite.aio")
        opening = savers.AsyncSqliteSaver.from_conn_string(str(self._folder / "checkpoints.db"))
        async with opening as saver:
            await saver.setup()
            async with saver.conn.execute("PRAGMA synchronous") as found:
                [level] = await found.fetchone()
            if level < FULL:
                raise UnavailableError(f"it does not sync its commits: synchronous={level}")
            yield saver

    def disk_bytes(self) -> int:
        return size_of(self._folder)


class LangGraphSqliteDelta(LangGraphSqlite):
    """The same with the delta channel."""

    name: ClassVar[str] = "langgraph-sqlite-delta"
    delta: ClassVar[bool] = True


class LangGraphPostgres(LangGraphRow):
    """A server of its own, on the same disk."""

    name: ClassVar[str] = "langgraph-postgres"

    async def start(self, lab: Lab) -> None:
        client_module("langgraph.checkpoint.postgres.aio")
        programs, user = _programs(), _other_user()
        self._folder = lab.data_folder(self.name)
        if user is not None:
            os.chown(self._folder, user.pw_uid, user.pw_gid)
        data = self._folder / "data"
        initdb = [str(programs / "initdb"), "-D", str(data), "-U", "bench", "-A", "trust"]
        await asyncio.to_thread(_run_as, user, initdb, self._folder)
        # PostgreSQL refuses to run as root; as another user, too, it must not outlive us.
        become = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}"] if user else []
        become += ["--clear-groups", "--pdeathsig", "KILL"] if user else []

        def command(port: int) -> Sequence[str]:
            sockets = f"unix_socket_directories={self._folder}"
            listen = ("-p", str(port), "-c", f"listen_addresses={LOOPBACK}", "-c", sockets)
            return [*become, str(programs / "postgres"), "-D", str(data), *listen]

        # Each connection is a process of its own, whose time nobody else is told reliably.
        self._port = (await lab.serve(f"{self.name}-server", command)).port

    @asynccontextmanager
    async def saver(self) -> AsyncIterator[Any]:
        savers = client_module("langgraph.checkpoint.postgres.aio")
        url = f"postgresql://bench@{LOOPBACK}:{self._port}/postgres"
        async with savers.AsyncPostgresSaver.from_conn_string(url) as saver:
            await saver.setup()
            yield saver

    def disk_bytes(self) -> int:
        """Tables and indexes; the log of writes is kept at a size of its own."""
        return size_of(self._folder / "data/base")


class LangGraphPostgresDelta(LangGraphPostgres):
    """The same with the delta channel."""

    name: ClassVar[str] = "langgraph-postgres-delta"
    delta: ClassVar[bool] = True


def _programs() -> Path:
    """Where PostgreSQL's programs are: on PATH, or where Debian puts them."""
    found = [Path(name).resolve().parent for name in filter(None, [shutil.which("initdb")])]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for path in found:
        if (path / "postgres").exists():
            return path
    raise UnavailableError("no PostgreSQL server: run tools/get_postgres.sh")


def _run_as(user: pwd.struct_passwd | None, command: Sequence[str], folder: Path) -> None:
    subprocess.run(
        command,
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=folder,
        user=user and user.pw_uid,
        group=user and user.pw_gid,
    )


def _other_user() -> pwd.struct_passwd | None:
    if os.geteuid() != 0:
        return None
    known = {user.pw_name: user for user in pwd.getpwall()}
    return next(known[name] for name in ("postgres", "nobody") if name in known)


LANGGRAPH: tuple[type[AgentRow], ...] = (
    LangGraphSqlite,
    LangGraphSqliteDelta,
    LangGraphPostgres,
    LangGraphPostgresDelta,
)
