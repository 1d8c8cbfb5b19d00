"""What a client writes is short: nothing is said that is the default."""

from blackboard.core.commit import Commit, CommitId, Put
from blackboard.wire.codec import encode_value
from blackboard.wire.frames import JSON, MSGPACK
from blackboard.wire.requests import write_commit

PLAIN = Commit(CommitId("ada", 3, "i", 7), "e", (Put("public/a", encode_value({"b": b"x"})),))


def test_a_plain_commit_has_no_empty_members() -> None:
    """The agent is not said either: the connection knows it."""
    assert write_commit("b", PLAIN, JSON) == {
        "board": "b",
        "id": {"lane": 3, "incarnation": "i", "step": 7},
        "epoch": "e",
        "ops": [{"kind": "put", "key": "public/a", "value": {"b": b"x"}}],
    }


def test_values_are_opaque_in_msgpack() -> None:
    """They travel as the bytes that they are already."""
    (op,) = write_commit("b", PLAIN, MSGPACK)["ops"]
    assert op["value"] == encode_value({"b": b"x"})
