"""Moments as people type them: `12`, `before-plan`, `now`, `2026-11-21T09:30`."""

from datetime import datetime

import typer

from blackboard.service.timeline import When

HELP = "A revision, a checkpoint, now, or a time such as 2026-11-21T09:30 (here) or ...Z."
MOMENT = typer.Argument(metavar="MOMENT", help=HELP, show_default=False)


def parse(text: str) -> When:
    """The moment that is meant: digits are a revision, a date with a time is one, else a name."""
    if text.isdecimal():
        return int(text)
    if "T" in text and ":" in text:
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            return text
        return found if found.tzinfo else found.astimezone()
    return text
