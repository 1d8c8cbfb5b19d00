"""Draw docs/architecture.svg: `python -m tools.architecture_picture`, or `make pictures`.

A picture as a table of boxes and arrows, so that a box can be moved without a drawing program. A
test compares the file with it, and another one the names of files in it with the code.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PICTURE: Final = Path(__file__).resolve().parent.parent / "docs" / "architecture.svg"
WIDTH, HEIGHT = 900, 590
LEFT, MIDDLE, RIGHT = 32, 332, 632
"""The three columns."""
COLUMN: Final = 236


@dataclass(frozen=True, slots=True)
class Box:
    """A part: where it is, what it is called, and below that, files (`file`) or words (`note`)."""

    x: int
    y: int
    height: int
    name: str
    below: tuple[str, ...] = ()
    kind: str = "file"
    shape: str = "box"


BANDS: Final = (("Your process", 16, 132), ("The service", 196, 224), ("On disk", 450, 124))
BOXES: Final = (
    Box(LEFT, 56, 72, "Agents: steps, journal, teams", ("runtime/",)),
    Box(MIDDLE, 56, 72, "Board, Step, Writer, Watch", ("client/",)),
    Box(RIGHT, 56, 72, "Command line", ("cli/",)),
    Box(MIDDLE, 214, 56, "Rights, limits, audit", ("server/requests.py",)),
    Box(MIDDLE, 290, 50, "Commit queue", ("server/commit_queue.py",)),
    Box(
        MIDDLE,
        360,
        50,
        "Engine: decides and appends",
        ("core/model.py  engines/",),
        shape="core",
    ),
    Box(LEFT, 290, 56, "Feed: the newest changes", ("server/feed.py",)),
    Box(RIGHT, 290, 56, "Archiver: the whole history", ("server/archiver.py",)),
    Box(
        MIDDLE,
        490,
        68,
        "State and recent log",
        ("one SQLite file per board,", "or keys in Redis"),
        kind="note",
    ),
    Box(
        RIGHT,
        490,
        68,
        "Archive, checkpoints, blobs",
        ("archive.db or PostgreSQL;", "a directory or an object store"),
        kind="note",
    ),
    Box(LEFT, 490, 68, "Keys of the service", ("signing_key, secret, token",), kind="note"),
)
NOTES: Final = (
    (RIGHT, 218, "blackboard.open(path):"),
    (RIGHT, 234, "inside your process"),
    (RIGHT, 256, "blackboard.connect(url):"),
    (RIGHT, 272, "blackboard serve, over a WebSocket"),
)
DOWN: Final = (
    "M268 92 H326",
    "M632 92 H574",
    "M450 128 V208",
    "M450 270 V284",
    "M450 340 V354",
    "M450 410 V484",
    "M820 346 V484",
)
"""Where commits go."""
UP: Final = ("M332 385 H150 V352", "M150 290 V172 H390 V134", "M568 385 H750 V352")
"""Where the log goes."""
WORDS: Final = (
    ("down", 460, 176, "commits"),
    ("up", 232, 379, "log"),
    ("up", 160, 250, "changes, in order"),
    ("up", 640, 379, "log"),
)
_HEAD: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 590" role="img" aria-labelledby="t d">
  <title id="t">What runs where in Blackboard</title>
  <desc id="d">
    Three bands. At the top, your process: agents (runtime/), the Board with its steps and watches
    (client/) and the link to the service. In the middle, the service (server/): checks of rights,
    a commit queue, the engine with the rules, the feed for watchers and the archiver. At the
    bottom, what is on disk: the board in SQLite or Redis, the archive in SQL, blobs and keys.
    Commits go down; changes come back up from the engine through the feed to the watches.
  </desc>
  <style>
    text { font: 14px system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif }
    text { fill: #1f2328 }
    .page { fill: #ffffff; stroke: #d0d7de }
    .band { fill: #f6f8fa; stroke: #d0d7de }
    .box { fill: #ffffff; stroke: #57606a }
    .core { fill: #ddf4ff; stroke: #0969da }
    .head { font-weight: 700 }
    .note { font-size: 12px; fill: #57606a }
    .file { font: 12px ui-monospace, "SF Mono", Menlo, "DejaVu Sans Mono", monospace }
    .file { fill: #57606a }
    .down { stroke: #0969da; stroke-width: 2; fill: none }
    .up { stroke: #1a7f37; stroke-width: 2; fill: none }
    .tip-down { fill: #0969da } .tip-up { fill: #1a7f37 }
    .word-down { font-size: 12px; fill: #0969da } .word-up { font-size: 12px; fill: #1a7f37 }
    @media (prefers-color-scheme: dark) {
      text { fill: #e6edf3 }
      .page { fill: #0d1117; stroke: #30363d }
      .band { fill: #161b22; stroke: #30363d }
      .box { fill: #0d1117; stroke: #8b949e }
      .core { fill: #0c2d4d; stroke: #58a6ff }
      .note, .file { fill: #9da7b1 }
      .down { stroke: #58a6ff } .tip-down, .word-down { fill: #58a6ff }
      .up { stroke: #3fb950 } .tip-up, .word-up { fill: #3fb950 }
    }
  </style>
"""


def drawn() -> str:
    """The whole file."""
    parts = [
        *(_tip(way) for way in ("down", "up")),
        f'<rect class="page" x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="8"/>',
        *(line for band in BANDS for line in _band(*band)),
        *(line for box in BOXES for line in _box(box)),
        *(_text("note", *note) for note in NOTES),
        *_arrows("down", DOWN),
        *_arrows("up", UP),
        *(_text(f"word-{way}", x, y, word) for way, x, y, word in WORDS),
    ]
    return _HEAD + "".join(f"  {part}\n" for part in parts) + "</svg>\n"


def _tip(way: str) -> str:
    return (
        f'<marker id="{way}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
        f' orient="auto"><path class="tip-{way}" d="M0 0 L8 4 L0 8 z"/></marker>'
    )


def _band(name: str, y: int, height: int) -> Iterable[str]:
    yield f'<rect class="band" x="16" y="{y}" width="{WIDTH - 32}" height="{height}" rx="6"/>'
    yield _text("head", LEFT, y + 24, name)


def _box(box: Box) -> Iterable[str]:
    """The rectangle, and its lines, set in the middle of its height."""
    size = f'width="{COLUMN}" height="{box.height}" rx="5"'
    yield f'<rect class="{box.shape}" x="{box.x}" y="{box.y}" {size}/>'
    first = box.y + box.height // 2 - 9 * len(box.below) + 5
    yield _text("name", box.x + 14, first, box.name)
    for number, line in enumerate(box.below, 1):
        yield _text(box.kind, box.x + 14, first + 18 * number, line)


def _text(kind: str, x: int, y: int, words: str) -> str:
    return f'<text class="{kind}" x="{x}" y="{y}">{words}</text>'


def _arrows(way: str, paths: Iterable[str]) -> Iterable[str]:
    yield from (f'<path class="{way}" d="{path}" marker-end="url(#{way})"/>' for path in paths)


if __name__ == "__main__":
    PICTURE.write_text(drawn(), "utf-8")
