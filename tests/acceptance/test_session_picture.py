"""The recorded session in the README is what its commands print."""

import html
import os
import re

import pytest

from tests.source_tree import ROOT
from tools.session_picture import COMMANDS, PICTURE, drawn, typed

_TEXT = re.compile(r"<text[^>]*>([^<]*)</text>")
_SECONDS = re.compile(r"\d+\.\d+s")


def words(picture: str) -> list[str]:
    """The texts of a picture, in order, without what a clock said."""
    found = (html.unescape(text).replace("\xa0", " ").strip() for text in _TEXT.findall(picture))
    return [_SECONDS.sub("a while", text) for text in found if text]


@pytest.mark.skipif(os.name == "nt", reason="there are no pseudo-terminals")
def test_the_recorded_session_is_what_the_commands_print() -> None:
    """Each word in its place. If it is not: make pictures."""
    kept = PICTURE.read_text(encoding="utf-8")
    shown = words(drawn(typed()))
    assert [text for text in shown if text.startswith("$ ")] == [f"$ {each}" for each in COMMANDS]
    assert words(kept) == shown
    assert "OK" in shown


def test_the_recorded_session_stands_in_the_readme() -> None:
    """And loads nothing from elsewhere."""
    assert "(docs/first_minute.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"url\((?!#)|https?://(?!www\.w3\.org)", PICTURE.read_text()) == []
