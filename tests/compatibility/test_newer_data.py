"""Data that a newer version wrote, or one too old, is refused by name, and stays as it is.

Every store has a mark of its format. Here each gets the mark of the next version: it is refused
with `NewerFormat`, no byte of it changes, and with its own mark back it is whole.
"""

import hashlib
import json
import sqlite3
import zipfile
from collections.abc import Awaitable, Callable
from contextlib import aclosing, closing
from dataclasses import dataclass
from pathlib import Path

import msgpack
import pytest
from redis import Redis

import blackboard
from blackboard.archive import database as archive_database
from blackboard.client import contexts, export
from blackboard.client.client import Client
from blackboard.core.access import ACCESS_BOARD, KEYS_BOARD, operator
from blackboard.core.commit import Commit, CommitId, Put
from blackboard.engines.redis import layout
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.format import FORMAT
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.errors import Corrupt, NewerFormat, OlderFormat, Unavailable
from blackboard.integrity import envelope, manifest as manifests, signing
from blackboard.server.service import Service
from blackboard.wire.codec import SYSTEM_AGENT, decode_value, encode_value, prepare
from blackboard.wire.frames import SEALED
from tests.lowered import PATIENT
from tests.postgres import Postgres

MASTER_KEY = "5f" * 32
STRANGER = signing.Seal(b"s" * 32)
PRIVATE = "private/ada/note"
PATIENCE_MS = PATIENT.engine.engine_timeout_ms


@pytest.fixture
async def data(tmp_path: Path) -> Path:
    """A closed data directory with a board "main", encrypted."""
    path = tmp_path / "data"
    async with blackboard.open(path, master_key=MASTER_KEY) as client:
        await client.board("main").put("public/a", 1)
        await client.board("main").as_agent("ada").put(PRIVATE, "a secret")
        await client.board("main").checkpoint("one")
        await client.board("other").put("public/b", 2)
    return path


def user_version(path: Path, number: int | None = None) -> int:
    """The mark of a SQLite file, and another one in its place."""
    with closing(sqlite3.connect(path)) as database:
        [found] = database.execute("PRAGMA user_version").fetchone()
        if number is not None:
            database.execute(f"PRAGMA user_version={number}")
            database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return int(found)


def files(directory: Path) -> dict[str, str]:
    """What each file of a directory holds, apart from journals without content."""
    found = {path.relative_to(directory): path.read_bytes() for path in directory.rglob("*.db*")}
    return {str(name): hashlib.sha256(held).hexdigest() for name, held in found.items() if held}


async def read_main(data: Path) -> None:
    async with blackboard.open(data, master_key=MASTER_KEY) as client:
        assert await client.board("main").get("public/a") == 1


async def write_main(data: Path) -> None:
    async with blackboard.open(data, master_key=MASTER_KEY) as client:
        await client.board("main").put("public/a", 2)


async def read_past(data: Path) -> None:
    async with blackboard.open(data, master_key=MASTER_KEY) as client:
        assert await client.board("main").get("public/a", at=1) == 1


async def restore(data: Path) -> None:
    async with blackboard.open(data, master_key=MASTER_KEY) as client:
        await client.board("main").restore("one")


async def recover(data: Path) -> None:
    async with blackboard.open(data, master_key=MASTER_KEY) as client:
        await client.board("main").recover()


@dataclass(frozen=True)
class File:
    """A SQLite file of the data directory, the format it has now, and the calls that need it."""

    path: str
    known: int
    calls: tuple[Callable[[Path], Awaitable[None]], ...]


FILES = {
    "board": File("boards/main.db", FORMAT, (read_main, write_main, read_past, restore)),
    "keys": File(f"boards/{KEYS_BOARD}.db", FORMAT, (read_main, write_main)),
    "archive": File("archive.db", archive_database.FORMAT, (read_main, write_main, read_past)),
}


@pytest.mark.parametrize(
    ("name", "call"),
    [(name, call) for name, file in FILES.items() for call in (*file.calls, recover)],
    ids=lambda part: getattr(part, "__name__", part),
)
async def test_a_file_of_a_newer_format(
    data: Path, name: str, call: Callable[[Path], Awaitable[None]]
) -> None:
    """It is named with both formats, whatever is asked, and is as before then."""
    path, known = data / FILES[name].path, FILES[name].known
    assert user_version(path, known + 1) == known
    before = files(data)[FILES[name].path]
    with pytest.raises(NewerFormat, match="written by a newer Blackboard") as refused:
        await call(data)
    assert path.name in refused.value.what
    assert (refused.value.found, refused.value.known) == (known + 1, known)
    assert files(data)[FILES[name].path] == before
    user_version(path, known)
    await read_main(data)
    await read_past(data)


@pytest.mark.parametrize("call", [read_main, write_main, restore, recover])
async def test_a_file_of_an_older_format(
    data: Path, call: Callable[[Path], Awaitable[None]]
) -> None:
    """A board's file that is read no more is not called damaged."""
    path = data / "boards/main.db"
    known = user_version(path, 1)
    before = files(data)["boards/main.db"]
    with pytest.raises(OlderFormat, match="export the checkpoints with that version") as refused:
        await call(data)
    assert path.name in refused.value.what
    assert refused.value.found == 1 < refused.value.oldest <= known
    assert files(data)["boards/main.db"] == before
    user_version(path, known)
    await read_past(data)


@pytest.mark.parametrize("mark", [0, archive_database.FORMAT])
async def test_an_archive_without_a_column(data: Path, mark: int) -> None:
    """As it would be if this version had added the column."""
    path = data / "archive.db"
    user_version(path, mark)
    with closing(sqlite3.connect(path)) as database:
        database.execute("ALTER TABLE commit_log DROP COLUMN note")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    before = files(data)["archive.db"]
    with pytest.raises(OlderFormat) as refused:
        await read_main(data)
    assert (refused.value.found, refused.value.lacks) == (mark, "commit_log.note")
    assert files(data)["archive.db"] == before


async def test_a_newer_board_is_the_only_one_that_is_refused(data: Path) -> None:
    """The other boards of its directory go on, and its archive is not touched."""
    user_version(data / "boards/main.db", FORMAT + 1)
    async with blackboard.open(data, master_key=MASTER_KEY) as client:
        with pytest.raises(NewerFormat):
            await client.board("main").get("public/a")
        await client.board("other").put("public/b", 3)
        assert await client.board("other").get("public/b") == 3
    user_version(data / "boards/main.db", FORMAT)
    await read_past(data)


async def test_revocations_of_a_newer_format_let_nobody_in(data: Path) -> None:
    """Without them no token can be checked."""
    async with blackboard.open(data, master_key=MASTER_KEY) as client:
        await client.revoke(principal="eve")
    user_version(data / f"boards/{ACCESS_BOARD}.db", FORMAT + 1)
    before = files(data)[f"boards/{ACCESS_BOARD}.db"]
    async with blackboard.open(data, master_key=MASTER_KEY) as client:
        with pytest.raises((NewerFormat, Unavailable)):
            await client.revoke(principal="bob")
        assert await client.board("main").get("public/a") == 1
    assert files(data)[f"boards/{ACCESS_BOARD}.db"] == before


async def test_an_archive_from_before_there_were_marks_opens(data: Path) -> None:
    """Its format is the first one."""
    user_version(data / "archive.db", 0)
    await write_main(data)
    await read_past(data)


async def put_raw(data: Path, board: str, key: str, value: bytes) -> None:
    """Write what a service would not."""
    async with aclosing(await SqliteStore.at(data)) as store:
        epoch = (await store.open(board)).epoch.id
        name = CommitId(SYSTEM_AGENT, 0, "newer", 1)
        [outcome] = await store.commit(board, [prepare(Commit(name, epoch, (Put(key, value),)))])
        assert not isinstance(outcome, Exception)


async def test_an_encrypted_value_of_a_newer_form(data: Path) -> None:
    """It is neither taken for a plain value nor for a damaged one."""
    newer = SEALED + bytes([envelope.FORMAT + 1]) + b"\0" * 64
    await put_raw(data, "main", PRIVATE, newer)
    async with blackboard.open(data, master_key=MASTER_KEY) as client:
        with pytest.raises(NewerFormat) as refused:
            await client.board("main").get(PRIVATE)
        assert PRIVATE in refused.value.what
        assert await client.board("main").get("public/a") == 1


async def test_a_data_key_of_a_newer_form(data: Path) -> None:
    """What it encrypted is not read, and nothing is encrypted beside it."""
    async with aclosing(await SqliteStore.at(data)) as store:
        await store.open(KEYS_BOARD)
        [entry] = (await store.list(KEYS_BOARD, "system/keys/main", limit=1)).entries
    record = decode_value(entry.value)
    await put_raw(data, KEYS_BOARD, entry.key, encode_value({**record, "form": 3}))
    async with blackboard.open(data, master_key=MASTER_KEY) as client:
        board = client.board("main").as_agent("ada")
        for call in (board.get(PRIVATE), board.put(PRIVATE, "more")):
            with pytest.raises(NewerFormat) as refused:
                await call
            assert (refused.value.what, refused.value.found) == (entry.key, 3)


@pytest.fixture
async def exported(data: Path, tmp_path: Path) -> Path:
    """An export of the board."""
    file = tmp_path / "export.zip"
    async with blackboard.open(data, master_key=MASTER_KEY) as client:
        await client.board("main").export("one", file)
    return file


def rewritten(
    file: Path,
    *,
    version: int | None = None,
    manifest: int | None = None,
    members_of_entry: int | None = None,
) -> Path:
    """Write an export again, with other marks or shorter entries, and right sums."""
    with zipfile.ZipFile(file) as source:
        members = {name: source.read(name) for name in source.namelist()}
    if manifest is not None:
        said = {**json.loads(members["manifest"]), "format": manifest}
        members["manifest"], members["signature"] = STRANGER.sign(said)
    if members_of_entry is not None:
        unpacker = msgpack.Unpacker()
        unpacker.feed(members["entries.msgpack"])
        shorter = [msgpack.packb(entry[:members_of_entry]) for entry in unpacker]
        members["entries.msgpack"] = b"".join(shorter)
    header = json.loads(members.pop("export.json"))
    header["version"] = version or header["version"]
    header["sha256"] = {name: hashlib.sha256(held).hexdigest() for name, held in members.items()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as target:
        for name, held in members.items():
            target.writestr(name, held)
        target.writestr("export.json", json.dumps(header))
        target.comment = b"0" * 64
    export.seal(file)
    return file


@pytest.mark.parametrize("part", ["version", "manifest"])
async def test_an_export_of_a_newer_format(data: Path, exported: Path, part: str) -> None:
    """Nothing of it is imported; the manifest's format counts as well as the file's."""
    known = export.VERSION if part == "version" else manifests.FORMAT
    rewritten(exported, **{part: known + 1})
    async with blackboard.open(data, master_key=MASTER_KEY) as client:
        with pytest.raises(NewerFormat) as refused:
            await client.import_board(exported, "made")
        assert (refused.value.found, refused.value.known) == (known + 1, known)
        assert "made" not in await client.boards()


def test_saved_contexts_of_a_newer_format(tmp_path: Path) -> None:
    """They are neither used nor written over; those without a mark are of the first format."""
    contexts.change(tmp_path, lambda found: found)
    path = tmp_path / "contexts.json"
    said = json.loads(path.read_text())
    path.write_text(json.dumps({**said, "version": contexts.VERSION + 1, "more": 1}))
    before = path.read_bytes()
    for use in (contexts.load, lambda found: contexts.change(found, lambda held: held)):
        with pytest.raises(NewerFormat, match=r"contexts\.json"):
            use(tmp_path)
    assert path.read_bytes() == before
    del said["version"]
    path.write_text(json.dumps(said))
    assert contexts.load(tmp_path) == contexts.Contexts()


async def test_a_board_of_a_newer_layout_in_redis(redis_url: str) -> None:
    """It is refused, nothing of it changes, and other boards go on."""
    async with Service(RedisStore.connect(redis_url, limits=PATIENT)) as service:
        await Client(service.link(operator())).board("main").put("public/a", 1)
    with Redis.from_url(redis_url) as server:
        meta = "{main}:m"
        assert server.hget(meta, "format") == str(layout.FORMAT).encode()
        server.hset(meta, mapping={"format": layout.FORMAT + 1, "run": "of a newer layout"})
        before = (server.hgetall(meta), server.xrange("{main}:log"), server.hgetall("{main}:n"))
        async with Service(RedisStore.connect(redis_url, limits=PATIENT)) as service:
            board = Client(service.link(operator())).board("main")
            for call in (board.get("public/a"), board.put("public/a", 2)):
                with pytest.raises(NewerFormat, match="board main") as refused:
                    await call
                assert refused.value.found == layout.FORMAT + 1
            await Client(service.link(operator())).board("other").put("public/a", 1)
        after = (server.hgetall(meta), server.xrange("{main}:log"), server.hgetall("{main}:n"))
        assert after == before
        server.hdel(meta, "format")
    async with Service(RedisStore.connect(redis_url, limits=PATIENT)) as service:
        assert await Client(service.link(operator())).board("main").get("public/a") == 1


async def test_a_board_of_the_older_layout_in_redis(redis_url: str) -> None:
    """Opening writes nothing. The first entry that has a time of creation of its own also marks the
    board: the scripts of the older program then find no open board, and are refused."""
    async with Service(RedisStore.connect(redis_url, limits=PATIENT)) as service:
        await Client(service.link(operator())).board("main").put("public/a", 1)
    with Redis.from_url(redis_url) as server:
        run = server.hget("{main}:m", "run")
        assert isinstance(run, bytes)
        older = {b"run": run.removeprefix(b"2 "), b"format": b"1"}
        server.hset("{main}:m", mapping=older)
        async with Service(RedisStore.connect(redis_url, limits=PATIENT)) as service:
            board = Client(service.link(operator())).board("main")
            first = await board.entry("public/a")
            await board.put("public/b", 1)
            found = server.hgetall("{main}:m")
            assert isinstance(found, dict)
            assert older.items() <= found.items()
            await board.put("public/a", 2)
            entry = await board.entry("public/a")
            assert server.hmget("{main}:m", ["run", "format"]) == [run, b"2"]
            epoch = (await board.head()).epoch
    assert first is not None
    assert entry is not None
    assert entry.created_ms == first.time_ms
    assert epoch.number == 1


async def test_an_export_of_the_older_format(data: Path, tmp_path: Path) -> None:
    """It lacks the times of creation, and is imported nevertheless."""
    file = tmp_path / "old.zip"
    async with blackboard.open(data, master_key=MASTER_KEY) as client:
        await client.board("main").put("public/a", 2)
        await client.board("main").checkpoint("two")
        await client.board("main").export("two", file)
        with pytest.raises(Corrupt, match="not an entry"):  # those of this version have them
            await client.import_board(rewritten(file, version=1), "again")
        await client.import_board(rewritten(file, version=1, members_of_entry=7), "again")
        entry = await client.board("again").entry("public/a")
    assert entry is not None
    assert (entry.value, entry.created_ms) == (2, None)


async def test_a_running_service_meets_a_newer_layout_in_redis(redis_url: str) -> None:
    """It was migrated under it: the service must not write the old layout into the new one."""
    async with Service(RedisStore.connect(redis_url, limits=PATIENT)) as service:
        board = Client(service.link(operator())).board("main")
        await board.put("public/a", 1)
        with Redis.from_url(redis_url) as server:
            newer = {"format": layout.FORMAT + 1, "run": "of a newer layout"}
            server.hset("{main}:m", mapping=newer)
        with pytest.raises(NewerFormat, match="board main"):
            await board.put("public/a", 2)


async def test_an_archive_of_a_newer_format_in_postgresql(postgres: Postgres) -> None:
    """Its tables are neither read nor completed."""
    url = await postgres.empty()
    opened = await archive_database.Database.open(url, PATIENCE_MS)
    await opened.aclose()
    mark = f"{archive_database._MARK}{archive_database.FORMAT + 1}"
    opened = await archive_database.Database.open(url, PATIENCE_MS)
    try:
        async with opened.writing() as connection:
            await connection.exec_driver_sql("DROP TABLE version")
            await connection.exec_driver_sql(f"COMMENT ON TABLE board IS '{mark}'")
        with pytest.raises(NewerFormat, match="archive"):
            await archive_database.Database.open(url, PATIENCE_MS)
        async with opened.writing() as connection:
            found = await connection.exec_driver_sql("SELECT to_regclass('version')")
            assert found.scalar_one() is None
            await connection.exec_driver_sql("COMMENT ON TABLE board IS NULL")
    finally:
        await opened.aclose()
    opened = await archive_database.Database.open(url, PATIENCE_MS)
    await opened.aclose()


async def test_an_archive_of_the_older_format_in_postgresql(postgres: Postgres) -> None:
    """Opening it adds what it lacks, and marks it."""
    url = await postgres.empty()
    opened = await archive_database.Database.open(url, PATIENCE_MS)
    async with opened.writing() as connection:
        await connection.exec_driver_sql("ALTER TABLE version DROP COLUMN first_ms")
        older = f"{archive_database._MARK}1"
        await connection.exec_driver_sql(f"COMMENT ON TABLE board IS '{older}'")
    await opened.aclose()
    opened = await archive_database.Database.open(url, PATIENCE_MS)
    try:
        async with opened.reading() as connection:
            await connection.exec_driver_sql("SELECT first_ms FROM version")
            found = await connection.run_sync(archive_database._format)
            assert found == archive_database.FORMAT_WITHOUT_LOGS
    finally:
        await opened.aclose()
