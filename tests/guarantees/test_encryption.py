"""Encryption at rest, from outside: what is private is in no file and in no Redis, and is erasable.

The searches are for the plain bytes, in whatever lies there when the service has stopped.
"""

import zipfile
from pathlib import Path

import pytest
from redis.asyncio import Redis

import blackboard
from blackboard.archive.sql import archive_beside
from blackboard.client.client import Client
from blackboard.core import access
from blackboard.encryption.data_keys import DataKeys
from blackboard.encryption.master_key import LocalWrapper, new_master_key
from blackboard.encryption.store import SealedStore
from blackboard.engines.redis.store import RedisStore
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.server.assembly import sealed
from blackboard.server.service import Service
from tests.canary import files_with
from tests.redis_process import RedisProcess
from tests.serving import serving

CANARY = "canary-9f1c"
LARGE = CANARY * 20_000


async def write_everything(service: Service) -> None:
    """Put the canary wherever an agent can put something private."""
    ada = Client(service.link(access.agent("ada"))).board("main")
    bob = Client(service.link(access.agent("bob"))).board("main")
    await ada.put("private/ada/a", CANARY)
    await ada.put("private/ada/large", LARGE)
    await ada.put("private/ada/map", {"in": [CANARY]})
    await ada.merge("private/ada/map", {"more": CANARY})
    await ada.append("private/ada/log", CANARY)
    await bob.append("inbox/ada/messages", CANARY)
    await ada.put("private/ada/a", "another", expected=1)
    await ada.put("private/ada/gone", CANARY)
    await ada.delete("private/ada/gone")
    assert await ada.get("private/ada/large") == LARGE


@pytest.mark.parametrize("is_sealed", [True, False])
async def test_no_private_plaintext_is_in_any_file(tmp_path: Path, is_sealed: bool) -> None:
    """Log, state, journal; and without a key it is found, so that the search can fail."""
    raw = await SqliteStore.at(tmp_path)
    wrapper = LocalWrapper.of(new_master_key()) if is_sealed else None
    store, _ = await sealed(raw, None, wrapper)
    async with Service(store) as service:
        await write_everything(service)
        assert bool(files_with(tmp_path, CANARY.encode())) is not is_sealed
    assert bool(files_with(tmp_path, CANARY.encode())) is not is_sealed


@pytest.mark.parametrize("is_sealed", [True, False])
async def test_no_private_plaintext_is_in_redis(redis_binary: Path, is_sealed: bool) -> None:
    """In no key of any type, and in none of the files that the server writes."""
    async with RedisProcess(redis_binary) as server:
        raw = RedisStore.connect(server.url)
        wrapper = LocalWrapper.of(new_master_key()) if is_sealed else None
        store, _ = await sealed(raw, None, wrapper)
        async with Service(store) as service:
            await write_everything(service)
        found = 0
        async with Redis.from_url(server.url) as client:
            async for key in client.scan_iter(count=1000):
                found += CANARY.encode() in (await client.dump(key) or b"")
                kind = str(await client.type(key))
                whole = {"b'hash'": "HGETALL", "b'stream'": "XRANGE", "b'string'": "GET"}.get(kind)
                if whole is not None:
                    ends = ("-", "+") if whole == "XRANGE" else ()
                    reply = await client.execute_command(whole, key, *ends)
                    found += CANARY in repr(reply)
            assert await client.dbsize() > 0
        assert bool(found) is not is_sealed
        assert bool(files_with(server.directory, CANARY.encode())) is not is_sealed


async def test_an_erased_agent_is_gone_from_what_was_copied_before(tmp_path: Path) -> None:
    """A copy of the boards from before opens nothing once its data key is destroyed, and the others
    go on: after the master key was changed too, the copy's own key record is of no use."""
    old, new = new_master_key(), new_master_key()
    raw = await SqliteStore.at(tmp_path / "live")
    keys = DataKeys(raw, LocalWrapper.of(f"{new}\n{old}"))
    store = SealedStore(raw, keys)
    async with Service(store) as service:
        ada = Client(service.link(access.agent("ada"))).board("main")
        bob = Client(service.link(access.agent("bob"))).board("main")
        await ada.put("private/ada/a", CANARY)
        await bob.put("private/bob/a", "bob's")
        assert await keys.destroy(["private/ada"]) == 1
        assert await ada.get("private/ada/a") == {"$erased": True}
        assert await bob.get("private/bob/a") == "bob's"
        assert await keys.rewrap() == 1
        await ada.put("private/ada/b", "new")
        assert await ada.get("private/ada/b") == "new"


def members_with(file: Path, text: str) -> list[str]:
    """The members of an exported file that hold `text`, once they are decompressed."""
    with zipfile.ZipFile(file) as archive:
        return [name for name in archive.namelist() if text.encode() in archive.read(name)]


@pytest.mark.parametrize("is_sealed", [True, False])
async def test_no_private_plaintext_is_in_an_export(tmp_path: Path, is_sealed: bool) -> None:
    """Nor in archive and blobs; what was exported comes back, and what was erased does not."""
    data, file = tmp_path / "data", tmp_path / "one.bbx"
    raw, beside = await SqliteStore.at(data, "memory"), await archive_beside(data)
    wrapper = LocalWrapper.of(new_master_key()) if is_sealed else None
    store, archive = await sealed(raw, beside, wrapper)
    async with Service(store, archive=archive) as service, serving(service) as served:
        await write_everything(service)
        async with blackboard.connect(served.url, token=served.token()) as client:
            board = client.board("main")
            await board.checkpoint("one")
            await board.export("one", file)
            assert bool(members_with(file, CANARY)) is not is_sealed
            await client.import_board(file, "two")
            assert await client.board("two").get("private/ada/large") == LARGE
            if is_sealed:
                await client.erase("ada")
                assert await board.get("private/ada/large", at="one") == {"$erased": True}
                async with blackboard.open(tmp_path / "other") as stranger:
                    with pytest.raises(blackboard.InvalidRequest, match="is sealed"):
                        await stranger.import_board(file, "two")
                    assert await stranger.boards() == []
                await client.import_board(file, "three")
                assert await client.board("three").get("private/ada/a") == {"$erased": True}
    assert bool(files_with(tmp_path, CANARY.encode())) is not is_sealed


async def test_erased_values_are_reported_and_are_no_damage(tmp_path: Path) -> None:
    """Checking needs no key: the ciphertext is what was written."""
    data = tmp_path / "data"
    async with blackboard.open(data, master_key=new_master_key()) as client:
        board = client.board("main")
        for name in ("ada", "bob"):
            await board.put(f"private/{name}/a", CANARY)
        await board.checkpoint("one")
        assert (await board.verify("one")).erased == ()
        assert await client.erase("ada") == 1
        found = await board.verify("one")
        assert (found.ok, found.findings, found.erased) == (True, (), ("private/ada",))


async def test_sealed_values_are_the_same_over_a_socket(tmp_path: Path) -> None:
    """Read, listed, watched, in the log, in a conflict; and an admin erases from there."""
    store, _ = await sealed(
        await SqliteStore.at(tmp_path, "memory"), None, LocalWrapper.of(new_master_key())
    )
    key = "private/ada/a"
    async with Service(store) as service, serving(service) as served:
        token = served.token(access.agent("ada"))
        async with blackboard.connect(served.url, token=token) as client:
            board = client.board("main")
            async with board.watch(key) as watch:
                first = await board.put(key, {"in": [CANARY]})
                assert (await anext(aiter(watch))).changes[0].value == {"in": [CANARY]}
            assert await board.get(key) == {"in": [CANARY]}
            assert [e.value for e in (await board.list("**")).entries] == [{"in": [CANARY]}]
            assert [c.value for r in await board.log() for c in r.changes] == [{"in": [CANARY]}]
            with pytest.raises(blackboard.Conflict) as refused:
                await board.put(key, 1, expected=first.revision + 7)
            assert refused.value.current == {"in": [CANARY]}
        async with blackboard.connect(served.url, token=served.token()) as client:
            assert await client.rewrap() == 1
            assert await client.erase("ada") == 1
            assert await client.board("main").get(key) == {"$erased": True}
