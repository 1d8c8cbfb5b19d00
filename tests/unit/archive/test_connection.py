"""Where an archive is: what a URL of SQLite means, whichever SQLAlchemy reads it."""

from pathlib import Path

import pytest

from blackboard.archive.connection import place_of, url_of_file


@pytest.mark.parametrize(
    "name", ["archive.db", "a b", "team:#1?x%20y", "100%", "\u00e4@\u20ac", "odd\udcff", "a///b"]
)
def test_the_url_of_a_file_leads_back_to_it(name: str) -> None:
    """Whatever its name has of the marks of a URL, or bytes that are no text."""
    path = Path("/srv") / name / "archive.db"
    assert place_of(url_of_file(path)).database == str(path)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("sqlite:///archive.db", "archive.db"),
        ("sqlite:////srv/a%20b.db", "/srv/a b.db"),
        ("sqlite:////srv/archive.db?mode=rw", "/srv/archive.db"),
    ],
)
def test_a_url_that_a_person_wrote(url: str, path: str) -> None:
    """Three slashes and a path, in which odd characters are percent-encoded."""
    assert place_of(url).database == path
