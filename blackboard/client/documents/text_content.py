"""The content of a text in chunks: an edit costs what it changes, not what the text holds.

Positions are Unicode code points; the library below counts UTF-8 bytes. A text keeps both counts
for each chunk, so one is found from the other by reading one chunk. As in a rope (Boehm, Atkinson
and Plass, 1995), but with a flat list: a text of the largest size has some thousand chunks, and
`accumulate` adds their lengths in C.

Invariants
- No chunk is empty, and none has more than CHUNK_LENGTH_MAX code points.
- `_lengths` and `_sizes` have the code points and the UTF-8 bytes of each chunk.
"""

from bisect import bisect_right
from itertools import accumulate
from typing import Final

CHUNK_LENGTH_MAX: Final = 4_096
"""Code points of a chunk: copying so many takes less than a microsecond."""


class TextContent:
    """A text that is edited in place."""

    __slots__ = ("_chunks", "_lengths", "_sizes", "_whole", "length", "size")

    def __init__(self, text: str = "") -> None:
        self._chunks: list[str] = []
        self._lengths: list[int] = []
        self._sizes: list[int] = []
        self._whole: str | None = None
        self.length = 0
        """Code points."""
        self.size = 0
        """UTF-8 bytes."""
        self._put(0, 0, text)
        self._whole = text

    def __str__(self) -> str:
        if self._whole is None:
            self._whole = "".join(self._chunks)
        return self._whole

    def replace(self, position: int, length: int, text: str) -> str:
        """Put `text` where `length` code points from `position` on are, all of which exist; returns
        what was there."""
        self._whole = None
        if not self._chunks:
            self._put(0, 0, text)
            return ""
        first, inside = self._chunk_at(self._lengths, position)
        last, end = first, inside + length
        if end > self._lengths[first]:
            last, end = self._chunk_at(self._lengths, position + length)
        old = "".join(self._chunks[first : last + 1])
        removed = old[inside : inside + length]
        merged = old[:inside] + text + self._chunks[last][end:]
        if len(merged) < CHUNK_LENGTH_MAX // 4 and last + 1 < len(self._chunks):
            last += 1  # so that many deletions do not leave many small chunks
            merged += self._chunks[last]
        self._put(first, last + 1, merged)
        return removed

    def bytes_before(self, position: int) -> int:
        """UTF-8 bytes of the first `position` code points; at most `length`."""
        # All of it is ASCII, where a byte is a code point.
        if self.size == self.length or not self._chunks:
            return position
        chunk, inside = self._chunk_at(self._lengths, position)
        if self._sizes[chunk] == self._lengths[chunk]:
            return sum(self._sizes[:chunk]) + inside
        return sum(self._sizes[:chunk]) + len(self._chunks[chunk][:inside].encode())

    def position_at(self, offset: int) -> int:
        """Code points of the first `offset` UTF-8 bytes; at most `size`. An offset inside a
        character counts it."""
        if self.size == self.length or not self._chunks:
            return offset
        chunk, inside = self._chunk_at(self._sizes, offset)
        if self._sizes[chunk] != self._lengths[chunk]:
            inside = len(self._chunks[chunk].encode()[:inside].decode(errors="replace"))
        return sum(self._lengths[:chunk]) + inside

    @staticmethod
    def _chunk_at(measures: list[int], place: int) -> tuple[int, int]:
        """The chunk that holds `place`, and the place in it; the end belongs to the last chunk."""
        ends = list(accumulate(measures))
        chunk = min(bisect_right(ends, place), len(ends) - 1)
        return chunk, place - (ends[chunk] - measures[chunk])

    def _put(self, first: int, end: int, text: str) -> None:
        """Replace the chunks from `first` to before `end` by `text`."""
        # Half-full chunks leave room, so that the next insertion splits nothing.
        step = CHUNK_LENGTH_MAX if len(text) <= CHUNK_LENGTH_MAX else CHUNK_LENGTH_MAX // 2
        parts = [text[at : at + step] for at in range(0, len(text), step)]
        lengths = [len(part) for part in parts]
        sizes = [n if p.isascii() else len(p.encode()) for p, n in zip(parts, lengths, strict=True)]
        self.length += len(text) - sum(self._lengths[first:end])
        self.size += sum(sizes) - sum(self._sizes[first:end])
        self._chunks[first:end], self._lengths[first:end] = parts, lengths
        self._sizes[first:end] = sizes
