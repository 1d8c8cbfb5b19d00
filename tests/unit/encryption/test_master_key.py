"""Master keys: what wraps data keys, and where it comes from."""

import sys

import pytest

from blackboard.encryption.master_key import LocalWrapper, from_command, new_master_key
from blackboard.errors import Corrupt, InvalidRequest

DATA_KEY = bytes(range(32))


async def test_what_was_wrapped_is_unwrapped_in_its_context_only() -> None:
    """And by its master key only."""
    wrapper = LocalWrapper.of(new_master_key())
    wrapped = await wrapper.wrap(DATA_KEY, b"here")
    assert DATA_KEY not in wrapped
    assert await wrapper.unwrap(wrapped, b"here") == DATA_KEY
    stranger = LocalWrapper.of(new_master_key())
    for other, context in ((wrapper, b"there"), (stranger, b"here")):
        with pytest.raises(Corrupt):
            await other.unwrap(wrapped, context)
    for damaged in (b"", wrapped[:10], wrapped[:-1], wrapped[:-1] + bytes([wrapped[-1] ^ 1])):
        with pytest.raises(Corrupt):
            await wrapper.unwrap(damaged, b"here")


async def test_an_error_names_the_key_that_is_missing() -> None:
    """It says which line to put back: nothing need be damaged."""
    first, second = LocalWrapper.of("ab" * 32), LocalWrapper.of("cd" * 32)
    wrapped = await first.wrap(DATA_KEY, b"c")
    with pytest.raises(Corrupt, match=f"by master key {first.name}.*does not have: add its line"):
        await second.unwrap(wrapped, b"c")
    with pytest.raises(Corrupt, match="was altered"):
        await first.unwrap(wrapped[:-1], b"c")


async def test_the_first_key_wraps_and_all_unwrap() -> None:
    """So a master key is changed: a new line in front, then the old one goes."""
    old, new = new_master_key(), new_master_key()
    wrapped = await LocalWrapper.of(old).wrap(DATA_KEY, b"c")
    both = LocalWrapper.of(f"{new}\n{old}\n")
    assert both.name == LocalWrapper.of(new).name != LocalWrapper.of(old).name
    assert await both.unwrap(wrapped, b"c") == DATA_KEY
    again = await both.wrap(DATA_KEY, b"c")
    assert await LocalWrapper.of(new).unwrap(again, b"c") == DATA_KEY


@pytest.mark.parametrize("text", ["", "not hex at all", "ab" * 31, "ab" * 33, "ab" * 32 + "\nxyz"])
def test_what_is_no_key_is_refused_without_being_shown(text: str) -> None:
    """32 bytes in hexadecimal, no more and no less."""
    with pytest.raises(InvalidRequest) as refused:
        LocalWrapper.of(text)
    assert not text or text not in str(refused.value)


async def test_a_command_prints_the_key() -> None:
    """One that fails, prints something else or does not exist is refused, and not quoted."""
    key = new_master_key()
    made = await from_command(f"{sys.executable} -c 'print(\"{key}\")'")
    assert made.name == LocalWrapper.of(key).name
    for bad in (
        f"{sys.executable} -c 'print(\"s3cret\")'",
        f"{sys.executable} -c 'print(\"s3cret\"); raise SystemExit(3)'",
        "no-such-program-at-all",
        "'",
        "",
    ):
        with pytest.raises(InvalidRequest) as refused:
            await from_command(bad)
        assert "s3cret" not in str(refused.value)
