"""Records the first minute at a terminal: runs the commands, and draws what they print.

    python -m tools.session_picture

The picture is docs/first_minute.svg. The commands run in a temporary directory, at a terminal of
their own, and Rich draws their output. The picture loads no fonts from elsewhere.
"""

import os
import pty
import subprocess
import sys
import tempfile
from io import StringIO
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

PICTURE: Final = Path(__file__).parents[1] / "docs/first_minute.svg"
COMMANDS: Final = ("blackboard new my-team", "cd my-team", "make", "make test")
COLUMNS: Final = 78
SVG: Final = """\
<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<title>The first minute at a terminal</title>
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, Menlo, Consolas, monospace; \
line-height: {line_height}px; }}
.{unique_id}-title {{ font: bold 18px system-ui, sans-serif; }}
{styles}
</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect x="0" y="0" width="{terminal_width}" \
height="{terminal_height}"/></clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def typed(commands: tuple[str, ...] = COMMANDS) -> str:
    """What stands at a terminal in which the commands were typed, with its colours."""
    with tempfile.TemporaryDirectory() as folder:
        script = "".join(f"printf '%s\\n' '$ {command}'\n{command}\n" for command in commands)
        leader, follower = pty.openpty()
        shell = subprocess.Popen(
            ["bash", "-e", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=follower,
            stderr=follower,
            cwd=folder,
            env=_environ(folder),
        )
        os.close(follower)
        shown = _all(leader)
        if shell.wait() != 0:
            raise RuntimeError(f"a command failed:\n{shown}")
        return shown


def _environ(home: str) -> dict[str, str]:
    kept = {name: text for name, text in os.environ.items() if not name.startswith("BLACKBOARD")}
    kept.pop("NO_COLOR", None)
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    return {**kept, "PATH": path, "HOME": home, "COLUMNS": str(COLUMNS), "TERM": "xterm-256color"}


def _all(leader: int) -> str:
    told = b""
    with os.fdopen(leader, "rb", buffering=0) as reader:
        while True:
            try:
                told += reader.read(1 << 16) or b""
            except OSError:  # its last writer is gone
                return told.decode().replace("\r", "")


def drawn(session: str) -> str:
    """The session as a picture."""
    console = Console(record=True, width=COLUMNS, file=StringIO(), force_terminal=True)
    for line in session.splitlines():
        text = Text.from_ansi(line)
        if line.startswith("$ "):
            text.stylize("bold")
        console.print(text, highlight=False)
    return console.export_svg(
        title="The first minute", code_format=SVG, unique_id="first", font_aspect_ratio=0.61
    )


if __name__ == "__main__":
    PICTURE.write_text(drawn(typed()), encoding="utf-8")
