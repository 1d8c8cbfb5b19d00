"""What can never be a commit is refused before any engine sees it."""

from typing import Any

import pytest
from msgspec.structs import replace

from blackboard.core.commit import (
    Append,
    Commit,
    CommitId,
    Condition,
    Delete,
    DeletePrefix,
    Expire,
    Grant,
    HeldFence,
    Increment,
    KeyAt,
    Op,
    PrefixUnchanged,
    Put,
    Release,
    Renew,
)
from blackboard.errors import InvalidRequest, LimitExceeded
from blackboard.limits import (
    INTEGER_MAX,
    LANES_MAX,
    LEASE_TTL_MS_MIN,
    NOTE_BYTES_MAX,
    REVISION_MAX,
    TTL_MS_MAX,
)
from blackboard.server.gates import check_commit

ONE = b"\x01"
BAD_KEYS = ["", "public", "public/", "public//a", "public/a b", "public/../a", "private/ada", "x/y"]
BAD_PREFIXES = ["", "private", "public/", "x", "public/a b", "public/.."]


def commit(
    *ops: Op,
    conditions: tuple[Condition, ...] = (),
    fences: tuple[HeldFence, ...] = (),
    based_on: tuple[tuple[str, int], ...] = (),
    note: str = "",
) -> Commit:
    """A commit of ada."""
    return Commit(CommitId("ada", 0, "i", 1), "e", ops, conditions, fences, based_on, note)


GOOD = [
    commit(Put("public/a", ONE), Put("public/a", ONE, 1), Put("public/a", ONE, TTL_MS_MAX)),
    commit(Append("public", ONE), Append("inbox/bob", ONE), Delete("private/ada/a")),
    commit(DeletePrefix("private/ada"), Increment("public/a", -INTEGER_MAX)),
    commit(Grant("public/a", "ada", LEASE_TTL_MS_MIN), Renew("public/a", "ada", 1, TTL_MS_MAX)),
    commit(Grant("public/a", "ada", TTL_MS_MAX, wait=True), Renew("public/a", "ada", 0, 1_000)),
    commit(Release("public/a", "ada", 0), Expire("public/a", "ada", REVISION_MAX)),
    commit(Release("public/a", "ada", REVISION_MAX), note="x" * NOTE_BYTES_MAX),
    commit(conditions=(KeyAt("public/a", -1), KeyAt("public/a", REVISION_MAX))),
    commit(conditions=(PrefixUnchanged("public", 0),), based_on=(("public/a", 0),)),
    commit(fences=(HeldFence("public/a", "ada", 1),)),
    Commit(CommitId("ada", LANES_MAX - 1, "i", INTEGER_MAX), "e", ()),
]


@pytest.mark.parametrize("good", GOOD)
def test_what_an_engine_understands_passes(good: Commit) -> None:
    check_commit(good)


@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_malformed_key_is_refused_wherever_it_stands(key: str) -> None:
    places = [
        commit(Put(key, ONE)),
        commit(Put("public/a", ONE), Delete(key)),
        commit(Increment(key, 1)),
        commit(Grant(key, "ada", 1_000)),
        commit(Renew(key, "ada", 1, 1_000)),
        commit(Release(key, "ada", 1)),
        commit(Expire(key, "ada", 1)),
        commit(conditions=(KeyAt(key, 0),)),
        commit(fences=(HeldFence(key, "ada", 1),)),
        commit(based_on=((key, 1),)),
    ]
    for bad in places:
        with pytest.raises(InvalidRequest):
            check_commit(bad)


@pytest.mark.parametrize("prefix", BAD_PREFIXES)
def test_a_malformed_prefix_is_refused_wherever_it_stands(prefix: str) -> None:
    unchanged = PrefixUnchanged(prefix, 1)
    for bad in (commit(Append(prefix, ONE)), commit(DeletePrefix(prefix))):
        with pytest.raises(InvalidRequest):
            check_commit(bad)
    with pytest.raises(InvalidRequest):
        check_commit(commit(conditions=(unchanged,)))


FLOAT: Any = 1.5
TRUE: Any = True
ONE_AS_FLAG: Any = 1


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("ttl_ms", commit(Put("public/a", ONE, 0))),
        ("ttl_ms", commit(Put("public/a", ONE, TTL_MS_MAX + 1))),
        ("ttl_ms", commit(Append("public/a", ONE, -1))),
        ("ttl_ms", commit(Grant("public/a", "ada", LEASE_TTL_MS_MIN - 1))),
        ("ttl_ms", commit(Renew("public/a", "ada", 1, TTL_MS_MAX + 1))),
        ("by", commit(Increment("public/a", INTEGER_MAX + 1))),
        ("by", commit(Increment("public/a", FLOAT))),
        ("by", commit(Increment("public/a", TRUE))),
        ("fence", commit(Release("public/a", "ada", -1))),
        ("fence", commit(Renew("public/a", "ada", REVISION_MAX + 1, 1_000))),
        ("fence", commit(Expire("public/a", "ada", 0))),
        ("wait", commit(Grant("public/a", "ada", 1_000, ONE_AS_FLAG))),
        ("fence", commit(fences=(HeldFence("public/a", "ada", 0),))),
        ("holder", commit(Grant("public/a", "a/b", 1_000))),
        ("holder", commit(fences=(HeldFence("public/a", "", 1),))),
        ("revision", commit(conditions=(KeyAt("public/a", -2),))),
        ("since", commit(conditions=(PrefixUnchanged("public", -1),))),
        ("based_on", commit(based_on=(("public/a", -1),))),
        ("note", commit(note="\ud800")),
        ("lane", Commit(CommitId("ada", LANES_MAX, "i", 1), "e", ())),
        ("step", Commit(CommitId("ada", 0, "i", -1), "e", ())),
    ],
)
def test_a_number_out_of_range_is_refused_by_its_name(field: str, bad: Commit) -> None:
    with pytest.raises(InvalidRequest) as refused:
        check_commit(bad)
    assert refused.value.field == field


def test_a_note_that_is_too_long_is_refused() -> None:
    with pytest.raises(LimitExceeded) as refused:
        check_commit(commit(note="é" * (NOTE_BYTES_MAX // 2 + 1)))
    assert (refused.value.limit, refused.value.value) == ("NOTE_BYTES_MAX", NOTE_BYTES_MAX + 2)


@pytest.mark.parametrize("op", [None, "put", KeyAt("public/a", 0), ("put", "public/a", ONE)])
def test_what_is_no_operation_is_refused(op: Any) -> None:
    with pytest.raises(InvalidRequest, match="is no operation"):
        check_commit(commit(op))


@pytest.mark.parametrize("value", [bytearray(ONE), memoryview(ONE), "a", 1, None])
def test_a_value_that_is_not_bytes_is_refused(value: Any) -> None:
    """Its owner could change a bytearray after it was committed."""
    for op in (Put("public/a", value), Append("public/a", value)):
        with pytest.raises(InvalidRequest):
            check_commit(commit(op))


@pytest.mark.parametrize("field", ["ops", "conditions", "fences", "based_on", "note"])
@pytest.mark.parametrize("wrong", [None, 1, "x", b"x", ("public/a",), Delete("public/a")])
def test_what_has_another_type_is_refused_by_the_name_of_its_field(field: str, wrong: Any) -> None:
    """Programs are not always checked by types, and what is stored stays."""
    if (field, wrong) in [("note", "x"), ("ops", Delete("public/a"))]:
        return
    given = wrong if field == "note" else (wrong,)
    malformed = replace(commit(Put("public/a", ONE)), **{field: given})
    with pytest.raises(InvalidRequest) as refused:
        check_commit(malformed)
    assert refused.value.field == field
