"""Rules of what one account may have of a board that others need too."""

import pytest
from msgspec.structs import replace

from blackboard import limits
from blackboard.core.commit import RESTORE, Delete, Epoch, Expire, Grant, Op, Put, Release, Renew
from blackboard.core.model import Outcome
from blackboard.core.path import identity_key
from blackboard.engines.base import Store
from blackboard.errors import LimitExceeded
from tests.conformance.rules_commit import lower_limit, refused_fields
from tests.conformance.writer import Writer, packed

HOUR_MS = 3_600_000
ENDED_MS = 0
LOCK = "public/lock"


def refusal(limit: str, value: int, maximum: int, account: str) -> dict[str, object]:
    """The fields of a refusal because of one account's share, without where."""
    return {"limit": limit, "value": value, "maximum": maximum, "account": account}


def told(outcome: object) -> dict[str, object]:
    """The fields of a refusal, without where."""
    found = refused_fields(outcome)
    del found["where"]
    return found


async def attempt_as(writer: Writer, account: str, *ops: Op) -> Outcome:
    """The next step of a writer whose name is narrowed from that of `account`."""
    return await writer.send(replace(writer.make(*ops), account=account))


def grants(count: int, holder: str, prefix: str = "public/l", ttl_ms: int = HOUR_MS) -> list[Op]:
    """Grants of so many leases."""
    return [Grant(f"{prefix}{number}", holder, ttl_ms) for number in range(count)]


class ShareRules:
    """No account takes what there is of a board: others keep room, and the refusal names the
    account."""

    async def test_an_account_takes_its_share_of_the_leases_and_others_the_rest(
        self, store: Store, board: str
    ) -> None:
        """At the real size, in as many commits as it takes."""
        mallory, ann = [await Writer.open(store, board, name) for name in ("mallory", "ann")]
        share = limits.LEASES_PER_ACCOUNT_MAX
        for start in range(0, share, 1024):
            await mallory.commit(*grants(1024, "mallory", f"public/{start}-"))
        refused = await mallory.attempt(Grant("public/more", "mallory", HOUR_MS))
        expected = refusal("LEASES_PER_ACCOUNT_MAX", share + 1, share, "mallory")
        assert refused_fields(refused) == expected | {"where": "public/more"}
        await ann.commit(Grant(identity_key("ann"), "ann", HOUR_MS))
        await ann.commit(*grants(limits.LEASES_ORDINARY_MAX - share, "ann"))
        await mallory.commit(Release("public/0-0", "mallory", 1))
        await mallory.commit(Grant("public/x", "mallory", HOUR_MS))

    async def test_room_is_kept_for_identities(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lower_limit(monkeypatch, "LEASES_ORDINARY_MAX", 2)
        lower_limit(monkeypatch, "LEASES_MAX", 4)
        ada, bob, cyd = [await Writer.open(store, board, name) for name in ("ada", "bob", "cyd")]
        await ada.commit(Grant(identity_key("ada"), "ada", HOUR_MS))
        await bob.commit(*grants(2, "bob"))
        refused = await cyd.attempt(Grant("public/more", "cyd", HOUR_MS))
        assert refused_fields(refused) == {
            "limit": "LEASES_ORDINARY_MAX",
            "value": 3,
            "maximum": 2,
            "where": "public/more",
            "account": None,
        }
        await cyd.commit(Grant(identity_key("cyd"), "cyd", HOUR_MS))
        refused = await bob.attempt(Grant(identity_key("bob"), "bob", HOUR_MS))
        assert refused_fields(refused)["limit"] == "LEASES_MAX"
        await ada.commit(Release(identity_key("ada"), "ada", 1))
        await bob.commit(Grant(identity_key("bob"), "bob", HOUR_MS))

    async def test_names_that_were_narrowed_draw_on_one_account(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lower_limit(monkeypatch, "LEASES_PER_ACCOUNT_MAX", 2)
        one, two = [await Writer.open(store, board, name) for name in ("buyer.a", "buyer.b")]
        await attempt_as(one, "buyer", Grant("public/l1", "buyer.a", HOUR_MS))
        await attempt_as(two, "buyer", Grant("public/l2", "buyer.b", HOUR_MS))
        refused = await attempt_as(two, "buyer", Grant("public/l3", "buyer.b", HOUR_MS))
        assert told(refused) == refusal("LEASES_PER_ACCOUNT_MAX", 3, 2, "buyer")
        await two.commit(Grant("public/l3", "buyer.b", HOUR_MS))  # an account of that name

    async def test_who_waits_has_a_share_of_the_queue(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lower_limit(monkeypatch, "LEASE_WAITERS_PER_ACCOUNT_MAX", 1)
        ada, bob = [await Writer.open(store, board, name) for name in ("ada", "bob")]
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        await ada.commit(Grant(LOCK, "ada~1", HOUR_MS, wait=True))
        refused = await ada.attempt(Grant(LOCK, "ada~2", HOUR_MS, wait=True))
        assert told(refused) == refusal("LEASE_WAITERS_PER_ACCOUNT_MAX", 2, 1, "ada")
        await bob.commit(Grant(LOCK, "bob", HOUR_MS, wait=True))

    async def test_a_place_in_a_queue_counts_and_goes_on_counting_as_a_lease(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lower_limit(monkeypatch, "LEASES_PER_ACCOUNT_MAX", 1)
        ada, bob = [await Writer.open(store, board, name) for name in ("ada", "bob")]
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        await bob.commit(Grant(LOCK, "bob", HOUR_MS, wait=True))
        more = Grant("public/more", "bob", HOUR_MS)
        assert told(await bob.attempt(more))["account"] == "bob"
        await ada.commit(Release(LOCK, "ada", 1))
        assert told(await bob.attempt(more))["account"] == "bob"
        [lease] = (await store.leases(board)).leases
        assert (lease.holder, lease.account) == ("bob", "bob")
        await ada.commit(more)

    async def test_what_ends_or_is_renewed_is_counted_right(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lower_limit(monkeypatch, "LEASES_PER_ACCOUNT_MAX", 2)
        ada, bob = [await Writer.open(store, board, name) for name in ("ada", "bob")]
        await ada.commit(Grant("public/l1", "ada", ENDED_MS), Grant("public/l2", "ada", HOUR_MS))
        await ada.commit(Renew("public/l2", "ada", 1, HOUR_MS))
        await ada.commit(Renew("public/l2", "ada", 1, 2 * HOUR_MS))
        assert isinstance(await ada.attempt(*grants(1, "ada")), LimitExceeded)
        await bob.commit(Expire("public/l1", "ada", 1))
        done = await ada.commit(Grant("public/l3", "ada", ENDED_MS))
        await bob.commit(Grant("public/l3", "bob", HOUR_MS))  # it had run out
        await ada.commit(Grant("public/l4", "ada", HOUR_MS))
        assert isinstance(await ada.attempt(*grants(1, "ada")), LimitExceeded)
        assert done.revision < (await store.open(board)).revision

    async def test_a_restore_frees_the_shares_of_leases(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lower_limit(monkeypatch, "LEASES_PER_ACCOUNT_MAX", 1)
        ada = await Writer.open(store, board)
        await ada.commit(Grant(identity_key("ada"), "ada", HOUR_MS))
        head = await store.open(board)
        begins = Epoch(head.epoch.number + 1, "again", RESTORE, 0, head.revision + 1)
        await ada.send(replace(ada.make(), begins=begins))
        ada.epoch = "again"
        await ada.commit(Grant(LOCK, "ada", HOUR_MS))
        assert isinstance(await ada.attempt(*grants(1, "ada")), LimitExceeded)

    @pytest.mark.parametrize("what", ["KEYS", "BYTES"])
    async def test_messages_of_an_account_take_its_share_of_the_inboxes(
        self, store: Store, board: str, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Until they are taken; others send on."""
        mallory, ann, bob = [await Writer.open(store, board, n) for n in ("mallory", "ann", "bob")]
        first, other = "inbox/bob/m1", "inbox/cyd/m1"
        size = len(first) + len(packed("x" * 100))
        maximum = 2 if what == "KEYS" else 2 * size
        limit = f"ACCOUNT_INBOX_{what}_MAX"
        lower_limit(monkeypatch, limit, maximum)
        await mallory.commit(Put(first, packed("x" * 100)), Put(other, packed("x" * 100)))
        message = Put("inbox/bob/m2", packed("x" * 100))
        used = 3 if what == "KEYS" else 3 * size
        expected = refusal(limit, used, maximum, "mallory")
        assert told(await mallory.attempt(message)) == expected
        await mallory.commit(Put("public/x", packed("x" * 100)))
        await ann.commit(Put("inbox/bob/m3", packed("x" * 100)))
        await bob.commit(Delete(first))
        await mallory.commit(message)

    @pytest.mark.parametrize("what", ["KEYS", "BYTES"])
    async def test_an_account_fills_no_board(
        self, store: Store, board: str, what: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What it overwrites becomes its own, what others overwrite theirs."""
        ada, bob = [await Writer.open(store, board, name) for name in ("ada", "bob")]
        one = packed("x" * 100)
        size = len("public/a") + len(one)
        limit, maximum = f"ACCOUNT_{what}_MAX", 2 if what == "KEYS" else 2 * size
        await bob.commit(Put("public/c", one))
        lower_limit(monkeypatch, limit, maximum)
        await ada.commit(Put("public/a", one), Put("public/b", one))
        used = 3 if what == "KEYS" else 3 * size
        for key in ("public/c", "public/d"):
            refused = await ada.attempt(Put(key, one))
            assert told(refused) == refusal(limit, used, maximum, "ada")
        await bob.commit(Put("public/a", one))
        await ada.commit(Put("public/d", one))
        assert isinstance(await bob.attempt(Put("public/b", one)), LimitExceeded)
        await ada.commit(Put("public/d", packed("y" * 100)), Delete("public/c"))
        await bob.commit(Put("public/b", one))

    async def test_the_service_itself_has_no_share(
        self, store: Store, board: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lower_limit(monkeypatch, "ACCOUNT_KEYS_MAX", 0)
        service = await Writer.open(store, board, "~system")
        await service.commit(Put("system/x", packed(1)))
