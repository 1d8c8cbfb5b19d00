"""Pages of the archived log, and when two versions are alike."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from blackboard.archive import history as module
from blackboard.archive.rows import alike, content_of
from blackboard.archive.tables import ABSENT
from blackboard.core.commit import Put
from blackboard.limits import BLOB_BYTES
from blackboard.wire.codec import encode_value
from tests.conformance.archive_suite import Place
from tests.conformance.story import Story


def version(value: bytes | None, expires_at_ms: int | None = None) -> Any:
    """A version's row, as far as it matters here."""
    form, content = (ABSENT, None) if value is None else content_of(value)
    return SimpleNamespace(
        form=form, content=content, expires_at_ms=expires_at_ms, key="public/a", revision=1
    )


def test_versions_are_alike_by_value_and_expiry() -> None:
    """Whatever form they have; a removal is like nothing."""
    values = [
        b"a",
        b"b",
        b"a" * 300,
        b"b" * 300,
        b"a" * (BLOB_BYTES + 1),
        os.urandom(BLOB_BYTES + 1),
    ]
    for one in values:
        for other in values:
            assert alike(version(one), version(other)) is (one == other)
        assert not alike(version(one), None)
        assert not alike(None, version(one))
        assert not alike(version(one), version(one, 5))
    assert alike(None, version(None))
    assert alike(version(None), None)


async def test_a_page_ends_after_so_many_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds at least one entry, and the next page goes on."""
    monkeypatch.setattr(module, "PAGE_BYTES_MAX", 5_000)
    story = Story()
    for size in (10, 2_000, 9_000, 2_000, 2_000, 2_000, 10):
        story.tell(Put("public/a", encode_value(os.urandom(size))))
    async with Place(f"sqlite:///{tmp_path}/archive.db", tmp_path / "blobs") as place:
        archive = await place.open()
        await story.archive_into(archive, "main")
        sizes, after = [], 0
        while page := await archive.log("main", after, until=99, limit=99):
            sizes.append(len(page))
            after = page[-1].revision
    assert sizes == [3, 3, 1]
