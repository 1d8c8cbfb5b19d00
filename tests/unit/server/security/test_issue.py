"""Tokens that a service signs for an operator: `Client.token`."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import blackboard
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.core.access import Narrowing
from blackboard.errors import AccessDenied, InvalidRequest, LimitExceeded, Unauthenticated
from blackboard.integrity.tokens import attenuate, unverified, verify
from blackboard.limits import PATTERNS_MAX, TOKEN_TTL_MS, TOKEN_TTL_MS_MAX
from tests.serving import Served


def id_of(token: str) -> str:
    """The id of a token."""
    credential = unverified(token).credential
    assert credential is not None
    return credential.ids[-1]


@pytest.fixture
async def operator(served: Served) -> AsyncIterator[Client]:
    """A client of the operator."""
    async with blackboard.connect(served.url, token=served.token()) as client:
        yield client


async def test_an_issued_token_is_an_agents(served: Served, operator: Client) -> None:
    """It acts under its own name and account, with an agent's rights, for an hour."""
    token = await operator.token("kim")
    left_ms = (verify(served.secret, token).expires_at_ms or 0) - time.time() * 1000
    assert TOKEN_TTL_MS - 60_000 < left_ms <= TOKEN_TTL_MS
    async with blackboard.connect(served.url, token=token) as client:
        board = client.board()
        assert (board.agent, board.account) == ("kim", "kim")
        assert (await client.whoami()).grants == access.agent("kim").grants
        await board.put("private/kim/a", 1)
        with pytest.raises(AccessDenied):
            await board.put("private/bob/a", 1)
        with pytest.raises(AccessDenied):
            await client.token("bob")


async def test_it_has_the_grants_boards_and_time_that_were_asked_for(
    served: Served, operator: Client
) -> None:
    grants = ["public/a/**=read", "public/b/**=read,write"]
    token = await operator.token("kim", grants=grants, boards=["main", "side"], ttl_ms=5_000)
    found = verify(served.secret, token)
    assert found.grants == tuple(map(access.parse_grant, grants))
    assert found.boards == {"main", "side"}
    assert (found.expires_at_ms or 0) <= time.time() * 1000 + 5_000
    assert not found.acts_for_any


async def test_only_an_admin_of_everything_has_tokens_issued(served: Served) -> None:
    for principal in (access.agent("ada"), access.acting_as(access.operator(), "ada")):
        token = served.token(principal)
        async with blackboard.connect(served.url, token=token) as client:
            with pytest.raises(AccessDenied):
                await client.token("kim")


async def test_nobody_hands_on_more_than_they_have(served: Served) -> None:
    """An admin without a right issues no token with it."""
    root = access.Principal("root", (access.parse_grant("**=admin,read"),))
    async with blackboard.connect(served.url, token=served.token(root)) as client:
        with pytest.raises(InvalidRequest, match="more than the token at hand has"):
            await client.token("kim")
        token = await client.token("kim", grants=["public/**=read"])
    assert verify(served.secret, token).grants == (access.parse_grant("public/**=read"),)


@pytest.mark.parametrize("how", ["by id", "all of", "of the issuer's issuer"])
async def test_it_ends_with_the_token_of_its_issuer(
    served: Served, operator: Client, how: str
) -> None:
    """Also what was narrowed from it; a token of somebody else's stays."""
    root = served.token(access.operator("root"))
    async with blackboard.connect(served.url, token=root) as client:
        every = ["**=" + ",".join(access.Right)]
        middle = await client.token("middle", grants=every)
    async with blackboard.connect(served.url, token=middle) as client:
        token = await client.token("kim")
    narrow = attenuate(token, Narrowing("kim.helper"))
    stays = await operator.token("kim")
    revoked = {"by id": middle, "all of": middle, "of the issuer's issuer": root}[how]
    if how == "all of":
        await operator.revoke(principal="middle")
    else:
        await operator.revoke(id_of(revoked))
    for ended in (token, narrow):
        with pytest.raises(Unauthenticated, match="revoked"):
            async with blackboard.connect(served.url, token=ended):
                pass
    async with blackboard.connect(served.url, token=stays) as client:
        assert (await client.whoami()).name == "kim"


async def test_it_does_not_outlive_the_token_of_its_issuer(served: Served) -> None:
    """Else it would be valid again once the record of a revocation is not needed any more."""
    root = attenuate(served.token(), Narrowing(expires_at_ms=time.time_ns() // 1_000_000 + 90_000))
    every = ["**=" + ",".join(access.Right)]
    async with blackboard.connect(served.url, token=root) as client:
        middle = await client.token("middle", grants=every, ttl_ms=TOKEN_TTL_MS_MAX)
    async with blackboard.connect(served.url, token=middle) as client:
        token = await client.token("kim")
    root_ends_ms = verify(served.secret, root).expires_at_ms
    assert [verify(served.secret, one).expires_at_ms for one in (middle, token)] == [
        root_ends_ms,
        root_ends_ms,
    ]


async def test_it_can_be_revoked_alone(served: Served, operator: Client) -> None:
    token, other = await operator.token("kim"), await operator.token("kim")
    await operator.revoke(id_of(token))
    with pytest.raises(Unauthenticated, match="revoked"):
        async with blackboard.connect(served.url, token=token):
            pass
    async with blackboard.connect(served.url, token=other):
        pass


async def test_the_audit_names_the_issuer(operator: Client) -> None:
    token = await operator.token("kim")
    found = [record async for record in operator.audit() if record.verb == "issue"]
    assert [(one.principal, one.what, one.outcome) for one in found] == [("operator", "kim", "ok")]
    assert token not in str(found)


@pytest.mark.parametrize(
    ("name", "given", "field"),
    [
        ("~system", {}, "agent"),
        ("a/b", {}, "agent"),
        ("kim", {"grants": ["public/**"]}, "grant"),
        ("kim", {"grants": ["public/**=fly"]}, "grant"),
        ("kim", {"boards": ["a/b"]}, "board"),
        ("kim", {"ttl_ms": 0}, "ttl_ms"),
        ("kim", {"ttl_ms": TOKEN_TTL_MS_MAX + 1}, "ttl_ms"),
    ],
)
async def test_bad_requests_are_refused_by_field(
    operator: Client, name: str, given: dict[str, object], field: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        await operator.token(name, **given)  # type: ignore[arg-type]
    assert raised.value.field == field


async def test_the_longest_validity_and_the_most_grants(served: Served, operator: Client) -> None:
    token = await operator.token("kim", ttl_ms=TOKEN_TTL_MS_MAX)
    assert verify(served.secret, token).name == "kim"
    grants = [f"public/{number}/**=read" for number in range(PATTERNS_MAX)]
    assert len(verify(served.secret, await operator.token("kim", grants=grants)).grants) == 64
    with pytest.raises(LimitExceeded):
        await operator.token("kim", grants=[*grants, "public/x/**=read"])


async def test_a_client_without_a_service_that_signs_says_so(
    tmp_path: Path, served: Served
) -> None:
    async with blackboard.open(tmp_path / "data") as client:
        with pytest.raises(InvalidRequest, match="signs no tokens"):
            await client.token("kim")
    served.service.host.signer = None
    async with blackboard.connect(served.url, token=served.token()) as client:
        with pytest.raises(InvalidRequest, match="signs no tokens"):
            await client.token("kim")
