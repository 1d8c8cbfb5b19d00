"""What a backup holds of one board: the list of its files, which is replaced as a whole.

A file counts once the manifest names it. A crash before that leaves a file that nothing refers to;
the next attempt writes the same one again.
"""

import hashlib
from collections.abc import Sequence
from typing import Final

from msgspec import DecodeError, Struct, ValidationError, json
from msgspec.structs import replace

from blackboard.backup.place import FORMAT, VERSION, BackupPlace
from blackboard.backup.segment import BASE, CHAIN_START, SegmentFile
from blackboard.core.path import check_name
from blackboard.errors import BlackboardError, Corrupt
from blackboard.units import Milliseconds, Revision

BOARDS: Final = "boards/"
_SUFFIX: Final = "/manifest.json"


class BackupManifest(Struct, frozen=True):
    """The files of `board`, in order. `backup` is the id of the backup; `apart_from` the name that
    the board had before it was set apart; `removed` says that it was removed since."""

    format: str
    version: int
    backup: str
    board: str
    segments: tuple[SegmentFile, ...] = ()
    apart_from: str = ""
    removed: bool = False

    @property
    def last(self) -> Revision | None:
        """The newest revision in it; None: nothing is."""
        return self.segments[-1].last if self.segments else None

    @property
    def first(self) -> Revision | None:
        """The oldest revision to which it leads; None: to none."""
        return self.segments[0].last if self.segments else None

    @property
    def time_ms(self) -> Milliseconds:
        """The time of the newest revision."""
        return self.segments[-1].time_ms if self.segments else 0

    @property
    def chain(self) -> bytes:
        """The chain over all records."""
        return self.segments[-1].chain if self.segments else CHAIN_START

    @property
    def file_bytes(self) -> int:
        """The size of its files."""
        return sum(segment.file_bytes for segment in self.segments)

    @property
    def bases(self) -> Sequence[int]:
        """The places in `segments` where a base begins."""
        return [place for place, segment in enumerate(self.segments) if segment.begins]


def new(backup: str, board: str) -> BackupManifest:
    """The manifest of a board of which nothing is there yet."""
    return BackupManifest(FORMAT, VERSION, backup, board)


def folder(board: str) -> str:
    """Where the files of a board are."""
    return f"{BOARDS}{board}/"


def board_of(name: str) -> str:
    """The board of which a file is a part."""
    return name.removeprefix(BOARDS).partition("/")[0]


async def write(place: BackupPlace, manifest: BackupManifest) -> None:
    """Replace the manifest of a board. Errors: Unavailable, also if another process may have
    written one meanwhile."""
    body = json.encode(manifest)
    # It has no key: it finds damage, and does not stop those who can write to the backup.
    seal = hashlib.sha256(body).hexdigest().encode()
    # As late as possible: what another process writes from here on would be overwritten.
    await place.confirm()
    await place.put(f"{BOARDS}{manifest.board}{_SUFFIX}", body + b"\n" + seal + b"\n")


async def read(place: BackupPlace, backup: str, board: str) -> BackupManifest | None:
    """The manifest of a board; None if there is none.

    Errors: Corrupt, also when it belongs to another board or backup; NewerFormat; Unavailable.
    """
    name = f"{BOARDS}{board}{_SUFFIX}"
    data = await place.get(name)
    if data is None:
        return None
    body, _, seal = data.partition(b"\n")
    try:
        if hashlib.sha256(body).hexdigest().encode() != seal.strip():
            raise ValueError("it is not what was written")
        place.check_format(json.decode(body))
        found = json.decode(body, type=BackupManifest)
    except (ValueError, KeyError, TypeError, DecodeError, ValidationError) as error:
        raise place.corrupt(name, str(error)) from error
    if found.board != board:
        raise place.corrupt(name, f"it is that of board {found.board}")
    if found.backup != backup:
        raise place.corrupt(name, f"it belongs to backup {found.backup}, not to {backup}")
    check_order(place, found)
    return found


def check_order(place: BackupPlace, manifest: BackupManifest) -> None:
    """Errors: Corrupt unless the files follow each other, from a base on."""
    chain, last = None, None
    for segment in manifest.segments:
        # A base may begin anywhere: after a recovery, a loss, or in place of what was pruned.
        follows = segment.kind == BASE or segment.after == last
        if chain is None:
            follows = segment.begins
        elif segment.before != chain:
            follows = False
        if not follows:
            raise place.corrupt(segment.name, "it does not follow the file before it")
        chain, last = segment.chain, segment.last


async def boards(place: BackupPlace) -> Sequence[str]:
    """The boards of which there is a manifest, sorted. Errors: Corrupt for a name that no board
    has; Unavailable."""
    found: list[str] = []
    for name in await place.names(BOARDS):
        if name.endswith(_SUFFIX):
            board = name.removeprefix(BOARDS).removesuffix(_SUFFIX)
            try:
                check_name(board, "board")
            except BlackboardError as error:
                raise Corrupt(what=f"backup {place.where}", reason=str(error)) from error
            found.append(board)
    return sorted(found)


def adding(manifest: BackupManifest, segments: Sequence[SegmentFile]) -> BackupManifest:
    """`manifest` with more files at its end."""
    # A board that was removed and has something new was made again.
    return replace(manifest, segments=(*manifest.segments, *segments), removed=False)
