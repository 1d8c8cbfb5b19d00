"""The little language that CRDT peers write: variable-length integers, strings, buffers.

Seven bits to a byte, the lowest first; the highest bit says that more follow (LEB128, as in lib0).
A `Reader` never reads beyond its bytes and never believes a length that they cannot hold.
"""

from blackboard.errors import InvalidRequest
from blackboard.types import INTEGER_MAX

_BITS_MAX = 56


class Reader:
    """Reads `data` from the front. Errors of every method: InvalidRequest, naming `field`."""

    __slots__ = ("data", "end", "field", "position")

    def __init__(self, data: bytes, field: str = "update") -> None:
        self.data = data
        self.field = field
        self.position = 0
        self.end = len(data)

    def byte(self) -> int:
        """The next byte."""
        if self.position >= self.end:
            raise self.broken("ends too early")
        found = self.data[self.position]
        self.position += 1
        return found

    def number(self) -> int:
        """An integer of 0..INTEGER_MAX."""
        # Nearly all that an update holds are these: most of the time goes here.
        data, position, end = self.data, self.position, self.end
        if position < end and data[position] < 0x80:
            self.position = position + 1
            return data[position]
        found = shift = 0
        while position < end:
            byte = data[position]
            position += 1
            found |= (byte & 0x7F) << shift
            if byte < 0x80:
                self.position = position
                if found > INTEGER_MAX:
                    break
                return found
            shift += 7
            if shift > _BITS_MAX:
                break
        else:
            raise self.broken("ends too early")
        raise self.broken("holds a number that is too large")

    def count(self) -> int:
        """A number of things that take a byte each at least."""
        found = self.number()
        if found > self.end - self.position:
            raise self.broken("announces more than it holds")
        return found

    def skip(self, size: int) -> None:
        """Pass over `size` bytes."""
        if size > self.end - self.position:
            raise self.broken("ends too early")
        self.position += size

    def buffer(self) -> bytes:
        """Bytes behind their number."""
        size = self.count()
        start = self.position
        self.position = start + size
        return self.data[start : self.position]

    def text(self) -> str:
        """UTF-8 behind its number of bytes."""
        try:
            return self.buffer().decode()
        except UnicodeDecodeError as error:
            raise self.broken("holds text that is not UTF-8") from error

    def broken(self, reason: str) -> InvalidRequest:
        """The error to raise."""
        return InvalidRequest(field=self.field, reason=f"{reason} (byte {self.position})")

    @property
    def is_empty(self) -> bool:
        """Whether everything was read."""
        return self.position >= self.end


def write_number(number: int) -> bytes:
    """The bytes that `Reader.number` reads."""
    if number < 0x80:
        return bytes((number,))
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def write_buffer(data: bytes) -> bytes:
    """The bytes that `Reader.buffer` reads."""
    return write_number(len(data)) + data


def write_text(text: str) -> bytes:
    """The bytes that `Reader.text` reads."""
    return write_buffer(text.encode())
