"""How the board records whose work something is."""

import msgpack
import pytest

from blackboard.core.commit import (
    Commit,
    CommitId,
    Put,
    account_of,
    name_of,
    narrowed_from,
    signature,
)
from blackboard.errors import RemoteProtocolError
from blackboard.wire import answers
from blackboard.wire.answers import EntryMessage, ReadingMessage
from blackboard.wire.codec import decode_entry, encode_results, prepare
from blackboard.wire.frames import JSON
from tests.unit.core.trial import packed


@pytest.mark.parametrize(
    ("name", "account", "signed", "told"),
    [
        ("buyer", "buyer", "buyer", ""),
        ("buyer", "", "buyer", ""),
        ("buyer.me", "", "buyer.me", ""),
        ("buyer.me", "buyer.me", "buyer.me", ""),
        ("buyer.me", "buyer", "buyer@me", "buyer"),
        ("buyer.me.x", "buyer", "buyer@me.x", "buyer"),
        ("buyer.me.x", "buyer.me", "buyer.me@x", "buyer.me"),
    ],
)
def test_a_signature_tells_name_and_account(
    name: str, account: str, signed: str, told: str
) -> None:
    """It is as long as the name, so that no bound depends on it."""
    assert signature(name, account) == signed
    assert (name_of(signed), narrowed_from(signed)) == (name, told)
    assert account_of(signed) == (told or name)
    assert len(signed) == len(name)


def _commit(account: str) -> Commit:
    return Commit(
        CommitId("buyer.me", 0, "i", 1), "e", (Put("public/a", packed(1)),), account=account
    )


@pytest.mark.parametrize("account", ["", "buyer"])
def test_the_log_keeps_the_account(account: str) -> None:
    """In the bytes that the digest covers."""
    made = prepare(_commit(account))
    entry = decode_entry(7, 1, made.body, (), encode_results((None,)))
    assert (entry.author, entry.account, entry.signed) == (
        "buyer.me",
        account,
        "buyer@me" if account else "buyer.me",
    )
    assert entry.digest == made.digest
    assert (prepare(_commit("buyer")).digest != prepare(_commit("")).digest) is True


def test_what_was_logged_before_there_were_accounts() -> None:
    """A name alone: whose token it was, nobody recorded."""
    body = msgpack.packb(["buyer.me", 0, "i", 1, [], "", [["d", "public/a"]]], use_bin_type=False)
    entry = decode_entry(7, 1, body, (), encode_results((1,)))
    assert (entry.author, entry.account, entry.signed) == ("buyer.me", "", "buyer.me")


TOLD = {
    "key": "public/a",
    "value": 1,
    "mod_revision": 1,
    "create_revision": 1,
    "author": "buyer.me",
    "time_ms": 1,
}


def test_a_service_that_tells_no_account() -> None:
    """One of before."""
    assert answers.read(EntryMessage, TOLD, JSON).author == "buyer.me"
    told = answers.read(EntryMessage, {**TOLD, "account": "buyer"}, JSON)
    assert told.author == "buyer@me"
    assert answers.write(EntryMessage, told, JSON) == {**TOLD, "account": "buyer"}


@pytest.mark.parametrize("account", ["buy", "buyer.me", "buyer.me.x", "bob", 5])
def test_an_account_that_cannot_be(account: object) -> None:
    message = {"revision": 1, "epoch": "e", "entries": [{**TOLD, "account": account}]}
    with pytest.raises(RemoteProtocolError):
        answers.read(ReadingMessage, message, JSON)
