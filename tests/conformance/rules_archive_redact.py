"""Values that were redacted are gone from everything an archive keeps, and nothing else is."""

import hashlib
import random
from pathlib import Path
from typing import Any

import msgpack
import pytest

from blackboard.archive.base import Archive
from blackboard.core import digest
from blackboard.core.checkpoints import Point, RedactedRows
from blackboard.core.commit import Append, Change, Delete, Grant, Increment, LogEntry, Op, Put
from blackboard.core.history import shown
from blackboard.core.log_entry import SALT_BYTES, is_proved, leaf_of, proof_of
from blackboard.core.redaction import REDACTED, record_key
from blackboard.limits import BLOB_BYTES
from blackboard.units import Key, Revision
from blackboard.wire.codec import encode_value
from tests.conformance.rules_archive import BOARD
from tests.conformance.story import Story

KEY = "public/plan/secret"
OTHER = "private/ada/other"
SECRETS = [encode_value("hush-7f3a91c2")] + [
    encode_value(sign * size) for sign, size in (("x", 900), ("y", BLOB_BYTES + 7))
]
PIN = encode_value(4711)


def in_story(key: Key, *ops: Op) -> tuple[Op, ...]:
    """Operations of the commit that redacts a key."""
    return (*ops, Put(record_key(key), encode_value({"key": key})))


class RedactRules:
    """What `Archive.redact` promises."""

    async def tell_secrets(self, archive: Archive) -> Story:
        """A board that had secrets, alone and beside other changes, and two checkpoints."""
        story = Story()
        story.tell(Put(KEY, SECRETS[0]), Put(OTHER, encode_value(1)))  # 1, with a salt
        story.tell(Put("public/plan/goal", encode_value("grow")))  # 2
        story.tell(Put(KEY, SECRETS[1]), Grant("public/lock", "ada", 60_000))  # 3
        story.checkpoint("first")  # 4
        story.tell(Put(KEY, SECRETS[2]), Put(OTHER, encode_value(2)))  # 5
        story.tell(Put(KEY, PIN))  # 6, without a salt
        story.tell(Put(KEY, PIN), Put("public/plan/goal", encode_value("less")))  # 7
        story.checkpoint("second")  # 8
        story.tell(*in_story(KEY, Delete(KEY)))  # 9
        story.checkpoint("third")  # 10
        await story.archive_into(archive, BOARD)
        assert await self.findings(archive, 10) == []
        return story

    async def redact(self, archive: Archive, key: Key, upto: Revision) -> RedactedRows:
        """Redact a key of the board, and see that nothing is damaged."""
        done = await archive.redact(BOARD, key, {BOARD: upto})
        assert await archive.scrub() is not None
        return done

    async def findings(self, archive: Archive, revision: Revision) -> list[str]:
        """Every finding of `verify`."""
        return [finding async for finding in archive.verify(Point(BOARD, revision))]

    async def held_bytes(self, place: Any) -> bytes:
        """Everything that lies in the tables and in the directories of an archive."""
        found: list[bytes] = []
        for table in ("version", "commit_log", "checkpoint", "digest", "total"):
            for row in await place.ask(f"SELECT * FROM {table}"):
                found += [bytes(v) if isinstance(v, bytes) else str(v).encode() for v in row]
        for file in Path(place.blobs).parent.rglob("*"):
            found += [file.read_bytes()] if file.is_file() else []
        return b"\0".join(found)

    async def test_the_values_of_a_key_are_gone(self, archive: Archive, place: Any) -> None:
        """Small ones, compressed ones and blobs; and all that is left is as it was."""
        await self.tell_secrets(archive)
        done = await self.redact(archive, KEY, 9)
        assert done == RedactedRows(versions=5, guessable=1)
        held = await self.held_bytes(place)
        for secret in SECRETS:
            assert secret not in held
            assert digest.content_of(secret) not in held
            assert digest.content_of(secret).hex().encode() not in held
            assert digest.element(KEY, digest.content_of(secret), None) not in held
        assert b"hush-7f3a91c2" not in held
        assert await self.findings(archive, 10) == []
        assert await self.findings(archive, 4) == []

    async def test_the_log_tells_that_it_changed(self, archive: Archive) -> None:
        """Readers see who wrote when, a marker, and a digest that they can check."""
        story = await self.tell_secrets(archive)
        chain = (await archive.mark_at(Point(BOARD, 10))).chain
        await self.redact(archive, KEY, 9)
        assert (await archive.mark_at(Point(BOARD, 10))).chain == chain
        log = await archive.log(BOARD, 0, until=10, limit=100)
        assert [entry.digest for entry in log] == [entry.digest for entry in story.log]
        for entry, before in zip(log, story.log, strict=True):
            for change, was in zip(entry.changes, before.changes, strict=True):
                hidden = change.key == KEY and was.value is not None
                assert change.value == (REDACTED if hidden else was.value)
            assert (entry.id, entry.note, entry.time_ms) == (before.id, before.note, before.time_ms)
            assert proves(entry) or not before.salt
        versions = await archive.history(Point(BOARD, 10), KEY, limit=10)
        assert [v.entry and v.entry.value for v in versions] == [None, *[REDACTED] * 5]

    async def test_a_proof_takes_nothing_else_for_redacted(self, archive: Archive) -> None:
        """Another value in the marker's place, or another change taken for a redacted one."""
        await self.tell_secrets(archive)
        await self.redact(archive, KEY, 9)
        [entry] = await archive.log(BOARD, 4, until=5, limit=1)
        proof = proof_of(entry, lambda _: True, digest.content_of)
        assert proof is not None
        seen = shown(entry, entry.changes, lambda _: True)
        changes = {change.key: change for change in seen.changes}
        for key, value in ((KEY, PIN), (OTHER, REDACTED)):
            forged = [c if c.key != key else with_value(c, value) for c in changes.values()]
            assert not is_proved(shown(entry, tuple(forged), lambda _: True), proof)

    async def test_a_short_value_cannot_be_guessed(self, archive: Archive, place: Any) -> None:
        """Who knows the value, the board and all that is stored finds nothing to compare it with:
        no salt of the commit gives the leaf that stands for it, and no digest is over it."""
        story = Story()
        story.tell(Put(KEY, PIN), Put(OTHER, encode_value(1)), Increment("public/n", 1))  # 1
        story.checkpoint("with")  # 2
        story.tell(*in_story(KEY, Delete(KEY)))  # 3
        await story.archive_into(archive, BOARD)
        before = await self.held_bytes(place)
        [row] = await place.ask("SELECT * FROM commit_log WHERE revision = 1")
        commit_salt = msgpack.unpackb(bytes(row.details))[3]
        assert commit_salt in before
        await self.redact(archive, KEY, 3)
        held = await self.held_bytes(place)
        [row] = await place.ask("SELECT * FROM commit_log WHERE revision = 1")
        _, _, _, none, (places, stands, salts, _) = msgpack.unpackb(bytes(row.details))
        assert (none, places, salts[places[0]]) == (b"", [0], b"")
        change = story.log[0].changes[0]
        drawn = hashlib.shake_256(b"\0" + commit_salt).digest(4 * SALT_BYTES)
        own = drawn[:SALT_BYTES]
        assert leaf_of(own, change, digest.content_of(PIN), 1) == stands[0]
        assert own not in held
        assert commit_salt not in held
        for at in range(len(held) - SALT_BYTES + 1):  # no salt that is stored leads to the leaf
            tried = held[at : at + SALT_BYTES]
            assert leaf_of(tried, change, digest.content_of(PIN), 1) != stands[0]
        assert digest.digest_of(sum_of(PIN)) not in held
        assert digest.digest_of(sum_of(REDACTED)) in held
        assert await self.findings(archive, 3) == []

    async def test_checkpoints_say_what_is_left(self, archive: Archive) -> None:
        """Their manifests are genuine, and the digests are of what can be read and restored."""
        await self.tell_secrets(archive)
        await self.redact(archive, KEY, 9)
        for revision in (4, 8, 10):
            reading = await archive.list(Point(BOARD, revision), "", limit=100)
            totals: dict[str, int] = {}
            for e in reading.entries:
                name = "/".join(e.key.split("/")[: 2 if e.key.startswith("private") else 1])
                item = digest.element(e.key, digest.content_of(e.value), e.expires_at_ms)
                totals[name] = digest.add(totals.get(name, 0), item)
            held = {name: digest.digest_of(total) for name, total in totals.items()}
            assert (await archive.facts_at(Point(BOARD, revision))).digests == held
            assert await archive.digests_at(Point(BOARD, revision)) == held

    async def test_what_came_later_stays(self, archive: Archive) -> None:
        """A key that is written again after its redaction is a key like any other."""
        story = await self.tell_secrets(archive)
        again = encode_value("again")
        story.tell(Put(KEY, again))  # 11
        await story.archive_into(archive, BOARD)
        await self.redact(archive, KEY, 9)
        reading = await archive.read(Point(BOARD, 11), [KEY])
        assert [entry.value for entry in reading.entries] == [again]
        assert await self.findings(archive, 11) == []
        story.tell(Put(KEY, encode_value("and again")))  # the sums go on
        await story.archive_into(archive, BOARD)
        assert await self.findings(archive, 12) == []

    async def test_all_that_shares_history(self, archive: Archive, place: Any) -> None:
        """A branch, what was set apart, and the row of a board that lost its name."""
        story = await self.tell_secrets(archive)
        await archive.branch("child", Point(BOARD, 7))
        other = Story(1)
        other.tell(Put("public/else", encode_value(1)))
        fence = await archive.take(BOARD, "tester", 600_000)
        assert fence is not None
        await archive.branch("grandchild", Point("child", 7))
        assert set(await archive.family("grandchild")) == {BOARD, "child", "grandchild"}
        done = await archive.redact("grandchild", KEY, {})
        await archive.scrub()
        assert done.versions == 5
        held = await self.held_bytes(place)
        assert not any(secret in held for secret in SECRETS)
        for board in (BOARD, "child", "grandchild"):
            found = [f async for f in archive.verify(Point(board, 7))]
            assert found == []
            reading = await archive.read(Point(board, 7), [KEY])
            assert [entry.value for entry in reading.entries] == [REDACTED]
        assert story.head == 10

    async def test_a_document(self, archive: Archive, place: Any) -> None:
        """What a document lay in is gone, its item numbers are not."""
        story = Story()
        below = f"{KEY}/~doc"
        story.tell(Append(f"{below}/update", SECRETS[0]), Put(OTHER, encode_value(1)))  # 1
        story.tell(Put(f"{below}/base", SECRETS[1]))  # 2
        story.checkpoint("with")  # 3
        story.tell(Append(f"{below}/update", SECRETS[2]), Put(f"{below}/base", PIN))  # 4
        items = [Delete(f"{below}/update/{n:010}") for n in (0, 1)]
        story.tell(*in_story(KEY, *items, Delete(f"{below}/base")))  # 5
        await story.archive_into(archive, BOARD)
        await self.redact(archive, KEY, 5)
        held = await self.held_bytes(place)
        assert not any(secret in held for secret in SECRETS)
        assert await self.findings(archive, 5) == []
        reading = await archive.list(Point(BOARD, 4), f"{KEY}/~doc", limit=10)
        assert reading.entries == ()
        assert dict(await archive.items(Point(BOARD, 5)))[f"{below}/update"] == 2

    async def test_what_pruning_left(self, archive: Archive, place: Any) -> None:
        """Of a log that is gone, versions stay that a checkpoint needs, and the last commits."""
        await self.tell_secrets(archive)
        await archive.redact(BOARD, OTHER, {BOARD: 10})
        await archive.pin(BOARD, "first", pinned=True)
        assert (await archive.prune(BOARD, [4, 8], 9)).versions
        [row] = await place.ask("SELECT count(*) AS held FROM version WHERE key = :k", k=KEY)
        assert row.held > 1
        await self.redact(archive, KEY, 9)
        held = await self.held_bytes(place)
        assert not any(secret in held for secret in SECRETS[:2])
        reading = await archive.read(Point(BOARD, 4), [KEY, OTHER])
        assert {entry.key: entry.value for entry in reading.entries} == {
            KEY: REDACTED,
            OTHER: REDACTED,
        }
        found = await self.findings(archive, 10)
        assert [each for each in found if OTHER not in each] == []

    async def test_large_values_that_pruning_left(self, archive: Archive, place: Any) -> None:
        """They are too young to be removed, and no version of the board names them any more."""
        await self.tell_secrets(archive)
        assert (await archive.prune(BOARD, [], 9)).versions
        assert SECRETS[2] in await self.held_bytes(place)
        await self.redact(archive, KEY, 9)
        held = await self.held_bytes(place)
        assert SECRETS[2] not in held
        assert digest.content_of(SECRETS[2]) not in held
        assert await self.findings(archive, 10) == []

    async def test_a_large_value_that_another_key_gets_meanwhile_stays(
        self, archive: Archive, place: Any
    ) -> None:
        """On a board of another family: its value was put among the blobs, and no row names it yet,
        when the redaction discards the blob."""
        await self.tell_secrets(archive)
        other = await place.open()
        put_all = other._blobs.put_all

        async def and_redact(values: list[bytes]) -> None:
            await put_all(values)
            if values:
                await self.redact(archive, KEY, 9)

        other._blobs.put_all = and_redact
        await beside().archive_into(other, "beside")
        await self.check_shared(archive)

    async def check_shared(self, archive: Archive) -> None:
        """The large value is redacted on the board, and is the other's as it was."""
        for held, point in ((REDACTED, Point(BOARD, 5)), (SECRETS[2], Point("beside", 1))):
            reading = await archive.read(point, [KEY])
            assert [entry.value for entry in reading.entries] == [held]
            assert [finding async for finding in archive.verify(point)] == []

    async def test_done_again_it_changes_nothing(self, archive: Archive, place: Any) -> None:
        """Nor does it find anything."""
        await self.tell_secrets(archive)
        await self.redact(archive, KEY, 9)
        before = await place.ask("SELECT * FROM commit_log ORDER BY revision")
        assert (await self.redact(archive, KEY, 9)).versions == 0
        assert await place.ask("SELECT * FROM commit_log ORDER BY revision") == before

    async def test_two_keys_of_one_commit(self, archive: Archive) -> None:
        """One after the other."""
        story = await self.tell_secrets(archive)
        story.tell(*in_story(OTHER, Delete(OTHER)))  # 11
        await story.archive_into(archive, BOARD)
        await self.redact(archive, KEY, 9)
        await self.redact(archive, OTHER, 11)
        assert await self.findings(archive, 11) == []
        log = await archive.log(BOARD, 0, until=5, limit=100)
        assert [c.value for c in log[0].changes] == [REDACTED, REDACTED]

    async def test_what_no_record_tells_of_is_found(self, archive: Archive) -> None:
        """Nobody takes a value out by hand and calls it redacted."""
        story = Story()
        story.tell(Put(KEY, PIN))
        await story.archive_into(archive, BOARD)
        await self.redact(archive, KEY, 1)
        found = await self.findings(archive, 1)
        assert found == [f"revision 1: {KEY} was redacted, and no record says so"]

    async def test_damage_beside_what_was_redacted_is_found(
        self, archive: Archive, place: Any
    ) -> None:
        """The other changes of the commit, and the marker itself."""
        await self.tell_secrets(archive)
        await self.redact(archive, KEY, 9)
        wrong = "revision 5 is not what was archived: the hash chain breaks"
        for key in (OTHER, KEY):
            where = f"WHERE revision = 5 AND key = '{key}'"
            [row] = await place.ask(f"SELECT content, form FROM version {where}")
            change = f"UPDATE version SET content = :c {where}"
            assert await place.change(change, c=encode_value(3))
            found = await self.findings(archive, 10)
            other = f"revision 5: {KEY} was redacted, and holds something else"
            assert (wrong if key == OTHER else other) in found
            await place.change(change, c=bytes(row.content))
        assert await self.findings(archive, 10) == []

    async def test_a_forged_manifest_is_not_signed(self, archive: Archive, place: Any) -> None:
        """One that was damaged before is found afterwards, too."""
        await self.tell_secrets(archive)
        [row] = await place.ask("SELECT signature FROM checkpoint WHERE name = 'first'")
        forged = bytes([row.signature[0] ^ 1]) + bytes(row.signature)[1:]
        await place.change("UPDATE checkpoint SET signature = :s WHERE name = 'first'", s=forged)
        await self.redact(archive, KEY, 9)
        found = await self.findings(archive, 10)
        first = "checkpoint first at revision 4: the manifest's signature does not fit"
        assert first in found
        assert not any("third" in finding for finding in found)

    @pytest.mark.parametrize("seed", range(8))
    async def test_any_history(self, archive: Archive, seed: int) -> None:
        """Whatever was written: `verify` finds nothing, and no other key is another one."""
        story, dice = Story(seed), random.Random(seed)
        story.tell_some(12)
        story.checkpoint("one")
        story.tell_some(8)
        if seed % 2:
            story.restore(dice.randrange(1, story.head))
        story.checkpoint("two")
        keys = sorted({c.key for e in story.log for c in e.changes if c.lease is None})
        key = dice.choice([k for k in keys if not k.startswith("system/")])
        story.tell(*in_story(key, Delete(key)))
        await story.archive_into(archive, BOARD)
        await archive.redact(BOARD, key, {BOARD: story.head})
        at = Point(BOARD, story.head)
        assert [finding async for finding in archive.verify(at)] == []
        for revision, held in story.held.items():
            reading = await archive.list(Point(BOARD, revision), "", limit=1_000)
            expected = {k: REDACTED if k == key else e.value for k, e in held.items()}
            assert {e.key: e.value for e in reading.entries} == expected


def beside() -> Story:
    """A board that shares no history with BOARD, and has its large value."""
    story = Story(1)
    story.tell(Put(KEY, SECRETS[2]))
    return story


def sum_of(value: bytes) -> int:
    """The sum of the namespace `public` of the board in `test_a_short_value_cannot_be_guessed`."""
    total = digest.EMPTY
    for key, held in ((KEY, value), ("public/n", encode_value(1))):
        total = digest.add(total, digest.element(key, digest.content_of(held), None))
    return total


def proves(entry: LogEntry) -> bool:
    """Whether a reader of all of it can compute the digest of an entry."""
    proof = proof_of(entry, lambda _: True, digest.content_of)
    return proof is not None and is_proved(shown(entry, entry.changes, lambda _: True), proof)


def with_value(change: Change, value: bytes) -> Change:
    """A change to another value."""
    return Change(change.kind, change.key, value, change.expires_at_ms, change.item, change.lease)
