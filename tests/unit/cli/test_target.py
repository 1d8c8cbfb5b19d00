"""Flag before environment before context before the service on this machine."""

import asyncio
import os
import stat
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from blackboard.cli.errors import CommandError, Exit
from blackboard.cli.options import Flags
from blackboard.cli.target import (
    Contexts,
    ServiceContext,
    Target,
    answering,
    change,
    data_directory,
    load,
    resolve,
)
from blackboard.engines.sqlite.store import SqliteStore
from blackboard.server.service import Service
from tests.certificates import Authority
from tests.serving import serving

LOCAL = ServiceContext("ws://127.0.0.1:7420", token="local-token")
PROD = ServiceContext("wss://boards.example.org", token="prod-token", board="expansion")
KNOWN = Contexts(None, {"local": LOCAL, "prod": PROD})
ENVIRON = {
    "BLACKBOARD_URL": "ws://environ",
    "BLACKBOARD_TOKEN": "environ-token",
    "BLACKBOARD_BOARD": "environ-board",
    "BLACKBOARD_AGENT": "environ-agent",
}
FLAGS = Flags(url="ws://flag", token="flag-token", board="flag-board", agent="flag-agent")


def test_flags_precede_everything() -> None:
    """All four are taken from the command line."""
    assert resolve(FLAGS, ENVIRON, KNOWN.using("prod")) == Target(
        "flag-board", url="ws://flag", token="flag-token", agent="flag-agent", is_here=False
    )


def test_the_environment_precedes_contexts() -> None:
    """All four are taken from variables."""
    assert resolve(Flags(), ENVIRON, KNOWN.using("prod")) == Target(
        "environ-board",
        url="ws://environ",
        token="environ-token",
        agent="environ-agent",
        is_here=False,
    )


def test_the_chosen_context_precedes_the_local_one() -> None:
    """Its address, token and board count."""
    assert resolve(Flags(), {}, KNOWN.using("prod")) == Target(
        "expansion", url=PROD.url, token="prod-token", is_here=False
    )


def test_the_local_service_is_the_default() -> None:
    """With nothing chosen, what `serve` wrote is used, with the board `main`."""
    assert resolve(Flags(), {}, KNOWN) == Target("main", url=LOCAL.url, token="local-token")


def test_each_is_decided_by_itself() -> None:
    """A board by flag leaves the address to the context."""
    assert resolve(Flags(board="b"), {}, KNOWN) == Target("b", url=LOCAL.url, token="local-token")


@pytest.mark.parametrize(
    ("flags", "environ"),
    [(Flags(url="ws://elsewhere"), {}), (Flags(), {"BLACKBOARD_URL": "ws://elsewhere"})],
)
def test_a_remembered_token_goes_to_its_own_address_only(
    flags: Flags, environ: dict[str, str]
) -> None:
    """An attacker who redirects us to another address does not get the token."""
    assert resolve(flags, environ, KNOWN).token is None


def test_a_remembered_token_goes_to_its_address_by_flag_too() -> None:
    """The address is what counts, not how it was said."""
    assert resolve(Flags(url=LOCAL.url), {}, KNOWN).token == "local-token"


def test_a_context_by_flag_precedes_the_environment() -> None:
    """`--context prod` means prod, with its token."""
    found = resolve(Flags(context="prod"), ENVIRON, KNOWN)
    assert (found.url, found.token) == (PROD.url, "prod-token")


def test_a_context_by_flag_brings_its_board_and_authority() -> None:
    """`--context prod` of a shell that works on another service. What prod does not have comes from
    the environment: its token never does."""
    environ = ENVIRON | {"BLACKBOARD_CA": "environ.pem"}
    known = KNOWN.adding("prod", ServiceContext(PROD.url, board="expansion", ca="prod.pem"))
    found = resolve(Flags(context="prod"), environ, known)
    assert (found.board, found.ca, found.token) == ("expansion", "prod.pem", None)
    found = resolve(Flags(context="prod", board="b", ca="flag.pem"), environ, known)
    assert (found.board, found.ca) == ("b", "flag.pem")
    found = resolve(Flags(context="local"), environ, known)
    assert (found.board, found.ca) == ("environ-board", "environ.pem")


def test_an_empty_variable_is_none() -> None:
    """`BLACKBOARD_URL= blackboard ls` is as if it were not set."""
    assert resolve(Flags(), {"BLACKBOARD_URL": "", "BLACKBOARD_BOARD": ""}, KNOWN).board == "main"


def test_without_any_service_the_answer_names_the_command() -> None:
    """Exit code 6, and how to start one."""
    with pytest.raises(CommandError) as refused:
        resolve(Flags(), {}, Contexts())
    assert refused.value.exit == Exit.UNAVAILABLE
    assert "blackboard serve" in refused.value.fix


def test_a_directory_needs_no_service() -> None:
    """`--data` asks no context; with `--url` it contradicts itself."""
    environ = {"BLACKBOARD_URL": "ws://environ", "BLACKBOARD_AGENT": "bob"}
    assert resolve(Flags(data="d"), environ, Contexts()) == Target("main", agent="bob", data="d")
    with pytest.raises(CommandError) as refused:
        resolve(Flags(data="d", url="ws://x"), {}, Contexts())
    assert refused.value.exit == Exit.USAGE


def test_a_directory_takes_no_token() -> None:
    """It would limit nothing: a process that opens a directory has all rights."""
    with pytest.raises(CommandError) as refused:
        resolve(Flags(data="d", token="of a reader"), {}, Contexts())
    assert refused.value.exit == Exit.USAGE
    assert "takes no --token" in refused.value.message


def test_an_unknown_context_is_not_found() -> None:
    """The known ones are named."""
    with pytest.raises(CommandError) as refused:
        resolve(Flags(context="test"), {}, KNOWN)
    assert refused.value.exit == Exit.NOT_FOUND
    assert "local, prod" in refused.value.fix


def test_a_token_file_is_read_when_it_is_needed(tmp_path: Path) -> None:
    """White space around it does not count; a missing file is an error, not ignored."""
    path = tmp_path / "token"
    path.write_text("secret\n")
    known = Contexts(None, {"local": ServiceContext("ws://x", token_file=str(path))})
    assert resolve(Flags(), {}, known).token == "secret"
    path.unlink()
    with pytest.raises(CommandError) as refused:
        resolve(Flags(), {}, known)
    assert refused.value.exit == Exit.DENIED
    assert resolve(Flags(token="t"), {}, known).token == "t"


def test_the_data_directory_is_that_of_the_service_in_use() -> None:
    """So that `token create` signs with the right secret; flag and environment precede."""
    known = Contexts(None, {"local": ServiceContext("ws://x", data="here"), "prod": PROD})
    assert data_directory(Flags(), {}, known) == "here"
    assert data_directory(Flags(data="there"), {"BLACKBOARD_DATA": "x"}, known) == "there"
    assert data_directory(Flags(), {"BLACKBOARD_DATA": "x"}, known) is None
    assert data_directory(Flags(), {}, known.using("prod")) is None
    assert data_directory(Flags(), {}, Contexts()) is None


def test_removing_the_chosen_context_falls_back_to_the_local_one() -> None:
    """And another one's removal changes no choice."""
    assert KNOWN.using("prod").removing("prod").chosen == "local"
    assert KNOWN.using("prod").removing("local").chosen == "prod"
    assert Contexts().chosen is None


def test_contexts_are_kept_for_this_user_only(tmp_path: Path) -> None:
    """What is saved is loaded again; nobody else can read it."""
    directory = tmp_path / "config"
    assert load(directory) == Contexts()
    change(directory, lambda known: known.adding("prod", PROD).using("prod"))
    assert load(directory) == Contexts("prod", {"prod": PROD})
    assert stat.S_IMODE((directory / "contexts.json").stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_contexts_outlast_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file would make every command fail: content and name are on the disk."""
    synced, real = set(), os.fsync

    def fsync(file: int) -> None:
        real(file)
        synced.add(os.fstat(file).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    change(tmp_path, lambda known: known.adding("prod", PROD))
    assert {(tmp_path / "contexts.json").stat().st_ino, tmp_path.stat().st_ino} <= synced


def test_changes_at_once_all_count(tmp_path: Path) -> None:
    """Two services that start together are both remembered."""
    names = [f"c{number}" for number in range(16)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: change(tmp_path, lambda k: k.adding(name, PROD)), names))
    assert sorted(load(tmp_path).by_name) == sorted(names)


def test_without_a_home_there_are_no_contexts(tmp_path: Path) -> None:
    """Accounts of services have /dev/null, or another file, for a home."""
    (tmp_path / "home").write_text("")
    assert load(tmp_path / "home" / ".config") == Contexts()


@pytest.mark.parametrize("text", ["", "[]", '{"contexts": {"a": {"uri": "x"}}, "current": null}'])
def test_a_broken_file_is_reported(tmp_path: Path, text: str) -> None:
    """With its name, and what to do."""
    (tmp_path / "contexts.json").write_text(text)
    with pytest.raises(CommandError, match=r"contexts\.json"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("context", "url", "is_here"),
    [
        (ServiceContext("wss://board.example.org"), None, False),
        (ServiceContext("wss://board.example.org", data="/var/lib/b"), None, True),
        (
            ServiceContext("wss://board.example.org", data="/var/lib/b"),
            "wss://other.example.org",
            False,
        ),
        (ServiceContext("wss://board.example.org"), "ws://[::1]:7420", True),
    ],
)
def test_a_service_is_here_by_its_address_or_by_its_data(
    context: ServiceContext, url: str | None, is_here: bool
) -> None:
    """`serve` remembers the directory; a context of another machine has none."""
    known = Contexts().adding("team", context).using("team")
    assert resolve(Flags(url=url), {}, known).is_here is is_here


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    """A service, not yet served."""
    async with Service(await SqliteStore.at(tmp_path / "data", "memory")) as service:
        yield service


async def _answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A proxy that answers everything by itself."""
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    await writer.drain()
    writer.close()


async def test_no_proxy_answers_for_a_service_on_this_machine(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither that it runs nor that it does not."""
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    proxy = await asyncio.start_server(_answers, "127.0.0.1", 0)
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
    async with serving(service) as served:
        there = ServiceContext(served.url)
        assert await asyncio.to_thread(answering, there)
    assert not await asyncio.to_thread(answering, there)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with serving(service) as served:
        assert await asyncio.to_thread(answering, ServiceContext(served.url))
    proxy.close()


@pytest.mark.parametrize("by_variable", [False, True])
async def test_a_service_with_a_certificate_of_ones_own_is_there(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_variable: bool
) -> None:
    """The authority is that of the context, or of the environment."""
    authority = Authority(tmp_path)
    if by_variable:
        monkeypatch.setenv("BLACKBOARD_CA", str(authority.ca))
    async with serving(service, pair=authority.issue()) as served:
        there = ServiceContext(served.url, ca=None if by_variable else str(authority.ca))
        assert await asyncio.to_thread(answering, there)
        missing = ServiceContext(served.url, ca=str(tmp_path / "missing"))
        assert not await asyncio.to_thread(answering, missing)


async def test_a_program_that_does_not_speak_http_is_no_service() -> None:
    async def talks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"220 mail.example.org\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(talks, "127.0.0.1", 0)
    there = ServiceContext(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert not await asyncio.to_thread(answering, there)
    server.close()
