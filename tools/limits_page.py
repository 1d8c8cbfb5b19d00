"""Write docs/limits.md from the table in blackboard/limits.py: `python -m tools.limits_page`.

A limit's reason is the string below it, as in the source; a test compares the page with this.
"""

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from blackboard import limits as table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "limits.md"
_HEAD = """\
# Limits

Everything that could grow has a limit with a name and a reason. A request beyond a limit is refused
with [LimitExceeded](errors.md#limitexceeded), which gives the name, or with `InvalidRequest` if a
number is out of range. Names end in their unit: `_BYTES` (1 KiB = 1,024 bytes), `_MS`
(milliseconds), otherwise they are counts. The limits are constants in `blackboard/limits.py`; only
`LOG_KEPT_REVISIONS`, `LOG_BYTES_PER_ACCOUNT_MAX` (of the service) and `STEP_ATTEMPTS_MAX` (of a
call) are defaults that can be changed. `python -m tools.limits_page` writes this page from that
file.
"""
_COLUMNS = "| limit | value | what it limits, and why |\n| --- | ---: | --- |\n"
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
    """One row: `reason` is the text below it in the source, "" if it has none of its own."""

    section: str
    name: str
    value: int
    reason: str


def limits(source: str) -> Iterator[Limit]:
    """The limits in the text of a module, in its order: constants in capitals."""
    lines = source.splitlines()
    body = ast.parse(source).body
    for statement, following in zip(body, [*body[1:], None], strict=True):
        match statement:
            case ast.AnnAssign(target=ast.Name(id=name)) if name.isupper():
                section = _section(lines[: statement.lineno])
                yield Limit(section, name, getattr(table, name), _text(following))


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
            section = row.section
            parts.append(f"\n## {section.capitalize()}\n\n{_COLUMNS}")
        reason = row.reason.replace("|", "\\|") or "see the row above"
        parts.append(f"| `{row.name}` | {shown(row)} | {reason} |\n")
    return "".join(parts)


def current() -> str:
    """The page as blackboard/limits.py has it now."""
    return page(list(limits(inspect.getsource(table))))


if __name__ == "__main__":
    PAGE.write_text(current(), encoding="utf-8")
