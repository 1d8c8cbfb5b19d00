"""The part of the client's link that looks back: requests about the past over a `Channel`."""

from collections.abc import Sequence
from typing import Any

from blackboard.core.checkpoints import (
    AUTOMATIC,
    BranchWish,
    Checkpoint,
    CheckpointWish,
    Differences,
    DiffRequest,
    ExportPage,
    ImportWish,
    Moment,
    Policy,
    Pruned,
    Restored,
    RestoreWish,
    Shown,
    Verified,
    Version,
)
from blackboard.core.commit import Entry, Head
from blackboard.types import (
    LONG_REQUEST_TIMEOUT_MS,
    REQUEST_TIMEOUT_MS,
    Key,
    Milliseconds,
    Revision,
)
from blackboard.wire import history_messages as past
from blackboard.wire import reading
from blackboard.wire.frames import MSGPACK
from blackboard.wire.history_messages import moment_out


class RemotePast:
    """As `Link`, each method. A request that is asked again carries the same name.

    The beginning and the pages of an import change nothing yet: without its end there is no board.
    """

    async def checkpoint(self, board: str, wish: CheckpointWish) -> Checkpoint:
        """As `Link.checkpoint`."""
        params = {
            "board": board,
            "name": wish.name,
            "request": wish.request,
            "note": wish.note,
            "barrier_ms": wish.barrier_ms,
            "stale_ok": wish.stale_ok,
            "automatic": wish.kind == AUTOMATIC,
        }
        patience_ms = REQUEST_TIMEOUT_MS + (wish.barrier_ms or 0)
        return past.read_checkpoint(await self._do("checkpoint", params, patience_ms))

    async def checkpoints(self, board: str, *, after: Revision, limit: int) -> Sequence[Checkpoint]:
        """As `Link.checkpoints`."""
        params = {"board": board, "after": after, "limit": limit}
        message = await self._ask("checkpoints", params)
        with reading.from_peer("checkpoints"):
            return [past.read_checkpoint(checkpoint) for checkpoint in message]

    async def manifest(self, board: str, name: str) -> Shown:
        """As `Link.manifest`."""
        message = await self._ask("manifest", {"board": board, "name": name})
        return past.read_manifest(message)

    async def pin(self, board: str, name: str, *, pinned: bool) -> None:
        """As `Link.pin`."""
        await self._do("pin", {"board": board, "name": name, "pinned": pinned})

    async def prune(self, board: str, policy: Policy, *, dry_run: bool) -> Pruned:
        """As `Link.prune`."""
        params = {
            "board": board,
            "last": policy.last,
            "days": policy.days,
            "named": policy.named,
            "history_ms": policy.history_ms,
            "dry_run": dry_run,
        }
        prune = self._ask if dry_run else self._do
        return past.read_pruned(await prune("prune", params, LONG_REQUEST_TIMEOUT_MS))

    async def restore(self, board: str, wish: RestoreWish) -> Restored:
        """As `Link.restore`."""
        params = {
            "board": board,
            "to": moment_out(wish.to),
            "request": wish.request,
            "note": wish.note,
        }
        return past.read_restored(await self._do("restore", params, LONG_REQUEST_TIMEOUT_MS))

    async def branch(self, board: str, wish: BranchWish) -> Head:
        """As `Link.branch`."""
        params = {
            "board": board,
            "new": wish.new,
            "at": moment_out(wish.at),
            "request": wish.request,
            "note": wish.note,
        }
        return reading.read_head(await self._do("branch", params, LONG_REQUEST_TIMEOUT_MS))

    async def differences(self, board: str, request: DiffRequest) -> Differences:
        """As `Link.differences`."""
        params = {
            "board": board,
            "a": moment_out(request.a),
            "b": moment_out(request.b),
            "other": request.other,
            "pattern": request.pattern,
            "after": request.after,
            "limit": request.limit,
        }
        return past.read_differences(await self._ask("differences", params), MSGPACK)

    async def history(
        self, board: str, key: Key, *, before: Revision | None, limit: int
    ) -> Sequence[Version]:
        """As `Link.history`."""
        params = {"board": board, "key": key, "before": before, "limit": limit}
        return past.read_history(await self._ask("history", params), MSGPACK)

    async def verify(self, board: str, at: Moment) -> Verified:
        """As `Link.verify`."""
        params = {"board": board, "at": moment_out(at)}
        return past.read_verified(await self._ask("verify", params, LONG_REQUEST_TIMEOUT_MS))

    async def export(self, board: str, name: str, *, after: Key | None) -> ExportPage:
        """As `Link.export`."""
        params = {"board": board, "name": name, "after": after}
        return past.read_export(await self._ask("export", params), MSGPACK)

    async def import_begin(self, board: str, wish: ImportWish) -> None:
        """As `Link.import_begin`."""
        params = {
            "board": board,
            "request": wish.request,
            "manifest": wish.manifest.decode(errors="replace"),
            "signature": wish.signature.hex(),
            "items": [list(item) for item in wish.items],
            "note": wish.note,
        }
        await self._ask("import_begin", params)

    async def import_page(
        self, board: str, request: str, number: int, entries: Sequence[Entry]
    ) -> None:
        """As `Link.import_page`."""
        params = {
            "board": board,
            "request": request,
            "number": number,
            "entries": [past.write_exported(entry, MSGPACK) for entry in entries],
        }
        await self._ask("import_page", params)

    async def import_end(self, board: str, request: str) -> Head:
        """As `Link.import_end`."""
        params = {"board": board, "request": request}
        return reading.read_head(await self._do("import_end", params, LONG_REQUEST_TIMEOUT_MS))

    async def _ask(
        self, method: str, params: dict[str, Any], patience_ms: Milliseconds | None = None
    ) -> Any:
        raise NotImplementedError

    async def _do(
        self, method: str, params: dict[str, Any], patience_ms: Milliseconds | None = None
    ) -> Any:
        raise NotImplementedError
