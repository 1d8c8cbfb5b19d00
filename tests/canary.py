"""Looks for a text in every file of a directory that others may be writing to."""

from pathlib import Path

_LOOKS_MAX = 1_000


def files_with(directory: Path, text: bytes) -> list[Path]:
    """The files below `directory` that hold `text`: all that there are at one time.

    A file that has another name by the time it is read would be missed under both: then all are
    looked at again. Errors: TimeoutError when that never ends.
    """
    for _ in range(_LOOKS_MAX):
        try:
            files = [path for path in directory.rglob("*") if path.is_file()]
            return [path for path in files if text in path.read_bytes()]
        except FileNotFoundError:
            continue
    raise TimeoutError(f"files below {directory} never stay where they are")
