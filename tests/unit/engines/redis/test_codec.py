"""Commits as arguments of the script, and its replies as outcomes."""

import re

import msgpack
import pytest
from msgspec.structs import replace

from blackboard import limits
from blackboard.core.commit import Commit, CommitId, Committed, Increment, Op, Put
from blackboard.core.model import Outcome
from blackboard.engines.redis.codec import (
    _REFUSALS,
    as_retry,
    commit_arguments,
    in_doubt,
    read_outcomes,
    unknown,
)
from blackboard.engines.redis.lua import COMMIT
from blackboard.errors import (
    BoardFrozen,
    Conflict,
    Corrupt,
    HeadMoved,
    InvalidRequest,
    LeaseHeld,
    OutcomeUnknown,
    SnapshotFirst,
    StaleEpoch,
    StepSuperseded,
    Unavailable,
)
from blackboard.wire.codec import encode_results, prepare
from tests.conformance.writer import packed

EPOCH = msgpack.packb([3, "e3", "restore", 5, 9])


def make_commit(*ops: Op) -> Commit:
    """A commit of some writer."""
    return Commit(CommitId("ada", 0, "i1", 7), "e2", ops)


def test_every_refusal_of_the_script_has_a_reader_and_no_other_exists() -> None:
    """The codes are said twice: here and in Lua."""
    said = {code.encode() for code in re.findall(r"refuse\('(\w+)'", COMMIT.text)}
    assert said | {b"malformed"} == set(_REFUSALS)


def test_every_limit_that_the_script_names_is_sent() -> None:
    """An absent one would be nil there, and the comparison an error."""
    sent = msgpack.unpackb(commit_arguments([])[0])
    named = set(re.findall(r"LIMIT\.(\w+)", COMMIT.text))
    named |= set(re.findall(r"'([A-Z]\w+_MAX)'", COMMIT.text))
    kinds = set(re.findall(r"kind(?:, \w+)* = '([A-Z_]+)'", COMMIT.text))
    named |= {f"{kind}_{what}_MAX" for kind in kinds for what in ("KEYS", "BYTES")}
    assert named == set(sent)
    assert sent["OPERATIONS_MAX"] == limits.OPERATIONS_MAX


def test_large_values_follow_their_commit() -> None:
    """The second argument says how many each has."""
    large = prepare(make_commit(Put("public/a", packed(b"x" * 3000)), Put("public/b", b"\x01")))
    small = prepare(make_commit(Put("public/b", b"\x01")))
    arguments = commit_arguments([large, small])
    assert msgpack.unpackb(arguments[1]) == [1, 0]
    assert arguments[2:] == [
        "",
        *(large.control, large.body, large.large[0]),
        *(small.control, small.body),
    ]


def test_a_retry_says_what_was_known_before_the_first_attempt() -> None:
    """Unless the caller knows better; its identity and digest stay."""
    first = prepare(make_commit(Put("public/b", b"\x01")))
    again = as_retry(first, 41)
    assert msgpack.unpackb(again.control)[1] == 41
    assert (again.body, again.digest, again.commit.id) == (
        first.body,
        first.digest,
        first.commit.id,
    )
    assert as_retry(again, 99) is again


def test_a_retry_of_what_may_have_come_late_goes_by_what_its_writer_knew() -> None:
    """Not by what this process has seen since."""
    first = prepare(replace(make_commit(Put("public/b", b"\x01")), known=7))
    assert msgpack.unpackb(as_retry(first, 41).control)[1] == 7


def test_outcomes_are_read_in_order() -> None:
    """With results if there are any."""
    batch = [prepare(make_commit(Put("public/b", b"\x01"), Increment("public/n", 1)))] * 4
    results = encode_results([None, 5])
    outcomes = read_outcomes(
        batch,
        [12, 80, [1, 11, results], [1, 12], [2, 4, 66, results], [0, b"epoch", EPOCH, 12]],
    )
    assert outcomes[:3] == [
        Committed(11, 80, (None, 5)),
        Committed(12, 80, (None, None)),
        Committed(4, 66, (None, 5), duplicate=True),
    ]
    assert isinstance(outcomes[3], StaleEpoch)
    assert outcomes[3].fields() == {
        "yours": "e2",
        "current": "e3",
        "number": 3,
        "cause": "restore",
        "from_revision": 5,
        "head": 12,
    }


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (b"OOM command not allowed", Unavailable),
        (b"MISCONF cannot persist", Unavailable),
        (b"ERR The ID specified in XADD is equal or smaller than the top item", Corrupt),
    ],
)
def test_refusals_of_the_server_are_distinguished(reason: bytes, kind: type[Exception]) -> None:
    """A log that is ahead of the state is damage, everything else passes."""
    batch = [prepare(make_commit(Put("public/b", b"\x01")))]
    [outcome] = read_outcomes(batch, [12, 80, [0, b"engine", reason]])
    assert isinstance(outcome, kind)


def test_an_unknown_outcome_names_its_commit() -> None:
    """So that it can be asked for."""
    outcome = unknown(prepare(make_commit(Put("public/b", b"\x01"))), "why")
    assert isinstance(outcome, OutcomeUnknown)
    assert (outcome.agent, outcome.lane, outcome.incarnation, outcome.step) == ("ada", 0, "i1", 7)


@pytest.mark.parametrize(
    "refusal",
    [
        BoardFrozen("ada", "", 80, 5),
        Conflict("public/b", 0, 4),
        LeaseHeld("public/b", "bob", 4, 90),
        SnapshotFirst("ada", "private/ada/cut", 4),
        Unavailable("engine", "out of memory: only removals are accepted"),
    ],
)
def test_a_repeat_that_is_refused_is_unknown(refusal: Outcome) -> None:
    """The first attempt may arrive when the reason is gone."""
    outcome = in_doubt(prepare(make_commit(Put("public/b", b"\x01"))), refusal)
    assert isinstance(outcome, OutcomeUnknown)
    assert not outcome.final


@pytest.mark.parametrize(
    "outcome",
    [
        Committed(12, 80, (None,)),
        HeadMoved(4, 5),
        InvalidRequest("ops", "a commit needs at least one operation"),
        StaleEpoch("e1", "e2", 2, "engine", 5, 5),
        StepSuperseded("ada", 7, 8),
    ],
)
def test_an_outcome_that_the_first_attempt_cannot_change_is_no_doubt(outcome: Outcome) -> None:
    """The first attempt is answered alike, or changes nothing."""
    assert in_doubt(prepare(make_commit(Put("public/b", b"\x01"))), outcome) is outcome


def test_a_malformed_commit_is_an_invalid_request() -> None:
    """The script says why."""
    batch = [prepare(make_commit(Put("public/b", b"\x01")))]
    [outcome] = read_outcomes(batch, [12, 80, [0, b"malformed", b"Bad data format"]])
    assert isinstance(outcome, InvalidRequest)
