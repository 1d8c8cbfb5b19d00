"""Where a document lies."""

import pytest

from blackboard.core import path as document
from blackboard.core.path import check_key
from blackboard.errors import InvalidRequest, LimitExceeded
from blackboard.limits import KEY_BYTES_MAX

KEY = "public/memo"


def test_everything_of_a_document_lies_below_its_prefix() -> None:
    paths = (
        document.base_key(KEY),
        f"{document.parts_prefix(KEY, 'g')}/0000",
        f"{document.updates_prefix(KEY)}/0000000000",
    )
    for path in paths:
        assert check_key(path).startswith(document.document_prefix(KEY) + "/")
        assert document.document_of(path) == KEY


@pytest.mark.parametrize("path", ["public/memo", "public/~document/x", "public/a~doc/x"])
def test_other_keys_belong_to_no_document(path: str) -> None:
    assert document.document_of(path) is None


def test_a_prefix_belongs_to_its_document() -> None:
    assert document.document_of("public/memo/~doc") == KEY


def test_a_key_leaves_room_for_what_is_kept_below_it() -> None:
    room = len(f"/{document.RESERVED}/part/{0:016}-{0:08}/{0:04}")
    longest = ("public/" + "a/" * KEY_BYTES_MAX)[: KEY_BYTES_MAX - room - 1] + "a"
    assert document.check_document(longest) == longest
    with pytest.raises(LimitExceeded):
        document.check_document(longest + "a")
    with pytest.raises(InvalidRequest):
        document.check_document("public//memo")
