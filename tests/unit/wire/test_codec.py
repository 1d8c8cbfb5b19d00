"""Values and commits as bytes: what goes in comes out, and nothing else gets in."""

import asyncio
import datetime
import enum
import hashlib
import math
import threading

import msgpack
import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from blackboard.core.commit import (
    ABSENT,
    RESTORE,
    Append,
    Commit,
    CommitId,
    Committed,
    Epoch,
    HeldFence,
    KeyAt,
    PrefixUnchanged,
    Put,
    Result,
)
from blackboard.core.log_entry import log_entry
from blackboard.core.state import State, evolve
from blackboard.errors import Corrupt, InvalidRequest, LimitExceeded
from blackboard.limits import (
    COMMIT_BYTES_MAX,
    VALUE_BYTES_MAX,
    VALUE_DEPTH_MAX,
    VALUE_INLINE_BYTES_MAX,
)
from blackboard.wire import codec
from blackboard.wire.codec import (
    BYTES_KEY,
    SYSTEM_AGENT,
    decode_entry,
    decode_results,
    decode_value,
    encode_results,
    encode_value,
    marker_entry,
    prepare,
)
from tests.conformance.drawing import Drawing

texts = st.text(st.characters(exclude_categories=["Cs"]))
atoms = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
    | st.binary()
)
values = st.recursive(
    atoms,
    lambda inner: st.lists(inner) | st.dictionaries(texts.filter(lambda k: k != BYTES_KEY), inner),
    max_leaves=20,
)
results = st.lists(
    st.none() | st.integers(-(2**53), 2**53) | texts | st.lists(texts, max_size=4).map(tuple),
    max_size=6,
).map(tuple)

NAME = CommitId("ada", 3, "process", 7)


class Colour(enum.StrEnum):
    """A string that is more than a string."""

    RED = "red"


def nested(depth: int, inner: object = 1) -> object:
    """A value with `depth` lists or maps around it."""
    for level in range(depth):
        inner = [inner] if level % 2 else {"k": inner}
    return inner


# --- values ---------------------------------------------------------------------------------------


@given(values)
def test_a_value_comes_back(value: object) -> None:
    """Equal, and of the same types throughout; and it has one encoding."""
    encoded = encode_value(value)
    decoded = decode_value(encoded)
    assert repr(decoded) == repr(value)
    assert encode_value(decoded) == encoded


def test_tuples_come_back_as_lists() -> None:
    """JSON has no tuples."""
    assert decode_value(encode_value((1, (2, "x")))) == [1, [2, "x"]]


@pytest.mark.parametrize(
    "bad",
    [
        math.nan,
        math.inf,
        -math.inf,
        2**64,
        -(2**63) - 1,
        "\ud800",
        {1: "x"},
        {b"k": 1},
        {None: 1},
        {"\ud800": 1},
        {BYTES_KEY: "AA=="},
        {Colour.RED: 1},
        Colour.RED,
        pytest.param(object(), id="object()"),
        {1, 2},
        1j,
        bytearray(b"x"),
        datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
        msgpack.ExtType(5, b"x"),
        msgpack.Timestamp(1),
    ],
    ids=repr,
)
@pytest.mark.parametrize("wrap", [lambda v: v, lambda v: [v], lambda v: {"k": [v]}], ids="012")
def test_what_is_no_plain_value_is_refused(bad: object, wrap: object) -> None:
    """At the top and inside."""
    assert callable(wrap)
    with pytest.raises(InvalidRequest) as refused:
        encode_value(wrap(bad))
    assert refused.value.field == "value"


def test_nesting_has_an_edge() -> None:
    """VALUE_DEPTH_MAX containers, no more; a value that contains itself is refused, too."""
    deepest = nested(VALUE_DEPTH_MAX)
    assert decode_value(encode_value(deepest)) == deepest
    ring: list[object] = []
    ring.append(ring)
    for value in (nested(VALUE_DEPTH_MAX + 1), nested(100_000), ring):
        with pytest.raises(LimitExceeded) as refused:
            encode_value(value)
        assert refused.value.limit == "VALUE_DEPTH_MAX"
        assert refused.value.value == VALUE_DEPTH_MAX + 1


def test_size_has_an_edge() -> None:
    """VALUE_BYTES_MAX, counted when encoded."""
    largest = b"x" * (VALUE_BYTES_MAX - 5)
    assert len(encode_value(largest)) == VALUE_BYTES_MAX
    with pytest.raises(LimitExceeded) as refused:
        encode_value(largest + b"x")
    assert (refused.value.limit, refused.value.value) == ("VALUE_BYTES_MAX", VALUE_BYTES_MAX + 1)


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\xc1",
        b"\x01\x02",
        b"\x92\x01",
        b"\xd9\x05abc",
        b"\xa1\xff",
        b"\x81\x01\x02",
        b"\xd4\x05x",
        b"\x91" * 5_000 + b"\x01",
    ],
    ids=["nothing", "unused", "two", "short", "cut", "utf8", "integer key", "extension", "deep"],
)
def test_what_is_not_a_value_is_corrupt(encoded: bytes) -> None:
    """Nothing but plain data is decoded."""
    with pytest.raises(Corrupt) as corrupt:
        decode_value(encoded)
    assert corrupt.value.what == "value"


@given(st.binary(max_size=40))
def test_any_bytes_are_a_plain_value_or_corrupt(encoded: bytes) -> None:
    """No other error, and no other type, comes out."""
    try:
        decoded = decode_value(encoded)
    except Corrupt:
        return
    assert type(decoded) in (type(None), bool, int, float, str, bytes, list, dict)


# --- commits --------------------------------------------------------------------------------------


def a_commit(value: bytes = b"\x01") -> Commit:
    """A commit with every part."""
    return Commit(
        NAME,
        "epoch",
        (Put("public/a", value, 5), Append("public/l", value)),
        (KeyAt("public/a", ABSENT), PrefixUnchanged("public/d", 4)),
        (HeldFence("public/x", "bob", 3),),
        (("public/b", 9),),
        "nöte",
        known=1,
        retry_since=2,
    )


@pytest.mark.slow
@given(st.data())
def test_a_log_entry_comes_back(data: st.DataObject) -> None:
    """From what an engine stores: body, large values, results."""
    state = State(Epoch(1, "first"))
    commit = Drawing(data.draw, state).commit()
    prepared = prepare(commit)
    outcome = Committed(1, 1_000, results_of(commit))
    entry = log_entry(commit, outcome, prepared.digest)
    encoded = encode_results(outcome.results)
    found = decode_entry(1, 1_000, prepared.body, prepared.large, encoded)
    assert found == entry
    assert evolve(State(Epoch(1, "first")), found) == evolve(state, entry)


def results_of(commit: Commit) -> tuple[Result, ...]:
    """Results such as an engine could have computed."""
    by_kind: dict[str, Result] = {
        "Delete": 1,
        "DeletePrefix": ("public/d/0", "public/d/1"),
        "Append": "public/l/0000000004",
        "Increment": 8,
        "Grant": ("ada", 1, 3_600_000, "bob", 1_000, 2_000),
        "Renew": ("ada", 1, 2_000),
        "Release": (),
        "Expire": (),
    }
    return tuple(by_kind.get(type(op).__name__) for op in commit.ops)


@given(results)
def test_results_come_back(found: tuple[Result, ...]) -> None:
    """Also when there are none."""
    assert decode_results(encode_results(found)) == found


@pytest.mark.parametrize("count", [0, 1, 127, 128, 65_537])
def test_results_that_are_none_are_a_number(count: int) -> None:
    """As commit.lua packs it."""
    assert encode_results((None,) * count) == msgpack.packb(count)
    assert decode_results(msgpack.packb(count)) == (None,) * count


class OfOneThread:
    """A packer that no other thread than its maker's may use."""

    def __init__(self) -> None:
        self.owner = threading.current_thread()

    def pack(self, value: object) -> bytes:
        """As `msgpack.Packer.pack`."""
        assert threading.current_thread() is self.owner
        packed: bytes = msgpack.packb(value, use_bin_type=False)
        return packed


async def test_what_is_encoded_in_threads_is_not_mixed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a board, its log and a large restore: beside the loop, which packs commits."""
    monkeypatch.setattr(codec, "_packer", OfOneThread())
    epoch = Epoch(2, "x", RESTORE, 1, 5)
    restore = Commit(NAME, "e", (Put("public/a", b"\x01"),), begins=epoch)
    for work in (
        lambda: prepare(restore),
        lambda: encode_results((1, None)),
        lambda: encode_results((None,) * 200),
        lambda: marker_entry(epoch, 7),
    ):
        assert await asyncio.to_thread(work) == work()
    with pytest.raises(AssertionError):
        await asyncio.to_thread(prepare, replace(restore, begins=None))


def test_a_body_is_what_a_lua_script_can_read() -> None:
    """No `bin`, no nil: strings, integers and arrays only."""
    prepared = prepare(a_commit())
    assert msgpack.unpackb(prepared.body, raw=True) == [
        b"ada",
        3,
        b"process",
        7,
        [b"public/b", 9],
        "nöte".encode(),
        [[b"p", b"public/a", b"\x01", 5], [b"a", b"public/l", b"\x01", -1]],
    ]
    assert msgpack.unpackb(prepared.control, raw=True) == [
        b"epoch",
        2,
        [b"k", b"public/a", 0, b"n", b"public/d", 4],
        [b"public/x", b"bob", 3],
        1,
    ]
    first = prepare(replace(a_commit(), retry_since=None, known=None))
    control = msgpack.unpackb(first.control)
    assert (control[1], control[4]) == (-1, -1)
    assert first.body == prepared.body


def test_large_values_stand_outside_the_body() -> None:
    """From VALUE_INLINE_BYTES_MAX + 1 bytes on."""
    inline, large = b"i" * VALUE_INLINE_BYTES_MAX, b"l" * (VALUE_INLINE_BYTES_MAX + 1)
    assert prepare(a_commit(inline)).large == ()
    prepared = prepare(a_commit(large))
    assert prepared.large == (large, large)
    assert large not in prepared.body
    ops = msgpack.unpackb(prepared.body, raw=True)[-1]
    assert ops == [[b"P", b"public/a", 1, 5], [b"A", b"public/l", 2, -1]]
    assert prepared.size == len(prepared.body) + len(prepared.control) + 2 * len(large)


def test_the_digest_covers_body_and_large_values() -> None:
    """And neither conditions nor the number of the attempt: a retry is the same commit."""
    commit = a_commit(b"l" * 3_000)
    prepared = prepare(commit)
    digest = hashlib.sha256(prepared.body)
    for value in prepared.large:
        digest.update(hashlib.sha256(value).digest())
    assert prepared.digest == digest.digest()
    assert prepare(replace(commit, conditions=(), retry_since=9)).digest == prepared.digest
    assert prepare(replace(commit, note="other")).digest != prepared.digest
    assert prepare(a_commit(b"m" * 3_000)).digest != prepared.digest


def test_a_commit_has_an_edge() -> None:
    """COMMIT_BYTES_MAX, with everything that travels."""
    parts = 5
    share = COMMIT_BYTES_MAX // parts
    puts = tuple(Put(f"public/{number}", b"x" * share) for number in range(parts - 1))
    rest = COMMIT_BYTES_MAX - prepare(Commit(NAME, "epoch", (*puts, Put("public/z", b"")))).size
    largest = Commit(NAME, "epoch", (*puts, Put("public/z", b"x" * rest)))
    slack = COMMIT_BYTES_MAX - prepare(largest).size
    largest = replace(largest, note="n" * slack)
    assert prepare(largest).size == COMMIT_BYTES_MAX
    with pytest.raises(LimitExceeded) as refused:
        prepare(replace(largest, note="n" * (slack + 1)))
    assert (refused.value.limit, refused.value.value) == ("COMMIT_BYTES_MAX", COMMIT_BYTES_MAX + 1)


@pytest.mark.parametrize(
    ("body", "large"),
    [
        (b"", ()),
        (b"\x01", ()),
        (b"\x90", ()),
        (msgpack.packb(["ada", 0, "p", 1, [], "", [["?", "public/a"]]]), ()),
        (msgpack.packb(["ada", 0, "p", 1, [], "", [["p", "public/a"]]]), ()),
        (msgpack.packb(["ada", 0, "p", 1, [], "", [["P", "public/a", 2, -1]]]), (b"x",)),
        (msgpack.packb(["ada", 0, "p", 1, ["public/a"], "", [["d", "public/a"]]]), ()),
        (msgpack.packb([1, 0, "p", 1, [], "", [["d", "public/a"]]]), ()),
    ],
)
def test_a_damaged_log_entry_is_corrupt(body: bytes, large: tuple[bytes, ...]) -> None:
    """It names the revision."""
    with pytest.raises(Corrupt) as corrupt:
        decode_entry(17, 0, body, large, encode_results((None,)))
    assert corrupt.value.what == "log entry 17"


def test_results_that_do_not_fit_their_operations_are_corrupt() -> None:
    """One result per operation, of the right kind."""
    prepared = prepare(a_commit())
    for wrong in (encode_results((None,)), encode_results((None, 3)), b"", b"\xc1"):
        with pytest.raises(Corrupt):
            decode_entry(1, 0, prepared.body, prepared.large, wrong)


def test_a_marker_begins_an_epoch() -> None:
    """Written by nobody's agent, told apart by its digest."""
    epoch = Epoch(2, "second", "engine", 5, 100)
    entry = marker_entry(epoch, 1_000)
    assert (entry.revision, entry.epoch, entry.author) == (100, epoch, SYSTEM_AGENT)
    assert entry.changes == ()
    assert entry.digest != marker_entry(replace(epoch, id="third"), 1_000).digest


def test_a_refused_value_says_how_to_make_plain_data_of_it() -> None:
    with pytest.raises(InvalidRequest, match="a list"):
        encode_value({1})
