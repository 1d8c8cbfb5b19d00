"""Which service, which board, as whom: flag > environment > context > the service on this machine.

The rules are those of `client/contexts.py`, which `blackboard.connect` follows too; here flags are
added, and every error names the flag or command that helps.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from blackboard.cli.errors import LOOPBACK, CommandError, Exit, not_found, wrong_usage
from blackboard.cli.options import Flags
from blackboard.client import contexts as kept
from blackboard.client.contexts import (
    LOCAL,
    Contexts,
    Destination,
    ServiceContext,
    config_directory,
)
from blackboard.errors import (
    Corrupt,
    InvalidRequest,
    NewerFormat,
    Unauthenticated,
    Unavailable,
)

__all__ = [
    "LOCAL",
    "Contexts",
    "ServiceContext",
    "Target",
    "answering",
    "change",
    "config_directory",
    "data_directory",
    "get",
    "load",
    "resolve",
]

BOARD_DEFAULT = "main"
PROBE_TIMEOUT_S = 5.0
"""Timeout for a service on this machine; a slower one counts as not running."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a command: a service at `url`, or the directory `data` itself."""

    board: str
    url: str | None = None
    token: str | None = field(default=None, repr=False)
    agent: str | None = None
    data: str | None = None
    ca: str | None = None
    """None leaves it to BLACKBOARD_CA, and to what this machine trusts."""
    is_here: bool = True
    """Whether it is on this machine, as far as its address or its context tells."""


def resolve(flags: Flags, environ: Mapping[str, str], contexts: Contexts) -> Target:
    """Resolve the target. Errors: CommandError when flags contradict each other, or there is no
    target."""
    agent = flags.agent or environ.get("BLACKBOARD_AGENT") or None
    if flags.data is not None:
        if flags.url or flags.context or flags.ca:
            raise wrong_usage("--data opens a directory without a service: leave out --url")
        if flags.token:  # it would limit nothing
            raise wrong_usage(
                "--data opens a directory without a service, which takes no --token",
                "Name the agent to act as: --as.",
            )
        own = flags.board or environ.get(kept.BOARD_VARIABLE) or BOARD_DEFAULT
        return Target(own, agent=agent, data=flags.data)
    given = Destination(flags.url, flags.token, flags.ca, flags.board)
    with _said_for_people():
        found = kept.resolve(given, environ, contexts, named=flags.context)
        context = contexts.in_use(flags.context)
    if found.url is None:
        raise CommandError(
            "unavailable",
            Exit.UNAVAILABLE,
            "no service is known on this machine",
            "Start one with: blackboard serve (or name one: --url, blackboard context add).",
        )
    is_kept_here = bool(context and context.is_at(found.url) and context.data)
    return Target(
        found.board or BOARD_DEFAULT,
        found.url,
        found.token,
        agent,
        ca=found.ca,
        is_here=_is_loopback(found.url) or is_kept_here,
    )


def _is_loopback(url: str) -> bool:
    try:
        return urlsplit(url).hostname in LOOPBACK
    except ValueError:  # connecting reports the problem
        return False


def data_directory(flags: Flags, environ: Mapping[str, str], contexts: Contexts) -> str | None:
    """The data directory of the selected service; None leaves it to the settings."""
    if flags.data is not None:
        return flags.data
    # The settings read both by themselves.
    if environ.get("BLACKBOARD_DATA") or environ.get("BLACKBOARD_CONFIG"):
        return None
    with _said_for_people():
        context = contexts.in_use(flags.context)
    return context.data if context else None


def answering(context: ServiceContext | None) -> bool:
    """Whether a service answers at the address of `context`, on this machine."""
    if context is None or not _is_loopback(context.url):
        return False
    from http.client import HTTPException

    try:
        with get(context.url, "/healthz", context.ca, timeout_s=PROBE_TIMEOUT_S) as answer:
            return bool(answer.status == 200)
    # Nothing there, another program, not a URL, or no authority to trust.
    except (OSError, ValueError, HTTPException, InvalidRequest):
        return False


def get(url: str, path: str, ca: str | None, *, timeout_s: float) -> Any:
    """The answer of the service at `url` to a plain GET; no proxy is used for this machine.

    `ca` is a file of authorities; None leaves it to BLACKBOARD_CA, and to what this machine trusts.
    Errors: OSError, HTTPException; ValueError for what is no URL; InvalidRequest for another file.
    """
    import ssl
    from urllib.request import BaseHandler, HTTPSHandler, ProxyHandler, build_opener

    from blackboard.client.remote.connect import Address

    parts = urlsplit(url)
    scheme = "https" if parts.scheme in ("wss", "https") else "http"
    base = f"{scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"
    own: list[BaseHandler] = [ProxyHandler({})] if parts.hostname in LOOPBACK else []
    trusted = ca or os.environ.get(kept.CA_VARIABLE)
    tls = Address(url, ca=Path(trusted) if trusted else None).tls()
    if isinstance(tls, ssl.SSLContext):
        own.append(HTTPSHandler(context=tls))
    return build_opener(*own).open(base + path, timeout=timeout_s)


def load(directory: Path) -> Contexts:
    """The contexts kept in `directory`; none if there is no file. Errors: CommandError."""
    with _said_for_people():
        return kept.load(directory)


def change(directory: Path, how: Callable[[Contexts], Contexts]) -> None:
    """Change the contexts in `directory`; concurrent changes are not lost. Errors: CommandError."""
    with _said_for_people():
        kept.change(directory, how)


@contextmanager
def _said_for_people() -> Iterator[None]:
    """Turn errors of the library into those of a command."""
    try:
        yield
    except InvalidRequest as error:
        what, _, known = error.reason.partition("; ")
        raise not_found(what, f"{known[:1].upper()}{known[1:]}.") from error
    except Unauthenticated as error:
        raise CommandError(
            "unauthenticated",
            Exit.DENIED,
            error.reason,
            "Give a token: --token or BLACKBOARD_TOKEN.",
        ) from error
    except Corrupt as error:
        what, fix = (
            f"{error.what}: {error.reason}",
            "Repair or remove it; `serve` writes a new one.",
        )
        raise CommandError("bad_contexts", Exit.ERROR, what, fix) from error
    except NewerFormat as error:
        fix = "Use the newer version, or another BLACKBOARD_CONFIG_DIR."
        raise CommandError("newer_format", Exit.ERROR, str(error), fix) from error
    except Unavailable as error:
        what, fix = f"{error.what}: {error.reason}", "Make room, or check the disk."
        raise CommandError("unavailable", Exit.UNAVAILABLE, what, fix) from error
