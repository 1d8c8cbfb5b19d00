"""What was revoked stays revoked, and what was audited stays on record, when an engine loses all.

The records lie in boards of the service's own. The archive has them too, and gives them back before
anybody is served.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis import Redis

from blackboard.archive.sql import SqlArchive
from blackboard.client.audit_record import AuditRecord
from blackboard.core import access
from blackboard.core.access import ACCESS_BOARD, AUDIT_BOARD, Credential, Principal
from blackboard.core.commit import Head
from blackboard.errors import Unauthenticated, Unavailable
from blackboard.server.security.audit import findings
from tests.guarantees.losses import Site
from tests.waiting import wait_until

HOUR_MS = 3_600_000


def token_of(name: str, number: str = "t1") -> Principal:
    """Somebody who came with a token."""
    principal = access.agent(name)
    credential = Credential(name, (number,), issued_at_ms=1_000)
    return Principal(principal.name, principal.grants, credential=credential)


async def is_refused(site: Site, principal: Principal) -> bool:
    """Whether the service refuses the token of a principal as revoked."""
    await site.service.host.revocations.ready()
    try:
        await site.service.link(principal).boards()
    except Unauthenticated:
        return True
    return False


async def revoke(site: Site, *tokens: str, principal: str | None = None) -> None:
    """Revoke, as an operator with a token does, so that it is in the audit."""
    root = Principal(
        "root", access.operator().grants, credential=Credential("root", ("r1",), 1_000)
    )
    await site.service.host.revocations.ready()
    await site.service.link(root).revoke(tokens=tokens, principal=principal)


async def audited(site: Site) -> list[AuditRecord]:
    """All that is on record."""
    link = site.service.link(access.operator())
    return [record for _, record in await link.audit(after=None, limit=100)]


async def settle(site: Site) -> None:
    """Wait until the audit is written, and all own boards are archived: a revocation that the
    archive is late for is in force, but only in the engine, as the log then says."""
    host = site.service.host
    await host.audit.settle()
    assert host.archiver is not None
    for board in (ACCESS_BOARD, AUDIT_BOARD):
        head: Head = await host.store.open(board)
        await host.archiver.reached(board, head.revision, timeout_ms=60_000)


def lose_all(site: Site) -> None:
    """Take everything from the engine of a service that is stopped, or serves over Redis."""
    if site.url is not None:
        with Redis.from_url(site.url) as server:
            server.flushall()
        return
    for file in (site.directory / "data" / "boards").iterdir():
        file.unlink()


async def restart(site: Site) -> None:
    """A service that finds nothing in its engine."""
    await site.stop()
    lose_all(site)
    await site.start()


class KeptRules:
    """What holds after the loss of everything that an engine had."""

    @pytest.fixture
    def site(self) -> Site:
        """A service with an archive."""
        raise NotImplementedError

    async def test_revoked_tokens_stay_revoked(self, site: Site) -> None:
        """Whatever was revoked, by id or by name, through one total loss after the other."""
        ada, bob, cyd = token_of("ada"), token_of("bob", "t2"), token_of("cyd", "t3")
        await site.board().put("public/x", 1)
        await revoke(site, "t1")
        await revoke(site, principal="bob")
        await settle(site)
        for _ in range(2):
            await restart(site)
            assert [await is_refused(site, who) for who in (ada, bob, cyd)] == [True, True, False]
        await revoke(site, "t3")
        await settle(site)
        await restart(site)
        assert [await is_refused(site, who) for who in (ada, bob, cyd)] == [True, True, True]

    async def test_what_was_audited_stays_on_record(self, site: Site) -> None:
        """In its order and with its chain whole; what is recorded afterwards comes behind it."""
        for number in range(3):
            await revoke(site, f"t{number}")
        await settle(site)
        before = await audited(site)
        assert [record.what for record in before] == ["t0", "t1", "t2"]
        await restart(site)
        assert await audited(site) == before
        await revoke(site, "t9")
        await settle(site)
        after = await audited(site)
        assert (after[:3], after[3].what) == (before, "t9")
        assert findings(after) == []
        await restart(site)
        assert await audited(site) == after

    async def test_an_engine_that_has_all_is_left_alone(self, site: Site) -> None:
        """A start that finds nothing lost writes nothing."""
        await revoke(site, "t1")
        await settle(site)
        heads = []
        for _ in range(2):
            await site.stop()
            await site.start()
            store = site.service.host.store
            heads.append([(await store.open(board)).epoch for board in (ACCESS_BOARD, AUDIT_BOARD)])
        assert {epoch.cause for epoch in heads[1]} == {epoch.cause for epoch in heads[0]}
        assert await is_refused(site, token_of("ada"))


class TestEmbedded(KeptRules):
    """Over the embedded engine, whose files are gone."""

    @pytest.fixture
    async def site(self, tmp_path: Path) -> AsyncIterator[Site]:
        """A service with an archive."""
        async with Site(tmp_path / "site") as site:
            yield site


class TestRedis(KeptRules):
    """Over Redis, which was emptied."""

    @pytest.fixture
    async def site(self, tmp_path: Path, redis_url: str) -> AsyncIterator[Site]:
        """A service with an archive."""
        async with Site(tmp_path / "site", redis_url) as site:
            yield site


async def let_in(site: Site) -> bool:
    """Whether tokens count."""
    return not site.service.host.revocations.is_held_back


class Away(SqlArchive):
    """An archive whose database cannot be asked about a board of the service's own."""

    is_away = True

    async def holds(self, board: str) -> bool:
        """As `Archive.holds`, once it is back."""
        if self.is_away and board.startswith("~"):
            raise Unavailable("archive", "it is away")
        return await super().holds(board)


async def test_no_token_counts_before_the_archive_was_asked(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And everyone is let in, or not, as soon as it is."""
    async with Site(tmp_path / "site") as first:
        await revoke(first, "t1")
        await settle(first)
        await first.stop()
        lose_all(first)
    async with Site(tmp_path / "site", archive=Away) as site:
        assert any("no token is accepted" in record.message for record in caplog.records)
        await site.service.host.revocations.ready()
        for who in (token_of("ada"), token_of("bob", "t2")):
            with pytest.raises(Unavailable, match="no token is accepted"):
                await site.service.link(who).boards()
        await site.board().put("public/x", 1)  # the operator needs no token
        Away.is_away = False
        try:
            await wait_until(lambda: let_in(site))
        finally:
            Away.is_away = True
        assert await is_refused(site, token_of("ada"))
        assert not await is_refused(site, token_of("bob", "t2"))


async def test_a_loss_while_it_serves_is_made_good(tmp_path: Path, redis_url: str) -> None:
    """What is revoked and recorded between the loss and the next look stays too."""
    async with Site(tmp_path / "site", redis_url) as site:
        await site.board().put("public/x", 1)
        for number in range(3):
            await revoke(site, f"t{number}")
        await settle(site)
        before = await audited(site)
        lose_all(site)
        with contextlib.suppress(Unavailable):  # the record has to be read again first
            await revoke(site, "t8")
        await revoke(site, "t9")
        await site.service.host.audit.settle()
        await site.stop()
        await site.start()
        for token in ("t0", "t1", "t2", "t9"):
            assert await is_refused(site, token_of("ada", token)), token
        after = await audited(site)
        assert after[:3] == before
        assert "t9" in [record.what for record in after[3:]]
