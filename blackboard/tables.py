"""Tables of HTML: how notebooks show the objects of this package (`_repr_html_`).

All that is shown is escaped: a value on a board may come from anybody.
"""

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from itertools import islice
from typing import Any

from blackboard.limits import TABLE_CELL_CHARACTERS_MAX, TABLE_ROWS_MAX
from blackboard.units import Milliseconds

_CELL = 'style="text-align:left;vertical-align:top;white-space:pre-wrap"'


def table(
    caption: str, columns: Sequence[str], rows: Iterable[Sequence[Any]], *, more: bool = False
) -> str:
    """A table with at most TABLE_ROWS_MAX rows, whose cells have TABLE_CELL_CHARACTERS_MAX
    characters each; a last line says if there are others, as it does with `more`."""
    found = iter(rows)
    head = "".join(f"<th {_CELL}>{escape(column)}</th>" for column in columns)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in islice(found, TABLE_ROWS_MAX))
    if more or next(found, None) is not None:
        body += f'<tr><td {_CELL} colspan="{len(columns)}">and more</td></tr>'
    return f"<table><caption>{escape(caption)}</caption><tr>{head}</tr>{body}</table>"


def moment(time_ms: Milliseconds) -> str:
    """A time since 1970 as UTC, to the second; the number if there is no such date."""
    try:
        return f"{datetime.fromtimestamp(time_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}"
    except (OverflowError, OSError, ValueError):
        return str(time_ms)


def text_of(value: Any) -> str:
    """A value as people read it: text as it is, anything else as JSON where it can be."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return repr(value)


def _cell(shown: Any) -> str:
    text = "" if shown is None else text_of(shown)
    if len(text) > TABLE_CELL_CHARACTERS_MAX:
        text = f"{text[:TABLE_CELL_CHARACTERS_MAX]}…"
    return f"<td {_CELL}>{escape(text)}</td>"
