"""Which service, which board, as whom: flag > environment > context > the service on this machine.

A *context* is a remembered service: its address, a token (or the file that holds it), and a board.
Contexts live in one JSON file under the user's configuration directory, readable by the user only.
`blackboard serve` writes the context `local`, which is used when no other one was chosen.

Invariants
- a token is sent to the address that it was remembered with, never to another one.
- the file is replaced whole; a reader sees the old one or the new one.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from blackboard.cli.errors import LOOPBACK, CommandError, Exit, not_found, wrong_usage
from blackboard.cli.options import Flags

LOCAL = "local"
BOARD_DEFAULT = "main"
CONFIG_VARIABLE = "BLACKBOARD_CONFIG_DIR"
LOCK_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class Context:
    """A remembered service."""

    url: str
    token: str | None = None
    token_file: str | None = None
    board: str | None = None
    data: str | None = None
    """The service's data directory, if it is on this machine: its secret is there."""
    ca: str | None = None
    """A PEM file: only certificates that one of those in it signed are accepted."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """All contexts by name, and which one was chosen (None = `local`, if there is one)."""

    current: str | None = None
    by_name: Mapping[str, Context] = field(default_factory=dict)

    def adding(self, name: str, context: Context) -> "Contexts":
        """With `context` as `name`, in place of an older one."""
        return replace(self, by_name={**self.by_name, name: context})

    def removing(self, name: str) -> "Contexts":
        """Without `name`. Errors: CommandError when it is not there."""
        self.named(name)
        left = {other: context for other, context in self.by_name.items() if other != name}
        return Contexts(None if self.current == name else self.current, left)

    def using(self, name: str) -> "Contexts":
        """With `name` as the chosen one. Errors: CommandError when it is not there."""
        self.named(name)
        return replace(self, current=name)

    def named(self, name: str) -> Context:
        """The context `name`. Errors: CommandError."""
        found = self.by_name.get(name)
        if found is None:
            known = ", ".join(sorted(self.by_name)) or "none"
            raise not_found(f"there is no context {name}", f"There are: {known}.")
        return found

    @property
    def chosen(self) -> str | None:
        """The name of the context in use."""
        return self.current or (LOCAL if LOCAL in self.by_name else None)


@dataclass(frozen=True, slots=True)
class Target:
    """What a command talks to: a service at `url`, or the directory `data` itself."""

    board: str
    url: str | None = None
    token: str | None = None
    agent: str | None = None
    data: str | None = None
    ca: str | None = None
    """None leaves it to BLACKBOARD_CA, and to what this machine trusts."""
    is_here: bool = True
    """Whether it is on this machine, as far as its address or its context tells."""


def resolve(flags: Flags, environ: Mapping[str, str], contexts: Contexts) -> Target:
    """Decide what is meant. Errors: CommandError when flags contradict, or nothing says where."""
    context = _context(flags, contexts)
    remembered = context.board if context else None
    board = flags.board or environ.get("BLACKBOARD_BOARD") or remembered or BOARD_DEFAULT
    agent = flags.agent or environ.get("BLACKBOARD_AGENT") or None
    if flags.data is not None:
        if flags.url or flags.context or flags.ca:
            raise wrong_usage("--data opens a directory without a service: leave out --url")
        own = flags.board or environ.get("BLACKBOARD_BOARD") or BOARD_DEFAULT
        return Target(own, agent=agent, data=flags.data)
    # A context that was named on the command line is a flag: it precedes the environment.
    from_environ = None if flags.context else environ.get("BLACKBOARD_URL")
    url = flags.url or from_environ or (context.url if context else None)
    if not url:
        raise CommandError(
            "unavailable",
            Exit.UNAVAILABLE,
            "no service is known on this machine",
            "Start one with: blackboard serve (or name one: --url, blackboard context add).",
        )
    token = flags.token or (None if flags.context else environ.get("BLACKBOARD_TOKEN"))
    if not token and context and context.url == url:
        token = _token_of(context)
    ca = flags.ca
    if not ca and context and context.url == url and not environ.get("BLACKBOARD_CA"):
        ca = context.ca
    is_here = _is_loopback(url) or bool(context and context.url == url and context.data)
    return Target(board, url, token or None, agent, ca=ca or None, is_here=is_here)


def _is_loopback(url: str) -> bool:
    try:
        return urlsplit(url).hostname in LOOPBACK
    except ValueError:  # whoever connects will say it
        return False


def data_directory(flags: Flags, environ: Mapping[str, str], contexts: Contexts) -> str | None:
    """The data directory of the service that is meant; None leaves it to the settings."""
    if flags.data is not None:
        return flags.data
    if environ.get("BLACKBOARD_DATA") or environ.get("BLACKBOARD_CONFIG"):
        return None
    context = _context(flags, contexts)
    return context.data if context else None


def _context(flags: Flags, contexts: Contexts) -> Context | None:
    name = flags.context or contexts.chosen
    return contexts.named(name) if name else None


def _token_of(context: Context) -> str | None:
    if context.token_file is None:
        return context.token
    try:
        return Path(context.token_file).read_text(encoding="utf-8").strip()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CommandError(
            "unauthenticated",
            Exit.DENIED,
            f"the token file {context.token_file} cannot be read: {reason}",
            "Give a token: --token or BLACKBOARD_TOKEN.",
        ) from error


# --- the file -------------------------------------------------------------------------------------


def config_directory() -> Path:
    """Where contexts are kept: $BLACKBOARD_CONFIG_DIR, else the user's configuration directory."""
    named = os.environ.get(CONFIG_VARIABLE)
    if named:
        return Path(named)
    from platformdirs import user_config_path

    return user_config_path("blackboard", appauthor=False)


def load(directory: Path) -> Contexts:
    """The contexts kept in `directory`; none if there is no file. Errors: CommandError."""
    path = directory / "contexts.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        found = {name: Context(**context) for name, context in kept["contexts"].items()}
        return Contexts(kept["current"], found)
    except FileNotFoundError:
        return Contexts()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CommandError(
            "bad_contexts",
            Exit.ERROR,
            f"{path} cannot be read: {error}",
            "Repair or remove it; blackboard serve writes it anew.",
        ) from error


def change(directory: Path, how: Callable[[Contexts], Contexts]) -> None:
    """Change what is kept in `directory`; two changes at once both count. Errors: CommandError."""
    from filelock import FileLock

    from blackboard.integrity.private_files import DIRECTORY_MODE, FILE_MODE

    directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    with FileLock(directory / "contexts.lock", timeout=LOCK_TIMEOUT_S, mode=FILE_MODE):
        _save(directory, how(load(directory)))


def _save(directory: Path, contexts: Contexts) -> None:
    """Keep `contexts`, for this user only."""
    kept = {
        "current": contexts.current,
        "contexts": {name: asdict(context) for name, context in contexts.by_name.items()},
    }
    new = directory / f"contexts.json.{os.getpid()}"
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        json.dump(kept, file, indent=2)
    new.replace(directory / "contexts.json")
