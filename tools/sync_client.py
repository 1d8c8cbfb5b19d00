"""Write blackboard/sync/*.py from the asynchronous classes: `python -m tools.sync_client`.

Each public method becomes one that hands the call to the loop of `blackboard.sync` and waits. A
test compares the files with what this writes, so the two interfaces cannot differ.
"""

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[1] / "blackboard" / "sync"
FILES: Final[dict[str, tuple[str, dict[str, tuple[str, ...]]]]] = {
    "documents": (
        "Documents without async.",
        {
            "blackboard.client.documents.shared_types": ("SharedText", "SharedList", "SharedMap"),
            "blackboard.client.documents.document": ("Document",),
        },
    ),
    "blocks": (
        "What is entered with `with`: steps, watches, locks, claims and attachments.",
        {
            "blackboard.client.step": ("Step",),
            "blackboard.client.watch": ("Watch",),
            "blackboard.client.leases.lock": ("Lock",),
            "blackboard.client.leases.claim": ("Claim",),
            "blackboard.client.leases.presence": ("Attachment",),
        },
    ),
    "files": ("Files without async.", {"blackboard.client.files": ("Files",)}),
    "workspace": (
        "Workspaces without async.",
        {"blackboard.client.workspace.workspace": ("Workspace",)},
    ),
    "memory": ("Memory without async.", {"blackboard.client.memory.memory": ("Memory",)}),
    "board": ("The Board without async.", {"blackboard.client.board": ("Board",)}),
    "client": ("The Client without async.", {"blackboard.client.client": ("Client",)}),
}
"""The files, what they say, and whose classes are in each; one imports only those before it."""
ATTRIBUTES: Final = {
    "Step": {"receipt": "Receipt | None"},
    "Watch": {"state": "dict[Key, Entry]", "revision": "Revision"},
    "Lock": {"keys": "tuple[Key, ...]", "holder": "str"},
    "Board": {"name": "str"},
    "Attachment": {"agent": "str", "board": "BoardT"},
    "Document": {"key": "Key"},
    "Workspace": {"key": "Key", "path": "Path"},
    "Memory": {"prefix": "Prefix"},
}
"""Attributes that are not properties there."""
IN_THE_LOOP: Final = {"Document", "SharedText", "SharedList", "SharedMap"}
"""Classes of which every method runs in the loop's thread: edits come in there, too."""
SPECIAL: Final = frozenset(
    "__len__ __str__ __eq__ __getitem__ __iter__ __contains__ __setitem__ __delitem__".split()
)
_OBSERVE: Final = """
        end = self._portal.call(lambda: self._inner.observe(observer))
        return lambda: self._portal.call(end)
"""
BY_HAND: Final = {
    "Attachment.board": '''
    @property
    def board(self) -> BoardT:
        """The board as that agent."""
        return self._board
''',
    "Attachment.__init__": """
    _inner: asynchronous.Attachment[Any]

    def __init__(self, portal: Portal, inner: asynchronous.Attachment[Any], board: BoardT) -> None:
        super().__init__(portal, inner)
        self._board = board
""",
    "Board._repr_html_": """
    def _repr_html_(self) -> str:
        # Waits as `list` does; what cannot be read is shown as its error.
        caption = f"board {self.name}, as {self.agent}"
        try:
            found = self.list("**", limit=TABLE_ROWS_MAX)
        except BlackboardError as error:
            return table(caption, ("error",), [(str(error),)])
        caption = f"{caption}: revision {found.revision}"
        return table(
            caption, ENTRY_COLUMNS, map(entry_row, found.entries), more=found.next_key is not None
        )
""",
    "Board.attach": """
        inner = self._inner.attach(
            agent,
            if_taken=if_taken,
            ttl_ms=ttl_ms,
            timeout_ms=timeout_ms,
            deliver=None if deliver is None else threaded(deliver),
        )
        return Attachment(self._portal, inner, Board(self._portal, inner.board))
""",
    "Board.run_step": """
        if attempts < 1:
            raise InvalidRequest("attempts", f"{attempts} is below 1: write how often to run it")
        for attempt in range(attempts):
            try:
                with self.step(agent) as step:
                    return body(step)
            except Conflict:
                if attempt == attempts - 1:
                    raise
        raise AssertionError("the last attempt returns or raises")
""",
    "Board.document": """
        from blackboard.sync.documents import Document

        return Document(self._portal, self._portal.enter(self._inner.document(key)))
""",
    "Board.workspace": """
        from blackboard.sync.workspace import Workspace

        return Workspace(self._portal, self._inner.workspace(path, key))
""",
    "Workspace.branch": """
        inner: Any = getattr(board, "_inner", board)
        return Workspace(
            self._portal, self._portal.run(lambda: self._inner.branch(inner, path, at=at))
        )
""",
    "Claim.__aenter__": """
        return self._portal.enter(self._inner)
""",
    "Client.aclose": '''
    def close(self) -> None:
        """Close every watch, and the connection or embedded service of the client.

        Commits in flight finish. Later calls raise Unavailable. A second call does nothing.
        """
        self._portal.forget(id(self._inner))
        self._portal.run(self._inner.aclose)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
''',
    "Document.aclose": '''
    def close(self) -> None:
        """Close the document. Edits for which no `synced` waited may not have been sent."""
        self._portal.run(self._inner.aclose)
''',
    "Document.transaction": """
        with self._portal.exclusively():
            block = ExitStack()
            try:
                self._portal.call(lambda: block.enter_context(self._inner.transaction()))
                yield
            finally:  # also when it was interrupted while it began
                self._portal.call(block.close)
""",
    "Document.__aenter__": """
        return self
""",
    "Memory.add": """
        self._portal.run(lambda: self._inner.add(step._inner, what, name=name))
""",
    "Memory.aclose": '''
    def close(self) -> None:
        """Drop the index, and end its watch."""
        self._portal.run(self._inner.aclose)
''',
    "SharedList.__iter__": """
        return iter(shared(self._portal, one) for one in self._portal.call(lambda: [*self._inner]))
""",
    "SharedMap.__iter__": """
        return iter(self._portal.call(lambda: [*self._inner]))
""",
    "SharedText.observe": _OBSERVE,
    "SharedList.observe": _OBSERVE,
    "SharedMap.observe": _OBSERVE,
    "Watch.__anext__": '''
    def __next__(self) -> RevisionEvent:
        return self._portal.run(self._inner.__anext__)

    def next(self, *, timeout_ms: Milliseconds | None = None) -> RevisionEvent:
        """The next visible revision. Errors: TimeoutError when none came within `timeout_ms`;
        nothing is lost then."""

        async def wait() -> RevisionEvent:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                return await anext(self._inner)

        return self._portal.run(wait)
''',
}
"""Members that are more than a call handed over: a whole member, or a body."""
ANNOTATIONS: Final = {
    "Deliver": "Callable[[], Sequence[Op]]",
    "MemoryStep": "Step",
    "Callable[[Step], Awaitable[T]]": "Callable[[Step], T]",
    "Attachment[Board]": "Attachment[Board]",
    "TreeBoard": "Mirror[Any]",
}
EXTRA: Final[dict[str, tuple[str, ...]]] = {
    "documents": ("from contextlib import ExitStack, contextmanager",),
    "files": (),
    "workspace": ("from typing import Any",),
    "memory": (),
    "blocks": ("import asyncio", "from typing import Generic, TypeVar, overload"),
    "board": (
        "from typing import TypeVar, overload",
        "from blackboard.core.commit import Op",
        "from blackboard.client.views import ENTRY_COLUMNS, entry_row",
        "from blackboard.errors import BlackboardError, Conflict, InvalidRequest",
        "from blackboard.limits import TABLE_ROWS_MAX",
        "from blackboard.tables import table",
        "from blackboard.sync.portal import threaded",
    ),
    "client": ("from typing import Self",),
}
HOMES: Final = {
    "Iterator": "collections.abc",
    "Sequence": "collections.abc",
    "Callable": "collections.abc",
    "Any": "typing",
    "Self": "typing",
    "RevisionEvent": "blackboard.client.views",
    "Milliseconds": "blackboard.units",
    "Receipt": "blackboard.client.views",
    "Entry": "blackboard.client.views",
    "Key": "blackboard.units",
    "Revision": "blackboard.units",
}
LATE: Final = ("blackboard.sync.documents", "blackboard.sync.workspace")
"""Imported only where it is used: it needs pycrdt or pathspec, extras of the client."""
TRAILERS: Final = {
    "documents": '''

def shared(portal: Portal, value: Any) -> Any:
    """A value of a document: what is shared as an object of this module."""
    if isinstance(value, asynchronous.SharedText):
        return SharedText(portal, value)
    if isinstance(value, asynchronous.SharedList):
        return SharedList(portal, value)
    if isinstance(value, asynchronous.SharedMap):
        return SharedMap(portal, value)
    return value
'''
}
LEFT_OUT: Final = {"observe_shared", "follow", "request_progress"}
"""What only the asynchronous classes themselves use, and what belongs to a callback of the loop."""
TYPE_VARIABLES: Final = ("T", "BoardT")
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """A class as its module defines it."""

    module: str
    node: ast.ClassDef
    imports: dict[str, str]
    """Where the names come from that its module imports or defines."""


def files() -> Iterator[tuple[Path, str]]:
    """Each file and its text."""
    earlier: dict[str, str] = {}
    for name, (says, homes) in FILES.items():
        sources = [_source(module, one) for module, names in homes.items() for one in names]
        own = {source.node.name for source in sources}
        body = "".join(_class(source, {*earlier, *own}) for source in sources)
        body += TRAILERS.get(name, "")
        head = _head(name, says, sources, body, earlier)
        yield FOLDER / f"{name}.py", _formatted(head + body)
        earlier |= dict.fromkeys(own, f"blackboard.sync.{name}")


def _source(module: str, name: str) -> Source:
    tree = ast.parse(inspect.getsource(import_module(module)))
    imports: dict[str, str] = {}
    found: ast.ClassDef | None = None
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            imports |= {alias.name: node.module or "" for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef):
            imports[node.name] = module
            found = node if isinstance(node, ast.ClassDef) and node.name == name else found
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            imports[node.targets[0].id] = module
    assert found is not None
    return Source(module, found, imports)


def _head(
    file: str, says: str, sources: Iterable[Source], body: str, earlier: dict[str, str]
) -> str:
    """Docstring, imports, and what the classes of the file need besides."""
    mirrored = {source.node.name for source in sources}
    used = set(re.findall(r"\b[A-Za-z_]\w*\b", re.sub(r'""".*?"""', "", body, flags=re.DOTALL)))
    homes = HOMES | {name: home for source in sources for name, home in source.imports.items()}
    homes |= earlier
    needed = (used - mirrored - set(TYPE_VARIABLES)) & homes.keys()
    late = {name for name in needed if homes[name] in LATE}
    lines = {f"from {homes[name]} import {name}" for name in needed - late} | set(EXTRA[file])
    if late:
        lines.add("from typing import TYPE_CHECKING")
    lines.add("from blackboard.sync.portal import Mirror")
    lines.add("from blackboard.sync import asynchronous")
    if "Portal" in used:
        lines.add("from blackboard.sync.portal import Portal")
    needed = {name for name in TYPE_VARIABLES if re.search(rf"\b{name}\b", body)}
    variables = "".join(f'{name} = TypeVar("{name}")\n' for name in sorted(needed))
    types = "".join(f"    from {homes[name]} import {name}\n" for name in sorted(late))
    variables = (f"if TYPE_CHECKING:\n{types}\n" if late else "") + variables
    text = f'"""{says}\n\nWritten by `python -m tools.sync_client`: do not edit.\n"""\n\n'
    return text + "\n".join(sorted(lines)) + "\n\n" + variables


def _class(source: Source, mirrored: set[str]) -> str:
    node, name = source.node, source.node.name
    bases = {"Attachment": "Lock, Generic[BoardT]"}.get(name, f"Mirror[asynchronous.{name}]")
    parts = [f"\n\nclass {name}({bases}):\n", _docstring(node, 4)]
    if f"{name}.__init__" in BY_HAND:
        parts.append(BY_HAND[f"{name}.__init__"])
    for attribute, kind in ATTRIBUTES.get(name, {}).items():
        parts.append(BY_HAND.get(f"{name}.{attribute}") or _attribute(node, attribute, kind))
    for member in node.body:
        if isinstance(member, Function) and not (name == "Attachment" and "__a" in member.name):
            parts.append(_member(source, member, mirrored))
    return "".join(parts)


def _attribute(node: ast.ClassDef, attribute: str, kind: str) -> str:
    says = _said_below(node, attribute) or f"As of the asynchronous {node.name}."
    return (
        f"\n    @property\n    def {attribute}(self) -> {kind}:\n"
        f'        """{says}"""\n        return self._inner.{attribute}\n'
    )


def _said_below(node: ast.ClassDef, attribute: str) -> str:
    """The string below the assignment of an attribute."""
    for function in node.body:
        if isinstance(function, Function) and function.name == "__init__":
            for line, after in zip(function.body, function.body[1:], strict=False):
                is_it = ast.unparse(line).startswith(f"self.{attribute}")
                match after:
                    case ast.Expr(value=ast.Constant(value=str(text))) if is_it:
                        return " ".join(text.split())
    return ""


def _member(source: Source, node: Function, mirrored: set[str]) -> str:
    """A method of the synchronous class, or nothing."""
    owner = source.node.name
    name, by_hand = node.name, BY_HAND.get(f"{owner}.{node.name}", "")
    if name == "__init__":
        return ""
    if by_hand.lstrip().startswith("def "):
        return by_hand
    if name == "__aexit__":
        return _exit(owner)
    if name == "__aiter__":
        return f"\n    def __iter__(self) -> Iterator[{_item(node)}]:\n        return self\n"
    if name.startswith("_") and name not in SPECIAL and name != "__aenter__":
        return ""
    if name in LEFT_OUT:
        return ""
    returns = _annotation(node.returns, owner)
    decorators = {ast.unparse(decorator) for decorator in node.decorator_list}
    if "overload" in decorators:
        by_hand = "        ...\n"
    arguments = _arguments(node, source.module)
    head = f"    def {name.replace('aenter', 'enter')}({arguments}) -> {returns}:\n"
    head = "".join(f"    @{one}\n" for one in sorted(decorators)) + head
    body = by_hand.lstrip("\n") or _body(owner, node, returns, mirrored, "property" in decorators)
    return "\n" + head + _docstring(node, 8) + body


def _exit(owner: str) -> str:
    body = "self._portal.run(lambda: self._inner.__aexit__(kind, error, trace))"
    return (
        "\n    def __exit__(\n        self,\n        kind: type[BaseException] | None,\n"
        "        error: BaseException | None,\n        trace: TracebackType | None,\n"
        f"    ) -> None:\n        {body}\n"
    )


def _body(owner: str, node: Function, returns: str, mirrored: set[str], is_property: bool) -> str:
    """The call, handed over."""
    if node.name == "__aenter__":
        return "        self._portal.enter(self._inner)\n        return self\n"
    target = f"self._inner.{node.name}"
    passed = _passed(node, mirrored)
    call = target if is_property else f"{target}({passed})"
    work = f"lambda: {call}" if passed else target
    if node.name in SPECIAL:
        work = f"lambda: {_operator(node)}"
    if returns.startswith("Iterator["):
        return f"        return self._portal.iterate({call})\n"
    if isinstance(node, ast.AsyncFunctionDef):
        call = f"self._portal.run({work})"
    elif owner in IN_THE_LOOP or node.name == "take_received":
        call = f"self._portal.call({work})"
    if returns.strip('"') in mirrored or returns == "Self":
        kind = owner if returns == "Self" else returns.strip('"')
        made = "type(self)" if returns == "Self" else kind
        return f"        return {made}(self._portal, {call})\n"
    if node.name in ("__getitem__", "get") and owner in IN_THE_LOOP:
        return f"        return shared(self._portal, {call})\n"
    return f"        {'' if returns == 'None' else 'return '}{call}\n"


def _operator(node: Function) -> str:
    """What calls a special method."""
    names = [argument.arg for argument in node.args.args[1:]]
    match node.name, names:
        case "__getitem__", [key]:
            return f"self._inner[{key}]"
        case "__contains__", [key]:
            return f"{key} in self._inner"
        case "__setitem__" | "__delitem__" as name, _:
            return f"self._inner.{name}({', '.join(names)})"
        case "__eq__", [other]:
            return f"self._inner == getattr({other}, '_inner', {other})"
        case name, _:
            return f"{name.strip('_')}(self._inner)"


def _item(node: Function) -> str:
    assert isinstance(node.returns, ast.Subscript)
    return ast.unparse(node.returns.slice)


def _annotation(node: ast.expr | None, owner: str) -> str:
    text = "None" if node is None else ast.unparse(node)
    text = text.strip("'").replace("AsyncIterator[", "Iterator[")
    text = ANNOTATIONS.get(text, text)
    is_quoted = isinstance(node, ast.Constant) and node.value is not None
    return f'"{text}"' if is_quoted or owner in re.findall(r"\w+", text) else text


def _arguments(node: Function, module: str) -> str:
    """As there, with private defaults by value."""
    for index, default in enumerate(node.args.defaults):
        if isinstance(default, ast.Name) and default.id.startswith("_"):
            node.args.defaults[index] = ast.Constant(getattr(import_module(module), default.id))
    for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
        if argument.annotation is not None:
            text = ast.unparse(argument.annotation)
            for old, new in ANNOTATIONS.items():
                text = text.replace(old, new)
            argument.annotation = ast.parse(text, mode="eval").body
    return ast.unparse(node.args)


def _passed(node: Function, mirrored: set[str]) -> str:
    """The arguments as they are passed on."""
    parts = []
    for argument in node.args.args[1:]:
        kind = "" if argument.annotation is None else ast.unparse(argument.annotation).strip("'")
        parts.append(f"{argument.arg}._inner" if kind in mirrored else argument.arg)
    if node.args.vararg is not None:
        parts.append(f"*{node.args.vararg.arg}")
    parts += [f"{one.arg}={one.arg}" for one in node.args.kwonlyargs]
    return ", ".join(parts)


_PLAIN: Final = (
    (r"`await (\w+)\.aclose\(\)`", r"`\1.close()`"),
    (r"; `await` or `async with` it", ""),
    (r"\basync (with|for|def)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\baclose\b", "close"),
)


def _docstring(node: ast.ClassDef | Function, indent: int) -> str:
    text = ast.get_docstring(node) or ""
    for pattern, plain in _PLAIN:
        text = re.sub(pattern, plain, text)
    space = " " * indent
    lines = [f"{space}{line}".rstrip() for line in text.splitlines()]
    if not lines:
        return ""
    end = '"""\n' if len(lines) == 1 else f'\n{space}"""\n'
    return f'{space}"""' + "\n".join(lines).lstrip() + end


def _formatted(text: str) -> str:
    """As ruff writes it."""
    for command in (["check", "-q", "--fix", "--select", "I,F401"], ["format", "-q"]):
        ruff = [str(Path(sys.executable).with_name("ruff")), *command]
        run = subprocess.run(
            [*ruff, "--stdin-filename", str(FOLDER / "x.py"), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        )
        text = run.stdout
    return text


if __name__ == "__main__":
    for path, text in files():
        path.write_text(text, encoding="utf-8")
