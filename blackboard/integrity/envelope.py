"""A value as ciphertext: AES-256-GCM, with everything that says where it belongs bound to it.

    0xC1 0x01 | length of the header (2 bytes) | header | nonce (12) | ciphertext | tag (16)

The header is msgpack: the id of the data key, how the value was written (`p` put, `a` appended),
and the id of the commit: agent, lane, incarnation, step. It is authenticated together with the
namespace and the key that the value was written to (of an appended item: its prefix, for the index
is given by the commit). A data key belongs to one namespace of one board. So a value that is moved
to another key, agent or board, or put into another commit, opens nowhere.

0xC1 is the one byte with which no msgpack value begins: a sealed value is never taken for another.
"""

import secrets
from dataclasses import dataclass
from typing import Any, Final

import msgpack
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from blackboard.core.commit import CommitId
from blackboard.core.path import namespace_of
from blackboard.errors import Corrupt
from blackboard.types import Key

MAGIC: Final = b"\xc1\x01"
KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 12
NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_LENGTH_BYTES: Final = 2
PUT: Final = "p"
APPEND: Final = "a"


class Opened(bytes):
    """The plain bytes of a value that remembers how it is sealed.

    Two are equal if they are sealed alike: what a restore puts back is the very same ciphertext, so
    that digests stay what they were.
    """

    sealed: bytes

    @staticmethod
    def of(plain: bytes, sealed: bytes) -> "Opened":
        """`plain`, which was opened from `sealed`."""
        found = Opened(plain)
        found.sealed = sealed
        return found

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Opened):
            return self.sealed == other.sealed
        return bytes.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return bytes.__hash__(self)


def sealed_form(value: bytes) -> bytes:
    """How a value is kept: sealed, if it was opened from that."""
    return value.sealed if isinstance(value, Opened) else value


@dataclass(frozen=True, slots=True)
class Header:
    """What is written in the clear about a sealed value."""

    key_id: bytes
    kind: str
    commit: CommitId


def is_sealed(value: bytes) -> bool:
    """Whether a value is ciphertext."""
    return value.startswith(MAGIC)


def seal(cipher: AESGCM, header: Header, path: str, value: bytes) -> bytes:
    """The ciphertext of `value`, to be written to `path` (a key; of an `append` its prefix)."""
    name = header.commit
    packed: bytes = msgpack.packb(
        [header.key_id, header.kind, name.agent, name.lane, name.incarnation, name.step]
    )
    front = MAGIC + len(packed).to_bytes(_LENGTH_BYTES) + packed
    nonce = secrets.token_bytes(NONCE_BYTES)
    return front + nonce + cipher.encrypt(nonce, value, _bound(front, path))


def header_of(sealed: bytes, what: str) -> Header:
    """What a sealed value says of itself, unverified. Errors: Corrupt, about `what`."""
    try:
        key_id, kind, agent, lane, incarnation, step = _header(sealed)
        if len(key_id) != KEY_ID_BYTES or kind not in (PUT, APPEND):
            raise ValueError("no such key or kind")
        return Header(key_id, kind, CommitId(agent, lane, incarnation, step))
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Corrupt(what=what, reason="it is no sealed value") from error


def _header(sealed: bytes) -> Any:
    begin = len(MAGIC) + _LENGTH_BYTES
    return msgpack.unpackb(sealed[begin : _end_of_header(sealed)])


def _end_of_header(sealed: bytes) -> int:
    begin = len(MAGIC) + _LENGTH_BYTES
    return begin + int.from_bytes(sealed[len(MAGIC) : begin])


def open_sealed(cipher: AESGCM, header: Header, key: Key, sealed: bytes) -> bytes:
    """The value at `key`. Errors: Corrupt when it is not what was sealed for that key."""
    path = key.rpartition("/")[0] if header.kind == APPEND else key
    end = _end_of_header(sealed)
    nonce, rest = sealed[end : end + NONCE_BYTES], sealed[end + NONCE_BYTES :]
    try:
        if len(rest) < _TAG_BYTES:
            raise InvalidTag
        return cipher.decrypt(nonce, rest, _bound(sealed[:end], path))
    except InvalidTag as error:
        raise Corrupt(what=f"value of {key}", reason="it is not what was sealed there") from error


def _bound(front: bytes, path: str) -> bytes:
    return front + b"\0" + namespace_of(path).encode() + b"\0" + path.encode()
