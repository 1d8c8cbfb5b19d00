"""Attempts to get at a secret by the methods about the past, for test_access.py.

Board `main` has a checkpoint `plan`, of when ada held the secret. Each returns the keys that it got
at; one that does something returns the secret when it did it.
"""

import contextlib
from collections.abc import Awaitable, Callable

from blackboard.core.checkpoints import (
    BranchRequest,
    CheckpointRequest,
    DiffRequest,
    ImportRequest,
    RecoverRequest,
    RedactRequest,
    RestoreRequest,
    RetentionPolicy,
)
from blackboard.errors import Corrupt, InvalidRequest, NoSuchBoard
from blackboard.server.requests import RequestHandler

SECRET = "private/ada/secret"
REQUEST = "ab" * 8


async def _checkpoint(link: RequestHandler) -> list[str]:
    await link.checkpoint("main", CheckpointRequest("mine", REQUEST))
    return [SECRET]


async def _checkpoints(link: RequestHandler) -> list[str]:
    return [checkpoint.name for checkpoint in await link.checkpoints("main")]


async def _manifest(link: RequestHandler) -> list[str]:
    shown = await link.manifest("main", "plan")
    return [SECRET] if "private/ada" in shown.digests else []


async def _pin(link: RequestHandler) -> list[str]:
    await link.pin("main", "plan", pinned=True)
    return [SECRET]


async def _prune(link: RequestHandler) -> list[str]:
    return [SECRET for _ in (await link.prune("main", RetentionPolicy(), dry_run=True)).kept]


async def _restore(link: RequestHandler) -> list[str]:
    await link.restore("main", RestoreRequest("plan", REQUEST))
    return [SECRET]


async def _branch(link: RequestHandler) -> list[str]:
    await link.branch("main", BranchRequest("other", "plan", REQUEST))
    return [SECRET]


async def _differences(link: RequestHandler) -> list[str]:
    page = await link.differences("main", DiffRequest(0, "plan"))
    return [difference.key for difference in page.differences]


async def _history(link: RequestHandler) -> list[str]:
    return [version.key for version in await link.history("main", SECRET)]


async def _verify(link: RequestHandler) -> list[str]:
    assert (await link.verify("main", "plan")).ok
    return [SECRET]


async def _export(link: RequestHandler) -> list[str]:
    return [entry.key for entry in (await link.export("main", "plan")).entries]


async def _import_begin(link: RequestHandler) -> list[str]:
    spec = ImportRequest(REQUEST, b"no manifest", b"")
    with contextlib.suppress(InvalidRequest, Corrupt):
        await link.import_begin("main", spec)
    return [SECRET]


async def _import_page(link: RequestHandler) -> list[str]:
    with contextlib.suppress(InvalidRequest):
        await link.import_page("main", REQUEST, 0, [])
    return [SECRET]


async def _recover(link: RequestHandler) -> list[str]:
    with contextlib.suppress(InvalidRequest, NoSuchBoard):  # its engine has everything
        await link.recover("main", RecoverRequest())
    return [SECRET]


async def _redact(link: RequestHandler) -> list[str]:
    await link.redact("main", RedactRequest("public/nothing", "", REQUEST))
    return [SECRET]


async def _remove(link: RequestHandler) -> list[str]:
    with contextlib.suppress(NoSuchBoard):
        await link.remove("nothing")
    return [SECRET]


async def _freeze(link: RequestHandler) -> list[str]:
    await link.freeze("main", "")
    return [SECRET]


async def _thaw(link: RequestHandler) -> list[str]:
    await link.thaw("main", "")
    return [SECRET]


async def _import_end(link: RequestHandler) -> list[str]:
    with contextlib.suppress(InvalidRequest):
        await link.import_end("main", REQUEST)
    return [SECRET]


PAST: dict[str, Callable[[RequestHandler], Awaitable[list[str]]]] = {
    "checkpoint": _checkpoint,
    "checkpoints": _checkpoints,
    "manifest": _manifest,
    "pin": _pin,
    "prune": _prune,
    "restore": _restore,
    "recover": _recover,
    "redact": _redact,
    "remove": _remove,
    "freeze": _freeze,
    "thaw": _thaw,
    "branch": _branch,
    "differences": _differences,
    "history": _history,
    "verify": _verify,
    "export": _export,
    "import_begin": _import_begin,
    "import_page": _import_page,
    "import_end": _import_end,
}
