"""What is put back of the service's own boards after a loss, beside what was recorded since."""

from blackboard.core.access import ACCESS_BOARD
from blackboard.core.commit import Entry, PutBack
from blackboard.server.security.own_boards import merged
from blackboard.wire.codec import encode_value

NOW_MS = 1_000_000
NAME, TOKEN, OVER = ("system/revoked/principals/kim", "system/revoked/t1", "system/revoked/t2")


def record(key: str, before_ms: int, until_ms: int = 2 * NOW_MS) -> Entry:
    """A revocation, as it is stored."""
    value = encode_value({"before_ms": before_ms, "until_ms": until_ms})
    return Entry(key, value, 1, 1, "~system", before_ms)


def test_a_revocation_since_the_loss_is_not_replaced_by_the_one_before() -> None:
    """It would give back the tokens that were issued between the two."""
    then = {one.key: one for one in (record(NAME, 1), record(TOKEN, 1), record(OVER, 1, NOW_MS))}
    now = {NAME: record(NAME, 500)}
    [put_back] = merged(ACCESS_BOARD, then, now, NOW_MS)
    assert put_back == PutBack(TOKEN, then[TOKEN].value, None)
