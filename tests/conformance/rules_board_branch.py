"""Branches and files: a new board that begins as another one was."""

import asyncio
import hashlib
import json
import os
import random
import secrets
import zipfile
from pathlib import Path

import msgpack
import pytest

from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.export import seal
from blackboard.core import access
from blackboard.core.checkpoints import BranchRequest
from blackboard.errors import (
    AccessDenied,
    BlackboardError,
    Corrupt,
    InvalidRequest,
    NoSuchCheckpoint,
    Unavailable,
)
from blackboard.wire.codec import decode_value, encode_value
from tests.conformance.rules_board_restore import content
from tests.conformance.team import Team

FLIPS = int(os.environ.get("BLACKBOARD_TEST_FLIPS", "60"))


async def operator_of(team: Team) -> Client:
    """The operator's client."""
    return await team.client(access.operator())


class BranchRules:
    """Independent afterwards, with one past."""

    async def test_a_branch_begins_as_the_board_was(
        self, team: Team, ada: Board, bob: Board
    ) -> None:
        board = await team.operator()
        await ada.put("public/plan", "first")
        await ada.put("private/ada/draft", "mine")
        await bob.append("inbox/ada/messages", "hello")
        await board.checkpoint("plan")
        was = await content(board)
        entry = await board.entry("public/plan")
        await ada.put("public/plan", "second")
        other = await board.branch(f"{board.name}-b", "plan", note="what if")
        assert other.name == f"{board.name}-b"
        assert await content(other) == was
        assert await other.entry("public/plan") == entry
        head = await other.head()
        assert (head.epoch.cause, head.epoch.from_revision, head.revision) == ("branch", 4, 5)
        origin = await other.origin()
        assert origin is not None
        assert (origin.board, origin.revision, origin.note) == (board.name, 4, "what if")
        assert await board.origin() is None

    async def test_both_go_on_by_themselves(self, team: Team, ada: Board) -> None:
        board = await team.operator()
        await ada.put("public/plan", "first")
        other = await board.branch(f"{board.name}-b")
        await other.put("public/plan", "theirs")
        await ada.put("public/plan", "ours")
        assert await board.get("public/plan") == "ours"
        assert await other.get("public/plan") == "theirs"
        [change] = await board.diff("now", "now", other=other.name)
        assert change.before is not None
        assert change.after is not None
        assert (change.before.value, change.after.value) == ("ours", "theirs")
        assert not await board.diff(1, 1, other=other.name)

    async def test_the_past_of_the_board_is_readable_through_the_branch(
        self, team: Team, ada: Board
    ) -> None:
        board = await team.operator()
        await ada.put("public/plan", "first")
        await board.checkpoint("one")
        await ada.put("public/plan", "second")
        other = await board.branch(f"{board.name}-b")
        assert [cause.author for cause in await other.why("public/plan")] == ["ada"]
        await other.put("public/plan", "third")
        assert await other.get("public/plan", at="one") == "first"
        assert [v.value for v in await other.history("public/plan")] == ["third", "second", "first"]
        restored = await other.restore("one")
        assert [cause.revision for cause in await other.why("public/plan")] == [
            restored.revision,
            1,
        ]
        assert await other.get("public/plan") == "first"
        assert restored.from_revision == 2
        assert await board.get("public/plan") == "second"
        grandchild = await other.branch(f"{board.name}-c", restored.before)
        assert await grandchild.get("public/plan") == "third"
        assert (await grandchild.verify()).ok

    async def test_later_checkpoints_of_the_board_are_not_the_branchs(
        self, team: Team, ada: Board
    ) -> None:
        board = await team.operator()
        await ada.put("public/plan", "first")
        other = await board.branch(f"{board.name}-b")
        await board.checkpoint("later")
        with pytest.raises(NoSuchCheckpoint):
            await other.get("public/plan", at="later")
        mine = await other.checkpoint("later")
        assert await other.checkpoints() == (mine,)

    async def test_counters_of_lists_go_on_in_the_branch(self, team: Team, ada: Board) -> None:
        board = await team.operator()
        await ada.append("public/list", "a")
        await ada.delete(await ada.append("public/list", "b"))
        other = await board.branch(f"{board.name}-b")
        assert await other.append("public/list", "c") == "public/list/0000000002"

    async def test_a_board_that_exists_is_never_touched(self, team: Team, ada: Board) -> None:
        board = await team.operator()
        await ada.put("public/plan", "first")
        other = await board.branch(f"{board.name}-b")
        await other.put("public/plan", "theirs")
        with pytest.raises(InvalidRequest) as refused:
            await board.branch(other.name)
        assert refused.value.field == "new"
        assert await other.get("public/plan") == "theirs"
        assert [v.value for v in await other.history("public/plan")] == ["theirs", "first"]

    async def test_nothing_cannot_be_branched(self, team: Team, ada: Board) -> None:
        board = await team.operator()
        await ada.put("public/plan", "first")
        with pytest.raises(InvalidRequest) as refused:
            await board.branch(f"{board.name}-b", 0)
        assert refused.value.field == "at"
        assert f"{board.name}-b" not in await (await operator_of(team)).boards()

    async def test_the_same_request_branches_once(self, team: Team, ada: Board) -> None:
        await ada.put("public/plan", "first")
        link = (await operator_of(team)).link
        spec = BranchRequest(f"{team.name}-b", "now", secrets.token_hex(8))
        heads = await asyncio.gather(*(link.branch(team.name, spec) for _ in range(3)))
        assert len({head.epoch.id for head in heads}) == 1

    async def test_of_many_that_branch_to_one_name_one_does(self, team: Team, ada: Board) -> None:
        board = await team.operator()
        revisions = [(await ada.put("public/n", number)).revision for number in range(6)]
        name = f"{team.name}-b"

        async def attempt(at: int) -> int | None:
            try:
                await board.branch(name, at)
            except (InvalidRequest, Unavailable):
                return None
            return at

        won = [at for at in await asyncio.gather(*map(attempt, revisions)) if at is not None]
        assert len(won) == 1
        other = (await operator_of(team)).board(name)
        number = revisions.index(won[0])
        assert await other.get("public/n") == number
        await other.put("public/n", "new")
        values = [v.value for v in await other.history("public/n")]
        assert values == ["new", *reversed(range(number + 1))]

    async def test_a_branch_nobody_may_use_is_refused(self, team: Team) -> None:
        board = await team.operator()
        await board.head()
        with pytest.raises((AccessDenied, InvalidRequest)):
            await board.branch("~reserved")

    # --- files ------------------------------------------------------------------------------------

    async def test_a_file_becomes_a_board_again(
        self, team: Team, ada: Board, tmp_path: Path
    ) -> None:
        board = await team.operator()
        await ada.put("public/plan", {"text": "first", "blob": b"\x00\xff"})
        await ada.put("private/ada/draft", "mine", ttl_ms=3_600_000)
        await ada.append("public/list", 1)
        await board.checkpoint("plan")
        was = await content(board)
        await ada.put("public/plan", "second")
        exported = await board.export("plan", tmp_path / "plan.zip")
        assert (exported.entries, exported.revision) == (3, 4)
        assert not any(path.suffix == ".part" for path in _files(tmp_path))
        client = await operator_of(team)
        other = await client.import_board(exported.path, f"{team.name}-i", note="elsewhere")
        assert await content(other) == was
        head = await other.head()
        assert (head.revision, head.epoch.cause) == (exported.revision + 1, "branch")
        assert await other.append("public/list", 2) == "public/list/0000000001"
        origin = await other.origin()
        assert origin is not None
        assert (origin.board, origin.revision, origin.note) == (board.name, 4, "elsewhere")
        await other.checkpoint("again")
        digests = (await other.show("again")).digests
        assert digests["private/ada"] == (await board.show("plan")).digests["private/ada"]
        await other.put("public/plan", 1)
        await other.restore("again")
        assert (await other.verify()).ok

    async def test_many_entries_go_in_pages(self, team: Team, ada: Board, tmp_path: Path) -> None:
        board = await team.operator()
        for start in range(0, 3_000, 1_000):
            async with ada.step() as step:
                for number in range(start, start + 1_000):
                    step.put(f"public/{number:05}", "x" * 500)
        await board.checkpoint("plan")
        exported = await board.export("plan", tmp_path / "plan.zip")
        client = await operator_of(team)
        other = await client.import_board(exported.path, f"{team.name}-i")
        assert await content(other) == await content(board)

    @pytest.mark.parametrize(
        "member", ["entries.msgpack", "manifest", "signature", "items.msgpack", "export.json"]
    )
    async def test_a_file_that_was_changed_is_refused(
        self, team: Team, ada: Board, tmp_path: Path, member: str
    ) -> None:
        """Also by somebody who mended the hashes in the header."""
        board = await team.operator()
        await ada.append("public/list", "swordfish")
        await board.checkpoint("plan")
        exported = await board.export("plan", tmp_path / "plan.zip")
        client = await operator_of(team)
        for mended in (False, True):
            changed = tmp_path / f"changed-{mended}.zip"
            _change(exported.path, changed, member, mended=mended)
            if mended and member in ("items.msgpack", "export.json"):
                continue  # not sealed: they cannot be told from the real ones
            with pytest.raises(BlackboardError) as refused:
                await client.import_board(changed, f"{team.name}-i")
            assert isinstance(refused.value, Corrupt | InvalidRequest)
            assert f"{team.name}-i" not in await client.boards()

    async def test_a_bit_that_flips_anywhere_in_a_file_is_noticed(
        self, team: Team, ada: Board, tmp_path: Path, seed: int
    ) -> None:
        """Also where no content is; BLACKBOARD_TEST_FLIPS sets how many are tried."""
        board = await team.operator()
        await ada.put("private/ada/draft", "swordfish")
        await board.checkpoint("plan")
        file = (await board.export("plan", tmp_path / "plan.zip")).path
        content_, client = file.read_bytes(), await operator_of(team)
        rng = random.Random(seed)
        for place in rng.sample(range(len(content_)), min(FLIPS, len(content_))):
            flipped = bytearray(content_)
            flipped[place] ^= 1 << rng.randrange(8)
            file.write_bytes(flipped)
            with pytest.raises(Corrupt):
                await client.import_board(file, f"{team.name}-i")
        assert f"{team.name}-i" not in await client.boards()

    async def test_a_value_that_was_exchanged_is_found_by_the_sealed_digest(
        self, team: Team, ada: Board, tmp_path: Path
    ) -> None:
        """Everything in the file fits, but for what the manifest says."""
        board = await team.operator()
        await ada.put("public/price", 1_200)
        await board.checkpoint("plan")
        exported = await board.export("plan", tmp_path / "plan.zip")
        [key, value, *rest] = msgpack.unpackb(_members(exported.path)["entries.msgpack"])
        assert decode_value(value) == 1_200
        forged = msgpack.packb([key, encode_value(1_500), *rest])
        _write(tmp_path / "forged.zip", _mended(exported.path, "entries.msgpack", forged))
        with pytest.raises(Corrupt) as refused:
            await (await operator_of(team)).import_board(tmp_path / "forged.zip", f"{team.name}-i")
        assert refused.value.reason == "namespace public is not what was sealed"
        assert f"{team.name}-i" not in await (await operator_of(team)).boards()

    async def test_what_is_no_file_is_refused(self, team: Team, tmp_path: Path) -> None:
        client = await operator_of(team)
        (tmp_path / "text").write_text("hello")
        with pytest.raises(Corrupt):
            await client.import_board(tmp_path / "text", f"{team.name}-i")
        with pytest.raises(InvalidRequest):
            await client.import_board(tmp_path / "absent", f"{team.name}-i")
        board = await team.operator()
        await board.head()
        with pytest.raises(NoSuchCheckpoint):
            await board.export("absent", tmp_path / "x.zip")
        assert not (tmp_path / "x.zip").exists()

    async def test_files_are_for_the_operator(self, team: Team, ada: Board, tmp_path: Path) -> None:
        board = await team.operator()
        await board.checkpoint("plan")
        exported = await board.export("plan", tmp_path / "plan.zip")
        with pytest.raises(AccessDenied):
            await ada.export("plan", tmp_path / "mine.zip")
        with pytest.raises(AccessDenied):
            await (await team.client_of(ada)).import_board(exported.path, f"{team.name}-i")

    async def test_an_import_does_not_replace_a_board(
        self, team: Team, ada: Board, tmp_path: Path
    ) -> None:
        board = await team.operator()
        await ada.put("public/plan", 1)
        await board.checkpoint("plan")
        exported = await board.export("plan", tmp_path / "plan.zip")
        await ada.put("public/plan", 2)
        with pytest.raises(InvalidRequest):
            await (await operator_of(team)).import_board(exported.path, board.name)
        assert await board.get("public/plan") == 2


def _files(folder: Path) -> list[Path]:
    return list(folder.iterdir())


def _change(source: Path, target: Path, member: str, *, mended: bool) -> None:
    """Copy an exported file with one byte of a member changed."""
    data = _members(source)
    changed = bytearray(data[member])
    changed[len(changed) // 2] ^= 1
    data[member] = bytes(changed)
    _write(target, _mended(source, member, data[member]) if mended else data)


def _members(source: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(source) as file:
        return {name: file.read(name) for name in file.namelist()}


def _mended(source: Path, member: str, forged: bytes) -> dict[str, bytes]:
    """The members of a file with another one in place, and its hash in the header."""
    data = _members(source) | {member: forged}
    header = json.loads(data["export.json"])
    header["sha256"][member] = hashlib.sha256(forged).hexdigest()
    return data | {"export.json": json.dumps(header).encode()}


def _write(target: Path, data: dict[str, bytes]) -> None:
    """A file that is sealed as a whole, whatever its members are."""
    with zipfile.ZipFile(target, "w") as file:
        for name, content_ in data.items():
            file.writestr(name, content_)
        file.comment = b"0" * 64
    seal(target)
