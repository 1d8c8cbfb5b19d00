"""Arguments that make no sense: each is refused with an error of ours, and none with Python's.

Every parameter of every public method of `Board` and `Client` gets every odd value, embedded and
over a WebSocket. A method that is new here has no row, and fails the test until it has one.
"""

import asyncio
import inspect
import math
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any, cast, get_args

import pytest
from msgspec import structs

import blackboard
from blackboard.client.board import Board
from blackboard.client.client import Client
from blackboard.client.remote.link import connect
from blackboard.core.checkpoints import RetentionPolicy
from blackboard.core.commit import (
    Append,
    AskedOp,
    Condition,
    Delete,
    DeletePrefix,
    Expire,
    Grant,
    HeldFence,
    Increment,
    KeyAt,
    PrefixUnchanged,
    Put,
    Release,
    Renew,
)
from blackboard.errors import BarrierMissed, BlackboardError, InvalidRequest
from blackboard.wire.codec import encode_value
from tests.serving import Served

ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1,
    1.5,
    math.nan,
    math.inf,
    2**70,
    10**5_000,
    "",
    "x",
    "no such/",
    "\ud800",
    "\0",
    b"x",
    (),
    [1],
    [None],
    [[1]],
    {"a": 1},
    {1, 2},
    object(),
    datetime(2020, 1, 1),  # noqa: DTZ001 - it has no time zone: that is what is odd about it
]
WAITS = {("claim", "timeout_ms"): (None, 2**70)}
"""What is no mistake, but would wait."""

Row = tuple[tuple[Any, ...], dict[str, Any]]


async def _body(_: object) -> int:
    return 1


async def _deliver() -> tuple[Put, ...]:
    return ()


def _progress(_: object) -> None:
    """Nothing is shown."""


def _row(*several: Any, **named: Any) -> Row:
    return several, named


def _board_rows(file: Path) -> dict[str, Row]:
    """A call of each method of Board that is in order, of which one argument is spoiled."""
    key, keys, at = "public/a", "public/**", None
    return {
        "as_agent": _row(agent="bob"),
        "waiting_for_thaw": _row(wait_ms=5),
        "get": _row(key=key, at=at),
        "entry": _row(key=key, at=at),
        "document_entry": _row(key=key, at=at),
        "entries": _row(keys=[key], at=at),
        "list": _row(pattern=keys, after=None, limit=5, at=at, reverse=True, keys_only=True),
        "scan": _row(pattern=keys, at=at, reverse=True, keys_only=False),
        "log": _row(after=0, limit=3, pattern=None, author=None, verify=False),
        "why": _row(key=key),
        "put": _row(key=key, value=1, expected=None, ttl_ms=None, note=""),
        "delete": _row(key="public/none", expected=None),
        "delete_prefix": _row(prefix="public/none"),
        "touch": _row(key=key, ttl_ms=60_000),
        "append": _row(prefix="public/list", value=1, ttl_ms=None),
        "increment": _row(key="public/n", by=1),
        "merge": _row(key="public/m", patch={}),
        "commit": _row(ops=[Put(key, b"\x01")], conditions=(), fences=(), based_on=(), note=""),
        "step": _row(agent=None, validate=True, note=""),
        "run_step": _row(agent="ada", body=_body, attempts=1),
        "leases": _row(pattern="**"),
        "lock": _row("public/l", ttl_ms=5_000, timeout_ms=0),
        "wait_free": _row(key="public/f", timeout_ms=0),
        "attach": _row(agent=None, if_taken="wait", ttl_ms=5_000, timeout_ms=0, deliver=_deliver),
        "claim": _row(pattern="public/tasks/*", ttl_ms=5_000, timeout_ms=0, tries_max=3),
        "claims": _row(pattern=keys),
        "document": _row(key="public/d"),
        "watch": _row(keys, after=None, snapshot=False, coalesce=False),
        "checkpoint": _row(name=None, note="", barrier_ms=None, stale_ok=False),
        "show": _row(name="c"),
        "pin": _row(name="c"),
        "unpin": _row(name="c"),
        "prune": _row(policy=None, dry_run=True),
        "preview_restore": _row(to="c", keys_max=5),
        "restore": _row(to="c", note="", keep_calls=False),
        "recover": _row(at=at, note="", progress=_progress),
        "rewind": _row(to=1, at=at, before=None, note=""),
        "branch": _row(new="branched", at="now", note=""),
        "diff": _row(a=1, b="now", other=None, pattern="**", limit=5),
        "differences": _row(a=1, b="now", other=None, pattern="**"),
        "history": _row(key=key, before=None, limit=3),
        "verify": _row(at="now"),
        "export": _row(name="c", file=file, overwrite=True),
        "workspace": _row(path=file.with_name("files"), key="public/files"),
        "memory": _row(store="s", namespace="public", embed=None, model=""),
    }


def _client_rows(file: Path) -> dict[str, Row]:
    return {
        "board": _row(name="main"),
        "import_board": _row(file=file, board="imported", note=""),
        "remove_board": _row(name="none"),
        "erase": _row(agent="bob", board=None),
        "redact": _row(key="public/r", board=None, why="", progress=_progress),
        "revoke": _row("id", principal=None, until_ms=None),
        "token": _row(name="kim", grants=["public/**=read"], boards=["main"], ttl_ms=60_000),
        "freeze": _row(board="other", note=""),
        "thaw": _row(board="other", note=""),
        "frozen": _row(board="other"),
    }


@pytest.fixture(params=["embedded", "connected"])
async def client(
    request: pytest.FixtureRequest, tmp_path: Path, served: Served, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Client]:
    """A client of a board with a checkpoint."""
    monkeypatch.chdir(tmp_path)  # `export` makes a file of the name "x"
    if request.param == "embedded":
        opening = blackboard.open(tmp_path / "own")
    else:
        opening = connect(served.url, token=served.token())
    async with opening as client:
        await client.board().put("public/a", 1)
        await client.board().checkpoint("c")
        yield client


async def _use(found: Any) -> None:
    """Make use of what a method returned, so that it does what it is for."""
    if inspect.isasyncgen(found):
        await anext(found, None)
        await found.aclose()
    elif isinstance(found, Board):
        await found.head()
    elif hasattr(found, "__aenter__"):
        async with found:
            pass
    elif inspect.isawaitable(found):
        await _use(await found)


def _spoiled(name: str, row: Row) -> list[tuple[str, Row]]:
    """The calls of `name` with one odd argument each, with what is odd."""
    several, named = row
    calls = [("*", ((odd,), named)) for odd in ODD] if several else []
    for parameter in named:
        harmless = WAITS.get((name, parameter), ())
        calls += [
            (parameter, (several, {**named, parameter: odd})) for odd in ODD if odd not in harmless
        ]
    return calls


async def _python_errors(subject: Callable[[], Any], rows: dict[str, Row]) -> list[str]:
    """What was raised that is no error of ours."""
    found = []
    for name, row in rows.items():
        for parameter, (several, named) in _spoiled(name, row):
            try:
                with suppress(BlackboardError):
                    await _use(getattr(subject(), name)(*several, **named))
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                found.append(f"{name}({parameter}=): {type(error).__name__}: {error}")
    return found


def _with_parameters(kind: type) -> set[str]:
    return {
        name
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and len(inspect.signature(method).parameters) > 1
    }


async def test_odd_values_are_refused_by_errors_of_ours(client: Client, tmp_path: Path) -> None:
    """Each method of Board, with each of its parameters."""
    rows = _board_rows(tmp_path / "export")
    assert rows.keys() == _with_parameters(Board)
    assert await _python_errors(client.board, rows) == []


async def test_a_client_refuses_odd_values_likewise(client: Client, tmp_path: Path) -> None:
    rows = _client_rows(tmp_path / "export")
    assert rows.keys() == _with_parameters(Client)
    assert await _python_errors(lambda: client, rows) == []


@pytest.mark.parametrize(
    ("method", "field", "odd", "fix"),
    [
        ("log", "after", 1.5, "a float here: pass a whole number"),
        ("log", "limit", True, "a bool here: pass a whole number"),
        ("diff", "pattern", None, "a NoneType here: pass a str"),
        ("prune", "policy", 1, "an int here: pass a RetentionPolicy or None"),
        ("entries", "keys", "public/a", "a str here: pass a list in which each item is a str"),
        ("attach", "if_taken", "never", "pass 'wait', 'take_over' or 'refuse'"),
        ("restore", "keep_calls", 1, "an int here: pass True or False"),
        ("run_step", "attempts", 0, "0 is below 1"),
    ],
)
async def test_the_error_names_the_parameter_and_what_to_pass(
    client: Client, method: str, field: str, odd: object, fix: str
) -> None:
    several, named = _board_rows(Path("export"))[method]
    named = {**named, field: odd} | ({"a": 1} if method == "diff" else {})
    with pytest.raises(InvalidRequest) as raised:
        await _use(getattr(client.board(), method)(*several, **named))
    assert raised.value.field == field
    assert fix in raised.value.reason


async def test_a_retention_policy_of_odd_numbers_is_refused(client: Client) -> None:
    for odd in (1.5, "x", -1, None):
        broken: Any = odd
        with pytest.raises(InvalidRequest):
            await client.board().prune(RetentionPolicy(last=broken), dry_run=True)


async def test_a_missing_argument_stays_pythons_error(client: Client) -> None:
    board: Any = client.board()
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'key'"):
        await board.get()
    with pytest.raises(TypeError, match="unexpected keyword argument 'kee'"):
        await board.get("public/a", kee=1)


VALUE = encode_value(1)
WHOLE: tuple[Any, ...] = (
    Put("public/a", VALUE, 1_000),
    Delete("public/a"),
    DeletePrefix("public/a"),
    Append("public/list", VALUE, 1_000),
    Increment("public/number", 1),
    Grant("public/lock", "operator~x", 1_000, wait=True),
    Renew("public/lock", "operator~x", 1, 1_000),
    Release("public/lock", "operator~x", 1),
    Expire("public/lock", "operator~x", 1),
    KeyAt("public/a", 1),
    PrefixUnchanged("public/a", 1),
    HeldFence("public/lock", "operator~x", 1),
)
"""Each kind of record that a commit takes."""


def _with_one_odd_field(record: Any) -> Iterator[tuple[str, Any]]:
    """Copies of a record, by the name of the field."""
    for name in record.__struct_fields__:
        content = getattr(record, name)
        for odd in (1, True, 1.5, "text", b"bytes", bytearray(VALUE), [], object()):
            if type(odd) is not type(content):
                yield name, structs.replace(record, **{name: odd})


def test_each_kind_of_record_is_tried() -> None:
    kinds: set[type] = {*get_args(AskedOp), *get_args(Condition), HeldFence}
    assert kinds == set(map(type, WHOLE))


@pytest.mark.parametrize("record", WHOLE, ids=lambda record: type(record).__name__)
async def test_a_field_of_a_record_is_checked_as_an_argument_is(
    client: Client, record: Any
) -> None:
    """Making a record checks nothing. The error names the field, and nothing is committed."""
    board = client.board()
    await board.put("public/a", 1)
    before = (await board.head()).revision
    kind = type(record)
    place = "ops"
    if kind is HeldFence:
        place = "fences"
    elif kind in get_args(Condition):
        place = "conditions"
    for name, odd in _with_one_odd_field(record):
        given: dict[str, Any] = {"ops": [Delete("public/a")], place: [odd]}
        with pytest.raises(InvalidRequest) as raised:
            await board.commit(**given)
        assert raised.value.field == f"{place}.0.{name}", odd
    assert (await board.head()).revision == before


async def test_what_a_delivery_returns_is_checked_likewise(client: Client) -> None:
    board, not_encoded = client.board(), Put("public/state", cast("bytes", "text"))

    async def deliver() -> list[Put]:
        return [not_encoded]

    async with board.attach("operator", deliver=deliver):
        taking = asyncio.create_task(board.checkpoint("one", barrier_ms=5_000))

        async def put_until_the_cut() -> None:
            while not taking.done():
                await board.put("public/a", 1)

        with pytest.raises(InvalidRequest) as raised:
            await put_until_the_cut()
        assert raised.value.field == "deliver.0.value"
        with pytest.raises(BarrierMissed):
            await taking


EMPTY: dict[str, Callable[[Client], Any]] = {
    "board": lambda client: client.board("").put("public/a", 1),
    "freeze": lambda client: client.freeze(""),
    "thaw": lambda client: client.thaw(""),
    "frozen": lambda client: client.frozen(""),
    "redact": lambda client: client.redact("public/a", board=""),
    "checkpoint": lambda client: client.board().checkpoint(""),
    "memory": lambda client: client.board().memory(namespace="").remember("a text"),
    "workspace": lambda client: client.board().workspace("files", "").list(),
}


@pytest.mark.parametrize("call", EMPTY.values(), ids=EMPTY.keys())
async def test_an_empty_name_does_not_mean_the_default(
    tmp_path: Path, call: Callable[[Client], Any]
) -> None:
    """It comes from a setting that is missing, and the change would go somewhere else."""
    async with blackboard.open(tmp_path, level="memory") as client:
        before = await client.board().put("public/a", 1)
        with pytest.raises(InvalidRequest):
            await call(client)
        head = await client.board().head()
        assert (head.revision, await client.boards()) == (before.revision, ["main"])


async def test_what_is_less_than_there_can_be_is_refused(client: Client) -> None:
    """Where it would give a wrong answer, or wait for what cannot come."""
    board = client.board()
    await board.put("public/a", 1)
    for call in (
        lambda: board.diff(0, limit=0),
        lambda: board.diff(0, limit=-1),
        lambda: board.log(limit=0),
        lambda: board.wait_free("public/l", timeout_ms=-1),
        lambda: board.lock("public/l", timeout_ms=-1).__aenter__(),
    ):
        with pytest.raises(InvalidRequest, match="is less than"):
            await call()


NAMED_BY_PATHS: dict[str, Callable[[Client, Path], Any]] = {
    "put": lambda client, path: client.board().files.put("public/a", path),
    "save": lambda client, path: client.board().files.save("public/f", path),
    "export": lambda client, path: client.board().export("c", path),
    "import": lambda client, path: client.import_board(path, "new"),
    "workspace": lambda client, path: client.board().as_agent("ada").workspace(path).snapshot(),
    "open": lambda _, path: blackboard.open(path),
    "authorities": lambda _, path: connect("wss://127.0.0.1:1", token="t", ca=path),
}


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"], ids=["a NUL", "half a pair"])
@pytest.mark.parametrize("call", NAMED_BY_PATHS.values(), ids=NAMED_BY_PATHS.keys())
async def test_a_path_that_no_file_can_have_is_refused(
    tmp_path: Path, call: Callable[[Client, Path], Any], name: str
) -> None:
    async with blackboard.open(tmp_path / "data", level="memory") as client:
        await client.board().files.put("public/f", b"content")
        await client.board().checkpoint("c")
        with pytest.raises(InvalidRequest):
            await call(client, tmp_path / name)
