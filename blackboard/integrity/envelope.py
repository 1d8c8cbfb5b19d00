"""The format of an encrypted value: AES-256-GCM, bound to the place where the value belongs.

    0xC1 0x02 | length of the header (2 bytes) | header | nonce (12) | ciphertext | tag (16)

The header is msgpack: the id of the data key; how the value was written (`p` put, `a` appended);
the id of the commit (agent, lane, incarnation, step) and the account behind it; the board; its
revision before the commit, as far as the service knew; for an appended item its number among those
that the commit appends to the same prefix. It is authenticated together with the namespace and the
key that the value was written to (for an item its prefix, because the engine assigns the index). A
data key belongs to one namespace. So a value that is moved to another key or agent cannot be
decrypted. Whether it is in the commit for which it was encrypted is checked with the log
(encryption/places.py).

Older versions wrote 0xC1 0x01: without account, board, revision and number.

No msgpack value begins with 0xC1, so an encrypted value cannot be mistaken for a plain one.
"""

import secrets
from dataclasses import dataclass
from typing import Any, Final

import msgpack
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from blackboard.core.commit import CommitId
from blackboard.core.path import namespace_of
from blackboard.errors import Corrupt, NewerFormat
from blackboard.units import Key, Revision
from blackboard.wire.frames import SEALED

FORMAT: Final = 2
_FORMAT_BEFORE: Final = 1
MAGIC: Final = SEALED + bytes([FORMAT])
MAGIC_BEFORE: Final = SEALED + bytes([_FORMAT_BEFORE])
KEY_BYTES: Final = 32
KEY_ID_BYTES: Final = 12
NONCE_BYTES: Final = 12
_TAG_BYTES: Final = 16
_LENGTH_BYTES: Final = 2
PUT: Final = "p"
APPEND: Final = "a"


@dataclass(frozen=True, slots=True)
class Place:
    """The place for which a value was encrypted."""

    board: str
    after: Revision
    """The revision of the commit is above this one, by little."""
    account: str = ""
    number: int = 0
    """For an item, its number among those that the commit appends to its prefix; else 0."""


@dataclass(frozen=True, slots=True)
class Header:
    """The unencrypted header of an encrypted value."""

    key_id: bytes
    kind: str
    commit: CommitId
    place: Place | None = None
    """None in the form of older versions."""


def is_sealed(value: bytes) -> bool:
    """Whether a value is ciphertext, in whichever form."""
    return value.startswith(SEALED)


def seal(cipher: AESGCM, header: Header, path: str, value: bytes) -> bytes:
    """The ciphertext of `value`, to be written to `path` (a key; of an `append` its prefix)."""
    name, place = header.commit, header.place
    members = [header.key_id, header.kind, name.agent, name.lane, name.incarnation, name.step]
    if place is not None:
        members += [place.board, place.after, place.account, place.number]
    packed: bytes = msgpack.packb(members)
    magic = MAGIC_BEFORE if place is None else MAGIC
    front = magic + len(packed).to_bytes(_LENGTH_BYTES) + packed
    # Random, because several processes use one data key and share no counter. With 96 bits that is
    # safe for 2**32 values of a key (NIST SP 800-38D, section 8.3).
    nonce = secrets.token_bytes(NONCE_BYTES)
    return front + nonce + cipher.encrypt(nonce, value, _bound(front, path))


def header_of(sealed: bytes, what: str) -> Header:
    """The header of an encrypted value, unverified. Errors: Corrupt, about `what`; NewerFormat."""
    form = sealed[len(SEALED)] if len(sealed) > len(SEALED) else 0
    if form > FORMAT:
        raise NewerFormat(what, form, FORMAT)
    try:
        if form < _FORMAT_BEFORE:
            raise ValueError("no such form")
        key_id, kind, agent, lane, incarnation, step, *where = _header(sealed)
        if len(key_id) != KEY_ID_BYTES or kind not in (PUT, APPEND):
            raise ValueError("no such key or kind")
        place = _place(*where) if sealed.startswith(MAGIC) else None
        return Header(key_id, kind, CommitId(agent, lane, incarnation, step), place)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise Corrupt(what=what, reason="it is no sealed value") from error


def _place(board: str, after: Revision, account: str, number: int) -> Place:
    if (type(board), type(after), type(account), type(number)) != (str, int, str, int):
        raise ValueError("no place")
    return Place(board, after, account, number)


def _header(sealed: bytes) -> Any:
    begin = len(MAGIC) + _LENGTH_BYTES
    return msgpack.unpackb(sealed[begin : _end_of_header(sealed)])


def _end_of_header(sealed: bytes) -> int:
    begin = len(MAGIC) + _LENGTH_BYTES
    return begin + int.from_bytes(sealed[len(MAGIC) : begin])


def open_sealed(cipher: AESGCM, header: Header, key: Key, sealed: bytes) -> bytes:
    """Decrypt the value at `key`. Errors: Corrupt when it was not encrypted for that key."""
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
    # No path has a zero byte, and `front` says how long it is: nothing can move between the parts.
    return front + b"\0" + namespace_of(path).encode() + b"\0" + path.encode()
