"""From a state to rows and back, and the sums that are kept along the way."""

from dataclasses import fields

import pytest
from hypothesis import given, settings, strategies as st

from blackboard.core.commit import Committed, Entry
from blackboard.core.lease import dated
from blackboard.core.model import decide, log_entry, prolong
from blackboard.core.state import State, evolve
from blackboard.engines.sqlite.cache import LoadedEntries, admit
from blackboard.engines.sqlite.follower import Backlog
from blackboard.engines.sqlite.rows import (
    LOADED,
    TABLES,
    Filed,
    LogRows,
    Row,
    Table,
    Writes,
    checksum,
    fill,
    pack_large,
    unpack_large,
    usage_row,
    weigh,
)
from blackboard.engines.sqlite.tablets import (
    FIRST,
    LAST,
    WEIGHT_MODULUS,
    Tablet,
    Tablets,
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


def restored(shadow: Shadow, state: State, filed: Filed) -> State:
    """The state that the rows give; `state` tells what no table holds."""
    found = State(state.epoch, state.revision, state.oldest, state.time_ms)
    for table in LOADED:
        fill(found, table, [row for _, row in sorted(shadow[table.name].items())])
    found.usage = dict(filed.usage)
    found.entries = LoadedEntries(filed.tablets)
    admit(found, (FIRST, LAST), [Entry(*row) for row in wholes(shadow)])
    return found


def wholes(shadow: Shadow) -> list[Row]:
    """The rows of entries with their values, which may be in the log."""
    found = []
    for _, (key, value, *rest, place, size, weight) in sorted(shadow["entry"].items()):
        if place is not None:
            _, _, body, large, *_ = shadow["log"][(rest[0],)]
            value = (body + (large or b""))[place : place + size]
        found.append((key, value, *rest))
        assert weight == weigh(found[-1])
    return found


def weights(shadow: Shadow, filed: Filed) -> int:
    """What all rows weigh that are not of the head, the log, or an entry."""
    rows = [row for table in LOADED for row in shadow[table.name].values()]
    rows += [tablet.row for tablet in filed.tablets]
    rows += [usage_row(*item) for item in filed.usage.items()]
    return sum(map(weigh, rows)) % WEIGHT_MODULUS


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_rows_follow_the_state(data: st.DataObject) -> None:
    """Group after group: the rows give the state again, and the sums are those of the rows."""
    with lowered_limits():
        state = State(EPOCH, entries=LoadedEntries([Tablet(FIRST)]))
        filed = Filed(weigh(Tablet(FIRST).row), {}, Tablets([Tablet(FIRST)]))
        drawing = Drawing(data.draw, state)
        shadow: Shadow = {name: {} for name in ("log", *(table.name for table in TABLES))}
        backlog = Backlog((0, 0, 1))
        for _ in range(drawing.pick((2, 8))):
            log = group(state, backlog, drawing)
            if drawing.one_in(4):
                forget(state, backlog, drawing.pick((1, state.revision + 1)))
            writes = backlog.take(state, log, everything=True).writes(filed)
            apply(shadow, writes)
            assert writes.place == (state.revision, state.time_ms, state.oldest, state.revision)
            filed.change(writes, filed.sums(writes)[1])
            assert filed.weight == weights(shadow, filed)
            [tablet] = filed.tablets
            rows = wholes(shadow)
            assert (tablet.keys, tablet.weight) == (
                len(rows),
                sum(map(weigh, rows)) % WEIGHT_MODULUS,
            )
            assert same_state(restored(shadow, state, filed), state)


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
    weight = sum(weigh((f"public/{number}", 2**63)) for number in range(64))
    assert weight > 2**63
    assert 0 <= checksum(weight, 1, 1, 1, 1) < 2**62
    assert checksum(weigh(("public/1", 2**63)), 1, 1, 1, 1) != checksum(weight, 1, 1, 1, 1)


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
