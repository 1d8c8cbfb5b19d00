"""Tokens: what was signed comes back, and nothing else is a token."""

import base64
import hmac
import json
import time
from typing import Any

import jwt
import pytest
from hypothesis import given, strategies as st

from blackboard.core.access import (
    AccessGrant,
    Narrowing,
    Principal,
    Right,
    agent,
    allows,
    covers,
    operator,
)
from blackboard.errors import InvalidRequest, LimitExceeded, Unauthenticated
from blackboard.integrity.tokens import (
    AUDIENCE,
    attenuate,
    check_secret,
    is_id,
    issue,
    key_id,
    new_secret,
    unverified,
    verify,
)
from blackboard.limits import NARROWINGS_MAX
from blackboard.wire.methods import TOKEN_BYTES_MAX

SECRET = new_secret()
HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    "principal",
    [
        operator(),
        agent("ada"),
        Principal("guest", ()),
        Principal(
            "one", (AccessGrant("public/**", frozenset({Right.READ})),), frozenset({"a", "b"})
        ),
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


FAR_FUTURE_S = 4_000_000_000
"""In 2096. An hour after the tests were collected has passed where all of them take longer."""


def claims(changed: dict[str, Any]) -> dict[str, Any]:
    """The claims of a valid token, with some changed."""
    now_s = int(time.time())
    plain = {
        "sub": "ada",
        "aud": AUDIENCE,
        "jti": "id",
        "iat": now_s,
        "exp": now_s + 60,
        "grants": [["public/**", ["read"]]],
        "boards": [],
        "acts_for_any": False,
    }
    return {**plain, **changed}


def signed(found: dict[str, Any], key: str = SECRET, algorithm: str = "HS256") -> str:
    """Claims as a token that names `key`."""
    headers = {"kid": key_id(key)}
    return jwt.encode(found, key if algorithm != "none" else "", algorithm, headers)


def test_the_plain_claims_are_a_token() -> None:
    """So that the tests below fail for their own reason."""
    token = signed(claims({}))
    assert verify(SECRET, token).name == "ada"


@pytest.mark.parametrize(
    "changed",
    [
        {"exp": int(time.time()) - 1},
        {"iat": FAR_FUTURE_S},
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
    token = signed(claims(changed))
    with pytest.raises(Unauthenticated):
        verify(SECRET, token)


def test_a_claim_of_a_newer_version_is_named() -> None:
    """It may narrow the rights, so a token with it is refused; likewise in a narrowing."""
    with pytest.raises(Unauthenticated, match=r"newer Blackboard.*'only_from'"):
        verify(SECRET, signed(claims({"only_from": "10.0.0.0/8"})))
    front, _, signature = issue(SECRET, agent("ada"), HOUR_MS).rpartition(".")
    said = json.dumps({"jti": "A" * 8, "only_from": "10.0.0.0/8"}).encode()
    link = base64.urlsafe_b64encode(said).decode().rstrip("=")
    key = base64.urlsafe_b64decode(signature + "==")
    last = base64.urlsafe_b64encode(hmac.digest(key, link.encode(), "sha256")).decode().rstrip("=")
    with pytest.raises(Unauthenticated, match=r"newer Blackboard.*'only_from'"):
        verify(SECRET, f"{front}~{link}~{last}")


@pytest.mark.parametrize(
    "missing", ["sub", "aud", "jti", "iat", "exp", "grants", "boards", "acts_for_any"]
)
def test_no_claim_may_be_missing(missing: str) -> None:
    """A token without expiry would be for ever, one without grants would be a guess."""
    found = claims({})
    del found[missing]
    with pytest.raises(Unauthenticated):
        verify(SECRET, signed(found))


@pytest.mark.parametrize("algorithm", ["none", "HS384", "HS512"])
def test_there_is_one_algorithm(algorithm: str) -> None:
    """The token does not choose how it is checked."""
    token = signed(claims({}), SECRET * 2, algorithm)
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
    grants = tuple(
        AccessGrant(f"public/{'x' * 120}/{n}/**", frozenset({Right.READ})) for n in range(60)
    )
    with pytest.raises(LimitExceeded) as caught:
        issue(SECRET, Principal("ada", grants), HOUR_MS)
    assert caught.value.maximum == TOKEN_BYTES_MAX


def test_a_name_that_is_none_gets_no_token() -> None:
    """It could not be verified either."""
    with pytest.raises(InvalidRequest):
        issue(SECRET, Principal("a/b", ()), HOUR_MS)


# --- keys and audiences ---------------------------------------------------------------------------


def test_a_key_is_changed_without_a_moment_at_which_nobody_gets_in() -> None:
    """The first key signs; the old one verifies until its line is taken out."""
    old, new = new_secret(), new_secret()
    both = f"{new}\n{old}"
    before, after = issue(old, agent("ada"), HOUR_MS), issue(both, agent("ada"), HOUR_MS)
    assert jwt.get_unverified_header(after)["kid"] == key_id(new)
    for token in (before, after):
        assert verify(both, token).name == "ada"
    assert verify(new, after).name == "ada"
    for secret, token in ((new, before), (old, after)):
        with pytest.raises(Unauthenticated):
            verify(secret, token)


def test_a_key_is_tried_only_for_tokens_that_name_it() -> None:
    """Signed with the right key under another name, or under none."""
    for headers in ({"kid": key_id(new_secret())}, {"kid": ""}, None):
        token = jwt.encode(claims({}), SECRET, "HS256", headers)
        with pytest.raises(Unauthenticated):
            verify(SECRET, token)


@pytest.mark.parametrize("secret", ["", "short\n" + "s" * 32, "s" * 32 + "\nshort"])
def test_every_key_of_a_secret_is_long_enough(secret: str) -> None:
    """Also those that only verify."""
    with pytest.raises(InvalidRequest):
        check_secret(secret)


def test_a_token_is_for_one_audience() -> None:
    """Two services with one secret do not share tokens unless configured to."""
    token = issue(SECRET, agent("ada"), HOUR_MS, audience="staging")
    assert verify(SECRET, token, audience="staging").name == "ada"
    for audience in (AUDIENCE, "production"):
        with pytest.raises(Unauthenticated):
            verify(SECRET, token, audience=audience)


# --- narrowing ------------------------------------------------------------------------------------

SEGMENT = st.sampled_from(["public", "private", "ada", "a", "*"])
PATTERN = st.builds(
    lambda segments, end: "/".join([*segments, *end]) or "**",
    st.lists(SEGMENT, max_size=3),
    st.sampled_from([[], ["**"]]),
)
GRANTS = st.lists(
    st.builds(AccessGrant, PATTERN, st.sets(st.sampled_from(Right)).map(frozenset)), max_size=4
).map(tuple)
KEY = st.lists(st.sampled_from(["public", "private", "ada", "a", "b"]), min_size=1, max_size=4).map(
    "/".join
)
BOARDS = st.sets(st.sampled_from(["x", "y"])).map(frozenset)
NARROWINGS = st.builds(
    Narrowing,
    st.sampled_from([None, "ada", "ada.helper", "ada.helper.two", "bob", "ada-two"]),
    st.none() | GRANTS,
    st.none() | BOARDS,
    st.none() | st.integers(0, 2**33).map(lambda s: s * 1000),
)


def may(principal: Principal) -> dict[str, object]:
    """What a principal may do, as values to compare."""
    return {"boards": principal.boards, "until": principal.expires_at_ms, "name": principal.name}


@given(GRANTS, BOARDS, st.lists(NARROWINGS, min_size=1, max_size=3), st.lists(KEY, min_size=5))
def test_a_token_can_only_be_narrowed(
    grants: tuple[AccessGrant, ...], boards: frozenset[str], steps: list[Narrowing], keys: list[str]
) -> None:
    """Whatever is asked for: it is refused, or what comes out allows nothing more, link by link."""
    token = issue(SECRET, Principal("ada", grants, boards, acts_for_any=True), HOUR_MS)
    for step in steps:
        try:
            before = verify(SECRET, token)
            token = attenuate(token, step)
            after = verify(SECRET, token)
        except (InvalidRequest, Unauthenticated):
            continue
        for key in keys:
            for right in Right:
                assert allows(after.grants, right, key) <= allows(before.grants, right, key)
        assert not after.acts_for_any
        assert not before.boards or (after.boards and after.boards <= before.boards)
        assert (after.expires_at_ms or 0) <= (before.expires_at_ms or 0)
        assert after.name == before.name or after.name.startswith(before.name + ".")
        assert unverified(token) == after


@given(PATTERN, PATTERN, st.lists(KEY, min_size=5))
def test_a_pattern_that_covers_another_matches_all_that_it_matches(
    outer: str, inner: str, keys: list[str]
) -> None:
    """Seen from the keys."""
    read = frozenset({Right.READ})
    if covers(outer, inner):
        for key in keys:
            narrow = allows((AccessGrant(inner, read),), Right.READ, key)
            assert narrow <= allows((AccessGrant(outer, read),), Right.READ, key)


@pytest.mark.parametrize(
    ("outer", "inner", "covered"),
    [
        ("**", "**", True),
        ("**", "public/*", True),
        ("public/**", "public/a/*/**", True),
        ("public/*", "public/a", True),
        ("public/*/**", "public/**", False),
        ("public/**", "**", False),
        ("public/a", "public/*", False),
        ("public/**", "public", False),
    ],
)
def test_what_covers_what(outer: str, inner: str, covered: bool) -> None:
    """So that not everything is refused."""
    assert covers(outer, inner) is covered


READ_NOTES = (AccessGrant("public/notes/**", frozenset({Right.READ})),)


def narrow_token() -> str:
    """A token of ada's helper that may read notes."""
    token = issue(SECRET, agent("ada"), HOUR_MS)
    return attenuate(token, Narrowing("ada.helper", READ_NOTES, frozenset({"x"})))


def test_a_narrowed_token_is_what_it_was_narrowed_to() -> None:
    """And says which tokens it comes from, so that it ends with them."""
    found = verify(SECRET, narrow_token())
    assert (found.name, found.grants, found.boards) == ("ada.helper", READ_NOTES, frozenset({"x"}))
    assert found.credential is not None
    assert (found.credential.subject, len(found.credential.ids)) == ("ada", 2)
    with pytest.raises(Unauthenticated):
        verify(new_secret(), narrow_token())


def test_a_link_cannot_be_taken_off_or_changed_or_exchanged() -> None:
    """The signature under it was never handed on."""
    signed_part, link, signature = narrow_token().split("~")
    other = narrow_token().split("~")[1]
    forged = [
        f"{signed_part}.{signature}",
        f"{signed_part}~{signature}",
        f"{signed_part}~{other}~{signature}",
        f"{signed_part}~{link}~{link}~{signature}",
        f"{signed_part}~{link}~",
        f"{signed_part}~{link}~{signature}=",
        f"{signed_part}~{link}",
    ]
    for token in forged:
        with pytest.raises(Unauthenticated):
            verify(SECRET, token)


def test_a_link_that_widens_is_refused_also_when_its_holder_signed_it() -> None:
    """The holder of a token can sign any link; only the service's check makes that harmless."""
    verify(SECRET, with_link(narrow_token(), {"jti": "A" * 8}))
    with pytest.raises(Unauthenticated):
        verify(SECRET, with_link(narrow_token(), {"jti": "A" * 8, "grants": [["**", ["admin"]]]}))


def with_link(token: str, link: dict[str, Any]) -> str:
    """A narrowed token with one more link, as any holder can write it."""
    *before, signature = token.split("~")
    text = base64.urlsafe_b64encode(json.dumps(link).encode()).decode().rstrip("=")
    key = base64.urlsafe_b64decode(signature + "==")
    mac = base64.urlsafe_b64encode(hmac.digest(key, text.encode(), "sha256")).decode().rstrip("=")
    return "~".join([*before, text, mac])


def test_a_link_cannot_take_the_id_of_another_token() -> None:
    """Its holder may revoke the id that it names: else it ends the tokens that it depends on."""
    boss = attenuate(issue(SECRET, operator(), HOUR_MS), Narrowing())
    issuer = verify(SECRET, boss)
    owner = issue(SECRET, agent("ada"), HOUR_MS, issuer=issuer)
    narrow = attenuate(attenuate(owner, Narrowing()), Narrowing(grants=READ_NOTES))
    found = verify(SECRET, narrow).credential
    assert found is not None
    assert issuer.credential is not None
    others = [
        *found.ids,
        *issuer.credential.ids,
        "A" * 16,
        "A" * 9,
        "",
        "~" * 8,
        8,
        None,
        ["A" * 8],
    ]
    for name in others:
        with pytest.raises(Unauthenticated):
            verify(SECRET, with_link(narrow, {"jti": name}))
    for name in ("A" * 8, "A" * 12):  # of the clients for Python and for JavaScript
        credential = verify(SECRET, with_link(narrow, {"jti": name})).credential
        assert credential is not None
        assert credential.ids == (*found.ids, name)
        assert is_id(name)


def test_a_token_is_narrowed_so_many_times_and_no_more() -> None:
    """At the edge."""
    token = issue(SECRET, agent("ada"), HOUR_MS)
    for _ in range(NARROWINGS_MAX):
        token = attenuate(token, Narrowing())
        assert verify(SECRET, token).grants == agent("ada").grants
    with pytest.raises(LimitExceeded, match="NARROWINGS_MAX"):
        attenuate(token, Narrowing())


def test_a_narrowed_token_runs_out_by_its_own_time() -> None:
    """Earlier than the one it comes from."""
    token = issue(SECRET, agent("ada"), HOUR_MS)
    past_ms = int(time.time() - 10) * 1000
    with pytest.raises(Unauthenticated, match="expired"):
        verify(SECRET, attenuate(token, Narrowing(expires_at_ms=past_ms)))


@pytest.mark.parametrize("hours", [(1, 2, 3), (3, 1, 2), (3, 2, 1)])
def test_a_narrowed_token_ends_with_the_first_of_those_it_comes_from(
    hours: tuple[int, ...],
) -> None:
    """However long a later narrowing asks for."""
    now_ms = int(time.time()) * 1000
    first, *later = (now_ms + hour * HOUR_MS for hour in hours)
    token = attenuate(issue(SECRET, agent("ada"), 9 * HOUR_MS), Narrowing(expires_at_ms=first))
    for end_ms in later:
        token = attenuate(token, Narrowing(expires_at_ms=end_ms))
    assert verify(SECRET, token).expires_at_ms == now_ms + HOUR_MS


def test_an_id_is_distinguished_from_what_is_none() -> None:
    """Those of tokens and narrowings are ids; other text, and the token itself, is not."""
    token = issue(SECRET, agent("ada"), HOUR_MS)
    for _ in range(NARROWINGS_MAX):
        token = attenuate(token, Narrowing())
    credential = unverified(token).credential
    assert credential is not None
    assert len(credential.ids) == NARROWINGS_MAX + 1
    assert all(map(is_id, credential.ids))
    first = credential.ids[0]
    for text in ("", "ada", token, first[:-1], f"{first}A", f"{first}\n", first[:-1] + "="):
        assert not is_id(text)


def test_a_token_of_the_future_is_named_so() -> None:
    """A clock that was set back is found by the reason, not taken for a foreign token."""
    with pytest.raises(Unauthenticated, match="issued in the future"):
        verify(SECRET, signed(claims({"iat": FAR_FUTURE_S})))
