"""An edit that cuts a character in two is found, and no other; the library cannot be trusted with
one."""

import random
from typing import Any

import pytest
from pycrdt import Doc, Map, Text

from blackboard.client.documents.replica import DamagedError, Replica
from blackboard.core.documents.update import (
    Pairs,
    Update,
    read_update,
    write_number as n,
    write_text,
)

CLIENT, OTHER = 7, 9


def deletion(start: int, length: int) -> bytes:
    """Deletes units of CLIENT."""
    return n(0) + n(1) + n(CLIENT) + n(1) + n(start) + n(length)


def insertion(at: int, text: str = "Z") -> bytes:
    """Inserts text of OTHER before unit `at` of CLIENT."""
    place = n(CLIENT) + n(at - 1) + n(CLIENT) + n(at)
    return n(1) + n(1) + n(OTHER) + n(0) + bytes((0xC4,)) + place + write_text(text) + n(0)


def written(text: str) -> tuple[bytes, Pairs]:
    """A document that says `text` and something after it; what is known of it."""
    doc: Doc[Any] = Doc(client_id=CLIENT)
    doc.get("t", type=Text).insert(0, text)
    doc.get("m", type=Map)["k"] = Map({"n": Text("hi")})
    pairs = Pairs()
    pairs.add(read_update(doc.get_update()).pairs)
    return doc.get_update(), pairs


def cut(pairs: Pairs, data: bytes, known: int = 100) -> bool:
    """Whether an update cuts a character."""
    return pairs.cut_by(read_update(data), {CLIENT: known}) is not None


def test_where_characters_are() -> None:
    """Units: a=0, the first of two 1 and 2, the second 3 and 4, é=5, the third 6 and 7, b=8."""
    _, pairs = written("a😀😁é😂b")
    assert [at for at in range(1, 9) if cut(pairs, insertion(at))] == [2, 4, 7]
    assert [at for at in range(9) if cut(pairs, deletion(at, 1))] == [1, 2, 3, 4, 6, 7]
    assert not any(cut(pairs, deletion(*span)) for span in ((0, 9), (1, 2), (1, 4), (3, 2), (5, 3)))


def test_an_update_may_cut_what_it_brings() -> None:
    """Also where its beginning is known already, and is said to be something else."""
    new = n(1) + n(1) + n(CLIENT) + n(0) + b"\x04\x01\x01t" + write_text("a😀b")
    assert cut(Pairs(), new + n(1) + n(CLIENT) + n(1) + n(2) + n(1), known=0)
    assert not cut(Pairs(), new + n(0), known=0)
    assert [known for known in range(5) if cut(Pairs(), new + n(0), known)] == [2]


def test_what_is_forgotten_may_come_again_otherwise() -> None:
    _, pairs = written("a😀b😀")
    pairs.keep_below({CLIENT: 3})
    assert cut(pairs, insertion(2))
    assert not cut(pairs, insertion(5))
    pairs.keep_below({})
    assert not cut(pairs, insertion(2))


def test_repeated_news_is_noted_once() -> None:
    update, pairs = written("😀a😀")
    for _ in range(3):
        pairs.add(read_update(update).pairs)
    assert [at for at in range(1, 5) if cut(pairs, insertion(at))] == [1, 4]


@pytest.mark.parametrize("cuts", [True, False])
def test_only_what_cuts_none_can_be_loaded_again(seed: int, cuts: bool) -> None:
    """As the library says: of the others, some cannot be loaded, or come back as something else."""
    rng = random.Random(seed)
    spoilt = 0
    for _ in range(400):
        text = "".join(rng.choice("aé漢😀😁") for _ in range(rng.randrange(2, 12)))
        state, pairs = written(text)
        units = len(text.encode("utf-16-le")) // 2
        at = rng.randrange(1, units) if units > 1 else 1
        data = rng.choice([insertion(at), deletion(at, rng.randrange(1, units - at + 1))])
        if cut(pairs, data) == cuts:
            spoilt += not comes_back(state, data, read_update(data))
    assert (spoilt > 0) == cuts


def comes_back(state: bytes, data: bytes, update: Update) -> bool:
    """Whether a document is loaded as what it was, after an edit."""
    copy = Replica(state)
    try:
        copy.apply(data, update)
        again = Replica(copy.update_since())
    except DamagedError:
        return False
    same = again.clocks == copy.clocks
    texts = {str(each.doc.get("t", type=Text)) for each in (copy, again)}
    maps = {str(each.doc.get("m", type=Map)) for each in (copy, again)}
    return same and len(texts) == len(maps) == 1
