"""Settings of a service, from the environment, a TOML file, and defaults, in this order.

Every field is also the environment variable `BLACKBOARD_<FIELD>`; `BLACKBOARD_CONFIG` names the
TOML file. `Settings.check` refuses unsafe settings before anything is opened.

Roles: named sets of grants, in a TOML file that people review.

    [auditor]
    grants = ["public/**=read", "private/**=read"]

    [planner]
    grants = ["public/plan/**=read,write,lock", "private/{name}/**=read,write"]

`{name}` becomes the name in the token. A token keeps the grants that its role had when it was made:
changes to the file affect only later tokens.
"""

import ipaddress
import logging
import os
import re
import ssl
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from platformdirs import user_data_path
from pydantic import BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from blackboard.core import access
from blackboard.core.access import AccessGrant, operator
from blackboard.core.path import DECISIONS, check_name
from blackboard.engines import disk
from blackboard.engines.base import ServesValues, Store
from blackboard.errors import InvalidRequest, Unauthenticated
from blackboard.integrity.private_files import make_directory, read_text
from blackboard.integrity.tokens import AUDIENCE, check_secret, issue, new_secret, verify
from blackboard.limits import (
    DEFAULT,
    DRAIN_DELAY_MS_MAX,
    LOG_BYTES_PER_ACCOUNT_MAX,
    RATE_BURST_MS,
    REPLICAS_MAX,
    VALUE_BYTES_MAX,
    Limits,
)
from blackboard.server.checkpoints.schedule import Automatic
from blackboard.server.overload.rate_limits import Rates

if TYPE_CHECKING:
    from blackboard.archive.base import Archive
    from blackboard.encryption.master_key import Wrapper

CONFIG_VARIABLE: Final = "BLACKBOARD_CONFIG"
PORT: Final = 7420
log = logging.getLogger(__name__)
_OPERATOR_TOKEN_TTL_MS: Final = 365 * 24 * 3600 * 1000
_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "[::1]")


def _names(given: object) -> object:
    if isinstance(given, str):
        return tuple(name.strip() for name in given.split(",") if name.strip())
    return given


def _no_url(given: object) -> object:
    # A path has lost the second slash of a URL. Drives of Windows have names of one letter.
    found = re.match(r"([a-z][a-z0-9+]+):/", str(given), re.IGNORECASE)
    if found is not None:
        raise ValueError(
            f"{found[1]}://... is no directory; a Redis server is the setting `engine`"
        )
    return given


Names = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_names)]
"""A list of names; in the environment, separated by commas."""


class Settings(BaseSettings):
    """How a service runs; made by `load`."""

    model_config = SettingsConfigDict(env_prefix="BLACKBOARD_", extra="forbid", frozen=True)

    engine: str = "sqlite"
    """"sqlite", or a URL: redis[s]://host:port/db, redis[s]+cluster://host:port"""
    data: Annotated[Path, BeforeValidator(_no_url)] = Field(
        default_factory=lambda: user_data_path("blackboard", appauthor=False)
    )
    """The data directory: boards of the embedded engine, the generated secret and token."""
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = PORT
    level: Literal["disk", "memory"] = "disk"
    """The level of the embedded engine's acknowledgements; Redis has its own settings."""
    replicas: Annotated[int, Field(ge=0, le=REPLICAS_MAX)] = 0
    """Number of Redis replicas whose acknowledgement a commit briefly waits for; the level in the
    receipt says whether they had it."""
    secret: SecretStr | None = None
    """Signs tokens. One key per line, at least 32 bytes each; the first signs, all of them verify.
    Generated if the service listens on loopback only."""
    secret_file: Path | None = None
    master_key: SecretStr | None = None
    """Encrypts private values wherever they are stored: 32 bytes in hexadecimal, one key per line.
    The first wraps data keys, all of them unwrap."""
    master_key_file: Path | None = None
    master_key_command: str | None = None
    """A program that prints the master key; run without a shell."""
    seal_public: bool = False
    """Encrypt the public namespace too."""
    audience: str = AUDIENCE
    """The audience that tokens must name. Services with the same secret and different audiences do
    not accept each other's tokens."""
    roles_file: Path | None = None
    """Named sets of grants for `blackboard token create --role` (server/settings.py)."""
    allowed_origins: Names = ()
    """Origins of web pages that may connect, as `https://host[:port]`. Programs send no Origin."""
    allowed_hosts: Names = ()
    """Host names that requests may use, with a port unless any port is allowed. Empty: on loopback
    its usual names, else any."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    insecure: bool = False
    """Serve other machines without TLS. Only behind a proxy that adds TLS."""
    log_kept_revisions: Annotated[int, Field(ge=1)] = DEFAULT.boards.log_kept_revisions
    boards_cache_bytes: Annotated[int, Field(ge=1)] = DEFAULT.boards.boards_cache_bytes
    archive: str | None = None
    """Where the history of the boards is stored: sqlite:///path, postgresql://..., or "none".
    Default: beside the embedded engine; for Redis, none."""
    archive_copy_bytes_max: Annotated[int, Field(ge=1)] = DEFAULT.archive.archive_copy_bytes_max
    """Larger values stay in the log of an embedded board, and its archive refers to them there."""
    archive_process_entries: Annotated[int, Field(ge=1)] = DEFAULT.archive.archive_process_entries
    """So many commits of a board to archive at once start a process that writes an archive in a
    file. There are never more than 1,024 (ARCHIVE_PAGE_ENTRIES) at once."""
    blobs: str | None = None
    """Where large values of the archive are stored: a directory, or a URL such as
    s3://bucket/path."""
    signing_key: Path | None = None
    """A file with the key that signs checkpoints: 32 bytes in hexadecimal. Every service on one
    archive needs the same key. Generated beside the embedded engine."""
    heads_file: Path | None = None
    """Where the embedded engine keeps the last known head of each board, apart from the data
    directory, so that an older copy of all of it is noticed. Default: in that directory."""
    backup: str | None = None
    """Where the history of all boards is shipped continuously: a directory on another disk, or a
    URL such as s3://bucket/path."""
    checkpoint_revisions: Annotated[int, Field(ge=1)] | None = None
    """Take a checkpoint of each board after this many revisions. Default: never."""
    checkpoint_seconds: Annotated[int, Field(ge=1)] | None = None
    """Take a checkpoint of each board after this many seconds, if it changed. Default: never."""
    checkpoint_at_shutdown: bool = False
    requests_per_second: Annotated[int, Field(ge=1)] | None = None
    """Requests per second of each principal. Default: no limit."""
    bytes_per_second: Annotated[int, Field(ge=1)] | None = None
    """Bytes per second that each principal sends. Default: no limit."""
    log_bytes_per_hour: Annotated[int, Field(ge=1)] = LOG_BYTES_PER_ACCOUNT_MAX
    """Bytes per hour by which the commits of each principal may let the logs grow."""
    rate_burst_ms: Annotated[int, Field(ge=1)] = RATE_BURST_MS
    """Requests and bytes that an idle principal may send at once, in milliseconds of its rates."""
    page: bool = True
    """Serve the page at `/`, with which people look at boards and take them back."""
    telemetry: bool = False
    """Send traces, metrics and log lines by OTLP: the standard OTEL_ variables say where to."""
    drain_delay_ms: Annotated[int, Field(ge=0, le=DRAIN_DELAY_MS_MAX)] = 0
    """How long a service that stops serves on while `/readyz` answers 503, in milliseconds: at
    least as long as a balancer takes to notice."""
    lock_masters: Names = ()
    """URLs of Redis servers, independent of each other, that vote on every lease (Redlock)."""

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments before the environment before the TOML file."""
        named = os.environ.get(CONFIG_VARIABLE)
        if named is None:
            return init_settings, env_settings
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, Path(named))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can connect."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def has_tls(self) -> bool:
        """Whether connections are encrypted by this process."""
        return self.tls_cert is not None

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names that requests may use; empty = any."""
        if self.allowed_hosts or not self.is_loopback:
            return self.allowed_hosts
        own = f"[{self.host}]" if ":" in self.host else self.host
        return (*_LOOPBACK_NAMES, own)

    def check(self) -> None:
        """Errors: InvalidRequest when these settings are unsafe or cannot work."""
        if (self.tls_cert is None) != (self.tls_key is None):
            raise InvalidRequest(field="tls_key", reason="tls_cert and tls_key belong together")
        if self.secret is not None and self.secret_file is not None:
            raise InvalidRequest(field="secret_file", reason="secret is given as well")
        given = (self.master_key, self.master_key_file, self.master_key_command)
        if len(given) - given.count(None) > 1:
            raise InvalidRequest(field="master_key", reason="given in more than one way")
        if self.is_loopback:
            return
        if self.secret is None and self.secret_file is None:
            reason = f"needed to serve {self.host}: BLACKBOARD_SECRET or a secret file"
            raise InvalidRequest(field="secret", reason=reason)
        if not self.has_tls and not self.insecure:
            reason = f"needed to serve {self.host}, or `insecure` behind a proxy that adds TLS"
            raise InvalidRequest(field="tls_cert", reason=reason)

    def check_certificate(self) -> None:
        """Errors: InvalidRequest unless certificate and key, if set, can be read and belong
        together."""
        if self.tls_cert is None or self.tls_key is None:
            return
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            # Without a password here, OpenSSL would ask on the terminal for that of an encrypted
            # key.
            context.load_cert_chain(self.tls_cert, self.tls_key, password="")
        except OSError as error:
            where = f"{self.tls_cert} with {self.tls_key}"
            raise InvalidRequest(field="tls_cert", reason=f"{where}: {error}") from error


def load(given: Mapping[str, object] | None = None) -> Settings:
    """Settings from `given` by field name, then the environment, then the TOML file.

    Errors: InvalidRequest, naming the field; also when the named file does not exist, because a
    service with default settings might then encrypt nothing.
    """
    named = os.environ.get(CONFIG_VARIABLE)
    if named and not Path(named).is_file():
        raise InvalidRequest(field=CONFIG_VARIABLE, reason=f"there is no file {named!r}")
    try:
        return Settings(**(given or {}))  # type: ignore[arg-type]
    except ValidationError as error:
        # Without the input: it may be a secret, or a URL with a password.
        details = error.errors(include_input=False, include_url=False)[0]
        field = ".".join(str(part) for part in details["loc"])
        unknown = details["type"] == "extra_forbidden"
        reason = "there is no such setting" if unknown else details["msg"]
        raise InvalidRequest(field=field or "settings", reason=reason) from error
    except (OSError, ValueError) as error:
        raise InvalidRequest(field=CONFIG_VARIABLE, reason=str(error)) from error


def automatic_of(settings: Settings) -> Automatic:
    """When automatic checkpoints are taken."""
    seconds = settings.checkpoint_seconds
    return Automatic(
        settings.checkpoint_revisions,
        None if seconds is None else seconds * 1000,
        settings.checkpoint_at_shutdown,
    )


def limits_of(settings: Settings, limits: Limits = DEFAULT) -> Limits:
    """The limits of the process: `limits`, except for those that have a setting."""
    boards = replace(
        limits.boards,
        log_kept_revisions=settings.log_kept_revisions,
        boards_cache_bytes=settings.boards_cache_bytes,
    )
    archive = replace(
        limits.archive,
        archive_copy_bytes_max=settings.archive_copy_bytes_max,
        archive_process_entries=settings.archive_process_entries,
    )
    return replace(limits, boards=boards, archive=archive)


def rates_of(settings: Settings) -> Rates:
    """The rate limits of each principal."""
    return Rates(
        settings.requests_per_second,
        settings.bytes_per_second,
        settings.log_bytes_per_hour,
        settings.rate_burst_ms,
    )


async def make_store(settings: Settings, limits: Limits = DEFAULT) -> Store:
    """Open the engine that the settings name.

    Errors: InvalidRequest for an unknown engine; DataDirectoryInUse; Unavailable.
    """
    # The engines are imported when needed: importing redis alone takes a third of a second.
    if settings.engine == "sqlite":
        from blackboard.engines.sqlite.directory import DataDirectory
        from blackboard.engines.sqlite.store import SqliteStore

        where = DataDirectory(settings.data, settings.heads_file)
        return await SqliteStore.at(where, settings.level, limits=limits)
    if settings.heads_file is not None:
        raise InvalidRequest(field="heads_file", reason="only the embedded engine has such a file")
    from blackboard.engines.redis.store import RedisStore

    try:
        return RedisStore.connect(settings.engine, replicas=settings.replicas, limits=limits)
    except InvalidRequest as error:
        if error.field != "url":
            raise
        reason = f"neither sqlite nor the URL of a Redis: {error.reason}"
        raise InvalidRequest(field="engine", reason=reason) from error


async def make_archive(
    settings: Settings,
    limits: Limits = DEFAULT,
    store: Store | None = None,
    *,
    may_spawn: bool = False,
) -> "Archive | None":
    """Open the archive that the settings name; None if they name none.

    One in the directory of an embedded engine, `store`, does not repeat what the logs of the boards
    hold. With `may_spawn`, a process of its own may write it (`SqlArchive.open`).
    Errors: InvalidRequest when something is missing; Unavailable; Corrupt.
    """
    is_embedded = settings.engine == "sqlite"
    if settings.archive == "none" or not (is_embedded or settings.archive):
        return None
    from blackboard.archive.sql import SqlArchive, archive_url, blobs_beside
    from blackboard.integrity.signing import Seal, make_key, read_key

    url, blobs, key = settings.archive, settings.blobs, settings.signing_key
    # A file of SQLite is used on one machine, like the directory beside it.
    if blobs is None and (url is None or url.startswith("sqlite:")):
        blobs = blobs_beside(settings.data)
    if blobs is None:
        reason = "needed beside an archive that other machines use"
        raise InvalidRequest(field="blobs", reason=reason)
    if key is None and not is_embedded:
        reason = "needed to sign checkpoints: every service on one archive has the same key"
        raise InvalidRequest(field="signing_key", reason=reason)
    secret = make_key(settings.data / "signing_key") if key is None else read_key(key)
    beside, seal = archive_url(settings.data), Seal(secret)
    if url not in (None, beside):  # it is complete by itself, but may have been beside it before
        copied = replace(limits.archive, archive_copy_bytes_max=VALUE_BYTES_MAX)
        limits = replace(limits, archive=copied)
    return await SqlArchive.open(
        url or beside,
        blobs=blobs,
        sealer=seal,
        limits=limits,
        logs=store if store and isinstance(store, ServesValues) else None,
        may_spawn=may_spawn,
    )


def secret_of(settings: Settings) -> str:
    """The secret that signs tokens: from the settings, from a file, or generated in the data
    directory.

    Errors: InvalidRequest when it cannot be read or is too short.
    """
    if settings.secret is not None:
        return check_secret(settings.secret.get_secret_value())
    path = settings.secret_file or settings.data / "secret"
    try:
        if settings.secret_file is not None:  # it may be a pipe
            found = path.read_text(encoding="utf-8")
        else:
            make_directory(path.parent)
            # It replaces no file: two services that start at once read the same secret.
            disk.make_file(path, f"{new_secret()}\n".encode())
            found = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(field="secret_file", reason=f"{path}: {error}") from error
    return check_secret(found.strip())


async def wrapper_of(settings: Settings) -> "Wrapper | None":
    """The wrapper of data keys: from the environment, a file or a command; None = no encryption.

    Errors: InvalidRequest when it cannot be obtained or is not a key. The error does not contain
    the key.
    """
    from blackboard.encryption.master_key import LocalWrapper, from_command

    if settings.master_key_command is not None:
        return await from_command(settings.master_key_command)
    if settings.master_key is not None:
        return LocalWrapper.of(settings.master_key.get_secret_value())
    if settings.master_key_file is None:
        return None
    try:
        return LocalWrapper.of(settings.master_key_file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            field="master_key_file", reason=f"{settings.master_key_file}: {error}"
        ) from error


def write_operator_token(settings: Settings, secret: str) -> Path:
    """Write a token of the operator, valid for a year, to the data directory; returns its path.

    If the disk is full, the token of an earlier start stays in place as long as it is valid.
    Errors: InvalidRequest.
    """
    path = settings.data / "token"
    token = issue(secret, operator(), _OPERATOR_TOKEN_TTL_MS, audience=settings.audience)
    try:
        make_directory(path.parent)
        disk.replace_file(path, f"{token}\n".encode())
        return path
    except OSError as error:
        if disk.is_full(error) and _is_good(path, secret, settings.audience):
            log.warning("no room for a new %s: the old one stays (%s)", path, error.strerror)
            return path
        raise InvalidRequest(field="data", reason=str(error)) from error


def _is_good(path: Path, secret: str, audience: str) -> bool:
    """Whether `path` contains a token that this service accepts."""
    try:
        verify(secret, read_text(path).strip(), audience=audience)
    except (OSError, ValueError, Unauthenticated):
        return False
    return True


AGENT: Final = "agent"
READER: Final = "reader"
APPROVER: Final = "approver"
OPERATOR: Final = "operator"
_BUILT_IN: Final[Mapping[str, Sequence[str]]] = {
    READER: ["public/**=read"],
    APPROVER: ["public/**=read", f"{DECISIONS}/**=approve"],
    OPERATOR: ["**=all"],
}


def grants_of(role: str, name: str, path: Path | None = None) -> tuple[AccessGrant, ...]:
    """The grants of `role` for `name`; a role of the file at `path`, or else a built-in one.

    Errors: InvalidRequest when there is no such role, or the file has another format than above.
    """
    found = {} if path is None else load_roles(path)
    if role in found:
        texts = found[role]
    elif role == AGENT:
        return access.agent(name).grants
    elif role in _BUILT_IN:
        texts = _BUILT_IN[role]
    else:
        known = ", ".join(sorted({AGENT, *_BUILT_IN, *found}))
        raise InvalidRequest("role", f"{role!r} is not one of: {known}")
    return access.check_grants(access.parse_grant(text.replace("{name}", name)) for text in texts)


def load_roles(path: Path) -> Mapping[str, Sequence[str]]:
    """The roles of a file: by name, grants as text. Errors: InvalidRequest."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidRequest("roles_file", f"{path}: {error}") from error
    return {check_name(name, "role"): _texts(name, role) for name, role in found.items()}


def _texts(name: str, role: Any) -> Sequence[str]:
    """Errors: InvalidRequest unless it is a table that contains only `grants`, all of them
    valid."""
    grants = role.get("grants") if isinstance(role, dict) and set(role) == {"grants"} else None
    if not isinstance(grants, list) or not all(isinstance(text, str) for text in grants):
        raise InvalidRequest("roles_file", f"role {name}: it needs grants = [...] and nothing else")
    for text in grants:
        # With a stand-in for the name: a wrong grant is found when the file is read, not when the
        # first token of that role is made.
        access.check_grants([access.parse_grant(text.replace("{name}", "name"))])
    return grants
