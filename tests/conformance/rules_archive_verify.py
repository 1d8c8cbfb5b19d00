"""Damage of every kind is found and named: rows and files change behind the archive's back."""

from pathlib import Path
from typing import Any

import pytest

from blackboard.archive import rows as archive_rows
from blackboard.archive.base import Archive
from blackboard.core import digest
from blackboard.core.checkpoints import Point
from blackboard.core.commit import Put
from blackboard.errors import Corrupt
from blackboard.limits import BLOB_BYTES
from blackboard.wire.codec import encode_value
from tests.conformance.rules_archive import BOARD
from tests.conformance.story import Story

LARGE = [encode_value(bytes([i]) * (BLOB_BYTES + 10)) for i in (1, 2)]
TEXT = encode_value("a text that is long enough to be deflated " * 20)


class VerifyRules:
    """Each test damages one thing, and what is found must name it."""

    @pytest.fixture
    async def told(self, archive: Archive) -> Story:
        """A board with small, deflated and large values, and two checkpoints, archived."""
        story = Story()
        story.tell(Put("public/small", encode_value(1)), Put("public/text", TEXT))  # 1
        story.tell(Put("public/large", LARGE[0]))  # 2
        story.tell(Put("private/ada/other", LARGE[1]))  # 3
        story.checkpoint("first")  # 4
        story.tell(Put("public/small", encode_value(2)))  # 5
        story.checkpoint("second")  # 6
        story.tell(Put("public/small", encode_value(3)))  # 7
        await story.archive_into(archive, BOARD)
        assert await self.found(archive) == []
        return story

    async def found(self, archive: Archive, revision: int = 7) -> list[str]:
        """Every finding."""
        return [finding async for finding in archive.verify(Point(BOARD, revision))]

    async def test_a_flipped_bit_of_a_value(
        self, archive: Archive, place: Any, told: Story
    ) -> None:
        """In a row: the chain breaks there, and the namespace is not what its digest says."""
        flipped = encode_value(4)
        assert await place.change(
            "UPDATE version SET content = :content WHERE revision = 5", content=flipped
        )
        found = await self.found(archive)
        assert "revision 5 is not what was archived: the hash chain breaks" in found
        assert "revision 6: the digest of public is not that of its content" in found
        assert all("private" not in finding for finding in found)

    async def test_a_damaged_deflated_value(
        self, archive: Archive, place: Any, told: Story
    ) -> None:
        """What cannot be inflated is a named error to a reader, too."""
        [row] = await place.ask("SELECT content FROM version WHERE key = 'public/text'")
        cut = bytes(row.content)[:-5]
        await place.change("UPDATE version SET content = :c WHERE key = 'public/text'", c=cut)
        with pytest.raises(Corrupt, match="public/text"):
            await archive.read(Point(BOARD, 7), ["public/text"])
        assert any(
            f.startswith("revision 1: archived public/text") for f in await self.found(archive)
        )

    @pytest.mark.parametrize("column", ["form = 2", "form = 9", "content = :c"])
    async def test_any_damaged_version_is_a_finding(
        self, archive: Archive, place: Any, column: str
    ) -> None:
        """Also of one that was replaced since, of a checkpoint, and of a declaration."""
        story = Story(3)
        story.tell(Put("public/a", encode_value("first")))
        story.tell(Put("public/~declared/ada", encode_value("v1")))
        story.checkpoint("one")
        story.tell(Put("public/a", encode_value("second")), Put("public/b", encode_value(2)))
        story.tell(Put("public/a", encode_value("third")), Put("public/b", encode_value(3)))
        await story.archive_into(archive, BOARD, page=99)
        for row in await place.ask("SELECT key, revision, form, content FROM version"):
            where = "WHERE key = :key AND revision = :r"
            one = {"key": row.key, "r": row.revision}
            damage = {"c": b"\xc1"} if ":c" in column else {}
            assert await place.change(f"UPDATE version SET {column} {where}", **one, **damage)
            found = await self.found(archive, story.head)
            named = (row.key, f"revision {row.revision}")
            assert any(name in finding for finding in found for name in named), row
            put_back = f"UPDATE version SET form = :form, content = :content {where}"
            await place.change(put_back, **one, form=row.form, content=row.content)
        assert await self.found(archive, story.head) == []

    async def test_a_changed_step_of_an_agent(
        self, archive: Archive, place: Any, told: Story
    ) -> None:
        """The next checkpoint would name it; and the time at which one was taken."""
        assert await place.change("UPDATE agent SET step = 99 WHERE agent = 'ada'")
        assert await self.found(archive) == ["the last step of ada is not that of its commit"]
        step = next(entry.id.step for entry in reversed(told.log) if entry.author == "ada")
        await place.change("UPDATE agent SET step = :step WHERE agent = 'ada'", step=step)
        await place.change("UPDATE checkpoint SET time_ms = 5 WHERE name = 'first'")
        found = await self.found(archive)
        assert [f.rpartition(": ")[2] for f in found] == ["its time is not that of its commit"]

    @pytest.mark.parametrize("damage", ["swapped", "truncated", "flipped", "removed"])
    async def test_a_damaged_blob(
        self, archive: Archive, place: Any, told: Story, damage: str
    ) -> None:
        """A reader gets Corrupt, never another value; verifying names the blob."""
        one, other = (self.blob(place.blobs, value) for value in LARGE)
        whole = one.read_bytes()
        if damage == "swapped":
            one.write_bytes(other.read_bytes())
        elif damage == "truncated":
            one.write_bytes(whole[:-1])
        elif damage == "flipped":
            one.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        else:
            one.unlink()
        with pytest.raises(Corrupt, match=one.name):
            await archive.read(Point(BOARD, 7), ["public/large"])
        found = await self.found(archive)
        assert found
        assert any(one.name in finding for finding in found)
        assert not any(other.name in finding for finding in found)

    async def test_a_missing_version(self, archive: Archive, place: Any, told: Story) -> None:
        """A row of a value that was taken out."""
        await place.change("DELETE FROM version WHERE revision = 3")
        found = await self.found(archive)
        assert "revision 3 is not what was archived: the hash chain breaks" in found
        assert any("private/ada" in finding for finding in found)

    async def test_a_missing_commit(self, archive: Archive, place: Any, told: Story) -> None:
        """A revision that was taken out."""
        await place.change("DELETE FROM commit_log WHERE revision = 5")
        found = await self.found(archive)
        assert "revisions 5 to 5 are missing" in found

    async def test_a_log_that_was_cut_short(
        self, archive: Archive, place: Any, told: Story
    ) -> None:
        """The newest revisions were taken out."""
        for table in ("commit_log", "version", "digest", "checkpoint"):
            await place.change(f"DELETE FROM {table} WHERE revision > 5")
        found = await self.found(archive)
        assert "revisions 6 to 7 are missing: the log was cut short" in found

    async def test_a_changed_commit(self, archive: Archive, place: Any, told: Story) -> None:
        """Any column of the log: each is changed, found, and put right again."""
        [row] = await place.ask("SELECT * FROM commit_log WHERE revision = 5")
        changes = {
            "agent": "eve",
            "time_ms": 1,
            "note": "never said",
            "step": 99,
            "lane": 3,
            "incarnation": "another",
            "digest": bytes(32),
            "chain": bytes(32),
        }
        for column, value in changes.items():
            statement = f"UPDATE commit_log SET {column} = :value WHERE revision = 5"
            assert await place.change(statement, value=value)
            found = await self.found(archive)
            assert "revision 5 is not what was archived: the hash chain breaks" in found, column
            await place.change(statement, value=row._mapping[column])
        assert await self.found(archive) == []

    async def test_a_changed_digest(self, archive: Archive, place: Any, told: Story) -> None:
        """A digest that is not that of the content."""
        await place.change(
            "UPDATE digest SET digest = :d WHERE revision = 6", d=digest.content_of(b"")
        )
        found = await self.found(archive)
        assert "revision 6: the digest of public is not that of its content" in found
        assert any("checkpoint second" in f and "digests" in f for f in found)

    @pytest.mark.parametrize("revision", [4, 6, 7])
    async def test_a_missing_digest(
        self, archive: Archive, place: Any, told: Story, revision: int
    ) -> None:
        """Of a checkpoint, or of where an append ended: it is missed there, or at the next one."""
        assert await place.change("DELETE FROM digest WHERE revision = :r", r=revision)
        found = await self.found(archive)
        later = {4: 6, 6: 7, 7: 7}[revision]
        assert any(f.startswith(f"revision {later}: the digest of ") for f in found)

    async def test_a_digest_of_no_revision(self, archive: Archive, place: Any, told: Story) -> None:
        """A row that nothing belongs to."""
        await place.change("DELETE FROM commit_log WHERE revision = 6")
        assert "revision 6 has digests, and no commit" in await self.found(archive)

    async def test_a_changed_sum(self, archive: Archive, place: Any, told: Story) -> None:
        """The next append would go on from it."""
        await place.change(
            "UPDATE total SET total = :t WHERE namespace = 'public'", t=bytes(digest.SUM_BYTES)
        )
        assert await self.found(archive) == ["the sum of public is not that of its content"]
        await place.change("DELETE FROM total WHERE namespace = 'private/ada'")
        assert "the sum of private/ada is not that of its content" in await self.found(archive)

    async def test_a_changed_creation(self, archive: Archive, place: Any, told: Story) -> None:
        """What the chain does not say is recomputed."""
        await place.change("UPDATE version SET create_revision = 5 WHERE revision = 5")
        found = await self.found(archive)
        assert found == ["revision 5: public/small has another create_revision"]

    @pytest.mark.parametrize("change", ["author = 'eve'", "time_ms = 1"])
    async def test_a_version_has_the_author_and_time_of_its_commit(
        self, archive: Archive, place: Any, told: Story, change: str
    ) -> None:
        """A look back shows what stands with the value, not with the commit."""
        assert await place.change(f"UPDATE version SET {change} WHERE revision = 5")
        name = change.partition(" ")[0]
        assert await self.found(archive) == [f"revision 5: public/small has another {name}"]

    async def test_a_changed_manifest(self, archive: Archive, place: Any, told: Story) -> None:
        """One that says something else, with its hash put right: the signature does not fit."""
        [row] = await place.ask("SELECT manifest FROM checkpoint WHERE name = 'first'")
        forged = archive_rows.unpack_manifest(bytes(row.manifest)).replace(
            b'"by":"ada"', b'"by":"eve"'
        )
        await place.change(
            "UPDATE checkpoint SET manifest = :m, hash = :h WHERE name = 'first'",
            m=archive_rows.pack_manifest(forged),
            h=digest.content_of(forged),
        )
        found = await self.found(archive)
        first = "checkpoint first at revision 4: "
        assert first + "the manifest's signature does not fit" in found
        assert first + "the manifest's record is not that of the board" in found
        second = "checkpoint second at revision 6: "
        assert second + "the manifest's previous is not that of the board" in found

    async def test_an_older_manifest_put_back(
        self, archive: Archive, place: Any, told: Story
    ) -> None:
        """Genuine, but of another checkpoint."""
        [row] = await place.ask("SELECT * FROM checkpoint WHERE name = 'first'")
        await place.change(
            "UPDATE checkpoint SET manifest = :m, signature = :s, hash = :h WHERE name = 'second'",
            m=bytes(row.manifest),
            s=bytes(row.signature),
            h=bytes(row.hash),
        )
        found = await self.found(archive)
        second = "checkpoint second at revision 6: the manifest's "
        for name in ("revision", "checkpoint", "chain", "digests", "previous"):
            assert f"{second}{name} is not that of the board" in found

    async def test_a_missing_manifest(self, archive: Archive, place: Any, told: Story) -> None:
        """A checkpoint of which nobody can tell what it was."""
        await place.change("DELETE FROM checkpoint WHERE name = 'first'")
        found = await self.found(archive)
        assert "checkpoint first at revision 4: its manifest is missing" in found
        assert any("second" in f and "previous" in f for f in found)

    async def test_a_strangers_signature(self, place: Any, told: Story) -> None:
        """Everything fits, but somebody else's key signed it."""
        other = await place.open(bytes(32))
        found = await self.found(other)
        assert len(found) == 2
        assert all("is signed by an unknown key" in finding for finding in found)

    async def test_damage_before_what_is_asked_for(
        self, archive: Archive, place: Any, told: Story
    ) -> None:
        """Only what a point rests on is looked at."""
        await place.change("UPDATE commit_log SET note = 'x' WHERE revision = 7")
        assert await self.found(archive, 6) == []
        assert await self.found(archive, 7) != []

    def blob(self, directory: Path, value: bytes) -> Path:
        """The file of a blob."""
        [path] = directory.rglob(digest.content_of(value).hex())
        return path
