"""`blackboard.sync.open` and `blackboard.sync.connect`."""

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

from blackboard._lazy import whole
from blackboard.client.client import Opening
from blackboard.client.remote import link
from blackboard.client.remote.connect import TokenSource
from blackboard.limits import DEFAULT, Limits
from blackboard.sync.client import Client
from blackboard.sync.portal import portal
from blackboard.units import Milliseconds

if TYPE_CHECKING:
    from blackboard.engines.sqlite.file import Level


def open(  # noqa: A001 - as `blackboard.open`
    path: str | PathLike[str],
    *,
    level: "Level" = "disk",
    agent: str | None = None,
    lock_masters: Sequence[str] = (),
    master_key: str | None = None,
    limits: Limits = DEFAULT,
) -> Client:
    """As `blackboard.open`: the client of the boards in directory `path`.

    It lives until `close`, the end of its `with` block, or the end of the interpreter.
    """
    # Not imported above: a program that only connects needs no engine.
    embedded = whole("blackboard.embedded", "blackboard.sync.open")
    opening: Opening = embedded.open(
        path,
        level=level,
        agent=agent,
        lock_masters=lock_masters,
        master_key=master_key,
        limits=limits,
    )
    return _begun(opening)


def connect(
    url: str | None = None,
    *,
    token: str | TokenSource | None = None,
    agent: str | None = None,
    ca: str | Path | None = None,
    patience_ms: Milliseconds | None = None,
    limits: Limits = DEFAULT,
) -> Client:
    """As `blackboard.connect`: a client of the service at `url`.

    A `token` function is called in the thread of the loop, which waits for it. The client lives
    until `close`, the end of its `with` block, or the end of the interpreter.
    """
    return _begun(
        link.connect(url, token=token, agent=agent, ca=ca, patience_ms=patience_ms, limits=limits)
    )


def _begun(opening: Opening) -> Client:
    here = portal()
    inner = here.enter(opening)
    here.close_at_exit(id(inner), inner.aclose)
    return Client(here, inner)
