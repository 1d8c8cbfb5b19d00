"""Turns results into text. Nothing here calls a board.

To a terminal: tables, colours, values shortened to the width. To a pipe: one record a line, fields
separated by tabs, nothing shortened.
"""

import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import msgspec
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from blackboard.cli import values
from blackboard.cli.screen import answer, console, counted, safe, safe_lines, say, shortened
from blackboard.core.path import document_of, file_info_key, file_of
from blackboard.units import Key, Milliseconds, Revision

if TYPE_CHECKING:
    from blackboard.client.comparison import RestorePreview
    from blackboard.client.diff import Diff, KeyChange
    from blackboard.client.memory.records import Remembered
    from blackboard.client.views import Cause, Change, Entry, RevisionEvent, Version
    from blackboard.core.checkpoints import Checkpoint, CheckpointInfo, Pruned, Restored
    from blackboard.core.commit import Directory
    from blackboard.core.freeze import Freeze

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))
_KINDS: Final = {
    "put": "green",
    "delete": "red",
    "grant": "magenta",
    "renew": "magenta",
    "release": "magenta",
    "state": "blue",
    "epoch": "yellow",
}
_VALUE_WIDTH_MIN: Final = 16
_NOTE_WIDTH_MAX: Final = 40
_KEY_WIDTH_MAX: Final = 32
_GAP: Final = 2


def print_json(document: Any) -> None:
    """One JSON document on one line, flushed, because the reader may be waiting for it."""
    answer(values.compact(document))
    sys.stdout.flush()


def plain(view: Any) -> Any:
    """A view (or a sequence of them) as maps and lists, for `print_json`."""
    return msgspec.to_builtins(view, builtin_types=(bytes,))


# --- pieces ---------------------------------------------------------------------------------------


def now_ms() -> Milliseconds:
    """The time by this machine's clock."""
    return time.time_ns() // 1_000_000


def age(time_ms: Milliseconds, now: Milliseconds) -> str:
    """The time since then, in the largest unit that fits: `3 s`, `5 min`, `2 h`, `4 d`."""
    seconds = (now - time_ms) // 1000
    for unit, name in _UNITS:
        if seconds >= unit:
            return f"{seconds // unit} {name}"
    return "now"


def clock(time_ms: Milliseconds, now: Milliseconds) -> str:
    """The time of day here, with the date unless it was today."""
    try:
        at, today = (datetime.fromtimestamp(ms / 1000).astimezone() for ms in (time_ms, now))
    except (ValueError, OverflowError, OSError):  # of a token that says so, for example
        return "at no time of a calendar"
    same_day = at.date() == today.date()
    return at.strftime("%H:%M:%S") if same_day else at.strftime("%Y-%m-%d %H:%M:%S")


# --- values and entries ---------------------------------------------------------------------------


def print_value(value: Any) -> None:
    """A value as JSON: coloured on a terminal, indented everywhere."""
    out = console()
    text = "\n".join(map(safe, values.pretty(value).split("\n")))
    if out.is_terminal:
        from rich.highlighter import JSONHighlighter

        out.print(JSONHighlighter()(Text(text)), soft_wrap=True)
    else:
        answer(text)


def print_raw(value: Any) -> None:
    """A value without formatting: text and bytes without quotes, and without an added newline.

    On a terminal, control characters are made visible anyway.
    """
    if console().is_terminal:
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        sys.stdout.write(safe_lines(text if isinstance(text, str) else values.compact(text)))
        sys.stdout.flush()
        return
    text = value if isinstance(value, (bytes, str)) else values.compact(value)
    # First what was written through the stream: the buffer below it is written to directly.
    sys.stdout.flush()
    # Text as well: the encoding of the stream may lack characters of it.
    sys.stdout.buffer.write(text if isinstance(text, bytes) else text.encode())
    sys.stdout.buffer.flush()


def who(one: "Entry | RevisionEvent | Version") -> str:
    """The author, and in brackets the account if the name was narrowed from it."""
    return f"{one.author} ({one.account})" if one.account else one.author


def print_entry(entry: "Entry") -> None:
    """An entry with all of its fields."""
    out, now = console(), now_ms()
    rows = {
        "key": entry.key,
        "revision": str(entry.mod_revision),
        "created": f"revision {entry.create_revision}{_created(entry, now)}",
        "author": who(entry),
        "written": f"{clock(entry.time_ms, now)} ({_ago(entry.time_ms, now)})",
        "expires": clock(entry.expires_at_ms, now) if entry.expires_at_ms else "never",
    }
    for name, text in rows.items():
        out.print(Text.assemble((f"{name:<12}", "dim"), text), soft_wrap=True)
    print_value(entry.value)


def _created(entry: "Entry", now: Milliseconds) -> str:
    if entry.created_ms is None:
        return ""
    return f", {clock(entry.created_ms, now)} ({_ago(entry.created_ms, now)})"


def _ago(time_ms: Milliseconds, now: Milliseconds) -> str:
    found = age(time_ms, now)
    return found if found == "now" else f"{found} ago"


def print_directories(directories: Sequence["Directory"]) -> None:
    """Directories: name, number of keys."""
    rows = [(f"{each.prefix}/", f"{each.count} keys") for each in directories]
    if console().is_terminal:
        print_table(("directory", "below it"), rows)
    else:
        _print_tabbed(rows)


def print_entries(entries: Sequence["Entry"]) -> None:
    """A listing: key, revision, author, age, value."""
    out, now = console(), now_ms()
    rows = [(e.key, str(e.mod_revision), who(e), age(e.time_ms, now), e.value) for e in entries]
    if not out.is_terminal:
        _print_tabbed((*row[:-1], values.compact(row[-1])) for row in rows)
        return
    names = ("key", "revision", "author", "age", "value")
    shown = [(*row[:-1], safe(values.compact(row[-1]))) for row in rows]
    print_table(names, fitted(names, shown, len(names) - 1))


def fitted(
    names: Sequence[str], rows: Sequence[Sequence[str]], column: int
) -> Sequence[Sequence[str]]:
    """Rows with the texts of one column shortened to the room that a terminal has left for them.

    Shortened here, because Rich would process the whole value before it shortens a column. To a
    pipe nothing is shortened.
    """
    out = console()
    if not out.is_terminal:
        return rows
    others = [i for i in range(len(names)) if i != column]
    taken = sum(max(len(text) for text in (names[i], *(row[i] for row in rows))) for i in others)
    width = max(_VALUE_WIDTH_MIN, out.width - taken - _GAP * len(others))
    return [(*row[:column], shortened(row[column], width), *row[column + 1 :]) for row in rows]


def print_table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows under their names; to a pipe, only the rows."""
    out = console()
    if not out.is_terminal:
        _print_tabbed(rows)
        return
    table = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="dim")
    for position, name in enumerate(names):
        right = name in ("revision", "age", "epoch", "entries", "count")
        table.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=True,
            style="bold" if position == 0 else "",
            overflow="ellipsis",
        )
    for row in rows:
        table.add_row(*(Text(safe(text)) for text in row))
    out.print(table)


def _print_tabbed(rows: Iterable[Sequence[str]]) -> None:
    for row in rows:
        sys.stdout.write("\t".join(map(safe, row)) + "\n")


# --- the log --------------------------------------------------------------------------------------


class LogPrinter:
    """Prints revisions one by one, one line per change, each flushed."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self._out = console()
        self._key_width = 0

    def revision(self, revised: "RevisionEvent") -> None:
        """One revision: its changes, or the epoch that it begins."""
        if self._as_json:
            print_json(plain(revised))
            return
        if revised.epoch is not None:
            epoch = revised.epoch
            words = f"epoch {epoch.number} begins ({epoch.cause}) after {epoch.from_revision}"
            self._line(revised, "epoch", words, "")
        edited: set[Key] = set()
        for change in revised.changes:
            document = document_of(change.key)
            if (file := file_of(change.key)) is not None:
                self._file(revised, file, change, edited)
            elif document is None:
                self._line(revised, change.kind, change.key, self._detail(change))
            elif document not in edited:
                edited.add(document)
                self._line(revised, "edit", document, "a document")

    def _file(self, revised: "RevisionEvent", file: Key, change: "Change", shown: set[Key]) -> None:
        """A file: what it is in the revision that puts or removes it; before that, one line."""
        if change.key == file_info_key(file):
            self._line(revised, change.kind, file, self._detail(change))
        elif file not in shown and not any(c.key == file_info_key(file) for c in revised.changes):
            self._line(revised, "upload", file, "parts of a file")
        shown.add(file)

    def state(self, revision: Revision, entries: Sequence["Entry"]) -> None:
        """The state at `revision`, before any change."""
        if self._as_json:
            print_json({"snapshot": {"revision": revision, "entries": plain(entries)}})
            return
        for entry in entries:
            head = (entry.mod_revision, entry.time_ms, who(entry))
            self._print(head, "state", entry.key, safe(values.compact(entry.value)), "")

    def _detail(self, change: "Change") -> str:
        if change.lease is not None:
            return f"{change.lease.holder} fence {change.lease.fence}"
        return safe(values.compact(change.value)) if change.kind == "put" else ""

    def _line(self, revised: "RevisionEvent", kind: str, key: Key, detail: str) -> None:
        head = (revised.revision, revised.time_ms, who(revised))
        self._print(head, kind, key, detail, safe(revised.note))

    def _print(
        self,
        head: tuple[Revision, Milliseconds, str],
        kind: str,
        key: Key,
        detail: str,
        note: str,
    ) -> None:
        revision, time_ms, author = head
        when = clock(time_ms, now_ms())
        if not self._out.is_terminal:
            _print_tabbed([(str(revision), when, author, kind, key, detail, note)])
            sys.stdout.flush()
            return
        # Values are aligned to the longest key so far.
        self._key_width = max(self._key_width, min(len(key), _KEY_WIDTH_MAX))
        start = Text.assemble(
            (f"{revision:>6}  ", "bold"),
            (f"{when}  ", "dim"),
            (f"{author:<12}  ", "cyan"),
            (f"{kind:<7} ", _KINDS.get(kind, "")),
            (f"{key:<{self._key_width}}", "bold"),
        )
        remark = f"  # {shortened(note, _NOTE_WIDTH_MAX)}" if note else ""
        left = self._out.width - start.cell_len - len(remark) - 2
        shown = shortened(detail, max(_VALUE_WIDTH_MIN, left))
        line = Text.assemble(start, f"  {shown}" if shown else "", (remark, "dim italic"))
        self._out.print(line, no_wrap=True, overflow="ellipsis", crop=True)


# --- why ------------------------------------------------------------------------------------------


def print_causes(causes: Sequence["Cause"]) -> None:
    """The commits behind a key as a tree; a commit that several were based on is printed once."""
    by_place = {(cause.key, cause.revision): cause for cause in causes}
    first = causes[0]
    printed = {(first.key, first.revision)}
    tree = Tree(_cause_line(first), guide_style="dim")
    waiting = [(tree, first)]
    # Breadth first, the order of the causes: a ground is placed where it is nearest to the key.
    while waiting:
        branch, cause = waiting.pop(0)
        for ground in cause.based_on:
            known = by_place.get(ground)
            again = ground in printed
            printed.add(ground)
            line = _cause_line(known) if known and not again else _ground_line(ground, again=again)
            twig = branch.add(line)
            if known and not again:
                waiting.append((twig, known))
    console().print(tree, soft_wrap=True)


def _cause_line(cause: "Cause") -> Text:
    place = Text.assemble((cause.key, "bold"), (f" @ {cause.revision}", ""))
    if cause.missing:
        return place.append(f"  ({cause.missing})", "yellow")
    now = now_ms()
    who = f"{cause.author} (of {cause.account})" if cause.account else cause.author
    place.append(f"  {who}", "cyan").append(f"  {_ago(cause.time_ms, now)}", "dim")
    return place.append(f"  # {safe(cause.note)}", "dim italic") if cause.note else place


def _ground_line(ground: tuple[Key, Revision], *, again: bool) -> Text:
    key, revision = ground
    remark = "shown elsewhere" if again else "not followed further"
    return Text.assemble(f"{key} @ {revision}", (f"  ({remark})", "dim"))


PREVIEW_KEYS: Final = 20
"""Most keys that a preview of a restore lists."""
_COLOURS: Final = {"added": "green", "changed": "yellow", "removed": "red"}


# --- checkpoints ----------------------------------------------------------------------------------


def print_taken(checkpoint: "Checkpoint", *, as_json: bool) -> None:
    """A checkpoint that was just taken: its name and revision, and the agents that did not
    deliver."""
    if as_json:
        print_json(plain(checkpoint))
        return
    _print_tabbed([(checkpoint.name, str(checkpoint.revision))])
    barrier = checkpoint.barrier
    if barrier is not None and barrier.not_fresh:
        say(f"not fresh: {', '.join(barrier.not_fresh)}")


def print_checkpoints(found: "Sequence[Checkpoint]") -> None:
    """A table: name, revision, age, kind, by whom, why."""
    now = now_ms()
    names = ("name", "revision", "age", "kind", "by", "note")
    rows = [
        (
            c.name,
            str(c.revision),
            age(c.time_ms, now),
            f"{c.kind}, pinned" if c.pinned else c.kind,
            c.by,
            safe(c.note),
        )
        for c in found
    ]
    print_table(names, rows)


def print_manifest(shown: "CheckpointInfo") -> None:
    """A manifest, one field per line."""
    taken, now = shown.checkpoint, now_ms()
    rows = [
        ("checkpoint", f"{taken.name} of {taken.board}"),
        ("revision", f"{taken.revision}, epoch {shown.epoch.number} ({shown.epoch.cause})"),
        ("taken", f"{clock(taken.time_ms, now)} by {taken.by} ({taken.kind})"),
        ("note", safe(taken.note) or "-"),
        ("signed by", shown.signed_by or "nobody"),
        ("chain", shown.chain),
    ]
    rows += [("digest", f"{digest}  {name}") for name, digest in sorted(shown.digests.items())]
    rows += [("agent", f"{name} at {at}") for name, at in sorted(shown.steps.items())]
    rows += [("memory", f"{name} at {at}") for name, at in sorted(shown.memory.items())]
    rows += [
        ("declared", f"{name}: {safe(values.compact(value))}")
        for name, value in sorted(shown.declared.items())
    ]
    out = console()
    for name, text in rows:
        out.print(Text.assemble((f"{name:<12}", "dim"), text), soft_wrap=True)


def print_pruned(pruned: "Pruned", *, as_json: bool, dry_run: bool) -> None:
    """What was removed, or would be removed."""
    if as_json:
        print_json(plain(pruned))
        return
    for name in pruned.removed:
        answer(name)
    would = "would remove" if dry_run else "removed"
    count, kept = len(pruned.removed), len(pruned.kept)
    gone = f"{counted(count, 'checkpoint')} and {counted(pruned.versions, 'version')}"
    gone += f" of {pruned.value_bytes} bytes" if pruned.value_bytes else ""
    say(f"{would} {gone}; kept: {counted(kept, 'checkpoint')}")


# --- differences ----------------------------------------------------------------------------------


def print_diff(diff: "Diff", *, as_json: bool) -> None:
    """Differences by namespace and key."""
    if as_json:
        print_json(
            {"a": diff.a, "b": diff.b, "more": diff.more, "changes": list(map(_plain, diff))}
        )
        return
    out = console()
    for namespace, changes in diff.namespaces.items():
        out.print(Text(namespace, style="bold"))
        for change in changes:
            out.print(_change_text(change), soft_wrap=True)
    if diff.more:
        say("there is more: raise --limit, or narrow --pattern")
    elif not diff:
        say(f"of what you may read, revisions {diff.a} and {diff.b} are equal")


def _plain(change: "KeyChange") -> dict[str, Any]:
    return {"kind": change.kind, **plain(change)}


def _change_text(change: "KeyChange") -> Text:
    first, *rest = str(change).splitlines()
    text = Text(f"  {safe(first)}", style=_COLOURS[change.kind])
    for line in rest:
        text.append(f"\n  {safe(line)}", style="default")
    return text


# --- restores -------------------------------------------------------------------------------------


def print_preview(preview: "RestorePreview", *, keep_calls: bool) -> None:
    """What a restore would do, on standard error: standard output is for the result."""
    diff = preview.diff
    count = f"more than {len(diff)}" if diff.more else str(len(diff))
    # A restore also changes unreadable keys, and must not reveal how many.
    keys = f"of what you may read, {counted(count, 'key')} would change"
    say(keys + (":" if len(diff) else ""))
    for change in diff:
        say(f"  {safe(str(change).splitlines()[0])}")
    for agent in preview.agents:
        say(f"agent {agent.agent} is attached, and would have to read the board again")
    for lease in preview.leases:
        say(f"lease {lease.key} of {lease.holder} would end")
    now, shown = now_ms(), preview.calls[:PREVIEW_KEYS]
    again = "would be answered as before" if keep_calls else "may be made, and paid for, again"
    for call in shown:
        when = clock(call.time_ms, now)
        say(f"{call.kind} call {safe(call.name)} of {call.agent}, {when}, {again}")
    if len(preview.calls) > len(shown):
        say(f"and {counted(len(preview.calls) - len(shown), 'more call')}: {again}")
    if preview.calls and not keep_calls:
        say("`blackboard restore --keep-calls` answers them from the abandoned revisions")


def print_restored(restored: "Restored", *, as_json: bool) -> None:
    """What a restore did."""
    if as_json:
        print_json(plain(restored))
        return
    answer(str(restored.revision))
    say(
        f"the board is as it was at revision {restored.from_revision}:"
        f" {counted(restored.put_back, 'key')} put back, {restored.removed} removed;"
        f" epoch {restored.epoch.number} begins"
    )
    say(
        f"the abandoned revisions end at {restored.revision - 1},"
        f" at or shortly after checkpoint {restored.before}"
    )


def describe_freeze(freeze: "Freeze") -> str:
    """Who froze a board, when, as which revision, and why."""
    why = f": {safe(freeze.note)}" if freeze.note else ""
    when = clock(freeze.since_ms, now_ms())
    return f"by {safe(freeze.by)} since {when}, revision {freeze.revision}{why}"


def print_history(versions: "Sequence[Version]", *, as_json: bool) -> None:
    """The versions of a key, the newest first."""
    if as_json:
        print_json(plain(versions))
        return
    now = now_ms()
    names = ("revision", "age", "author", "value")
    rows = [
        (
            str(v.revision),
            age(v.time_ms, now),
            who(v),
            "(removed)" if v.entry is None else safe(values.compact(v.value)),
        )
        for v in versions
    ]
    print_table(names, rows)


# --- memories -------------------------------------------------------------------------------------


def print_memories(found: "Sequence[Remembered]") -> None:
    """Memories: id, age, author, the similarity if they were compared, text."""
    now = now_ms()
    names = ("memory", "age", "author", "similarity", "text")
    rows = [
        (
            one.key.rpartition("/")[2],
            age(one.time_ms, now),
            one.author,
            "-" if one.similarity is None else f"{one.similarity:.2f}",
            safe(one.text),
        )
        for one in found
    ]
    print_table(names, fitted(names, rows, len(names) - 1))


def print_memory(one: "Remembered") -> None:
    """A memory with all of its fields."""
    out, now = console(), now_ms()
    rows = {
        "key": one.key,
        "revision": str(one.revision),
        "author": one.author,
        "remembered": f"{clock(one.time_ms, now)} ({_ago(one.time_ms, now)})",
        "made from": ", ".join(one.sources) or "-",
    }
    for name, text in rows.items():
        out.print(Text.assemble((f"{name:<12}", "dim"), safe(text)), soft_wrap=True)
    if one.fact:
        print_value(one.fact)
    else:
        answer(safe_lines(one.text))
