"""Sealed values: they open where they were sealed, as they were, and nowhere else."""

import secrets
from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, strategies as st

from blackboard.core.commit import CommitId
from blackboard.errors import Corrupt
from blackboard.integrity.digest_check import Opened, sealed_form
from blackboard.integrity.envelope import (
    APPEND,
    KEY_BYTES,
    KEY_ID_BYTES,
    PUT,
    Header,
    header_of,
    is_sealed,
    open_sealed,
    seal,
)
from blackboard.wire.codec import decode_value, encode_value

KEY = "private/ada/notes/1"
CIPHER = AESGCM(secrets.token_bytes(KEY_BYTES))
HEADER = Header(secrets.token_bytes(KEY_ID_BYTES), PUT, CommitId("ada", 3, "inc", 7))
VALUE = encode_value({"secret": "canary"})


@given(st.binary(max_size=300))
def test_what_was_sealed_opens_as_it_was(value: bytes) -> None:
    """And does not show before."""
    sealed = seal(CIPHER, HEADER, KEY, value)
    assert is_sealed(sealed)
    assert header_of(sealed, KEY) == HEADER
    assert open_sealed(CIPHER, HEADER, KEY, sealed) == value
    assert len(value) < 16 or value not in sealed


def test_the_same_value_is_sealed_differently_each_time() -> None:
    """A nonce is used once."""
    assert len({seal(CIPHER, HEADER, KEY, VALUE) for _ in range(100)}) == 100


def test_an_appended_item_is_bound_to_its_list() -> None:
    """Its index is not known when it is sealed."""
    header = replace(HEADER, kind=APPEND)
    sealed = seal(CIPHER, header, "inbox/ada/messages", VALUE)
    assert open_sealed(CIPHER, header, "inbox/ada/messages/0000000007", sealed) == VALUE
    for other in ("inbox/ada/other/0000000007", "inbox/ada/messages", "inbox/bob/messages/1"):
        with pytest.raises(Corrupt):
            open_sealed(CIPHER, header, other, sealed)


@pytest.mark.parametrize("key", ["private/ada/notes/2", "private/bob/notes/1", "public/notes/1"])
def test_a_value_that_was_moved_does_not_open(key: str) -> None:
    """To another key, another agent, into the open."""
    sealed = seal(CIPHER, HEADER, KEY, VALUE)
    with pytest.raises(Corrupt, match="not what was sealed there"):
        open_sealed(CIPHER, HEADER, key, sealed)


def test_a_value_of_another_commit_does_not_pass_for_this_one() -> None:
    """The commit's id is written beside it and bound to it."""
    sealed = seal(CIPHER, HEADER, KEY, VALUE)
    other = seal(CIPHER, replace(HEADER, commit=CommitId("ada", 3, "inc", 8)), KEY, VALUE)
    end = len(sealed) - len(VALUE) - 28
    with pytest.raises(Corrupt):
        open_sealed(CIPHER, HEADER, KEY, other[:end] + sealed[end:])


def test_no_byte_of_a_sealed_value_can_be_changed() -> None:
    """Each byte flipped, and each truncation: Corrupt, whatever the header then says."""
    sealed = seal(CIPHER, HEADER, KEY, VALUE)
    for place in range(len(sealed)):
        flipped = sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]
        for damaged in (flipped, sealed[:place]):
            if is_sealed(damaged):
                with pytest.raises(Corrupt):
                    open_sealed(CIPHER, header_of(damaged, KEY), KEY, damaged)


@given(st.binary(max_size=200))
def test_any_bytes_are_a_sealed_value_or_corrupt(junk: bytes) -> None:
    """Nothing else is raised."""
    damaged = b"\xc1\x01" + junk
    with pytest.raises(Corrupt):
        open_sealed(CIPHER, header_of(damaged, KEY), KEY, damaged)


def test_no_plain_value_is_taken_for_a_sealed_one() -> None:
    """Its first byte begins no msgpack value; without its key a sealed value is no value."""
    sealed = seal(CIPHER, HEADER, KEY, VALUE)
    with pytest.raises(Corrupt):
        decode_value(sealed)
    plain: tuple[object, ...] = (
        None,
        True,
        0,
        -1,
        2**63,
        1.5,
        "x",
        b"\xc1\x01",
        [],
        {},
        "x" * 70_000,
    )
    for value in plain:
        assert not is_sealed(encode_value(value))


def test_an_opened_value_knows_how_it_is_sealed() -> None:
    """So that what is put back is the same ciphertext; two are equal if that is."""
    one, two = (seal(CIPHER, HEADER, KEY, VALUE) for _ in range(2))
    opened = Opened.of(VALUE, one)
    assert opened == VALUE
    assert decode_value(opened) == {"secret": "canary"}
    assert sealed_form(opened) == one
    assert sealed_form(VALUE) == VALUE
    assert opened == Opened.of(VALUE, one)
    assert opened != Opened.of(VALUE, two)
    assert len({opened, VALUE}) == 1
