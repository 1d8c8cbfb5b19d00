"""The checks of `blackboard doctor`. Each returns findings; none makes a lasting change.

A finding is ok, warn (it works, but will surprise you) or fail (it does not work, or loses data).

The checks cover the engine, this machine, and the service.
"""

import json
import os
import shutil
import socket
import ssl
import statistics
import time
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import StrEnum
from http.client import HTTPException
from importlib.metadata import version as version_of
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import unquote, urlsplit

import typer

from blackboard.cli import screen
from blackboard.cli.errors import LOOPBACK, CommandError, Exit, explain, other_scheme, way_to
from blackboard.cli.options import Flags, ServiceCommand
from blackboard.cli.screen import counted
from blackboard.errors import BlackboardError, DataDirectoryInUse, InvalidRequest
from blackboard.limits import DEFAULT

if TYPE_CHECKING:
    from blackboard.cli.target import Target
    from blackboard.engines.base import Store
    from blackboard.server.settings import Settings
    from blackboard.telemetry.sending import Signal

_EMBEDDED: Final = "sqlite"
_FSYNCS: Final = 9
_FSYNC_SLOW_MS: Final = 20.0
_FREE_FAIL_BYTES: Final = 100 * 1024**2
_FREE_WARN_BYTES: Final = 2 * 1024**3
_SKEW_MAX_S: Final = 5
_HTTP_TIMEOUT_S: Final = 3
_TELEMETRY_PATIENCE_S: Final = 4
_ANSWER_BYTES_MAX: Final = 64 * 1024
_SCHEMA_BYTES_MAX: Final = 1024 * 1024
_VERSION_CHARACTERS_MAX: Final = 64
_TOKEN_LEFT_MIN_MS: Final = 15 * 60_000  # by default a new one is valid for an hour


class FindingStatus(StrEnum):
    """The severity of a finding."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line: the subject, its state, and what to do about it ("" = nothing)."""

    check: str
    status: FindingStatus
    text: str
    fix: str = ""


def _ok(check: str, text: str) -> Finding:
    return Finding(check, FindingStatus.OK, text)


def _failure(check: str, error: BlackboardError | CommandError) -> Finding:
    problem = explain(error) if isinstance(error, BlackboardError) else error
    return Finding(check, FindingStatus.FAIL, problem.message, problem.fix)


# --- the engine -----------------------------------------------------------------------------------


async def engine(settings: "Settings") -> list[Finding]:
    """The engine's kind, what an acknowledged commit survives, and its warnings."""
    from blackboard.cli.keys import SURVIVES
    from blackboard.cli.session import holds_boards
    from blackboard.server.settings import make_store

    if settings.engine == "sqlite" and not holds_boards(settings.data):
        return [_ok("engine", f"sqlite; {settings.data} is made when it is first used")]
    try:
        store = await make_store(settings)
    except DataDirectoryInUse as error:
        owner = f"process {error.pid}" + (f", which serves {error.url}" if error.url else "")
        return [_ok("engine", f"sqlite, in use by {owner}")]
    except BlackboardError as error:
        return [_failure("engine", error)]
    try:
        facts = await store.facts()
        account = await _account(store)
    except BlackboardError as error:
        return [_failure("engine", error)]
    finally:
        await store.aclose()
    known = f"{facts.name} {facts.version} at {facts.location}"
    survives = f"an acknowledged commit is {SURVIVES[facts.level]}"
    warnings = [Finding("engine", FindingStatus.WARN, text, _ENGINE_FIX) for text in facts.warnings]
    return [_ok("engine", known), _ok("durability", survives), *account, *warnings]


def engine_in_use(name: str, level: str) -> list[Finding]:
    """The engine of a service on this machine that does not use the one of the settings here."""
    from blackboard.cli.keys import SURVIVES

    text = f"{name}, which the service on this machine uses: it was not checked"
    known = Finding("engine", FindingStatus.OK, text, "Check it: blackboard doctor --engine URL")
    if level not in SURVIVES:
        return [known]
    return [known, _ok("durability", f"an acknowledged commit is {SURVIVES[level]}")]


async def _account(store: "Store") -> list[Finding]:
    """Whether the account at a Redis may do more than it needs. With fewer rights the engine
    refuses it."""
    from blackboard.engines.redis.store import RedisStore

    if not isinstance(store, RedisStore):
        return []
    excess = (await store.account()).excess
    if not excess:
        return [_ok("account", "has the necessary rights, and no dangerous ones")]
    text = f"may do more than it needs: {', '.join(excess)}"
    return [Finding("account", FindingStatus.WARN, text, _ACCOUNT_FIX)]


_ACCOUNT_FIX = "Give Blackboard a user of its own, as docs/howto/deploy_redis.md says."
_ENGINE_FIX = "Change it in the engine's configuration, or use a newer version."

# --- this machine ---------------------------------------------------------------------------------


def directory(path: Path) -> Iterator[Finding]:
    """Rights, free space and speed of the data directory (or of where it will be made)."""
    place = path
    # Not Path.exists, which raises an error for a name that is too long, or in a closed directory.
    while not os.path.exists(place) and place != place.parent:  # noqa: PTH110
        place = place.parent
    if not os.access(place, os.W_OK | os.X_OK):
        yield Finding(
            "data", FindingStatus.FAIL, f"{place} is not writable", f"chown or chmod {place}"
        )
        return
    yield _privacy(path) if place == path else _ok("data", f"{path} is writable, not made yet")
    yield _room(place)
    yield _speed(place)


def _privacy(path: Path) -> Finding:
    """Whether other users of this machine have access to the data directory."""
    from blackboard.integrity.private_files import exposed

    try:
        found = exposed(path)
    except OSError as error:
        return Finding("data", FindingStatus.FAIL, f"{path} cannot be listed: {error.strerror}")
    if not found:
        return _ok("data", f"{path} is writable, and other users here cannot read it")
    first = f"{found[0]}" if len(found) == 1 else f"{found[0]} and {len(found) - 1} more"
    text = f"{first} can be opened by other users here"
    fix = f"chmod -R go-rwx {path}  (a service does so when it starts)"
    return Finding("data", FindingStatus.WARN, text, fix)


def _room(place: Path) -> Finding:
    free = shutil.disk_usage(place).free
    text = f"{free / 1024**3:.1f} GiB free"
    if free >= _FREE_WARN_BYTES:
        return _ok("disk", text)
    status = FindingStatus.FAIL if free < _FREE_FAIL_BYTES else FindingStatus.WARN
    return Finding("disk", status, text, f"Make room on the file system of {place}.")


def _speed(place: Path) -> Finding:
    """The time that one acknowledged commit waits for the disk."""
    probe = place / f".blackboard-fsync-{os.getpid()}"
    times_ms = []
    try:
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            for _ in range(_FSYNCS):
                os.write(descriptor, b"\0" * 4096)
                begun = time.perf_counter()
                os.fsync(descriptor)
                times_ms.append((time.perf_counter() - begun) * 1000)
        finally:
            os.close(descriptor)
            probe.unlink()
    except OSError as error:
        return Finding("fsync", FindingStatus.FAIL, f"cannot write there: {error.strerror}")
    median = statistics.median(times_ms)
    text = f"{median:.1f} ms (median of {_FSYNCS}, slowest {max(times_ms):.1f} ms)"
    if median <= _FSYNC_SLOW_MS:
        return _ok("fsync", text)
    return Finding("fsync", FindingStatus.WARN, text, "Put the data directory on a local SSD.")


def open_files() -> Finding:
    """Whether this process could have CONNECTIONS_MAX connections."""
    import resource

    most = DEFAULT.open_files_max
    # The hard limit: a service raises the soft one up to it when it starts.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or hard >= most:
        return _ok("open files", f"{'no limit' if hard < 0 else hard}, {most} are needed at most")
    connections = max(0, hard - most + DEFAULT.service.connections_max)
    text = f"at most {hard}, so about {counted(connections, 'connection')}"
    return Finding("open files", FindingStatus.WARN, text, f"ulimit -Hn {most}")


# --- telemetry ------------------------------------------------------------------------------------


def telemetry(*, is_on: bool, patience_s: float = _TELEMETRY_PATIENCE_S) -> list[Finding]:
    """Whether a service or program that starts with these settings sends telemetry, where to, and
    whether that answers. Waits for `patience_s` at most, for all of them together."""
    from blackboard.telemetry.sending import Signal, address_of, check, is_sent

    if not is_on:
        return [_ok("telemetry", "off: nothing is sent")]
    try:
        check()
    except BlackboardError as error:
        return [_failure("telemetry", error)]
    if not _has_exporter():
        fix = "pip install 'agent-blackboard[telemetry]'"
        return [Finding("telemetry", FindingStatus.FAIL, "OpenTelemetry is not installed", fix)]
    sent = [signal for signal in Signal if is_sent(signal)]
    if not sent:
        return [_ok("telemetry", "on, but OTEL_ variables say that nothing is sent")]
    answers = _answers({signal: address_of(signal) for signal in sent}, patience_s)
    late = f"did not answer in {patience_s} s"
    return [_told(signal, address_of(signal), answers.get(signal, late)) for signal in sent]


def _has_exporter() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ImportError:
        return False


def _answers(addresses: "dict[Signal, str]", patience_s: float) -> "dict[Signal, str]":
    """What each address answers to an export of nothing; "" = it took it."""
    found: dict[Signal, str] = {}

    def ask(signal: "Signal", address: str) -> None:
        found[signal] = _export_nothing(signal, address)

    # In threads: urllib's timeout bounds each wait for the socket, but neither their sum nor the
    # resolution of a name.
    asking = [Thread(target=ask, args=each, daemon=True) for each in addresses.items()]
    for thread in asking:
        thread.start()
    until_s = time.monotonic() + patience_s
    for thread in asking:
        thread.join(max(0.0, until_s - time.monotonic()))
    return dict(found)


def _export_nothing(signal: "Signal", address: str) -> str:
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    from opentelemetry.util.re import parse_env_headers

    variables = (f"OTEL_EXPORTER_OTLP_{signal}_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
    given = next((os.environ[name] for name in variables if os.environ.get(name)), "")
    headers = {**parse_env_headers(given, liberal=True), "Content-Type": "application/x-protobuf"}
    parts = urlsplit(address)
    # urllib takes the user for a part of the host's name.
    user, divider, host = parts.netloc.rpartition("@")
    if divider:
        headers["Authorization"] = f"Basic {b64encode(unquote(user).encode()).decode()}"
    try:
        address = parts._replace(netloc=host).geturl()
        asked = Request(address, data=b"", headers=headers)
        with urlopen(asked, timeout=_HTTP_TIMEOUT_S):
            return ""
    except HTTPError as error:
        error.close()
        return f"answers {error.code}"
    except (OSError, ValueError, HTTPException) as error:
        reason = getattr(error, "reason", error)
        return f"does not answer: {getattr(reason, 'strerror', None) or type(reason).__name__}"


def _told(signal: "Signal", address: str, answer: str) -> Finding:
    parts = urlsplit(address)
    # Without what may be secret: a user, a password, a query.
    where = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
    text = f"{signal.lower()} go to {where}, which "
    if not answer:
        return _ok("telemetry", f"{text}takes them")
    fix = f"Look at the collector, at OTEL_ variables, or set {signal.exporter_variable}=none."
    return Finding("telemetry", FindingStatus.WARN, text + answer, fix)


# --- the service ----------------------------------------------------------------------------------


def token(target: "Target", now_ms: int) -> Finding:
    """Whether there is a token, and for how long."""
    from blackboard.cli.render import age, clock as time_of
    from blackboard.cli.token import claims_of

    fix = "Give one: --token, BLACKBOARD_TOKEN or blackboard context add."
    if target.token is None:
        return Finding("token", FindingStatus.FAIL, "there is none", fix)
    try:
        claims = claims_of(target.token)
    except CommandError as error:
        return _failure("token", error)
    left_ms = claims["expires_at_ms"] - now_ms
    if left_ms <= 0:
        return Finding("token", FindingStatus.FAIL, f"{claims['principal']}'s has expired", fix)
    until = time_of(claims["expires_at_ms"], now_ms)
    left = age(now_ms, claims["expires_at_ms"])
    text = f"{claims['principal']}, valid until {until}, for another {left}"
    if left_ms < _TOKEN_LEFT_MIN_MS:
        return Finding(
            "token", FindingStatus.WARN, text, "Ask for a new one: blackboard token create"
        )
    return _ok("token", text)


def transport(url: str) -> Finding:
    """Whether the token could be read on the network."""
    parts = urlsplit(url)
    if parts.scheme in ("wss", "https"):
        return _ok("transport", "encrypted (TLS)")
    if parts.hostname in LOOPBACK:
        return _ok("transport", "on this machine only (loopback)")
    text = f"{parts.hostname} is another machine, and nothing is encrypted"
    return Finding("transport", FindingStatus.WARN, text, "Serve with --tls-cert and --tls-key.")


def service(url: str, ca: str | None = None) -> Iterator[Finding]:
    """Whether the service is alive and ready, and its clock agrees with ours."""
    from urllib.error import HTTPError

    from blackboard.client.remote.connect import reason_of

    for path, meaning in (("/healthz", "it lives"), ("/readyz", "it is ready")):
        try:
            with _get(url, path, ca) as answer:
                yield _ok(path, f"{url}, {meaning}")
                date = answer.headers["Date"]
                body = _document(answer, _ANSWER_BYTES_MAX)
        except HTTPError as error:
            error.close()
            fix = "See the log of the service."
            yield Finding(
                path, FindingStatus.FAIL, f"{url} answers {error.code} {error.reason}", fix
            )
            return
        except (OSError, ValueError, HTTPException, BlackboardError) as error:
            # What does not answer in HTTP is an HTTPException, which is no OSError.
            cause = getattr(error, "reason", error)
            reason = reason_of(cause, url) if isinstance(cause, Exception) else cause
            yield _no_answer(path, url, str(reason))
            return
    yield _version(url, ca)
    yield clock(date, time.time())
    yield from archive(body)
    yield from warnings(body)
    yield _traces(body)


def _no_answer(path: str, url: str, reason: str) -> Finding:
    if path != "/healthz":
        fix = "See the log of the service, and its engine."
    elif "does not answer in HTTP" in reason and _speaks_tls(url):
        reason, fix = "it speaks TLS at that port", f"Use {other_scheme(url)}"
    else:
        fix = way_to(url, reason)
    return Finding(path, FindingStatus.FAIL, f"{url} does not answer: {reason}", fix)


def _speaks_tls(url: str) -> bool:
    """Whether the port speaks TLS, with any certificate: no data is sent over it."""
    any_certificate = ssl.create_default_context()
    any_certificate.check_hostname = False
    any_certificate.verify_mode = ssl.CERT_NONE
    parts = urlsplit(url)
    address = (parts.hostname or "", parts.port or 80)
    try:
        with (
            socket.create_connection(address, timeout=_HTTP_TIMEOUT_S) as plain,
            any_certificate.wrap_socket(plain, server_hostname=parts.hostname),
        ):
            return True
    except OSError:
        return False


def _version(url: str, ca: str | None) -> Finding:
    """The version of the service; a warning if its protocol may differ from ours."""
    ours = version_of("agent-blackboard")
    try:
        with _get(url, "/v1/schema", ca) as answer:
            document = _document(answer, _SCHEMA_BYTES_MAX)
            theirs = str(document["info"]["version"])[:_VERSION_CHARACTERS_MAX]
    except (OSError, HTTPException, ValueError, LookupError, TypeError):
        return Finding(
            "version", FindingStatus.WARN, f"it does not report its version; {ours} here"
        )
    return versions(theirs, ours)


def versions(theirs: str, ours: str) -> Finding:
    """Whether both sides have the same minor version: before 1.0 the next may change anything."""
    text = f"{theirs} there, {ours} here"
    if theirs.split(".")[:2] == ours.split(".")[:2]:
        return _ok("version", text)
    return Finding("version", FindingStatus.WARN, text, "Use the same version on both sides.")


def elsewhere(url: str) -> Finding:
    """What cannot be checked from here about a service on another machine."""
    host = urlsplit(url).hostname
    text = f"{host} is another machine: its engine, data directory, disk and open files"
    return Finding(
        "host", FindingStatus.OK, f"{text} were not checked", f"On {host} itself: blackboard doctor"
    )


def archive(readiness: Any) -> Iterator[Finding]:
    """How far the archive is behind, as /readyz reports it; nothing without an archive."""
    match readiness:
        case {"archive": {"behind": int(behind), "lag_ms": int(lag_ms), "failing": int(failing)}}:
            text = f"{counted(behind, 'revision')} behind, the oldest for {lag_ms / 1000:.1f} s"
            if lag_ms <= DEFAULT.archive.archive_lag_ms_max:
                yield _ok("archive", text)
                return
            fix = "See the log of the service, and the archive's database."
            text += f"; {counted(failing, 'board')} cannot be archived" if failing else ""
            yield Finding("archive", FindingStatus.WARN, text, fix)


def warnings(readiness: Any) -> Iterator[Finding]:
    """Whether the service has something to warn of, as /readyz reports it."""
    match readiness:
        case {"warnings": int(count)}:
            text = f"the service has {counted(count, 'warning')}"
            fix = "They are in its log: an older copy that was put back, or settings that may lose"
            yield Finding("warnings", FindingStatus.WARN, text, f"{fix} data.")


def _traces(readiness: Any) -> Finding:
    """Whether the service makes traces, as /readyz reports it."""
    match readiness:
        case {"traces": True}:
            return _ok("traces", "the service makes traces")
    return _ok("traces", "the service makes none")


def _get(url: str, path: str, ca: str | None) -> Any:
    """As `target.get`."""
    from blackboard.cli.target import get

    return get(url, path, ca, timeout_s=_HTTP_TIMEOUT_S)


def _document(answer: Any, bytes_max: int) -> Any:
    """The JSON of an answer. Errors: OSError, HTTPException; ValueError when it is none."""
    try:
        return json.loads(answer.read(bytes_max))
    except RecursionError as error:  # of another program, which answers anything
        raise ValueError("it is nested too deep") from error


def clock(date: str | None, now_s: float) -> Finding:
    """Whether the service's clock (an HTTP date) agrees with this machine's."""
    if not date:
        return _ok("clock", "the service does not report its time")
    try:
        there = parsedate_to_datetime(date)
        # Without a zone it is UTC, as every date of HTTP.
        skew_s = now_s - (there if there.tzinfo else there.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError):
        return _ok("clock", "the service does not report its time")
    if abs(skew_s) <= _SKEW_MAX_S:
        return _ok("clock", f"agrees with the service's, to {abs(skew_s):.0f} s")
    text = f"{abs(skew_s):.0f} s {'ahead of' if skew_s > 0 else 'behind'} the service's"
    return Finding("clock", FindingStatus.WARN, text, "Synchronise both clocks (NTP).")


async def access(target: "Target") -> list[Finding]:
    """Whether the service grants access; and the boards that its engine lost, if we may see
    them."""
    import blackboard
    from blackboard.cli import session

    assert target.url is not None
    try:
        connecting = blackboard.connect(
            target.url, token=target.token, agent=target.agent, ca=target.ca
        )
        async with connecting as client:
            boards = len(await client.boards())
            losses = await session.lost_boards(client)
    except BlackboardError as error:
        return [_failure("access", error)]
    found = [_ok("access", f"granted; {counted(boards, 'board')} visible")]
    return found + [
        Finding("lost", FindingStatus.WARN, *session.describe_loss(loss)) for loss in losses
    ]


app = typer.Typer()
_MARKS = {"ok": ("ok  ", "green"), "warn": ("warn", "yellow"), "fail": ("FAIL", "bold red")}


@app.command(
    cls=ServiceCommand,
    rich_help_panel="Service",
    epilog="""\
blackboard doctor
blackboard doctor --url wss://board.example.org  # a service on another machine
blackboard doctor --engine redis://localhost:6379
blackboard doctor --json | jq -r '.findings[] | select(.status != "ok")'""",
)
def doctor(
    context: typer.Context,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="URL", help="sqlite, or the URL of a Redis or Valkey."),
    ] = None,
) -> None:
    """Check engine, machine and service; suggest remedies.

    The engine and the data directory are those that blackboard serve would use here; if the service
    here uses another engine, only its name is reported. They are skipped for a service on another
    machine, unless --engine or --data is given. Exits with 1 if
    anything fails.
    """
    from blackboard.cli import render as show, session
    from blackboard.server import settings as config

    flags = Flags.of(context)
    given = {"engine": engine, "data": session.data_of(flags)}
    settings = config.load({name: value for name, value in given.items() if value is not None})
    asked = engine is not None or flags.data is not None
    # Without --data, which elsewhere stands in place of a service: here that is checked, too.
    findings = _findings(settings, replace(flags, data=None), asked_for_engine=asked)
    if flags.as_json:
        show.print_json({"findings": show.plain(findings)})
    else:
        _print(findings)
    if any(finding.status == "fail" for finding in findings):
        raise typer.Exit(Exit.ERROR)


def _findings(settings: "Settings", flags: Flags, *, asked_for_engine: bool) -> list["Finding"]:
    from blackboard.cli import session
    from blackboard.client.remote.connect import Address

    try:
        target = session.target_of(flags)
    except CommandError as error:
        unknown = Finding("service", FindingStatus.WARN, error.message, error.fix)
        return [*_of_this_machine(settings), *telemetry(is_on=settings.telemetry), unknown]
    assert target.url is not None
    try:
        Address(target.url).websocket  # noqa: B018
    except InvalidRequest as error:
        no_address = Finding(
            "service",
            FindingStatus.FAIL,
            f"{target.url} is no address: {error.reason}",
            "Write it like ws://host:port.",
        )
        return [*_of_this_machine(settings), *telemetry(is_on=settings.telemetry), no_address]
    is_asked = target.is_here and not asked_for_engine
    served = served_engine(target.url, target.ca) if is_asked else None
    found = _of_this_machine(settings, served) if target.is_here or asked_for_engine else []
    found += telemetry(is_on=settings.telemetry)
    found += _of_the_service(target)
    return found if target.is_here else [*found, elsewhere(target.url)]


def _of_this_machine(
    settings: "Settings", served: tuple[str, str] | None = None
) -> list["Finding"]:
    """What is found here; `served` is the engine that the service here says it uses."""
    import anyio

    here = [*directory(settings.data)]  # before the engine opens it, which repairs it
    if served is not None and (served[0] == _EMBEDDED) != (settings.engine == _EMBEDDED):
        return [*engine_in_use(*served), *here, open_files()]
    return [*anyio.run(engine, settings), *here, open_files()]


def served_engine(url: str, ca: str | None = None) -> tuple[str, str] | None:
    """The engine of a service and its level, as /readyz reports them; None if it does not."""
    try:
        with _get(url, "/readyz", ca) as answer:
            match _document(answer, _ANSWER_BYTES_MAX):
                case {"engine": {"name": str(name), "level": str(level)}}:
                    return name, level
    except (OSError, ValueError, HTTPException, BlackboardError):
        pass  # the findings about the service say why
    return None


def _of_the_service(target: "Target") -> list["Finding"]:
    import anyio

    from blackboard.cli import render as show

    assert target.url is not None
    found = list(service(target.url, target.ca))
    found += [transport(target.url), token(target, show.now_ms())]
    if all(finding.status != "fail" for finding in found):
        found += anyio.run(access, target)
    return found


def _print(findings: list["Finding"]) -> None:
    from rich.text import Text

    out = screen.console()
    for finding in findings:
        mark = _MARKS[finding.status]
        line = Text.assemble(mark, "  ", (f"{finding.check:<11}", "bold"), finding.text)
        out.print(line, soft_wrap=True)
        if finding.fix:
            out.print(Text(f"                 -> {finding.fix}", "yellow"), soft_wrap=True)
