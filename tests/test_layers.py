"""A folder is a floor: imports point down or sideways, never up and never in a circle."""

import ast
import graphlib

from tests.source_tree import Source, sources

FLOORS = (
    "_lazy arguments errors limits signals tables telemetry units",
    "core",
    "wire",
    "engines integrity",
    "archive client",
    "backup encryption runtime",
    "server",
    "embedded names ops types",
    "sync",
    "_checkout",
    "",  # blackboard/__init__.py, which gathers the public names
    "integrations",
    "agents demos",
    "cli __main__",
)
RANK = {name: rank for rank, names in enumerate(FLOORS) for name in names.split() or [""]}
PURE = {"errors", "limits", "tables", "units", "core", "wire"}
IO = set(
    "anyio asyncio concurrent fcntl filelock hiredis http httpx multiprocessing os pathlib pottery"
    " queue random redis secrets select selectors shutil signal socket sqlite3 ssl starlette"
    " subprocess sys tempfile threading time urllib uuid uvicorn valkey websockets".split()
)

PUBLIC = {"", "errors", "ops", "types", "agents"}
"""What agents may import of ours: the public names, and each other."""

FOR_INTEGRATIONS = {"", *"errors integrations limits names ops sync telemetry types".split()}
"""What adapters of frameworks may import of ours: what any other program would."""
IMPORT_INTEGRATIONS = {"integrations", "cli", "demos"}

Imports = dict[str, set[str]]
"""What each of our modules imports: our modules by full name, foreign ones as written."""


def floor(module: str) -> str:
    """The part of `module` that names its floor; "" for the package itself."""
    return module.partition(".")[2].partition(".")[0]


def is_ours(module: str) -> bool:
    """Whether `module` is blackboard or below it."""
    return module.partition(".")[0] == "blackboard"


def imports_of(source: Source, modules: set[str]) -> set[str]:
    """Every import in `source`, also inside functions and under TYPE_CHECKING."""
    package = source.module.split(".")
    if not source.path.endswith("__init__.py"):
        package.pop()
    found: set[str] = set()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = {f"{base}.{alias.name}" for alias in node.names}
            found |= (names & modules) | ({base} if names - modules else set())
    return found


def unknown_floors(graph: Imports) -> list[str]:
    """Modules in a folder that is no floor."""
    return [module for module in graph if floor(module) not in RANK]


def upward_imports(graph: Imports) -> list[str]:
    """Imports of a higher floor."""
    return [
        f"{module} -> {target}"
        for module, targets in graph.items()
        for target in targets & graph.keys()
        if RANK[floor(target)] > RANK[floor(module)]
    ]


def cycles(graph: Imports) -> list[str]:
    """One import cycle, as the modules along it."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [" -> ".join(error.args[1])]
    return []


def impure_imports(graph: Imports) -> list[str]:
    """Imports by a pure floor of what does I/O, reads a clock or draws random numbers."""
    return [
        f"{module} -> {target}"
        for module, targets in graph.items()
        for target in targets
        if floor(module) in PURE and target.partition(".")[0] in IO
    ]


def private_imports_by_agents(graph: Imports) -> list[str]:
    """Imports by agents of anything of ours but public names and each other."""
    return [
        f"{module} -> {target}"
        for module, targets in graph.items()
        if module.startswith("blackboard.agents.")
        for target in targets
        if is_ours(target) and floor(target) not in PUBLIC
    ]


def imports_of_demos(graph: Imports) -> list[str]:
    """Imports of a demonstration by anything but demonstrations."""
    return [
        f"{module} -> {target}"
        for module, targets in graph.items()
        for target in targets
        if is_ours(target) and floor(target) == "demos" and floor(module) != "demos"
    ]


def private_imports_by_integrations(graph: Imports) -> list[str]:
    """Imports by adapters of frameworks of anything of ours but public names and each other."""
    return [
        f"{module} -> {target}"
        for module, targets in graph.items()
        if floor(module) == "integrations"
        for target in targets
        if is_ours(target) and floor(target) not in FOR_INTEGRATIONS
    ]


def imports_of_integrations(graph: Imports) -> list[str]:
    """Imports of an adapter by what has to work without its framework."""
    return [
        f"{module} -> {target}"
        for module, targets in graph.items()
        for target in targets
        if is_ours(target)
        and floor(target) == "integrations"
        and floor(module) not in IMPORT_INTEGRATIONS
    ]


RULES = (
    unknown_floors,
    upward_imports,
    cycles,
    impure_imports,
    private_imports_by_agents,
    imports_of_demos,
    private_imports_by_integrations,
    imports_of_integrations,
)


def test_the_floors_are_kept() -> None:
    """No module of ours breaks any rule."""
    ours = sources("blackboard", "agents", "demos")
    modules = {source.module for source in ours}
    assert "blackboard.errors" in modules
    graph = {source.module: imports_of(source, modules) for source in ours}
    found = [f"{rule.__name__}: {offender}" for rule in RULES for offender in rule(graph)]
    assert not found, "\n".join(found)


def test_each_rule_finds_its_offender() -> None:
    """A graph with one offence per rule is reported exactly."""
    graph: Imports = {
        "blackboard": {"blackboard.core.model"},
        "blackboard.cellar.rats": set(),
        "blackboard.cli.main": {"blackboard.demos.race"},
        "blackboard.core.model": {"blackboard.engines.base", "dataclasses", "time"},
        "blackboard.engines.base": {"blackboard.engines.redis.store", "asyncio"},
        "blackboard.engines.redis.store": {"blackboard.engines.base", "blackboard.core.commit"},
        "blackboard.core.commit": set(),
        "blackboard.agents.janitor": {"blackboard", "blackboard.core.commit"},
        "blackboard.demos.race": {"blackboard.agents.janitor", "blackboard.integrations.graph"},
        "blackboard.agents.grapher": {"blackboard.integrations.graph"},
        "blackboard.integrations.graph": {"blackboard", "blackboard.client.board", "graph"},
    }
    assert unknown_floors(graph) == ["blackboard.cellar.rats"]
    del graph["blackboard.cellar.rats"]
    assert upward_imports(graph) == ["blackboard.core.model -> blackboard.engines.base"]
    assert impure_imports(graph) == ["blackboard.core.model -> time"]
    assert private_imports_by_agents(graph) == [
        "blackboard.agents.janitor -> blackboard.core.commit",
        "blackboard.agents.grapher -> blackboard.integrations.graph",
    ]
    assert imports_of_integrations(graph) == [
        "blackboard.agents.grapher -> blackboard.integrations.graph"
    ]
    assert private_imports_by_integrations(graph) == [
        "blackboard.integrations.graph -> blackboard.client.board"
    ]
    assert imports_of_demos(graph) == ["blackboard.cli.main -> blackboard.demos.race"]
    (circle,) = cycles(graph)
    both = {"blackboard.engines.base", "blackboard.engines.redis.store"}
    assert set(circle.split(" -> ")) == both


def test_imports_are_read_wherever_they_stand() -> None:
    """Plain, aliased, relative, nested and of a module by name."""
    text = (
        "import os.path as path, blackboard.types\n"
        "from . import redis, missing\n"
        "from .base import Store\n"
        "from ..core import commit\n"
        "from blackboard import errors, Board\n"
        "def later():\n    import time\n"
    )
    modules = {"blackboard.errors", "blackboard.core.commit", "blackboard.engines.redis"}
    assert imports_of(Source("blackboard/engines/keys.py", text), modules) == {
        "os.path",
        "blackboard.types",
        "blackboard.engines.redis",
        "blackboard.engines",
        "blackboard.engines.base",
        "blackboard.core.commit",
        "blackboard.errors",
        "blackboard",
        "time",
    }


def test_agents_and_demos_are_named_as_they_are_imported() -> None:
    """A file in agents/ is a module of blackboard.agents; a package is named by its folder."""
    assert Source("agents/janitor.py", "").module == "blackboard.agents.janitor"
    assert Source("blackboard/engines/__init__.py", "").module == "blackboard.engines"
