"""Checks the rights of an account on a Redis or Valkey server: all that are needed, and no others.

Redis checks the rights of a script command by command, and does not roll back what a script did
before a command was refused. So the rights are checked before anything is written, with
`redis.acl_check_cmd`, which changes nothing.

Source: https://redis.io/docs/latest/operate/oss_and_stack/management/security/acl/
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from blackboard.engines.redis.driver import Driver, ask_all
from blackboard.engines.redis.layout import BOARDS, board_keys, pubsub_channel

_BOARD: Final = "~account"  # a name that no board has
_KEY: Final = board_keys(_BOARD)[0]
_CHANNEL: Final = pubsub_channel(_BOARD)
NEEDED: Final = (
    "EVAL - 0",
    "EVALSHA - 0",
    "INFO",
    "TIME",
    "WAIT 0 0",
    "PING",
    f"SADD {BOARDS} b",
    f"SISMEMBER {BOARDS} b",
    f"SMEMBERS {BOARDS}",
    f"SREM {BOARDS} b",
    f"DEL {_KEY}",
    f"UNLINK {_KEY}",
    f"EXISTS {_KEY}",
    f"HDEL {_KEY} f",
    f"HEXISTS {_KEY} f",
    f"HGET {_KEY} f",
    f"HGETALL {_KEY}",
    f"HLEN {_KEY}",
    f"HMGET {_KEY} f",
    f"HSET {_KEY} f v",
    f"XADD {_KEY} * f v",
    f"XDEL {_KEY} 1-0",
    f"XLEN {_KEY}",
    f"XRANGE {_KEY} - +",
    f"XREAD COUNT 1 STREAMS {_KEY} 0",
    f"XTRIM {_KEY} MINID 1",
    f"ZADD {_KEY} 0 m",
    f"ZLEXCOUNT {_KEY} - +",
    f"ZRANGEBYLEX {_KEY} - +",
    f"ZREVRANGEBYLEX {_KEY} + -",
    f"ZRANGEBYSCORE {_KEY} 0 1",
    f"ZREM {_KEY} m",
    f"SPUBLISH {_CHANNEL} m",
    f"SSUBSCRIBE {_CHANNEL}",
)
"""An example of every command that is sent or that a script runs. A test keeps the list
complete."""
TOLD: Final = "CONFIG GET appendfsync"
"""Needed to find out what an acknowledged commit survives; without it, the weakest level is
assumed."""
ERASES: Final = "BGREWRITEAOF"
"""Needed to remove erased data from the append-only file at once; without it, that is left to the
operator."""
_HARMFUL: Final = (
    "ACL SETUSER u",
    "CLIENT KILL ID 1",
    "CONFIG SET s v",
    "DEBUG SLEEP 0",
    "FLUSHALL",
    "FUNCTION LOAD t",
    "KEYS *",
    "MODULE LOAD m",
    "MONITOR",
    "REPLICAOF h 1",
    "SCRIPT FLUSH",
    "SHUTDOWN",
)
_KEYS_OF_OTHERS: Final = "HGET blackboard-doctor f"
_CHECK: Final = """
local may = {}
if not redis.acl_check_cmd then return may end
for i, line in ipairs(ARGV) do
  local words = {}
  for word in string.gmatch(line, '%S+') do words[#words + 1] = word end
  local ok, allowed = pcall(redis.acl_check_cmd, unpack(words))
  may[i] = (ok and allowed) and 1 or 0
end
return may
"""


@dataclass(frozen=True, slots=True)
class RedisAccount:
    """What an account may not do and should (`lacking`), and the other way round (`excess`)."""

    lacking: Sequence[str]
    excess: Sequence[str]


async def read_account(driver: Driver) -> RedisAccount:
    """Query every server. One that is too old to answer is assumed to have the right account.

    Errors: Unavailable, also when the account may not even ask (EVAL).
    """
    asked = (*NEEDED, *_HARMFUL, _KEYS_OF_OTHERS)
    replies = await ask_all(driver, "EVAL", _CHECK, 0, *asked)
    lacking: dict[str, None] = {}
    excess: dict[str, None] = {}
    for reply in replies:
        # A server that is too old to answer replies with an empty list.
        may = dict(zip(asked, reply, strict=False))
        lacking |= dict.fromkeys(_names(line for line in NEEDED if may.get(line) == 0))
        excess |= dict.fromkeys(_names(line for line in _HARMFUL if may.get(line) == 1))
        if may.get(_KEYS_OF_OTHERS) == 1:
            excess["keys of others"] = None
    return RedisAccount(tuple(lacking), tuple(excess))


def _names(lines: Iterable[str]) -> Iterable[str]:
    return (command_of(line) for line in lines)


def command_of(line: str) -> str:
    """The name of a command as an ACL has it, of a line with its arguments: `config|set`."""
    first, *rest = line.lower().split()
    is_container = first in ("acl", "client", "config", "debug", "function", "module", "script")
    return f"{first}|{rest[0]}" if is_container and first != "debug" else first
