"""fakeredis, with what our scripts need of a server and it lacks: INFO, cmsgpack, struct, a clock.

It runs the real scripts in a real Lua. Where it takes the place of a server, test_differential.py
compares the two.
"""

import copy
import hashlib
import struct
from collections.abc import Callable
from typing import Any, Final

import msgpack
from fakeredis import FakeServer
from fakeredis._commands import command
from fakeredis._helpers import SimpleError
from fakeredis._socket import FakeSocket
from lupa.lua51 import LuaError
from redis import Redis

from blackboard.units import Milliseconds

VERSION: Final = (7, 2)
_BOARD_OF: Final = 0
"""The number of the database that is used."""
_STRUCTS: dict[bytes, struct.Struct] = {}
_FORMS: Final = {b"I1": "B", b"I2": "H", b"I4": "I", b"I8": "Q", b"B": "B"} | {
    b"i1": "b",
    b"i2": "h",
    b"i4": "i",
    b"i8": "q",
}


class FakeRedis:
    """A server in this process. `now_ms` is its clock; two names tell its runs apart."""

    def __init__(self, now_ms: Callable[[], Milliseconds]) -> None:
        self.now_ms = now_ms
        self.run_id = "a" * 40
        self.replication_id = "b" * 40
        self._server = FakeServer(version=VERSION)
        self._socket = _Socket(self._server, _BOARD_OF, client_class=Redis)
        self._socket.world = self
        self._socket.chunks = {}

    def execute(self, *command: str | bytes | int) -> Any:
        """One command; the reply, or the error of redis-py that a client would raise."""
        fields = [c if isinstance(c, bytes) else str(c).encode() for c in command]
        self._socket._process_command(fields)
        assert self._socket.responses is not None
        reply: Any = self._socket.responses.get_nowait()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def snapshot(self) -> dict[bytes, Any]:
        """A copy of everything that it holds."""
        return copy.deepcopy(dict(self._database()._dict))

    def forget_scripts(self) -> None:
        """Know no script any more, as after a start."""
        self._server.script_cache.clear()

    def become(self, held: dict[bytes, Any]) -> None:
        """Hold what a snapshot has, and nothing else."""
        database = self._database()
        database._dict.clear()
        database._dict.update(copy.deepcopy(held))

    def _database(self) -> Any:
        return self._server.dbs[_BOARD_OF]


class _Socket(FakeSocket):
    """A connection to a fake server; there is one, so what one client set up another one sees."""

    world: FakeRedis
    chunks: dict[bytes, Any]

    @command(())
    def time(self) -> list[bytes]:
        """TIME, by the simulated clock."""
        seconds, rest_ms = divmod(self.world.now_ms(), 1000)
        return [b"%d" % seconds, b"%d" % (rest_ms * 1000)]

    @command(fixed=(), repeat=(bytes,))
    def info(self, *sections: bytes) -> bytes:
        """INFO, as far as somebody reads it."""
        return (
            f"# Server\r\nredis_version:7.2.11\r\nrun_id:{self.world.run_id}\r\n"
            f"# Replication\r\nrole:master\r\nmaster_replid:{self.world.replication_id}\r\n"
            "maxmemory_policy:noeviction\r\naof_enabled:1\r\n"
        ).encode()

    def eval(self, script: bytes, numkeys: int, *rest: bytes) -> Any:
        """EVAL, with each script compiled once, and without a full collection after each call.

        Ours set no globals, which the original looks for before and after every command.
        """
        held: Any = self._server
        lua = self._get_server_runtime(self._server)
        sha = hashlib.sha1(script, usedforsecurity=False).hexdigest().encode()
        self._server.script_cache[sha] = script
        held._lua_current_socket[0] = self
        held._lua_set_keys_argv(lua.table_from(rest[:numkeys]), lua.table_from(rest[numkeys:]))
        chunk = self.chunks.get(script)
        if chunk is None:
            chunk = self.chunks[script] = lua.compile(script)
        self._script_resp = 2
        try:
            result = chunk()
        except LuaError as error:
            raise SimpleError(f"ERR {error}") from error
        finally:
            self._script_resp = None
        return self._convert_lua_result(result, nested=False)

    def _lua_redis_call(self, lua: Any, _: object, op: bytes, *args: Any) -> Any:
        function, signature = self._name_to_func(op.decode().lower())
        fields = [a if type(a) is bytes else b"%.17g" % a for a in args]
        return self._convert_redis_result(lua, self._run_command(function, signature, fields, True))

    def _get_server_runtime(self, server: FakeServer) -> Any:
        is_new = not hasattr(server, "_lua_runtime")
        lua = super()._get_server_runtime(server)
        if is_new:
            held: Any = server
            for name, library in _libraries(lua).items():
                lua.globals()[name] = lua.table_from(library)
                held._lua_expected_globals.add(name)
        return lua


def _libraries(lua: Any) -> dict[bytes, dict[bytes, Callable[..., Any]]]:
    """The two libraries of C that Redis links into its Lua."""

    def pack(*values: Any) -> bytes:
        return b"".join(_packed(_from_lua(value)) for value in values)

    def unpack(packed: bytes) -> Any:
        unpacker = msgpack.Unpacker(raw=True, strict_map_key=False)
        unpacker.feed(packed)
        return tuple(_to_lua(lua, value) for value in unpacker)

    return {
        b"cmsgpack": {b"pack": pack, b"unpack": unpack},
        b"struct": {b"pack": _struct_pack, b"unpack": _struct_unpack},
    }


def _from_lua(value: Any) -> Any:
    """A value of Lua as lua-cmsgpack writes it: a table with the keys 1..n is a list."""
    if isinstance(value, bytes):
        # As a string, in the form of today; any bytes survive the way there and back.
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if value is None or isinstance(value, int | float):
        return value
    found = {key: item for key, item in value.items()}  # noqa: C416 - a table of Lua is no dict
    if sorted(key for key in found if isinstance(key, int | float)) == list(
        range(1, len(found) + 1)
    ):
        return [_from_lua(found[number]) for number in range(1, len(found) + 1)]
    return {_from_lua(key): _from_lua(item) for key, item in found.items()}


def _packed(value: Any) -> bytes:
    packed: bytes = msgpack.packb(value, unicode_errors="surrogateescape")
    return packed


def _to_lua(lua: Any, value: Any) -> Any:
    if isinstance(value, list):
        return lua.table_from([_to_lua(lua, item) for item in value])
    if isinstance(value, dict):
        return lua.table_from({key: _to_lua(lua, item) for key, item in value.items()})
    return value


def _struct(form: bytes) -> struct.Struct:
    found = _STRUCTS.get(form)
    if found is None:
        text, rest = ">", form.removeprefix(b">")
        while rest:
            part = rest[:2] if rest[:2] in _FORMS else rest[:1]
            text, rest = text + _FORMS[part], rest[len(part) :]
        found = _STRUCTS[form] = struct.Struct(text)
    return found


def _struct_pack(form: bytes, *values: Any) -> bytes:
    return _struct(form).pack(*(int(value) for value in values))


def _struct_unpack(form: bytes, packed: bytes, at: float = 1) -> tuple[Any, ...]:
    """The values, then the position behind them, counted from 1."""
    layout, start = _struct(form), int(at) - 1
    return (*layout.unpack_from(packed, start), start + layout.size + 1)
