"""Resolves the address of the service and the token: argument > environment > saved context.

A *context* is a saved service: its address, a token (or the file that holds it), and a board.
Contexts live in one JSON file under the user's configuration directory, readable by the user only.
`blackboard serve` writes the context `local`, which is used when no other one was chosen. The
command line and `blackboard.connect` look in the same places, in the same order.

Invariants
- A token is sent only to the address with which it was saved.
- The file is replaced atomically and durably: a reader sees the old or the new one, also after a
  power cut.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final

from blackboard.engines.disk import replace_file
from blackboard.errors import Corrupt, InvalidRequest, NewerFormat, Unauthenticated, Unavailable
from blackboard.integrity.private_files import DIRECTORY_MODE, FILE_MODE

VERSION: Final = 1
"""Of the file; the first files have none."""
LOCAL: Final = "local"
CONFIG_VARIABLE: Final = "BLACKBOARD_CONFIG_DIR"
URL_VARIABLE: Final = "BLACKBOARD_URL"
TOKEN_VARIABLE: Final = "BLACKBOARD_TOKEN"
CA_VARIABLE: Final = "BLACKBOARD_CA"
BOARD_VARIABLE: Final = "BLACKBOARD_BOARD"
LOCK_TIMEOUT_S: Final = 5


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """A saved service."""

    url: str
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    board: str | None = None
    data: str | None = None
    """The service's data directory, if it is on this machine: its secret is there."""
    ca: str | None = None
    """A PEM file of CA certificates; only server certificates signed by one of them are
    accepted."""

    def is_at(self, url: str) -> bool:
        """Whether `url` is this service's address; `http` and `ws` are equivalent."""
        return as_http(self.url) == as_http(url)

    def read_token(self) -> str | None:
        """The token, read from its file if it is in one. Errors: Unauthenticated."""
        if self.token_file is None:
            return self.token
        try:
            return Path(self.token_file).read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or type(error).__name__
            reason = f"the token file {self.token_file} cannot be read: {why}"
            raise Unauthenticated(reason=reason) from error


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts by name, and which one was chosen (None = `local`, if there is one)."""

    current: str | None = None
    by_name: Mapping[str, ServiceContext] = field(default_factory=dict)

    def adding(self, name: str, context: ServiceContext) -> "Contexts":
        """With `context` as `name`, in place of an older one."""
        return replace(self, by_name={**self.by_name, name: context})

    def removing(self, name: str) -> "Contexts":
        """Without `name`. Errors: InvalidRequest when it is not there."""
        self.named(name)
        left = {other: context for other, context in self.by_name.items() if other != name}
        return Contexts(None if self.current == name else self.current, left)

    def without(self, name: str) -> "Contexts":
        """As `removing`, whether it is there or not."""
        return self.removing(name) if name in self.by_name else self

    def using(self, name: str) -> "Contexts":
        """With `name` as the chosen one. Errors: InvalidRequest when it is not there."""
        self.named(name)
        return replace(self, current=name)

    def named(self, name: str) -> ServiceContext:
        """The context `name`. Errors: InvalidRequest."""
        found = self.by_name.get(name)
        if found is None:
            known = ", ".join(sorted(self.by_name)) or "none"
            reason = f"there is no context {name}; there are: {known}"
            raise InvalidRequest(field="context", reason=reason)
        return found

    @property
    def chosen(self) -> str | None:
        """The name of the context in use."""
        return self.current or (LOCAL if LOCAL in self.by_name else None)

    def in_use(self, name: str | None = None) -> ServiceContext | None:
        """The context `name`, or the chosen one; None without any. Errors: InvalidRequest."""
        found = name or self.chosen
        return self.named(found) if found else None


@dataclass(frozen=True, slots=True)
class Destination:
    """A service, and the credentials for it. A field that is None has its default."""

    url: str | None = None
    token: str | None = field(default=None, repr=False)
    ca: str | None = None
    board: str | None = None


def resolve(
    given: Destination,
    environ: Mapping[str, str],
    contexts: Contexts,
    *,
    named: str | None = None,
) -> Destination:
    """The effective values: those `given`, else the environment, else the current context.

    A context that is `named` precedes the environment, from which only a board and authorities come
    that it does not have. Errors: InvalidRequest for a context that is not there, Unauthenticated
    when its token cannot be read.
    """
    context = contexts.in_use(named)
    from_environ = {} if named else environ
    url = given.url or from_environ.get(URL_VARIABLE) or (context.url if context else None)
    # The address may come from an argument or the environment: then the token is not for it.
    at_context = context if context and url and context.is_at(url) else None
    token = given.token or from_environ.get(TOKEN_VARIABLE)
    if not token and at_context:
        token = at_context.read_token()
    ca_there, board_there = (at_context.ca, at_context.board) if at_context else (None, None)
    ca = given.ca or from_environ.get(CA_VARIABLE) or ca_there or environ.get(CA_VARIABLE)
    board = given.board or from_environ.get(BOARD_VARIABLE) or board_there
    board = board or environ.get(BOARD_VARIABLE)
    return Destination(url or None, token or None, ca or None, board or None)


def as_http(url: str) -> str:
    """An address in one spelling: with the scheme of a web page, and without a last slash."""
    scheme, colon, rest = url.partition(":")
    web = {"ws": "http", "wss": "https"}.get(scheme.lower(), scheme.lower())
    return f"{web}{colon}{rest.rstrip('/')}"


# --- the file -------------------------------------------------------------------------------------


def config_directory() -> Path:
    """Where contexts are kept: $BLACKBOARD_CONFIG_DIR, else the user's configuration directory."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    from platformdirs import user_config_path

    return user_config_path("blackboard", appauthor=False)


def load(directory: Path) -> Contexts:
    """The contexts kept in `directory`; none if there is no file.

    Errors: Corrupt; NewerFormat; Unavailable when the disk fails.
    """
    path = directory / "contexts.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        version = kept.get("version", VERSION)
        if type(version) is int and version > VERSION:
            raise NewerFormat(str(path), version, VERSION)
        found = {name: ServiceContext(**context) for name, context in kept["contexts"].items()}
        return Contexts(kept["current"], found)
    except (FileNotFoundError, NotADirectoryError):  # also where there is no home: /dev/null
        return Contexts()
    except OSError as error:
        raise Unavailable(what=str(path), reason=error.strerror or str(error)) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Corrupt(what=str(path), reason=f"it cannot be read: {error}") from error


def change(directory: Path, how: Callable[[Contexts], Contexts]) -> None:
    """Change the contexts in `directory`; concurrent changes are not lost.

    Errors: as of `load`; they are as before then, or, after Unavailable, perhaps changed.
    """
    from filelock import FileLock

    try:
        directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        # Readers take no lock, as the file is replaced at once. Two writers would lose a change.
        with FileLock(directory / "contexts.lock", timeout=LOCK_TIMEOUT_S, mode=FILE_MODE):
            _save(directory, how(load(directory)))
    except OSError as error:  # the disk is full, or fails
        what = str(directory / "contexts.json")
        raise Unavailable(what=what, reason=error.strerror or str(error)) from error


def _save(directory: Path, contexts: Contexts) -> None:
    """Save `contexts`, readable by this user only."""
    kept = {
        "version": VERSION,
        "current": contexts.current,
        "contexts": {name: asdict(context) for name, context in contexts.by_name.items()},
    }
    replace_file(directory / "contexts.json", json.dumps(kept, indent=2).encode())
