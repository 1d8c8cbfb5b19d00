"""Requests: everything that the core can say passes, nothing else does, and the reason is given."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, strategies as st

from blackboard import limits
from blackboard.core.commit import Commit
from blackboard.errors import InvalidRequest, LimitExceeded
from blackboard.wire import methods, requests
from blackboard.wire.frames import JSON, MSGPACK, Encoding, NotAMap
from blackboard.wire.methods import TOKEN_BYTES_MAX, CommitParams, Params
from blackboard.wire.requests import write_commit
from tests.unit.wire.drawing import commits, values

both = pytest.mark.parametrize("encoding", [MSGPACK, JSON], ids=lambda e: e.name)
COMMIT: dict[str, Any] = {
    "board": "b",
    "id": {"lane": 0, "incarnation": "i", "step": 1},
    "epoch": "e",
    "ops": [{"kind": "put", "key": "public/a", "value": 1}],
}

LEASE = {"key": "public/a", "holder": "h"}
KEY_AT = {"kind": "key_at", "key": "public/a", "revision": 0}
UNCHANGED = {"kind": "prefix_unchanged", "prefix": "public", "since": 0}
LONG = "a/" * 600


def parse_commit(changed: dict[str, Any]) -> Params[Any]:
    """Parse the plain commit with some members in place of its own."""
    return requests.parse("commit", {**COMMIT, **changed}, JSON)


@both
@given(commit=commits)
def test_every_commit_survives(encoding: Encoding, commit: Commit) -> None:
    """Written by a client, framed, split and parsed, it is the same commit."""
    written = write_commit("board-1", commit, encoding)
    (received,) = encoding.split(encoding.join([encoding.pack(written)]))
    params = requests.parse("commit", received, encoding)
    assert isinstance(params, CommitParams)
    assert params.board == "board-1"
    assert params.to_core(commit.id.agent) == commit


def test_every_method_of_the_service_says_which_right_it_needs() -> None:
    """All but what concerns the connection itself; a document has a socket of its own, on which
    Yjs is spoken."""
    named = methods.METHODS.keys() - {"hello", "unwatch", "progress"}
    assert named == methods.RIGHTS.keys() - {"document"}


@pytest.mark.parametrize("name", methods.METHODS)
def test_every_method_takes_an_agent_and_nothing_unknown(name: str) -> None:
    """`agent` is checked everywhere; a member that nobody knows is refused by name."""
    with pytest.raises(InvalidRequest, match="agent: 'a/b' is not a name"):
        requests.parse(name, {**_least(name), "agent": "a/b"}, JSON)
    with pytest.raises(InvalidRequest, match="nonsense: Extra inputs"):
        requests.parse(name, {**_least(name), "nonsense": 1}, JSON)
    found = requests.parse(name, {**_least(name), "agent": "ada"}, JSON)
    assert (found.method, found.agent) == (name, "ada")


def _least(name: str) -> dict[str, Any]:
    """The least params that method `name` takes."""
    values: dict[str, Any] = {
        **COMMIT,
        "keys": ["public/a"],
        "key": "public/a",
        "pattern": "public/**",
        "patterns": ["public/**"],
        "watch": 1,
        "token": "t",
        "name": "plan",
        "request": "ab" * 8,
        "pinned": True,
        "last": 1,
        "days": 1,
        "to": "plan",
        "new": "other",
        "at": 1,
        "a": {"time_ms": 1},
        "b": "now",
        "manifest": "{}",
        "signature": "ab",
        "number": 0,
        "entries": [],
    }
    fields = msgspec.structs.fields(methods.METHODS[name].request)
    return {field.name: values[field.name] for field in fields if field.required}


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"board": "a/b"}, "board"),
        ({"board": 7}, "board"),
        ({"board": "x" * 1000}, "board"),
        ({"id": {"lane": 0, "incarnation": "i"}}, "id.step"),
        ({"id": {"lane": limits.LANES_MAX, "incarnation": "i", "step": 1}}, "id.lane"),
        ({"id": {"lane": True, "incarnation": "i", "step": 1}}, "id.lane"),
        ({"id": {"lane": 0.0, "incarnation": "i", "step": 1}}, "id.lane"),
        ({"id": {"lane": 0, "incarnation": "i", "step": 2**53}}, "id.step"),
        ({"epoch": None}, "epoch"),
        ({"epoch": "\ud800"}, "epoch"),
        ({"note": "\ud800"}, "note"),
        ({"retry_since": "\ud800"}, "retry_since"),
        ({"id": {"\ud800": 1}}, "id"),
        ({"ops": [{"kind": "\ud800"}]}, "ops.0.kind"),
        ({"ops": {}}, "ops"),
        ({"ops": ["put"]}, "ops.0"),
        ({"ops": [{"kind": "zap"}]}, "ops.0"),
        ({"ops": [{"key": "public/a"}]}, "ops.0"),
        ({"ops": [{"kind": "put", "key": "public/a"}]}, "ops.0.value"),
        ({"ops": [{"kind": "put", "key": "public", "value": 1}]}, "ops.0.key"),
        ({"ops": [{"kind": "put", "key": "public/../a", "value": 1}]}, "ops.0.key"),
        ({"ops": [{"kind": "put", "key": "public/a\n", "value": 1}]}, "ops.0.key"),
        ({"ops": [{"kind": "put", "key": "public/a", "value": 2**64}]}, "ops.0.value"),
        ({"ops": [{"kind": "put", "key": "public/a", "value": NotAMap()}]}, "ops.0.value"),
        ({"ops": [{"kind": "put", "key": "public/a", "value": 1, "ttl_ms": 0}]}, "ops.0.ttl_ms"),
        ({"ops": [{"kind": "append", "prefix": "x", "value": 1}]}, "ops.0.prefix"),
        ({"ops": [{"kind": "increment", "key": "public/a", "by": "1"}]}, "ops.0.by"),
        ({"ops": [{"kind": "increment", "key": "public/a", "by": 2**53}]}, "ops.0.by"),
        ({"ops": [{"kind": "grant", **LEASE, "ttl_ms": 99}]}, "ops.0.ttl_ms"),
        ({"ops": [{"kind": "release", **LEASE, "fence": -1}]}, "ops.0.fence"),
        ({"ops": [{"kind": "expire", **LEASE, "fence": 0}]}, "ops.0.fence"),
        ({"ops": [{"kind": "grant", **LEASE, "ttl_ms": 100, "wait": 1}]}, "ops.0.wait"),
        ({"conditions": [{**KEY_AT, "revision": -2}]}, "conditions.0.revision"),
        ({"conditions": [{**UNCHANGED, "prefix": "public/"}]}, "conditions.0.prefix"),
        ({"fences": [{"key": "public/a", "holder": "a b", "fence": 1}]}, "fences.0.holder"),
        ({"based_on": [["public/a"]]}, "based_on.0.1"),
        ({"based_on": [["public/a", 1, 2]]}, "based_on.0"),
        ({"based_on": [[1, "public/a"]]}, "based_on.0.0"),
        ({"retry_since": -1}, "retry_since"),
        ({"retry_since": limits.REVISION_MAX + 1}, "retry_since"),
    ],
)  # fmt: skip
def test_a_bad_commit_is_refused_by_field(changed: dict[str, Any], field: str) -> None:
    """The error names the path of what is wrong, and why."""
    with pytest.raises(InvalidRequest) as caught:
        parse_commit(changed)
    assert caught.value.field == field
    assert caught.value.reason


@pytest.mark.parametrize(
    ("changed", "limit", "where"),
    [
        ({"ops": COMMIT["ops"] * (limits.OPERATIONS_MAX + 1)}, "OPERATIONS_MAX", "ops"),
        (
            {"conditions": [KEY_AT] * 1025},
            "OPERATIONS_MAX",
            "conditions",
        ),
        (
            {"fences": [{**LEASE, "fence": 1}] * 65},
            "FENCES_MAX",
            "fences",
        ),
        ({"based_on": [["public/a", 1]] * 257}, "BASED_ON_MAX", "based_on"),
        ({"note": "\u00e9" * 513}, "NOTE_BYTES_MAX", "note"),
        ({"ops": [{"kind": "delete", "key": "public/" + LONG}]}, "KEY_BYTES_MAX", "ops.0.key"),
        (
            {"ops": [{"kind": "put", "key": "public/a", "value": "a" * limits.VALUE_BYTES_MAX}]},
            "VALUE_BYTES_MAX",
            "ops.0.value",
        ),
    ],
)  # fmt: skip
def test_a_commit_beyond_a_limit_is_refused_by_the_limits_name(
    changed: dict[str, Any], limit: str, where: str
) -> None:
    """The error names the limit, how much it was, how much is allowed, and where."""
    with pytest.raises(LimitExceeded) as caught:
        parse_commit(changed)
    assert (caught.value.limit, caught.value.where) == (limit, where)
    assert caught.value.value > caught.value.maximum == getattr(limits, limit)


def test_the_edges_of_a_commit_pass() -> None:
    """As many operations, conditions, fences, grounds and characters as there may be."""
    params = parse_commit(
        {
            "ops": COMMIT["ops"] * limits.OPERATIONS_MAX,
            "conditions": [KEY_AT] * limits.OPERATIONS_MAX,
            "fences": [{**LEASE, "fence": 1}] * limits.FENCES_MAX,
            "based_on": [["public/a", 0]] * limits.BASED_ON_MAX,
            "note": "a" * limits.NOTE_BYTES_MAX,
        }
    )
    assert isinstance(params, CommitParams)
    assert len(params.to_core("ada").conditions) == limits.OPERATIONS_MAX


@pytest.mark.parametrize(
    ("method", "params", "field"),
    [
        ("read", {"board": "b", "keys": ["public/a", "nope"]}, "keys.1"),
        ("list", {"board": "b", "pattern": "public/**/x"}, "pattern"),
        ("list", {"board": "b", "pattern": "public/**", "limit": 0}, "limit"),
        ("log", {"board": "b", "after": -1}, "after"),
        ("watch", {"board": "b", "watch": 1, "patterns": []}, "patterns"),
        ("watch", {"board": "b", "watch": 1, "patterns": ["**"], "after": "1"}, "after"),
        ("watch", {"board": "b", "watch": 1, "patterns": ["**"], "after": "e:x:"}, "after"),
        ("watch", {"board": "b", "watch": -1, "patterns": ["**"]}, "watch"),
        ("hello", {"token": "a" * (TOKEN_BYTES_MAX + 1)}, "token"),
        ("hello", {"agent": "\ud800"}, "agent"),
        ("watch", {"board": "b", "watch": 1, "patterns": ["**"], "after": "\ud800:1:"}, "after"),
        ("watch", {"board": "b", "watch": 1, "patterns": ["**"], "after": "e:1:\ud800"}, "after"),
    ],
)
def test_other_requests_are_refused_by_field_too(
    method: str, params: dict[str, Any], field: str
) -> None:
    """Keys, patterns, pages, resume tokens."""
    with pytest.raises(InvalidRequest) as caught:
        requests.parse(method, params, JSON)
    assert caught.value.field == field


def test_a_token_is_not_shown() -> None:
    """Neither by the model nor by the error about it."""
    assert "s3cret" not in repr(requests.parse("hello", {"token": "s3cret"}, JSON))
    with pytest.raises(InvalidRequest) as caught:
        requests.parse("hello", {"token": "s3cret" * 2000}, JSON)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("method", ["", "Commit", "x" * 100_000, None, 7, ["commit"], NotAMap()])
def test_an_unknown_method_is_refused_in_few_words(method: object) -> None:
    """Whatever stands there."""
    with pytest.raises(InvalidRequest, match="there is no method") as caught:
        requests.parse(method, {}, JSON)
    assert caught.value.field == "method"
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "params",
    [
        {"x" * 1_000_000: 1},
        {**COMMIT, "ops": [{"kind": "k" * 1_000_000}]},
        {**COMMIT, "ops": [{"kind": "put", "key": "k" * 1_000_000, "value": 1}]},
        {**COMMIT, "epoch": "e" * 1_000_000},
        {**COMMIT, "id": {"lane": 0, "incarnation": "i" * 1_000_000, "step": 1}},
        {**COMMIT, "ops": [[]] * 1024},
        7,
        [1, 2, 3],
        NotAMap(),
    ],
)
def test_an_error_never_echoes_much(params: object) -> None:
    """However large the mistake, its explanation is short."""
    with pytest.raises((InvalidRequest, LimitExceeded)) as caught:
        requests.parse("commit", params, JSON)
    assert len(str(caught.value)) < 600
    assert len(repr(caught.value.fields())) < 600


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@both
@given(method=st.sampled_from(list(methods.METHODS)), member=st.integers(0, 9), params=junk)
def test_any_params_are_a_request_or_refused(
    encoding: Encoding, method: str, member: int, params: object
) -> None:
    """Junk, and requests in which one member is junk, raise nothing but the two errors."""
    least = _least(method)
    if member < len(least):
        params = {**least, sorted(least)[member]: params}
    try:
        found = requests.parse(method, params, encoding)
    except (InvalidRequest, LimitExceeded):
        return
    assert found.method == method


@given(value=values)
def test_json_values_are_the_same_values(value: object) -> None:
    """What a JSON client writes is what a msgpack client reads."""
    op = {"kind": "put", "key": "public/a", "value": value}
    params = parse_commit({"ops": [op]})
    assert isinstance(params, CommitParams)
    (put,) = params.to_core("ada").ops
    assert MSGPACK.value_in(put.value) == put.value  # type: ignore[union-attr]
