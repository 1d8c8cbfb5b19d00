"""Files without async.

Written by `python -m tools.sync_client`: do not edit.
"""

from collections.abc import Iterator
from pathlib import Path

from blackboard.client.files import FileInfo, Progress, Source
from blackboard.core.checkpoints import When
from blackboard.sync import asynchronous
from blackboard.sync.portal import Mirror
from blackboard.units import Key, Revision


class Files(Mirror[asynchronous.Files]):
    """The files of one board: `board.files`.

    Rights: those to everything below `<key>/~file`.
    """

    def put(
        self,
        key: Key,
        source: Source,
        *,
        expected: Revision | None = None,
        media_type: str = "",
        note: str = "",
        progress: Progress | None = None,
    ) -> FileInfo:
        """Put a file of up to LARGE_BYTES_MAX at `key`, in place of the one that is there.

        `source` is bytes, the path of a regular file, or an iterable of bytes, with or without
        async. At most 2 MiB of it are in memory here. Others see the file when it is whole; `note`
        stands in the log with it. With `expected` only if the file there has that revision (0 = if
        there is none), else Conflict. Errors: Conflict also when another `put` of this key began
        meanwhile, or the file was deleted; LimitExceeded; InvalidRequest when `source` cannot be
        read; as of `Board.commit`. After any of them, and after a cancellation, the file is as it
        was, or, after OutcomeUnknown or a cancellation, perhaps the new one.
        """
        return self._portal.run(
            lambda: self._inner.put(
                key, source, expected=expected, media_type=media_type, note=note, progress=progress
            )
        )

    def info(self, key: Key, *, at: When | None = None) -> FileInfo | None:
        """The file at `key`, now or at the moment `at`; None without one."""
        return self._portal.run(lambda: self._inner.info(key, at=at))

    def read(self, key: Key, *, at: When | None = None) -> Iterator[bytes]:
        """The bytes of the file at `key`, or of the one that was there at `at`, in pieces.

        It is the file that is there when the iteration begins, also if that is replaced meanwhile.
        Errors: InvalidRequest when there is none; Corrupt after the last piece when the bytes are
        not those that were put.
        """
        return self._portal.iterate(self._inner.read(key, at=at))

    def save(
        self,
        key: Key,
        path: Path,
        *,
        at: When | None = None,
        overwrite: bool = False,
        progress: Progress | None = None,
    ) -> FileInfo:
        """Write the file at `key` to `path`, which appears when it is whole and on the disk.

        Only its owner may read it. Errors: as of `read`; InvalidRequest when `path` cannot be
        written, or exists, unless with `overwrite`: then a regular file is replaced.
        """
        return self._portal.run(
            lambda: self._inner.save(key, path, at=at, overwrite=overwrite, progress=progress)
        )

    def delete(self, key: Key, *, expected: Revision | None = None) -> bool:
        """Remove the file at `key`; False when there was none. `expected` as in `put`. Its history
        stays.
        """
        return self._portal.run(lambda: self._inner.delete(key, expected=expected))
