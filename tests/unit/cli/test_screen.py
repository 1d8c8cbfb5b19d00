"""How many of what."""

from blackboard.cli.screen import counted


def test_one_of_something_is_not_many() -> None:
    """Numbers before nouns, also those that were written already."""
    assert [counted(number, "key") for number in (0, 1, 2)] == ["0 keys", "1 key", "2 keys"]
    assert [counted(number, "hour") for number in ("1", "0.5")] == ["1 hour", "0.5 hours"]
