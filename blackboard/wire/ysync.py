"""The y-websocket protocol: what document peers say to each other, as bytes.

A frame holds one message or several. The first byte names the kind: 0 sync, 1 awareness (who is
there), 2 a refusal, 3 "who is there?". To sync, each side sends its state (step 1) and gets what it
lacks (step 2); after that, both send updates.

Source: y-protocols/PROTOCOL.md, sync.js, awareness.js; y-websocket/src/y-websocket.js.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from blackboard.core.documents.update import Reader, write_buffer, write_number, write_text
from blackboard.errors import InvalidRequest, LimitExceeded
from blackboard.limits import (
    AWARENESS_BYTES_MAX,
    AWARENESS_STATES_MAX,
    KEY_BYTES_MAX,
    OVERLAP_CLIENTS_MAX,
)

_SYNC: Final = 0
_AWARENESS: Final = 1
_AUTH: Final = 2
_QUERY: Final = 3
# Ours. The protocol uses the smallest numbers, and may get more of them.
_MET: Final = 100
_STEP1: Final = 0
_STEP2: Final = 1
_UPDATE: Final = 2
QUERY_AWARENESS: Final = bytes((_QUERY,))
FRAME_MESSAGES_MAX: Final = 64
"""Messages of one frame. Peers send one or a few; a message may be a single byte, and a frame of
FRAME_BYTES_MAX of those would take seconds, in which nobody else is served."""


@dataclass(frozen=True, slots=True)
class Step1:
    """The peer has `state`, and requests what it lacks."""

    state: bytes


@dataclass(frozen=True, slots=True)
class Step2:
    """The answer to our step 1: what we lacked."""

    update: bytes


@dataclass(frozen=True, slots=True)
class Edit:
    """An update that was just made."""

    update: bytes


@dataclass(frozen=True, slots=True)
class AwarenessState:
    """A client's state, as JSON; None = it is gone. The state with the greatest `clock` counts."""

    client: int
    clock: int
    state: str | None


@dataclass(frozen=True, slots=True)
class Awareness:
    """Who is there."""

    present: tuple[AwarenessState, ...]


@dataclass(frozen=True, slots=True)
class QueryAwareness:
    """The peer asks who is there."""


@dataclass(frozen=True, slots=True)
class Met:
    """An edit of the peer overlapped a concurrent one of `clients`, in the text at the path `text`,
    from `start` to `end` (code points, as merged). There are no clients if the other edit only
    deletes, because an update does not say who deletes."""

    text: str
    start: int
    end: int
    clients: tuple[int, ...]


Message = Step1 | Step2 | Edit | Awareness | QueryAwareness | Met


def read_frame(frame: bytes) -> list[Message]:
    """The messages of a frame. Errors: InvalidRequest; LimitExceeded for too much awareness."""
    reader = Reader(frame, "frame")
    found: list[Message] = []
    for _ in range(FRAME_MESSAGES_MAX):
        message = _message(reader)
        if message is not None:
            found.append(message)
        if reader.is_empty:
            return found
    raise reader.broken(f"holds more than {FRAME_MESSAGES_MAX} messages")


def _message(reader: Reader) -> Message | None:
    kind = reader.number()
    if kind == _SYNC:
        return _sync(reader)
    if kind == _AWARENESS:
        return Awareness(_awareness(reader.buffer()))
    if kind == _QUERY:
        return QueryAwareness()
    if kind == _MET:
        return _met(reader)
    if kind == _AUTH:  # a refusal, which only servers send
        reader.number()
        reader.text()
        return None
    raise reader.broken(f"holds a message of unknown kind {kind}")


def _met(reader: Reader) -> Met:
    text, start, end, count = reader.text(), reader.number(), reader.number(), reader.count()
    if count > OVERLAP_CLIENTS_MAX:
        raise LimitExceeded("OVERLAP_CLIENTS_MAX", count, OVERLAP_CLIENTS_MAX)
    if start > end or len(text.encode()) > KEY_BYTES_MAX:
        raise reader.broken("tells of an overlap that is none")
    return Met(text, start, end, tuple(reader.number() for _ in range(count)))


def _sync(reader: Reader) -> Message:
    step = reader.number()
    if step == _STEP1:
        return Step1(reader.buffer())
    if step == _STEP2:
        return Step2(reader.buffer())
    if step == _UPDATE:
        return Edit(reader.buffer())
    raise reader.broken(f"holds an unknown step of sync, {step}")


def _awareness(data: bytes) -> tuple[AwarenessState, ...]:
    reader = Reader(data, "awareness")
    count = reader.count()
    if count > AWARENESS_STATES_MAX:
        raise LimitExceeded("AWARENESS_STATES_MAX", count, AWARENESS_STATES_MAX)
    return tuple(_presence(reader) for _ in range(count))


def _presence(reader: Reader) -> AwarenessState:
    client, clock, state = reader.number(), reader.number(), reader.text()
    if len(state) > AWARENESS_BYTES_MAX:
        raise LimitExceeded("AWARENESS_BYTES_MAX", len(state), AWARENESS_BYTES_MAX)
    try:
        # y-protocols writes `null` for a client that has left.
        is_gone = json.loads(state) is None
    except (ValueError, RecursionError) as error:
        raise reader.broken("holds a state that is not JSON") from error
    return AwarenessState(client, clock, None if is_gone else state)


def write_json(state: object) -> str:
    """A client's state as JSON. Errors: InvalidRequest, LimitExceeded."""
    try:
        # A browser's JSON.parse fails at NaN, and with it the whole message of all states.
        text = json.dumps(state, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(field="state", reason=str(error)) from error
    if len(text) > AWARENESS_BYTES_MAX:
        raise LimitExceeded("AWARENESS_BYTES_MAX", len(text), AWARENESS_BYTES_MAX)
    return text


def read_json(text: str) -> object:
    """What `write_json` wrote."""
    found: object = json.loads(text)
    return found


def write_step1(state: bytes) -> bytes:
    """A frame with what we know."""
    return b"\x00\x00" + write_buffer(state)


def write_step2(update: bytes) -> bytes:
    """A frame with what the peer lacked."""
    return b"\x00\x01" + write_buffer(update)


def write_update(update: bytes) -> bytes:
    """A frame with an update."""
    return b"\x00\x02" + write_buffer(update)


def write_awareness(present: Iterable[AwarenessState]) -> bytes:
    """A frame with who is there."""
    parts = [
        write_number(p.client) + write_number(p.clock) + write_text(p.state or "null")
        for p in present
    ]
    return bytes((_AWARENESS,)) + write_buffer(write_number(len(parts)) + b"".join(parts))


def write_met(met: Met) -> bytes:
    """A frame with an overlap."""
    clients = met.clients[:OVERLAP_CLIENTS_MAX]
    numbers = (met.start, met.end, len(clients), *clients)
    return bytes((_MET,)) + write_text(met.text) + b"".join(map(write_number, numbers))


# --- how the service ends a connection ------------------------------------------------------------
# y-websocket treats 4400..4499 as final; after any other code it reconnects by itself.

CLOSE_RESTART: Final = 1012
CLOSE_TRY_LATER: Final = 1013
CLOSE_BY_CAUSE: Final = {
    "malformed": 4400,
    "foreign": 4403,
    "read_only": 4403,
    "stale": 4409,
    "deleted": 4410,
    "too_large": 4413,
    "gap": 1008,
    "frozen": CLOSE_TRY_LATER,
    "too_slow": CLOSE_TRY_LATER,
    "closed": CLOSE_RESTART,
}
"""Close codes by the cause of a DocumentRefused. A client with a gap reconnects and sends
everything."""
