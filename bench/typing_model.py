"""Two people who write one text: a recording made from a seed, the same on every machine.

The model, in the time of the writers:

- a writer rests, then types a run of words at 120 to 260 ms a key, and rests again. Now and then
  both type at once.
- a typing slip is corrected at once: one to five characters go, and the word is typed again.
- between runs a writer may move the cursor: near to where it was, to the end, or anywhere; a writer
  may also remove some words behind the cursor, or paste a sentence.
- a writer sees what the other one did DELAY_MS before.

Each key is one edit. An edit records how much its writer had seen of the other one's text, so a
replay can keep that order: it waits for those characters, and for nothing else.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

SEED: Final = 20_261
WRITERS: Final = 2
DELAY_MS: Final = 150.0
KEY_MS: Final = (120.0, 260.0)
REST_MS: Final = 30_000.0
"""The mean of a rest."""
_LETTERS: Final = "eeeeeettttaaaooonnniiisssrrrhhllddccuummffppggwwyybbvk"
_RUN_WORDS: Final = 5.0
_SLIP: Final = 0.025
_STAY, _NEAR, _END, _ANYWHERE = 0.62, 0.16, 0.14, 0.08
_CUT, _PASTE = 0.06, 0.015

STAY: Final = -1
END: Final = 1000
NEAR: Final = 1001
_NEAR_MIDDLE: Final = NEAR + 500
Edit = tuple[int, int, int, int, str]
"""The writer; how many characters of the other one it has seen; where the cursor goes first; how
many characters before the cursor it removes; the text that it inserts there.

The cursor stays (STAY), goes to a place in thousandths of the text (0..END), or moves by a number
of characters (NEAR and more: that number plus 1501)."""


@dataclass(frozen=True, slots=True)
class _Key:
    at_ms: float
    writer: int
    move: int
    removed: int
    text: str


def recording(edits: int, seed: int = SEED) -> list[Edit]:
    """A session of `edits` edits by two writers, in the order in which they were made."""
    drawn = random.Random(seed)
    typed = [list(_typed(writer, random.Random(drawn.random()), edits)) for writer in range(2)]
    keys = sorted((key for each in typed for key in each), key=lambda key: key.at_ms)[:edits]
    told = [_Told(), _Told()]
    for key in keys:
        told[key.writer].note(key)
    return [
        (key.writer, told[1 - key.writer].seen_at(key.at_ms), key.move, key.removed, key.text)
        for key in keys
    ]


class _Told:
    """How many characters of one writer the other one has seen, by time."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._counts: list[int] = [0]

    def note(self, key: _Key) -> None:
        self._times.append(key.at_ms + DELAY_MS)
        self._counts.append(self._counts[-1] + len(key.text))

    def seen_at(self, at_ms: float) -> int:
        return self._counts[bisect_right(self._times, at_ms)]


def _typed(writer: int, drawn: random.Random, edits: int) -> Iterator[_Key]:
    """What one writer does: at least `edits` keys."""
    at_ms = drawn.expovariate(1 / REST_MS)
    made = 0
    while made < edits:
        for move, removed, text in _run(drawn):
            yield _Key(at_ms, writer, move, removed, text)
            at_ms += drawn.uniform(*KEY_MS)
            made += 1
        at_ms += drawn.expovariate(1 / REST_MS)


def _run(drawn: random.Random) -> Iterator[tuple[int, int, str]]:
    """The keys of one run: where the cursor goes, what is removed, what is inserted."""
    move = _move(drawn)
    chance = drawn.random()
    if chance < _CUT:
        yield move, drawn.randint(4, 40), ""
        move = STAY
    elif chance < _CUT + _PASTE:
        yield move, 0, " ".join(_word(drawn) for _ in range(drawn.randint(5, 20))) + ". "
        move = STAY
    for _ in range(1 + int(drawn.expovariate(1 / _RUN_WORDS))):
        for removed, text in _keys_of(
            _word(drawn) + drawn.choice(("", "", "", "", ",", ".")), drawn
        ):
            yield move, removed, text
            move = STAY


def _move(drawn: random.Random) -> int:
    (kind,) = drawn.choices((STAY, NEAR, END, 0), (_STAY, _NEAR, _END, _ANYWHERE))
    if kind == NEAR:
        return max(NEAR, _NEAR_MIDDLE + round(drawn.gauss(0, 60)))
    return drawn.randint(0, END) if kind == 0 else kind


def _word(drawn: random.Random) -> str:
    return "".join(drawn.choices(_LETTERS, k=1 + min(11, int(drawn.gammavariate(2.6, 1.4)))))


def _keys_of(word: str, drawn: random.Random) -> Iterator[tuple[int, str]]:
    """The keys that write a word and a blank, slips included."""
    for number, letter in enumerate(word):
        if number and drawn.random() < _SLIP:
            back = drawn.randint(1, min(5, number))
            yield from ((1, "") for _ in range(back))
            yield from ((0, again) for again in word[number - back : number])
        yield 0, letter
    yield 0, " "
