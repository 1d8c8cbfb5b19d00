"""What is promised of other systems than Linux (docs/platforms.md), as far as Linux can show it.

A program takes from Python what Windows lacks, and then uses Blackboard. That the rest of Windows
does what Linux does is not shown.
"""

import ast
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.source_tree import Source, sources

LACKING = """
import asyncio, os, signal, sys
import anyio._backends._asyncio, pydantic_settings, pydantic.v1, httpx, platformdirs, filelock

sys.platform = "win32"
for name in $NAMES:
    module, _, name = name.rpartition(".")
    delattr(sys.modules[module], name)
for name in $MODULES:
    sys.modules[name] = None

import blackboard
for name in [*blackboard.__all__, "errors", "names", "ops", "sync", "types"]:
    getattr(blackboard, name)
from pathlib import Path
from blackboard.client.workspace.swap import Beside
for use in (
    lambda: blackboard.open,
    lambda: __import__("blackboard.cli.main"),
    lambda: Beside(Path("unmade")).acquire("ada"),
):
    try:
        use()
    except ImportError as error:
        print(error)
"""
MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "termios", "tty")
"""Standard modules that Windows does not have."""
NAMES = """
os.fchmod os.fork os.geteuid os.getpgid os.getuid os.killpg os.mkfifo os.register_at_fork os.setsid
signal.SIGCONT signal.SIGHUP signal.SIGKILL signal.SIGQUIT signal.SIGSTOP signal.SIGUSR1
signal.SIGUSR2
""".split()
"""Names that are only in modules of other systems."""
POSIX_ONLY = (
    "blackboard/server/",
    "blackboard/cli/",
    "blackboard/embedded.py",
    "blackboard/runtime/command_guard.py",
)
"""What says that it does not run on Windows, or is started by what says so."""


def test_what_connects_needs_nothing_that_windows_lacks() -> None:
    """The client and the runtime are loaded; the service, the command line and a workspace say why
    not."""
    program = LACKING.replace("$NAMES", repr(NAMES)).replace("$MODULES", repr(MODULES))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    service, command, workspace = done.stdout.splitlines()
    assert service.startswith("Blackboard's service, and blackboard.open with it, does not run on")
    assert command.startswith("the command blackboard does not run on Windows: run it in WSL")
    assert workspace.startswith("a workspace does not run on Windows: run it in WSL")
    assert "blackboard.connect" in service


def posix_at_import(source: Source) -> Iterator[str]:
    """What a module uses as soon as it is imported, and Windows lacks, without a condition."""
    waiting: list[ast.AST] = list(source.tree.body)
    while waiting:
        node = waiting.pop()
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.Lambda() | ast.If() | ast.Try():
                continue
            case ast.Import(names=names):
                yield from (f"{source.path}: {each.name}" for each in names if each.name in MODULES)
            case ast.ImportFrom(module=str(module)) if module in MODULES:
                yield f"{source.path}: {module}"
            case ast.Attribute(value=ast.Name(id=module), attr=name) if f"{module}.{name}" in NAMES:
                yield f"{source.path}: {module}.{name}"
        waiting += ast.iter_child_nodes(node)


def test_only_the_service_and_the_commands_need_posix_to_be_imported() -> None:
    """The modules that the program above does not load, too."""
    offenders = [
        found
        for source in sources("blackboard", "agents")
        if not source.path.startswith(POSIX_ONLY)
        for found in posix_at_import(source)
    ]
    assert offenders == []


@pytest.mark.parametrize(
    ("bad", "good"),
    [
        ("import fcntl", "try:\n    import fcntl\nexcept ImportError: ..."),
        ("from resource import getrlimit", "def f():\n    import resource"),
        ("x = (signal.SIGHUP, 1)", "x = (signal.SIGINT, 1)"),
        ("os.register_at_fork(f)", "if hasattr(os, 'register_at_fork'): os.register_at_fork(f)"),
    ],
)
def test_such_uses_are_found(bad: str, good: str) -> None:
    """At the top of a module, and not where they are reached only on a system that has them."""
    assert len(list(posix_at_import(Source("a.py", bad)))) == 1
    assert list(posix_at_import(Source("a.py", good))) == []
