"""From a state to rows and back, and the checksum that is kept along the way."""

import copy
from dataclasses import fields

import pytest
from hypothesis import given, settings, strategies as st

from blackboard.core.commit import Committed
from blackboard.core.lease import dated
from blackboard.core.model import decide, log_entry, prolong
from blackboard.core.state import State, evolve
from blackboard.engines.sqlite.follower import Backlog
from blackboard.engines.sqlite.rows import (
    ENTRY,
    TABLES,
    LogRows,
    Row,
    Table,
    Writes,
    checksum,
    fill,
    pack_large,
    unpack_large,
    weigh,
    weight_of,
)
from blackboard.wire.codec import encode_results, prepare
from tests.conformance.drawing import Drawing
from tests.conformance.machines import lowered_limits
from tests.unit.core.trial import EPOCH

Shadow = dict[str, dict[Row, Row]]
"""The rows of each table by key: what a file would hold."""


def apply(shadow: Shadow, writes: Writes) -> None:
    """Do to `shadow` what the statements of a transaction do to a file."""
    shadow["log"].update({row[:1]: row for row in writes.log})
    for table in TABLES:
        rows = shadow[table.name]
        for statement, keys in writes.deletes:
            if statement == table.delete:
                assert all(rows.pop(key) for key in keys)
        for statement, changed in writes.upserts:
            if statement == table.upsert:
                rows.update({row[: table.key_columns]: row for row in changed})


def restored(shadow: Shadow, state: State) -> State:
    """The state that the rows give; `state` tells what no table holds."""
    found = State(state.epoch, state.revision, state.oldest, state.time_ms)
    for table in TABLES:
        rows = [row for _, row in sorted(shadow[table.name].items())]
        fill(found, table, [_whole(shadow, row) for row in rows] if table is ENTRY else rows)
    return found


def _whole(shadow: Shadow, row: Row) -> Row:
    """The row of an entry with its value, which may be in the log."""
    key, value, *rest, place, size = row
    if place is not None:
        _, _, body, large, *_ = shadow["log"][(rest[0],)]
        value = (body + (large or b""))[place : place + size]
    return (key, value, *rest)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_rows_follow_the_state(data: st.DataObject) -> None:
    """Group after group: the rows give the state again, and the checksum is that of the state."""
    with lowered_limits():
        state, weight = State(EPOCH), 0
        drawing = Drawing(data.draw, state)
        shadow: Shadow = {name: {} for name in ("log", *(table.name for table in TABLES))}
        backlog = Backlog((0, 0, 1))
        for _ in range(drawing.pick((2, 8))):
            log = group(state, backlog, drawing)
            if drawing.one_in(4):
                forget(state, backlog, drawing.pick((1, state.revision + 1)))
            writes = backlog.take(state, log, everything=True).writes(weight)
            apply(shadow, writes)
            weight = writes.weight
            place = (state.revision, state.time_ms, state.oldest, state.revision)
            assert writes.head == (*place, checksum(weight, *place))
            assert weight == weight_of(state) % 2**62
            assert same_state(restored(shadow, state), state)


def group(state: State, backlog: Backlog, drawing: Drawing) -> LogRows:
    """A few commits, applied to `state`."""
    log = LogRows()
    for _ in range(drawing.pick((1, 4))):
        step(state, backlog, log, drawing)
    return log


def step(state: State, backlog: Backlog, log: LogRows, drawing: Drawing) -> None:
    """Decide one random commit and apply it."""
    prepared = prepare(drawing.commit())
    outcome = decide(state, prepared.commit, 1_000)
    if not isinstance(outcome, Committed) or outcome.duplicate:
        return
    if not prolong(state, prepared.commit, outcome):
        entry = log_entry(prepared.commit, outcome, prepared.digest)
        backlog.note(state, entry, log.add(entry, prepared, encode_results(outcome.results)))
        evolve(state, entry)


def forget(state: State, backlog: Backlog, oldest: int) -> None:
    """Compact as the board does."""
    backlog.forget({k: t for k, t in state.tombstones.items() if t.revision < oldest})
    state.compact(oldest)


def same_state(found: State, expected: State) -> bool:
    """Whether two states are equal; sums of nothing may be there or not."""
    for field in fields(State):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "usage":
            one = {name: used for name, used in one.items() if used and used.keys}
            other = {name: used for name, used in other.items() if used.keys}
        if field.name == "leases":  # whose deadlines are in no row
            one = {key: dated(lease, 0) for key, lease in one.items()}
            other = {key: dated(lease, 0) for key, lease in other.items()}
        assert one == other, field.name
    return True


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_the_statements_of_a_table_name_its_columns(table: Table[object, object]) -> None:
    """Keys first; as many places as columns."""
    assert table.upsert.count("?") == len(table.columns + table.stored)
    assert table.delete.count("?") == table.key_columns
    for column in table.columns:
        assert column in table.select
    for column in table.columns + table.stored:
        assert column in table.upsert


def test_a_checksum_fits_into_the_file() -> None:
    """SQLite's integers have 63 bits and a sign."""
    state = State(EPOCH)
    assert weight_of(state) == 0
    state.next_item = {f"public/{number}": 2**63 for number in range(64)}
    assert weight_of(state) > 2**63
    assert 0 <= checksum(weight_of(state), 1, 1, 1, 1) < 2**62
    other = copy.copy(state)
    other.next_item = {"public/1": 2**63}
    assert checksum(weight_of(other), 1, 1, 1, 1) != checksum(weight_of(state), 1, 1, 1, 1)


@given(st.binary(min_size=1, max_size=40), st.integers(min_value=0))
def test_a_bit_that_flips_changes_the_weight(value: bytes, bit: int) -> None:
    """Whichever it is: a checksum of 32 bits finds every single one."""
    number = int.from_bytes(value, "big") ^ (1 << bit % (8 * len(value)))
    flipped = number.to_bytes(len(value), "big")
    assert weigh(("public/a", value, 1)) != weigh(("public/a", flipped, 1))


@given(st.lists(st.binary(), max_size=4))
def test_large_values_share_a_column(values: list[bytes]) -> None:
    """None of them, none."""
    packed = pack_large(values)
    assert unpack_large(packed) == values
    assert (packed is None) == (not values)
