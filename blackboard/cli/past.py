"""What people see of a board's past: checkpoints, manifests, differences, what a restore did."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.text import Text

from blackboard.cli import render as show
from blackboard.cli import values
from blackboard.cli.screen import console, counted, safe, say
from blackboard.wire.codec import decode_value

if TYPE_CHECKING:
    from blackboard.client.diff import Diff, KeyChange
    from blackboard.client.leases.presence import Presence
    from blackboard.client.views import Version
    from blackboard.core.checkpoints import Checkpoint, Pruned, Restored, Shown
    from blackboard.core.commit import Lease

PREVIEW_KEYS: Final = 20
"""Keys that are shown of what a restore would change."""
_COLOURS: Final = {"added": "green", "changed": "yellow", "removed": "red"}


@dataclass(frozen=True, slots=True)
class Preview:
    """What a restore would change, and whom it would interrupt."""

    diff: "Diff"
    agents: "Sequence[Presence]"
    leases: "Sequence[Lease]"


# --- checkpoints ----------------------------------------------------------------------------------


def print_taken(checkpoint: "Checkpoint", *, as_json: bool) -> None:
    """A checkpoint that was just taken: its name and revision, and who was not fresh."""
    if as_json:
        show.print_json(show.plain(checkpoint))
        return
    print(f"{checkpoint.name}\t{checkpoint.revision}")
    barrier = checkpoint.barrier
    if barrier is not None and barrier.not_fresh:
        say(f"not fresh: {', '.join(barrier.not_fresh)}")


def print_checkpoints(found: "Sequence[Checkpoint]") -> None:
    """A table: name, revision, age, kind, by whom, why."""
    now = show.now_ms()
    names = ("name", "revision", "age", "kind", "by", "note")
    rows = [
        (
            c.name,
            str(c.revision),
            show.age(c.time_ms, now),
            f"{c.kind}, pinned" if c.pinned else c.kind,
            c.by,
            safe(c.note),
        )
        for c in found
    ]
    show.print_table(names, rows)


def plain_manifest(shown: "Shown") -> dict[str, Any]:
    """A manifest as maps and lists, with what agents declared decoded."""
    declared = {agent: decode_value(value) for agent, value in shown.declared.items()}
    return {**show.plain(shown), "declared": declared}


def print_manifest(shown: "Shown") -> None:
    """A manifest, a fact a line."""
    taken, now = shown.checkpoint, show.now_ms()
    rows = [
        ("checkpoint", f"{taken.name} of {taken.board}"),
        ("revision", f"{taken.revision}, epoch {shown.epoch.number} ({shown.epoch.cause})"),
        ("taken", f"{show.clock(taken.time_ms, now)} by {taken.by} ({taken.kind})"),
        ("note", safe(taken.note) or "-"),
        ("signed by", shown.signed_by or "nobody"),
        ("chain", shown.chain),
    ]
    rows += [("digest", f"{digest}  {name}") for name, digest in sorted(shown.digests.items())]
    rows += [("agent", f"{name} at {at}") for name, at in sorted(shown.steps.items())]
    rows += [
        ("declared", f"{name}: {safe(values.compact(decode_value(value)))}")
        for name, value in sorted(shown.declared.items())
    ]
    out = console()
    for name, text in rows:
        out.print(Text.assemble((f"{name:<12}", "dim"), text), soft_wrap=True)


def print_pruned(pruned: "Pruned", *, as_json: bool, dry_run: bool) -> None:
    """What was removed, or would be."""
    if as_json:
        show.print_json(show.plain(pruned))
        return
    for name in pruned.removed:
        print(name)
    would = "would remove" if dry_run else "removed"
    count, kept = len(pruned.removed), len(pruned.kept)
    gone = f"{counted(count, 'checkpoint')} and {counted(pruned.versions, 'version')}"
    say(f"{would} {gone}; kept: {counted(kept, 'checkpoint')}")


# --- differences ----------------------------------------------------------------------------------


def print_diff(diff: "Diff", *, as_json: bool) -> None:
    """Differences by namespace and key."""
    if as_json:
        show.print_json(
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
        say(f"of what you may read, revisions {diff.a} and {diff.b} hold the same")


def _plain(change: "KeyChange") -> dict[str, Any]:
    return {"kind": change.kind, **show.plain(change)}


def _change_text(change: "KeyChange") -> Text:
    first, *rest = str(change).splitlines()
    text = Text(f"  {safe(first)}", style=_COLOURS[change.kind])
    for line in rest:
        text.append(f"\n  {safe(line)}", style="default")
    return text


# --- restores -------------------------------------------------------------------------------------


def print_preview(preview: Preview) -> None:
    """What a restore would do, on standard error: standard output is for what it did."""
    diff = preview.diff
    count = f"more than {len(diff)}" if diff.more else str(len(diff))
    # A restore takes back what its caller may not read, too, and nobody is told how much that is.
    keys = f"of what you may read, {counted(count, 'key')} would change"
    say(keys + (":" if len(diff) else ""))
    for change in diff:
        say(f"  {safe(str(change).splitlines()[0])}")
    for agent in preview.agents:
        say(f"agent {agent.agent} is at work, and would have to look at the board anew")
    for lease in preview.leases:
        say(f"lease {lease.key} of {lease.holder} would end")


def print_restored(restored: "Restored", *, as_json: bool) -> None:
    """What a restore did."""
    if as_json:
        show.print_json(show.plain(restored))
        return
    print(restored.revision)
    say(
        f"the board is as it was at revision {restored.from_revision}:"
        f" {counted(restored.put_back, 'key')} put back, {restored.removed} removed;"
        f" epoch {restored.epoch.number} begins"
    )
    say(f"what was abandoned is checkpoint {restored.before}")


def print_history(versions: "Sequence[Version]", *, as_json: bool) -> None:
    """The versions of a key, the newest first."""
    if as_json:
        show.print_json(show.plain(versions))
        return
    now = show.now_ms()
    names = ("revision", "age", "author", "value")
    rows = [
        (
            str(v.revision),
            show.age(v.time_ms, now),
            v.author,
            "(removed)" if v.entry is None else safe(values.compact(v.value)),
        )
        for v in versions
    ]
    show.print_table(names, rows)
