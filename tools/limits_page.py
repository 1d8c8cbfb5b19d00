"""Write docs/limits.md from the table in blackboard/limits.py: `python -m tools.limits_page`.

A limit's reason is the string below it, as in the source; a test compares the page with this.
"""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from pathlib import Path

from blackboard import limits as table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "limits.md"
_HEAD = """\
# Limits

Everything that could grow has a limit with a name and a reason. A request beyond a limit is refused
with [LimitExceeded](errors.md#limitexceeded), which gives the name, or with `InvalidRequest` if a
number is out of range. Names end in their unit: `_BYTES` (1 KiB = 1,024 bytes), `_MS`
(milliseconds), `_US` (microseconds), `_PERCENT`, otherwise they are counts.

There are two kinds. The first tables have what all parties to a board must agree on; nobody can
change it. The tables under "What one process chooses" have what each process may choose for itself.
They are the fields of one frozen value, which is passed in:

```python
from dataclasses import replace

import blackboard
from blackboard.limits import (DEFAULT)

patient = replace(DEFAULT.client, commit_timeout_ms=120_000)
client = blackboard.connect(url, token=token, limits=replace(DEFAULT, client=patient))
```

`blackboard.open` and `Service` take `limits`, too. A number that is out of range is refused with
`InvalidRequest`, which names the field. Errors and these pages name a field in capitals:
`COMMIT_TIMEOUT_MS` is `limits.client.commit_timeout_ms`. Operators change the fields that have a
setting (see [cli](cli.md)) without any code. `python -m tools.limits_page` writes this page from
`blackboard/limits.py`.
"""
_COLUMNS = "| limit | value | what it limits, and why |\n| --- | ---: | --- |\n"
_FIELD_COLUMNS = (
    "| limit | default | setting | what it limits, and why |\n| --- | ---: | --- | --- |\n"
)
SETTINGS = {"log_kept_revisions": "log_kept_revisions"}
"""Fields that a setting of the service changes, with its name."""
_SIZES = ((1024**3, "GiB"), (1024**2, "MiB"), (1024, "KiB"))
_TIMES = (
    (365 * 24 * 3600 * 1000, "years"),
    (24 * 3600 * 1000, "days"),
    (3600 * 1000, "h"),
    (60_000, "min"),
    (1000, "s"),
)


@dataclass(frozen=True)
class Limit:
    """One row: `reason` is the text below it in the source, "" if it has none of its own.

    `group` is where `Limits` has it; "" for a constant.
    """

    section: str
    name: str
    value: int | tuple[int, ...]
    reason: str
    group: str = ""


def limits(source: str) -> Iterator[Limit]:
    """The constants in capitals in the text of a module, in its order."""
    lines = source.splitlines()
    body = ast.parse(source).body
    for statement, following in pairwise([*body, None]):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)) if _is_limit(name):
                section = _section(lines[: statement.lineno])
                yield Limit(section, name, getattr(table, name), _text(following))


def chosen_limits(source: str) -> Iterator[Limit]:
    """The fields of `Limits`, with the texts that its classes have in the text of their module."""
    body = ast.parse(source).body
    classes = {node.name: node for node in body if isinstance(node, ast.ClassDef)}
    for group in fields(table.DEFAULT):
        chosen = getattr(table.DEFAULT, group.name)
        yield from _fields_of(classes[type(chosen).__name__], group.name, chosen)


def _is_limit(name: str) -> bool:
    """Constants that only give a field its value have that row."""
    return name.isupper() and name != "DEFAULT" and name.lower() not in _all_fields()


@cache
def _all_fields() -> frozenset[str]:
    groups = (getattr(table.DEFAULT, group.name) for group in fields(table.DEFAULT))
    return frozenset(field.name for group in groups for field in fields(group))


def _fields_of(node: ast.ClassDef, group: str, chosen: table.LimitGroup) -> Iterator[Limit]:
    told = ast.get_docstring(node) or ""
    for statement, following in pairwise([*node.body, None]):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)):
                value = getattr(chosen, name)
                yield Limit(told, name.upper(), value, _text(following), group)


def _section(above: list[str]) -> str:
    rules = (line.strip("# -") for line in reversed(above) if line.startswith("# ---"))
    return next(rules, "")


def _text(statement: ast.stmt | None) -> str:
    match statement:
        case ast.Expr(value=ast.Constant(value=str(text))):
            return " ".join(inspect.cleandoc(text).split())
    return ""


def shown(limit: Limit) -> str:
    """The value, exact, and in a larger unit where that is exact too."""
    if isinstance(limit.value, tuple):
        return ", ".join(f"{one:,}" for one in limit.value)
    units = _SIZES if "_BYTES" in limit.name else _TIMES if "_MS" in limit.name else ()
    for size, unit in units:
        if limit.value >= size and limit.value % size == 0:
            return f"{limit.value:,} ({limit.value // size} {unit})"
    return f"{limit.value:,}"


def page(rows: list[Limit]) -> str:
    """The whole page."""
    parts = [_HEAD]
    section = ""
    for row in rows:
        if row.section != section:
            if row.group and "## What" not in "".join(parts):
                parts.append("\n## What one process chooses\n")
            section = row.section
            parts.append(_heading(row))
        reason = row.reason.replace("|", "\\|") or "see the row above"
        setting = f" {_setting(row)} |" if row.group else ""
        parts.append(f"| `{row.name}` | {shown(row)} |{setting} {reason} |\n")
    return "".join(parts)


def _heading(row: Limit) -> str:
    if not row.group:
        return f"\n## {row.section.capitalize()}\n\n{_COLUMNS}"
    return f"\n### `limits.{row.group}`\n\n{row.section}\n\n{_FIELD_COLUMNS}"


def _setting(row: Limit) -> str:
    name = SETTINGS.get(row.name.lower())
    return "" if name is None else f"`{name}`"


def current() -> str:
    """The page as blackboard/limits.py has it now."""
    source = inspect.getsource(table)
    return page([*limits(source), *chosen_limits(source)])


if __name__ == "__main__":
    PAGE.write_text(current(), encoding="utf-8")
