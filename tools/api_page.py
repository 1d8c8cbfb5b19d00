"""Write docs/api.md from the docstrings of the public names: `python -m tools.api_page`.

A test compares the page with the code, so neither can be changed without the other.
"""

import ast
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

from blackboard import ops

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "api.md"
_HEAD: Final = """# Names and methods

Everything that a program uses, with its signature, its types and its errors. Written from the code
by `python -m tools.api_page`. `blackboard` itself has the names that programs write;
`blackboard.ops` has the parts of a commit, `blackboard.types` what calls return, and
`blackboard.errors` every error ([by code](errors.md)).

`blackboard.sync` has the same classes and methods without `async`
([how to](howto/sync_callers.md)).

Calls that take or return a value use plain Python values: None, bool, int, float, str, bytes, list,
and dict with string keys.
"""
_INTRO: Final = {
    "blackboard": "What programs write. `blackboard.__version__` is the version of the package.",
    "blackboard.ops": "Operations, conditions and fences for `Board.commit`.",
    "blackboard.types": "What calls return or yield: for annotations, and to look at.",
    "blackboard.names": "Any text as a segment of a key, and back; in the same order.",
    "blackboard.errors": "One tree below `BlackboardError`; [the codes and fields](errors.md).",
}
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def page() -> str:
    """The whole page."""
    return _HEAD + "".join(_module(name) for name in _INTRO)


def _module(name: str) -> str:
    module = importlib.import_module(name)
    names = [*module.__all__, *(["open"] if name == "blackboard" else [])]
    entries = "".join(_entry(module, one) for one in sorted(names, key=str.lower))
    return f"\n## {name}\n\n{_INTRO[name]}\n{entries}"


def _entry(module: ModuleType, name: str) -> str:
    value = getattr(module, name)
    title = f"\n### {module.__name__}.{name}\n"
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        shown = f"{name} = {value!r}" if isinstance(value, int) else name
        return f"{title}\n`{shown}`: {_constant(module, name)}\n"
    node = _definition(inspect.getmodule(value), value.__name__)
    if not isinstance(node, ast.ClassDef):
        return f"{title}\n{_function(node, '')}"
    if module.__name__ == "blackboard.errors":
        return f"{title}\n{_text(node)}"
    return f"{title}\n{_class(node, name)}"


def _constant(module: ModuleType, name: str) -> str:
    """The text below a constant: the operations' are those of `core/commit.py`."""
    home = importlib.import_module("blackboard.core.commit") if module is ops else module
    tree = ast.parse(inspect.getsource(home))
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        match before, after:
            case (
                ast.AnnAssign(target=ast.Name(id=found)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ) if found == name:
                return " ".join(text.split())
    return ""


def _definition(module: ModuleType | None, name: str) -> Definition:
    assert module is not None
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, Definition) and node.name == name:
            return node
    raise LookupError(f"{module.__name__} defines no {name}")


def _class(node: ast.ClassDef, name: str) -> str:
    parts = [_text(node), *_fields(node)]
    for member in node.body:
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and _is_shown(member):
            parts.append(f"\n#### {name}.{member.name}\n\n{_function(member, name)}")
    return "".join(parts)


def _is_shown(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Public, and explained; one of several overloads is enough."""
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    return not node.name.startswith("_") and "overload" not in decorators


def _fields(node: ast.ClassDef) -> Iterator[str]:
    """The fields of a record, a line each, with what stands below them."""
    found = [
        (member.target.id, ast.unparse(member.annotation), member.value)
        for member in node.body
        if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name)
    ]
    public = [field for field in found if not field[0].startswith("_")]
    if public:
        yield "\n"
    for name, kind, default in public:
        is_plain = isinstance(default, ast.Constant | ast.Tuple | ast.UnaryOp)
        value = f" = {ast.unparse(default)}" if default is not None and is_plain else ""
        yield f"- `{name}: {kind}{value}`\n"


def _function(node: ast.FunctionDef | ast.AsyncFunctionDef, owner: str) -> str:
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    if "property" in decorators:
        call = f"{owner}.{node.name}{returns.replace(' ->', ':', 1)}"
    else:
        prefix = "await " if isinstance(node, ast.AsyncFunctionDef) else ""
        call = f"{prefix}{owner + '.' if owner else ''}{node.name}({_arguments(node)}){returns}"
    return f"`{call}`\n\n{_text(node)}"


def _arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """As in the code, without `self`."""
    text = ast.unparse(node.args)
    for first in ("self", "cls"):
        text = text.removeprefix(f"{first}, ") if text != first else ""
    return text


def _text(node: Definition) -> str:
    return f"{ast.get_docstring(node) or ''}\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
