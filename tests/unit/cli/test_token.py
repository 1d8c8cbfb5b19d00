"""Grants as people write them, and what a token says of itself."""

import json
from pathlib import Path

import pytest

from blackboard.cli.errors import CommandError, Exit
from blackboard.cli.main import app
from blackboard.cli.token import checked_id, claims_of, parse_grant
from blackboard.core.access import ALL_RIGHTS, AccessGrant, Right, agent
from blackboard.integrity.tokens import issue, new_secret
from tests.unit.cli.typed import ended


def test_a_grant_is_a_pattern_and_rights() -> None:
    """`all` stands for every right there is."""
    both = frozenset({Right.READ, Right.WRITE})
    assert parse_grant("public/**=read,write") == AccessGrant("public/**", both)
    assert parse_grant("**=all") == AccessGrant("**", ALL_RIGHTS)


@pytest.mark.parametrize("text", ["public/**", "public/**=", "public/**=rite", "a=read,,write"])
def test_what_is_no_grant_is_refused(text: str) -> None:
    """A misspelt right must not become a token that lacks it."""
    with pytest.raises(CommandError) as refused:
        parse_grant(text)
    assert refused.value.exit == Exit.USAGE
    assert "append" in refused.value.fix


def test_a_token_tells_its_claims_without_the_secret() -> None:
    """Name, boards, grants, expiry."""
    claims = claims_of(issue(new_secret(), agent("researcher"), 3_600_000))
    assert claims["principal"] == "researcher"
    assert claims["boards"] == []
    assert ["public/**", ["append", "lock", "read", "write"]] in claims["grants"]


@pytest.mark.parametrize("text", ["", "a", "a.b.c", "a.e30.c", "a.W10.c"])
def test_what_is_no_token_is_refused(text: str) -> None:
    """Without a traceback."""
    with pytest.raises(CommandError) as refused:
        claims_of(text)
    assert refused.value.exit == Exit.DENIED


def test_what_cannot_be_an_id_is_refused() -> None:
    """A name, a slip; and a token, of which no more is shown than all of them have."""
    one, other = (issue(new_secret(), agent("researcher"), 3_600_000) for _ in range(2))
    found = claims_of(one)["ids"][-1]
    assert checked_id(found) == found
    for text in ("researcher", found[:-1], one, other):
        with pytest.raises(CommandError) as refused:
            checked_id(text)
        assert (refused.value.exit, refused.value.code) == (Exit.USAGE, "usage")
        assert text[:19] in refused.value.message
        assert "inspect" in refused.value.fix
    assert one[:19] == other[:19]
    assert one[:20] not in refused.value.message


@pytest.mark.parametrize(
    ("option", "words"),
    [(("--ttl", "0"), "--ttl"), (("--ttl", "-1"), "--ttl"), (("--only-board", "a b"), "board")],
)
def test_no_token_is_made_that_nothing_accepts(
    option: tuple[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that has expired, or for what cannot be the name of a board."""
    token = issue(new_secret(), agent("ada"), 60_000)
    assert ended("token", "narrow", token, *option) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert words in shown.err


def test_a_token_is_revealed_to_programs_as_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("BLACKBOARD_CONFIG_DIR", str(tmp_path))
    token = issue(new_secret(), agent("ada"), 60_000)
    given = ("--url", "ws://127.0.0.1:1", "--token", token)
    assert ended("token", "show", "--reveal", "--json", *given) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["token"], shown["principal"]) == (token, "ada")


@pytest.mark.parametrize("option", ["--only-board", "--board", "-b"])
def test_a_token_is_narrowed_to_the_board_that_is_named(
    option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the option of `token create`, too: it was ignored, and the token held on every board."""
    token = issue(new_secret(), agent("ada"), 60_000)
    assert ended("token", "narrow", token, option, "expansion") == 0
    assert claims_of(capsys.readouterr().out.strip())["boards"] == ["expansion"]


@pytest.mark.parametrize("option", [(), ("--as", "ada.helper")])
def test_a_narrowing_that_takes_nothing_away_is_refused(
    option: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """As is the name of an agent for which no command here acts: it was ignored."""
    token = issue(new_secret(), agent("ada"), 60_000)
    with pytest.raises(SystemExit) as end:
        app(["token", "narrow", token, *option], prog_name="blackboard")
    assert end.value.code == 2
    assert capsys.readouterr().out == ""
