"""The quick way in takes what is usual and right, as the long way would, and nothing else."""

from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from blackboard import limits
from blackboard.core.commit import Commit
from blackboard.wire import requests
from blackboard.wire.frames import CONTAINERS_MAX, MSGPACK
from blackboard.wire.methods import CommitParams, Params
from blackboard.wire.requests import read_commits, write_commit
from tests.unit.wire.drawing import commits, names

FENCE = {"key": "public/a", "holder": "h", "fence": 1}
PUT = {"kind": "put", "key": "public/a", "value": b"\x01"}
PARAMS: dict[str, Any] = {
    "board": "b",
    "id": {"lane": 0, "incarnation": "i", "step": 1},
    "epoch": "e",
    "ops": [PUT],
}


def frame(*params: dict[str, Any]) -> bytes:
    """A frame of requests to commit."""
    return MSGPACK.join(
        [
            MSGPACK.pack({"id": number, "method": "commit", "params": one})
            for number, one in enumerate(params, 1)
        ]
    )


@settings(max_examples=40)
@given(commits=st.lists(commits, min_size=1, max_size=2), agent=st.none() | names)
def test_usual_commits_are_read_as_the_long_way_reads_them(
    commits: list[Commit], agent: str | None
) -> None:
    """Whatever operations and conditions they have."""
    own = {} if agent is None else {"agent": agent}
    written = [{**write_commit("board-1", commit, MSGPACK), **own} for commit in commits]
    sent = frame(*written)
    found = read_commits(sent)
    assert len(found) == len(commits)
    for request, message in zip(found, MSGPACK.split(sent), strict=True):
        assert request.id == message["id"]
        assert read(request.params) == read(requests.parse("commit", message["params"], MSGPACK))


def read(params: Params[Any]) -> tuple[str, str | None, str, Commit]:
    """All that anybody asks of the params of a commit."""
    assert isinstance(params, CommitParams)
    return params.method, params.agent, params.board, params.to_core("ada")


def changed(**members: Any) -> dict[str, Any]:
    """The plain params with some members in place of their own."""
    return {**PARAMS, **members}


@pytest.mark.parametrize(
    "params",
    [
        changed(board="a/b"),
        changed(board=".."),
        changed(agent="a/b"),
        changed(nonsense=1),
        changed(id={"lane": limits.LANES_MAX, "incarnation": "i", "step": 1}),
        changed(id={"lane": 0, "incarnation": "i/j", "step": 1}),
        changed(id={"lane": 0, "incarnation": "i", "step": True}),
        changed(id={"lane": 0, "incarnation": "i", "step": 1.0}),
        changed(epoch="e" * (limits.SEGMENT_BYTES_MAX + 1)),
        changed(ops=[{**PUT, "key": "elsewhere/a"}]),
        changed(ops=[{**PUT, "value": "text"}]),
        changed(ops=[{**PUT, "value": b"\xcc\x01"}]),
        changed(ops=[{**PUT, "value": b"\xd4\x01\x00"}]),
        changed(ops=[{**PUT, "ttl_ms": 0}]),
        changed(ops=[{**PUT, "ttl_ms": None}]),
        changed(ops=[{"kind": "append", "prefix": "public/", "value": b"\x01"}]),
        changed(ops=[{"kind": "delete", "key": "public"}]),
        changed(ops=[{"kind": "increment", "key": "public/a", "by": 2**53}]),
        changed(ops=[{"kind": "nonsense", "key": "public/a"}]),
        changed(ops=[PUT] * (limits.OPERATIONS_MAX + 1)),
        changed(conditions=[{"kind": "key_at", "key": "public/a", "revision": -2}]),
        changed(fences=[{**FENCE, "fence": 0}]),
        changed(fences=[{**FENCE, "holder": ""}]),
        changed(based_on=[["public", 1]]),
        changed(based_on=[["public/a", -1]]),
        changed(based_on=[["public/a", 1, 1]]),
        changed(note="n" * (limits.NOTE_BYTES_MAX + 1)),
        changed(retry_since=-1),
    ],
)
def test_what_is_wrong_is_left_to_the_code_that_can_explain_it(params: dict[str, Any]) -> None:
    """One of several is enough."""
    assert read_commits(frame(PARAMS))
    assert not read_commits(frame(PARAMS, params))


def test_only_the_one_way_to_write_a_commit_is_usual() -> None:
    """Another order, a member twice, a longer integer: all of that is for the long way."""
    usual = frame(PARAMS)
    assert read_commits(usual)
    assert not read_commits(frame(dict(reversed(PARAMS.items()))))
    twice = usual.replace(b"\x84\xa5board\xa1b", b"\x85\xa5board\xa1a\xa5board\xa1b")
    assert twice != usual
    assert not read_commits(twice)
    wider = usual.replace(b"\xa4step\x01", b"\xa4step\xcc\x01")
    assert wider != usual
    assert not read_commits(wider)


@pytest.mark.parametrize("end", [b"", b"\x90", b"\xc1", b"\x91\xa0", b"\x91\x80"])
def test_what_is_no_frame_of_commits_is_left_alone(end: bytes) -> None:
    """Nothing, nobody, garbage, no map, an empty one."""
    assert not read_commits(end)


def test_a_frame_may_have_so_many_bytes_and_messages() -> None:
    """Beyond that, `split` counts what it builds, or refuses the frame."""
    assert read_commits(frame(*[PARAMS] * limits.MESSAGES_PER_FRAME_MAX))
    assert not read_commits(frame(*[PARAMS] * (limits.MESSAGES_PER_FRAME_MAX + 1)))
    value = b"\xc6" + (CONTAINERS_MAX - 200).to_bytes(4, "big") + bytes(CONTAINERS_MAX - 200)
    large = frame(changed(ops=[{**PUT, "value": value}]))
    assert len(large) <= CONTAINERS_MAX
    assert read_commits(large)
    assert not read_commits(frame(changed(ops=[{**PUT, "value": value + bytes(200)}])))
