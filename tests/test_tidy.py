"""House rules that a machine can keep. Each rule is a function that lists its offenders."""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain

import pytest

from tests.source_tree import Source, published_texts, sources

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 800
FOLDER_FILES_MAX = 16
FOLDERS_OF_COMMANDS = {"blackboard/cli": 25, "blackboard/runtime": 25}
PARAMETERS_MAX = 6
WIDE = {("blackboard/client/board.py", "list"), ("blackboard/sync/board.py", "list")}
"""A listing has one more: a pattern, and six keywords of which each call gives one or two."""
COLUMNS_MAX = 100
PASS_ARGUMENTS_ON = {
    ("blackboard/arguments.py", "checked"),
    ("blackboard/client/remote/link.py", "ask"),
    ("blackboard/client/remote/link.py", "change"),
    ("blackboard/runtime/context.py", "tool"),
}
VAGUE_NAMES = {"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
UNFINISHED = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b(?!.*https?://)")
MACHINE_PATH = re.compile(r"(?<![\w.~/-])/(?:work|root|tmp|home|Users|opt)/\w")
REGISTRY = re.compile(
    r"pypi\.(?:org|python)|pythonhosted\.org|deb\.debian\.org|registry\.npmjs|crates\.io"
    r"|golang\.org"
)
CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]{4,}")
_OPERATIONS = (
    "Append Delete DeletePrefix Expire Grant HeldFence Increment KeyAt PrefixUnchanged Put Release"
    " Renew"
)
_WITHOUT_ASYNC = (
    "Attachment Board Claim Client Document Files Lock Memory SharedList SharedMap SharedText Step"
    " Watch Workspace"
)
SAME_NOUN = {
    "Change": "as the log has it, and decoded for people",
    "Entry": "as an engine keeps it, and decoded for people",
    "Version": "as an archive keeps it, and decoded for people",
}
SAME_NOUN |= dict.fromkeys(_OPERATIONS.split(), "as the rules take it, and as JSON is validated")
SAME_NOUN |= dict.fromkeys(_WITHOUT_ASYNC.split(), "with async, and generated without")
"""Classes of one name in two modules, and why both are the same noun."""
PATCHED_LIMITS = {
    "of the format, which all processes share: data of its size is too large to make": (
        "ACCOUNT_INBOX_KEYS_MAX ACCOUNT_KEYS_MAX BOARD_KEYS_MAX CHECKPOINTS_MAX "
        "DOCUMENT_BYTES_MAX DOCUMENT_UPDATE_BYTES_MAX FRAME_BYTES_MAX HOLD_MS_MAX LANES_MAX "
        "LEASES_MAX LEASES_PER_ACCOUNT_MAX LEASE_WAITERS_MAX LIST_ENTRIES_MAX LOG_ENTRIES_MAX "
        "MANIFEST_BYTES_MAX NAMESPACE_BYTES_MAX NAMESPACE_KEYS_MAX OPERATIONS_MAX "
        "OVERLAP_CLIENTS_MAX REQUESTS_IN_FLIGHT_MAX PAGE_BYTES_MAX READ_KEYS_MAX "
        "RESTORE_CHANGES_MAX RESYNC_BYTES SEALED_SEARCH_MAX "
    ),
    "private to a module: where it begins to do something another way": (
        "FOLLOW_ROWS LARGE_CHANGES STEP_KEYS TOGETHER_ROWS _APART_OPS "
        "_COMPACT_ROWS _COMPACT_SLICE _DECODED_BYTES _DRIFT_S _FOLLOW_AFTER_S _HTTP_TIMEOUT_S "
        "_LIST_PAGES_MAX _LOOK_BACK_MAX _WAL_PAGES "
    ),
}
"""Constants that tests patch, and why they are no fields of `Limits`. The list only gets shorter.
"""
POLLING = "tests/waiting.py"  # the one home of bounded polling

Rule = Callable[[Source], list[str]]
Definition = ast.FunctionDef | ast.AsyncFunctionDef


def long_functions(source: Source) -> list[str]:
    """Functions of more than `FUNCTION_LINES_MAX` lines."""
    sized = ((node, (node.end_lineno or 0) - node.lineno + 1) for node in source.functions)
    return [
        f"{source.path}:{node.lineno}: {node.name} has {lines} lines"
        for node, lines in sized
        if lines > FUNCTION_LINES_MAX
    ]


def long_modules(source: Source) -> list[str]:
    """Modules of more than `MODULE_LINES_MAX` lines."""
    lines = len(source.text.splitlines())
    return [f"{source.path}: {lines} lines"] if lines > MODULE_LINES_MAX else []


def many_parameters(source: Source) -> list[str]:
    """Functions of more than `PARAMETERS_MAX` parameters, self and cls not counted."""
    offenders = []
    for node in source.functions:
        spec = node.args
        plain = [*spec.posonlyargs, *spec.args]
        own = plain[1:] if plain and plain[0].arg in ("self", "cls") else plain
        count = len(own) + len(spec.kwonlyargs) + bool(spec.vararg) + bool(spec.kwarg)
        allowed = PARAMETERS_MAX + ((source.path, node.name) in WIDE)
        if count > allowed:
            offenders.append(f"{source.path}:{node.lineno}: {node.name} has {count} parameters")
    return offenders


def wide_lines(source: Source) -> list[str]:
    """Lines of more than `COLUMNS_MAX` columns."""
    return [
        f"{source.path}:{number}: {len(line)} columns"
        for number, line in enumerate(source.text.splitlines(), 1)
        if len(line) > COLUMNS_MAX
    ]


def catch_all_parameters(source: Source) -> list[str]:
    """Functions that take whatever keywords they are given, but for those that pass them on."""
    return [
        f"{source.path}:{node.lineno}: {node.name} takes **{node.args.kwarg.arg}"
        for node in source.functions
        if node.args.kwarg and (source.path, node.name) not in PASS_ARGUMENTS_ON
    ]


def vague_names(source: Source) -> list[str]:
    """Modules and folders whose name says nothing."""
    parts = set(source.path.removesuffix(".py").split("/"))
    return [f"{source.path}: {name}" for name in sorted(parts & VAGUE_NAMES)]


def sleeps(source: Source) -> list[str]:
    """Calls of any `sleep`: a test waits for what it waits for."""
    if "sleep" not in source.text:  # most have none, and need not be parsed
        return []
    calls = (node for node in ast.walk(source.tree) if isinstance(node, ast.Call))
    return [
        f"{source.path}:{call.lineno}: sleep"
        for call in calls
        if getattr(call.func, "attr", getattr(call.func, "id", None)) == "sleep"
        and source.path != POLLING
    ]


def missing_module_docstrings(source: Source) -> list[str]:
    """Modules without a docstring."""
    return [] if ast.get_docstring(source.tree) else [f"{source.path}: no docstring"]


def missing_docstrings(source: Source) -> list[str]:
    """Public classes, functions and methods without a docstring. Special methods need none."""
    return [
        f"{source.path}:{node.lineno}: {node.name} has no docstring"
        for node in _public_definitions(source.tree)
        if not ast.get_docstring(node)
    ]


def _public_definitions(
    body: ast.Module | ast.ClassDef,
) -> Iterator[Definition | ast.ClassDef]:
    for node in body.body:
        if not isinstance(node, Definition | ast.ClassDef) or node.name.startswith("_"):
            continue
        if not _is_further_part(node):
            yield node
        if isinstance(node, ast.ClassDef):
            yield from _public_definitions(node)


def _is_further_part(node: Definition | ast.ClassDef) -> bool:
    """Whether the docstring belongs elsewhere: setters, overloads."""
    names = {ast.unparse(decorator).rpartition(".")[2] for decorator in node.decorator_list}
    return bool(names & {"setter", "deleter", "overload"})


def matches(source: Source, pattern: re.Pattern[str]) -> list[str]:
    """Lines in which `pattern` is found."""
    return [
        f"{source.path}:{number}: {line.strip()}"
        for number, line in enumerate(source.text.splitlines(), 1)
        if pattern.search(line)
    ]


def unfinished_work(source: Source) -> list[str]:
    """Marks of unfinished work that link to nothing."""
    return matches(source, UNFINISHED)


def machine_paths(source: Source) -> list[str]:
    """Paths of somebody's machine."""
    return matches(source, MACHINE_PATH)


def registry_hosts(source: Source) -> list[str]:
    """Names of package registries' hosts."""
    return matches(source, REGISTRY)


def full_folders(paths: list[str]) -> list[str]:
    """Folders with more modules than a reader takes in at a glance, `__init__.py` apart."""
    folders = Counter(
        path.rpartition("/")[0] for path in paths if not path.endswith("/__init__.py")
    )
    return [
        f"{folder}: {count} modules"
        for folder, count in folders.items()
        if count > FOLDERS_OF_COMMANDS.get(folder, FOLDER_FILES_MAX)
    ]


CODE = ("blackboard", "agents", "demos", "bench", "tests", "tools")
SHIPPED = ("blackboard", "agents", "demos")


def repeated_classes(files: list[Source]) -> list[str]:
    """Names that two classes have, in whatever modules."""
    homes: dict[str, list[str]] = {}
    for source in files:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, []).append(source.path)
    return [
        f"{name}: {', '.join(paths)}"
        for name, paths in sorted(homes.items())
        if len(paths) > 1 and name not in SAME_NOUN
    ]


def patched_limits(source: Source) -> list[str]:
    """Constants of a module that a test replaces; what can be passed in is passed in."""
    known = set(" ".join(PATCHED_LIMITS.values()).split())
    return [
        f"{source.path}:{line}: {name} is patched: pass it in (the mark `limits`)"
        for name, line in patches(source)
        if name not in known
    ]


def patches(source: Source) -> Iterator[tuple[str, int]]:
    """Each constant that is set by `monkeypatch.setattr`, with its line."""
    for node in ast.walk(source.tree) if "setattr" in source.text else ():
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr"),
                args=[ast.Constant(value=str(path)), _] | [_, ast.Constant(value=str(path)), _],
            ):
                name = path.rpartition(".")[2]
                if CONSTANT.fullmatch(name):
                    yield name, node.lineno


def check(rule: Rule, files: list[Source]) -> None:
    """Fail with every offender that `rule` finds in those files."""
    report("\n".join(chain.from_iterable(map(rule, files))))


def report(offenders: str) -> None:
    """Fail with the offenders if there are any; the list is never cut short."""
    if offenders:
        pytest.fail(offenders, pytrace=False)


@pytest.mark.parametrize(
    ("rule", "folders"),
    [
        (long_functions, CODE),
        (long_modules, CODE),
        (many_parameters, CODE),
        (wide_lines, CODE),
        (vague_names, CODE),
        (catch_all_parameters, ("blackboard",)),
        (missing_module_docstrings, ("blackboard",)),
        (missing_docstrings, SHIPPED),
        (sleeps, ("tests",)),
    ],
)
def test_code_keeps_the_rule(rule: Rule, folders: tuple[str, ...]) -> None:
    """No Python file of those folders offends."""
    check(rule, sources(*folders))


@pytest.mark.parametrize("rule", [long_modules, wide_lines])
def test_scripts_keep_the_rule(rule: Rule) -> None:
    """The engine's Lua scripts are code too."""
    check(rule, sources("blackboard", suffix=".lua"))


@pytest.mark.parametrize("rule", [unfinished_work, machine_paths, registry_hosts])
def test_every_text_keeps_the_rule(rule: Rule) -> None:
    """No file that git publishes offends."""
    check(rule, published_texts())


def test_classes_have_names_of_their_own() -> None:
    """Or are the same noun, seen from two sides."""
    report("\n".join(repeated_classes(sources("blackboard"))))


def test_repeated_classes_are_found() -> None:
    """Also inside functions; the same noun may be seen from two sides."""
    one = Source("blackboard/one.py", "class Past: ...\nclass Put: ...\n")
    other = Source("blackboard/other.py", "class Put: ...\ndef f():\n    class Past: ...\n")
    assert repeated_classes([one, other]) == ["Past: blackboard/one.py, blackboard/other.py"]


def test_tests_pass_limits_in() -> None:
    """They replace no constant but those that are listed, and each of these is needed."""
    files = sources("tests")
    check(patched_limits, files)
    patched = {name for source in files for name, _ in patches(source)}
    assert set(" ".join(PATCHED_LIMITS.values()).split()) - patched == set()


VERB = re.compile(r"^([a-z-]+):(?!=| export).*?(?:## (.*))?$", re.MULTILINE)
LISTED = re.compile(r"(?:\d+ (?:s|min)(?: each)?|-): [A-Z].{10,}")
INNER = {"lint", "types"}
"""Verbs that are parts of others."""


def unlisted_verbs(makefile: str) -> list[str]:
    """Verbs without a time and a text in the list that `make` prints."""
    verbs = VERB.findall(makefile)
    return [verb for verb, text in verbs if not LISTED.fullmatch(text) and verb not in INNER]


def test_every_verb_of_make_is_listed_with_its_time() -> None:
    """As measured; `-` for what was not timed."""
    makefile = next(each.text for each in published_texts() if each.path == "Makefile")
    assert unlisted_verbs(makefile) == []
    assert unlisted_verbs("go: now\nrun: ## Do what is to be done\n") == ["go", "run"]
    assert unlisted_verbs("go: a ## 2 min: Do what is to be done\nx := 1\n") == []


def test_folders_are_small() -> None:
    """A folder is a role that can be taken in at a glance."""
    report("\n".join(full_folders([source.path for source in sources("blackboard")])))


BAD: list[tuple[Rule, str, str]] = [
    (long_functions, "def f():\n" + "    x = 1\n" * 70, "def f():\n" + "    x = 1\n" * 69),
    (long_modules, "x = 1\n" * 801, "x = 1\n" * 800),
    (
        many_parameters,
        "def f(a, /, b, c, *d, e, f, g): ...",
        "class A:\n    async def f(self, a, b, *, c, d, e, **f): ...",
    ),
    (wide_lines, "#" * 101, "#" * 100),
    (catch_all_parameters, "async def f(**more): ...", "f(**more)"),
    (sleeps, "async def f():\n    await anyio.sleep(1)", "anyio.sleep_forever()"),
    (sleeps, "from time import sleep\nsleep(1)", "text = 'sleep(1)'"),
    (missing_module_docstrings, "x = 1", '"""Why."""'),
    (missing_docstrings, "class A:\n    'Why.'\n    def b(self): ...", "def _f(): ..."),
    (missing_docstrings, "def f(): ...", "class A:\n    'Why.'\n    def __len__(self): ..."),
    (
        patched_limits,
        'm.setattr("a.MERGE_ATTEMPTS_MAX", 1)',
        'm.setattr(a, "LEASES_MAX", 1); m.setattr(a, "merge", 1)',
    ),
    (unfinished_work, "# TO" + "DO: later", "# TO" + "DO: https://example.org/1"),
    (machine_paths, "open('/" + "root/x')", "https://example.org/root/x"),
    (registry_hosts, "https://pypi" + ".org/simple", "pip install agent-blackboard"),
]


@pytest.mark.parametrize(("rule", "bad", "good"), BAD)
def test_each_rule_tells_bad_from_good(rule: Rule, bad: str, good: str) -> None:
    """A snippet just over the line is reported once; one just inside it is not."""
    assert len(rule(Source("blackboard/core/model.py", bad))) == 1
    assert rule(Source("blackboard/core/model.py", good)) == []


def test_vague_names_are_found_in_folders_too() -> None:
    """The whole path counts, and only whole names."""
    assert len(vague_names(Source("blackboard/utils/helpers.py", ""))) == 2
    assert vague_names(Source("blackboard/core/commonplace.py", "")) == []


def test_full_folders_are_found() -> None:
    """One module more than the bound is reported, and commands have a bound of their own."""
    names = [f"blackboard/core/{n}.py" for n in range(FOLDER_FILES_MAX)]
    assert full_folders([*names, "blackboard/core/__init__.py"]) == []
    assert full_folders([*names, "blackboard/core/more.py"]) == ["blackboard/core: 17 modules"]
    assert full_folders([f"blackboard/cli/{n}.py" for n in range(25)]) == []
