"""What agents keep to themselves, wherever there is a place for it, and who tries to see it."""

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from blackboard.client.board import Board
from blackboard.core.access import AccessGrant as Allowed, Principal, Right
from blackboard.core.commit import Grant, Put
from blackboard.errors import BlackboardError
from blackboard.runtime.context import Context
from blackboard.wire.codec import encode_value
from tests.conformance.acting import Notes, runner
from tests.conformance.rules_board_private import PROBES

OWNERS = ("ada", "bob")
HOUR_MS = 3_600_000
PLACES = (
    "value",
    "key",
    "note",
    "deleted",
    "deleted-key",
    "list",
    "item",
    "map",
    "lease",
    "holder",
    "waiter",
    "ground",
    "mixed",
    "state",
    "argument",
    "result",
    "document",
    "message",
    "inbox-key",
    "second",
)
"""Where a canary sits; each owner has one of its own in each place."""

reader = Principal("reader", (Allowed("public/**", frozenset({Right.READ})),))
keeper = Principal("keeper", (Allowed("**", frozenset({Right.CHECKPOINT, Right.RESTORE})),))
"""May take, restore and branch everything, and read nothing."""


def canary(owner: str, place: str) -> str:
    """Text that is nowhere but where `owner` has put it: `place` of its own namespace or inbox."""
    assert place in PLACES
    return f"canary.{owner}.{place}.7d3e"


async def hide(board: Board) -> None:
    """Put the canaries of the board's agent everywhere but in its inbox."""
    own = f"private/{board.agent}"

    def of(place: str) -> str:
        return canary(board.agent, place)

    await board.put(f"{own}/notes", of("value"))
    await board.put(f"{own}/{of('key')}", 1)
    await board.put(f"{own}/noted", 1, note=of("note"))
    await board.put(f"{own}/{of('deleted-key')}", of("deleted"))
    await board.delete(f"{own}/{of('deleted-key')}")
    await board.append(f"{own}/{of('list')}", of("item"))
    await board.merge(f"{own}/map", {of("map"): 1})
    lease, holder = f"{own}/{of('lease')}", f"{board.agent}~"
    await board.commit([Grant(lease, holder + of("holder"), HOUR_MS)])
    await board.commit([Grant(lease, holder + of("waiter"), HOUR_MS, wait=True)])
    ground = f"{own}/{of('ground')}"
    revision = (await board.put(ground, 1)).revision
    mixed = [Put("public/plan", encode_value(1)), Put(f"{own}/mixed", encode_value(of("mixed")))]
    await board.commit(mixed, based_on=[(ground, revision)])
    await _act(board, of("argument"), of("result"), of("state"))
    document = await board.document(f"{own}/memo")
    document.text().append(of("document"))
    await document.synced()
    await document.aclose()


async def change(board: Board) -> None:
    """What happens after the checkpoint, so that there is something to restore and to compare."""
    await board.put(f"private/{board.agent}/notes", canary(board.agent, "second"))
    await board.put(f"private/{board.agent}/{canary(board.agent, 'key')}", 2)
    await board.put("public/plan", 2)


async def write_to(operator: Board, owner: str) -> None:
    """Put canaries into the inbox of `owner`: as somebody who sees everything, for the answer to an
    append names the key."""
    await operator.append(f"inbox/{owner}/messages", canary(owner, "message"))
    await operator.put(f"inbox/{owner}/{canary(owner, 'inbox-key')}", 1)


async def _act(board: Board, argument: str, result: str, state: str) -> None:
    """A step of an agent: journal, then state."""

    async def look(what: str) -> str:
        return result if what == argument else ""

    async def step(ctx: Context[Notes]) -> None:
        ctx.state.seen = [await ctx.tool(look, argument), state]

    await runner(board, step).step()


# --- requests -------------------------------------------------------------------------------------

Asked = dict[str, list[dict[str, Any]]]
BOARD = "main"
_PATTERNS = ("**", "private/**", "private/*/*", "inbox/**", "private/ada/**", "private/bob/**")
_KEYS = tuple(
    key
    for owner in OWNERS
    for key in (
        f"private/{owner}/notes",
        f"private/{owner}/noted",
        f"private/{owner}/mixed",
        f"private/{owner}/~state",
        f"private/{owner}/absent",
        f"inbox/{owner}/messages/0000000000",
    )
)


def _hex(who: str, number: int) -> str:
    return hashlib.sha256(f"{who} {number}".encode()).hexdigest()[:32]


def _requests(who: str) -> Asked:
    """Params of all but `commit`, `watch` and `document`, with keys that `who` can guess."""
    names = [f"by-{who}", f"by-{who}-barrier"]
    pages = [{"pattern": pattern, "limit": 256} for pattern in _PATTERNS]
    return {
        "head": [{}],
        "read": [{"keys": ["public/plan", key], "at": at} for key in _KEYS for at in (None, "one")],
        "list": [page | {"at": at} for page in pages for at in (None, "one")],
        "leases": pages,
        "log": [{"after": 0}],
        "activity": [{}, {"after": 0, "parts": 4}],
        "refusals": [{}],
        "why": [{"key": key} for key in (*_KEYS, "public/plan")],
        "boards": [{}],
        "whoami": [{}],
        "audit": [{}],
        "checkpoints": [{}],
        "manifest": [{"name": "one"}, {"name": "none"}],
        "differences": [
            {"a": 1, "b": b, "pattern": pattern} for b in ("one", "now") for pattern in _PATTERNS
        ],
        "history": [{"key": key} for key in _KEYS],
        "verify": [{"at": "one"}],
        "export": [{"name": "one"}],
        "checkpoint": [
            {"name": names[0], "request": _hex(who, 1), "note": who},
            {"name": names[1], "request": _hex(who, 2), "barrier_ms": 100, "stale_ok": True},
        ],
        "pin": [{"name": "one", "pinned": True}],
        "restore": [{"to": "one", "request": _hex(who, 3), "note": who}],
        "recover": [{}],
        "redact": [{"key": "public/nothing", "request": _hex(who, 6)}],
        "remove": [{"board": f"nothing-of-{who}"}],
        "freeze": [{"board": f"nothing-of-{who}"}],
        "thaw": [{"board": f"nothing-of-{who}"}],
        "lost_boards": [{}],
        "branch": [{"new": f"fork-{who}", "at": "one", "request": _hex(who, 4)}],
        "prune": [{"last": 10, "days": 10, "dry_run": True}],
        "import_begin": [{"request": _hex(who, 5), "manifest": "{}", "signature": "", "items": []}],
        "import_page": [{"request": _hex(who, 5), "number": 0, "entries": []}],
        "import_end": [{"request": _hex(who, 5)}],
        "revoke": [{"tokens": ["nobody-has-it"], "principal": None}],
        "issue": [{"name": "somebody", "boards": [BOARD]}],
        "erase": [{"name": "nobody", "board": BOARD}],
        "rewrap": [{}],
    }


_NO_BOARD = frozenset(
    {"boards", "lost_boards", "whoami", "refresh", "audit", "erase", "rewrap", "revoke", "issue"}
)


def requests(who: str, token: str, board: str) -> Asked:
    """As above, about `board`; `token` is a new one for `refresh`."""
    found = _requests(who) | {"refresh": [{"token": token}]}
    return {
        method: [params if method in _NO_BOARD else {"board": board} | params for params in several]
        for method, several in found.items()
    }


Answer = Callable[[], Awaitable[object]]


async def outcomes(asked: Sequence[Answer]) -> list[BlackboardError | None]:
    """Ask each; None for what was answered."""
    found: list[BlackboardError | None] = []
    for ask in asked:
        try:
            await ask()
            found.append(None)
        except BlackboardError as error:
            found.append(error)
    return found


def of_a_key(board: Board) -> list[Answer]:
    """Commits of every kind, and reads, of every key of others that can be guessed."""
    others = [key for key in _KEYS if f"/{board.agent}/" not in key]
    return [partial(probe, board, key) for key in others for probe in PROBES.values()]
