"""Tokens: what was signed comes back, and nothing else is a token."""

import base64
import json
import time
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blackboard.errors import InvalidRequest, LimitExceeded, Unauthenticated
from blackboard.net.tokens import AUDIENCE, check_secret, issue, new_secret, verify
from blackboard.service.access import Grant, Principal, Right, agent, operator
from blackboard.wire.parts import TOKEN_BYTES_MAX

SECRET = new_secret()
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    "principal",
    [
        operator(),
        agent("ada"),
        Principal("guest", ()),
        Principal("one", (Grant("public/**", frozenset({Right.READ})),), frozenset({"a", "b"})),
    ],
    ids=lambda principal: principal.name,
)
def test_a_principal_survives_its_token(principal: Principal) -> None:
    """Name, grants, boards and the right to act for others; and it expires in time."""
    before_ms = time.time_ns() // 1_000_000
    found = verify(SECRET, issue(SECRET, principal, HOUR_MS))
    assert found.expires_at_ms is not None
    assert before_ms - 1000 <= found.expires_at_ms - HOUR_MS <= before_ms + 10_000
    assert (found.name, found.grants, found.boards, found.acts_for_any) == (
        principal.name,
        principal.grants,
        principal.boards,
        principal.acts_for_any,
    )


def claims(changed: dict[str, Any]) -> dict[str, Any]:
    """The claims of a valid token, with some changed."""
    now_s = int(time.time())
    plain = {
        "sub": "ada",
        "aud": AUDIENCE,
        "iat": now_s,
        "exp": now_s + 60,
        "grants": [["public/**", ["read"]]],
        "boards": [],
        "acts_for_any": False,
    }
    return {**plain, **changed}


def test_the_plain_claims_are_a_token() -> None:
    """So that the tests below fail for their own reason."""
    token = jwt.encode(claims({}), SECRET, algorithm="HS256")
    assert verify(SECRET, token).name == "ada"


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": int(time.time()) - 1},
        {"iat": int(time.time()) + 3600},
        {"aud": "another"},
        {"aud": None},
        {"sub": "a/b"},
        {"sub": 7},
        {"grants": None},
        {"grants": [["public/**", ["everything"]]]},
        {"grants": [["public/**"]]},
        {"grants": [["not a pattern", ["read"]]]},
        {"grants": [["public/**", ["read"]]] * 65},
        {"boards": ["a/b"]},
        {"boards": 7},
    ],
)
def test_claims_that_are_not_ours_are_refused(changed: dict[str, Any]) -> None:
    """Expired, not begun, for somebody else, of another version: even with the right signature."""
    token = jwt.encode(claims(changed), SECRET, algorithm="HS256")
    with pytest.raises(Unauthenticated):
        verify(SECRET, token)


@pytest.mark.parametrize(
    "missing", ["sub", "aud", "iat", "exp", "grants", "boards", "acts_for_any"]
)
def test_no_claim_may_be_missing(missing: str) -> None:
    """A token without expiry would be for ever, one without grants would be a guess."""
    found = claims({})
    del found[missing]
    with pytest.raises(Unauthenticated):
        verify(SECRET, jwt.encode(found, SECRET, algorithm="HS256"))


@pytest.mark.parametrize("algorithm", ["none", "HS384", "HS512"])
def test_there_is_one_algorithm(algorithm: str) -> None:
    """The token does not choose how it is checked."""
    token = jwt.encode(claims({}), SECRET * 2 if algorithm != "none" else "", algorithm=algorithm)
    with pytest.raises(Unauthenticated):
        verify(SECRET * 2, token)


def test_another_secret_does_not_do() -> None:
    """Nor does a token without its signature."""
    token = issue(SECRET, agent("ada"), HOUR_MS)
    for wrong in (token[: token.rindex(".") + 1], token + "x", "", "a.b.c", "x" * 10_000):
        with pytest.raises(Unauthenticated):
            verify(SECRET, wrong)
    with pytest.raises(Unauthenticated):
        verify(new_secret(), token)


def test_rights_cannot_be_added() -> None:
    """The claims are readable, and signed."""
    head, body, signature = issue(SECRET, agent("ada"), HOUR_MS).split(".")
    found = json.loads(base64.urlsafe_b64decode(body + "=="))
    found["acts_for_any"] = True
    forged = base64.urlsafe_b64encode(json.dumps(found).encode()).decode().rstrip("=")
    with pytest.raises(Unauthenticated):
        verify(SECRET, f"{head}.{forged}.{signature}")


@given(token=st.text(max_size=200) | st.binary(max_size=100).map(lambda b: b.hex()))
def test_any_text_is_a_token_or_refused(token: str) -> None:
    """With nothing but Unauthenticated, whose reason does not repeat it."""
    with pytest.raises(Unauthenticated) as caught:
        verify(SECRET, token)
    assert len(token) < 8 or token not in str(caught.value)


def test_a_secret_is_long_enough_or_refused_without_being_shown() -> None:
    """32 bytes are enough, 31 are not."""
    assert check_secret("s" * 32) == "s" * 32
    assert len(new_secret()) == 64
    for use in (check_secret, lambda secret: issue(secret, operator(), HOUR_MS)):
        with pytest.raises(InvalidRequest, match="secret") as caught:
            use("k3y" * 10)
        assert "k3y" not in str(caught.value)


def test_a_token_that_would_be_too_long_is_not_issued() -> None:
    """It would not pass as a header."""
    grants = tuple(Grant(f"public/{'x' * 120}/{n}/**", frozenset({Right.READ})) for n in range(60))
    with pytest.raises(LimitExceeded) as caught:
        issue(SECRET, Principal("ada", grants), HOUR_MS)
    assert caught.value.maximum == TOKEN_BYTES_MAX


def test_a_name_that_is_none_gets_no_token() -> None:
    """It could not be verified either."""
    with pytest.raises(InvalidRequest):
        issue(SECRET, Principal("a/b", ()), HOUR_MS)
