"""What a revocation ends: every token below the one that was revoked, made before or after it."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from blackboard.core import access
from blackboard.core.access import Narrowing, Principal, names_above, require_revoke
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import AccessDenied, Unauthenticated
from blackboard.integrity.tokens import attenuate, issue, new_secret, verify
from blackboard.limits import NARROWINGS_MAX
from blackboard.server.security.revocations import Revocations

SECRET = new_secret()
ROOTS = st.sampled_from(["alice", "alice.kid", "a"])
STEPS = st.lists(st.sampled_from(["", "kid", "x", "kid.x"]), max_size=NARROWINGS_MAX // 2)
"""What each narrowing adds to the name: nothing, a part, or two at once."""


@dataclass(frozen=True)
class Chain:
    """A token, each token that it was narrowed from, and who each of them is."""

    tokens: tuple[str, ...]

    @staticmethod
    def of(root: str, steps: Sequence[str]) -> "Chain":
        """Narrow a new token of `root` step by step."""
        return Chain((issue(SECRET, access.agent(root), 3_600_000),)).narrowed(steps)

    def narrowed(self, steps: Sequence[str]) -> "Chain":
        """The same, narrowed further; nobody is asked."""
        found = list(self.tokens)
        for step in steps:
            name = verify(SECRET, found[-1]).name
            to = Narrowing(name=f"{name}.{step}" if step else None)
            found.append(attenuate(found[-1], to))
        return Chain(tuple(found))

    @property
    def principals(self) -> list[Principal]:
        """Of each token, from the root on."""
        return [verify(SECRET, token) for token in self.tokens]


def is_revoked(revocations: Revocations, principal: Principal) -> bool:
    """Whether it is refused because of a revocation."""
    try:
        revocations.check(principal)
    except Unauthenticated as error:
        return "revoked" in error.reason
    return False


async def _refused(chain: Chain, tokens: Sequence[str], name: str | None) -> list[bool]:
    """Of each token of a chain, whether it is refused once those are revoked; by this process, and
    by another one that reads the record."""
    with tempfile.TemporaryDirectory() as folder:
        store = await SqliteStore.at(Path(folder), "memory")
        mine, other = Revocations(store), Revocations(store)
        try:
            await mine.ready()
            assert not any(is_revoked(mine, each) for each in chain.principals)
            await mine.revoke(tokens, name, None, by=access.operator())
            await other.ready()
            found = [is_revoked(mine, each) for each in chain.principals]
            assert found == [is_revoked(other, each) for each in chain.principals]
            return found
        finally:
            await mine.aclose()
            await other.aclose()
            await store.aclose()


@settings(max_examples=40, deadline=None)
@given(ROOTS, STEPS, STEPS, st.data())
def test_a_revoked_link_ends_every_extension(
    root: str, steps: list[str], more: list[str], data: st.DataObject
) -> None:
    """And nothing above it."""
    chain = Chain.of(root, steps).narrowed(more)
    place = data.draw(st.integers(0, len(steps)))
    credential = chain.principals[place].credential
    assert credential is not None
    refused = asyncio.run(_refused(chain, [credential.ids[-1]], None))
    assert refused == [False] * place + [True] * (len(chain.tokens) - place)


@settings(max_examples=40, deadline=None)
@given(ROOTS, STEPS, STEPS, st.data())
def test_a_revoked_name_ends_every_extension(
    root: str, steps: list[str], more: list[str], data: st.DataObject
) -> None:
    """Of any name in the chain, or that was left out between two of them; and nothing above it."""
    chain = Chain.of(root, steps).narrowed(more)
    name = data.draw(st.sampled_from(names_above(chain.principals[-1].name, root)))
    refused = asyncio.run(_refused(chain, [], name))
    assert refused == [
        each.name == name or each.name.startswith(name + ".") for each in chain.principals
    ]
    assert refused[-1]


@pytest.mark.parametrize("name", ["alice.ki", "kid", "alice.kid.x", "bob", "alic"])
async def test_a_name_that_is_not_above_ends_nothing(name: str) -> None:
    chain = Chain.of("alice", ["kid"])
    assert await _refused(chain, [], name) == [False, False]


async def test_a_name_with_a_dot_is_an_account_of_its_own() -> None:
    """Nothing was narrowed: it ends by its own name, not by what stands before the dot."""
    chain = Chain.of("alice.kid", [])
    assert await _refused(chain, [], "alice") == [False]
    assert await _refused(chain, [], "alice.kid") == [True]


@pytest.mark.parametrize(
    ("name", "account", "names"),
    [
        ("alice", "alice", ("alice",)),
        ("alice.kid.x", "alice", ("alice", "alice.kid", "alice.kid.x")),
        ("alice.kid.x", "alice.kid", ("alice.kid", "alice.kid.x")),
        ("alicekid", "alice", ("alicekid",)),
        ("bob", "operator", ("bob",)),
    ],
)
def test_the_names_above_one(name: str, account: str, names: tuple[str, ...]) -> None:
    assert names_above(name, account) == names


def test_only_what_was_not_narrowed_revokes_by_name() -> None:
    """Else a token with fewer rights, and the same name, ends the one that it was made from."""
    whole = Chain.of("alice", [])
    [alice] = whole.principals
    require_revoke(alice, (), "alice")
    read_only = Narrowing(grants=(access.parse_grant("public/a/**=read"),))
    for to in (Narrowing(), read_only, Narrowing(name="alice.kid")):
        token = attenuate(whole.tokens[0], to)
        holder = verify(SECRET, token)
        assert holder.credential is not None
        for name in ("alice", "alice.kid", holder.name):
            with pytest.raises(AccessDenied):
                require_revoke(holder, (), name)
        with pytest.raises(AccessDenied):
            require_revoke(holder, holder.credential.ids[:1], None)
        require_revoke(holder, holder.credential.ids[-1:], None)


def test_a_narrowed_operator_revokes_by_name_no_more() -> None:
    """It could end the operator; by id it may, as every admin."""
    token = attenuate(issue(SECRET, access.operator(), 3_600_000), Narrowing())
    holder = verify(SECRET, token)
    require_revoke(verify(SECRET, issue(SECRET, access.operator(), 60_000)), (), "anybody")
    require_revoke(holder, ("AAAAAAAAAAAAAAAA",), None)
    with pytest.raises(AccessDenied):
        require_revoke(holder, (), "operator")
