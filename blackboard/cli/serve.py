"""serve: runs the service in the foreground, and logs as text or as JSON Lines."""

import json
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final

import typer

from blackboard import telemetry
from blackboard.cli import screen, target as places
from blackboard.cli.errors import CommandError, wrong_usage
from blackboard.cli.options import Command, options_of

if TYPE_CHECKING:
    from blackboard.server.http.serve import Serving

log = logging.getLogger("blackboard")
FORMATS: Final = ("text", "json")


class TextFormatter(logging.Formatter):
    """Lines for people. Some contain text from clients, so control characters are made visible."""

    def format(self, record: logging.LogRecord) -> str:
        """The record, with the traceback below it if it is an error of ours."""
        return screen.safe_lines(super().format(record))


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time (RFC 3339, UTC), level, logger, message, error, and the ids
    of the trace that it belongs to."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        document = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if trace := telemetry.traceparent():
            _, document["trace_id"], document["span_id"], _ = trace.split("-")
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        # The escapes of `safe` mean the same in JSON, and other text stays readable.
        return screen.safe(json.dumps(document, ensure_ascii=False))


def configure(log_format: str) -> None:
    """Send the records of this process to stderr: ours from INFO, those of others from WARNING."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(TextFormatter("%(asctime)s %(levelname)-7s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    log.setLevel(logging.INFO)


app = typer.Typer()
_NETWORK = "Network"


def _boards(
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine", metavar="URL", help="sqlite (default), or redis://host:port of a server."
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="Where boards, secret and token are kept. Default: in your home directory.",
        ),
    ] = None,
    level: Annotated[
        str | None,
        typer.Option(
            "--level",
            metavar="LEVEL",
            help="What an acknowledgement survives: disk (default) or memory.",
        ),
    ] = None,
    secret_file: Annotated[
        str | None,
        typer.Option("--secret-file", metavar="FILE", help="The secret that signs tokens."),
    ] = None,
    lock_masters: Annotated[
        list[str] | None,
        typer.Option(
            "--lock-master",
            metavar="URL",
            help="A Redis server that votes on every lease (repeat: 3 or 5 independent ones).",
        ),
    ] = None,
    page: Annotated[
        bool | None,
        typer.Option(
            "--page/--no-page",
            rich_help_panel=_NETWORK,
            help="Serve the page at / (default), or not.",
        ),
    ] = None,
) -> None: ...


def _copies(
    backup: Annotated[
        str | None,
        typer.Option("--backup", metavar="DIR|URL", help="Ship all history there, as it happens."),
    ] = None,
    heads_file: Annotated[
        str | None,
        typer.Option(
            "--heads-file",
            metavar="FILE",
            help="On another disk: notices when an older copy of the data is put back.",
        ),
    ] = None,
) -> None: ...


def _network(
    host: Annotated[
        str | None,
        typer.Option(
            "--host", metavar="ADDRESS", rich_help_panel=_NETWORK, help="Default: 127.0.0.1"
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="PORT", rich_help_panel=_NETWORK, help="Default: 7420; 0 = any."
        ),
    ] = None,
    tls_cert: Annotated[
        str | None,
        typer.Option(
            "--tls-cert", metavar="FILE", rich_help_panel=_NETWORK, help="Certificate, as PEM."
        ),
    ] = None,
    tls_key: Annotated[
        str | None,
        typer.Option(
            "--tls-key", metavar="FILE", rich_help_panel=_NETWORK, help="Its key, as PEM."
        ),
    ] = None,
    allowed_origins: Annotated[
        list[str] | None,
        typer.Option(
            "--origin",
            metavar="URL",
            rich_help_panel=_NETWORK,
            help="A web page that may connect (repeat).",
        ),
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option(
            "--insecure", rich_help_panel=_NETWORK, help="Without TLS, behind a proxy that adds it."
        ),
    ] = None,
) -> None: ...


def _observation(
    telemetry: Annotated[
        bool | None,
        typer.Option(
            "--telemetry", help="Send traces, metrics and logs by OTLP; OTEL_ variables say where."
        ),
    ] = None,
) -> None: ...


class ServeCommand(Command):
    """The command whose options are settings."""

    shared: ClassVar[Sequence[Any]] = [
        *options_of(_boards),
        *options_of(_copies),
        *options_of(_network),
        *options_of(_observation),
    ]

    def take(self, given: dict[str, Any]) -> object:
        """The given settings, by their field names."""
        taken = {param.name: given.pop(param.name) for param in self.shared}
        # What was not given must not hide a variable, or a line of the file of settings.
        return {name: value for name, value in taken.items() if value not in (None, [], ())}


@app.command(
    cls=ServeCommand,
    rich_help_panel="Service",
    epilog="""\
blackboard serve  # boards in your home directory, on this machine only
blackboard serve --data boards --port 0 --level memory
blackboard serve --engine redis://localhost:6379
blackboard serve --backup /mnt/other-disk/blackboard
blackboard serve --host 0.0.0.0 --secret-file secret --tls-cert cert.pem --tls-key key.pem""",
)
def serve(
    context: typer.Context,
    log_format: Annotated[
        str,
        typer.Option(
            "--log-format",
            metavar="text|json",
            envvar="BLACKBOARD_LOG_FORMAT",
            show_envvar=False,
            help="Format of the log on stderr.",
        ),
    ] = "text",
) -> None:
    """Run the service, until Ctrl-C.

    On this machine it is saved as context "local", so that the other commands find it; a second
    service as "local-PORT", until it stops. Each setting can also be a variable (BLACKBOARD_PORT,
    BLACKBOARD_LOG_KEPT_REVISIONS ...), or a line of the TOML file that BLACKBOARD_CONFIG names.
    """
    from blackboard.server import settings as config
    from blackboard.server.http import serve as server

    if log_format not in FORMATS:
        raise wrong_usage("--log-format is text or json")
    configure(log_format)
    settings = config.load(context.obj)
    settings.check()  # before anything is created
    if settings.engine == "sqlite" or settings.is_loopback:  # there the token of the operator is
        make_private(settings.data)

    # Asked before this service serves, perhaps at the same address.
    other = places.answering(places.load(places.config_directory()).by_name.get(places.LOCAL))
    name = places.LOCAL

    def greet(serving: "Serving") -> None:
        nonlocal name
        if settings.is_loopback:
            name = f"{places.LOCAL}-{port_of(serving.url)}" if other else places.LOCAL
            steps = _steps_here(name, remember(name, serving, settings.data))
        else:
            steps = _steps_elsewhere(serving.url)
        if log_format == "json":
            log.info("serving %s", serving.url)
        else:
            _print_banner(serving, steps)

    try:
        server.run(settings, ready=greet)
    finally:
        if name != places.LOCAL:
            forget(name)


def forget(name: str) -> None:
    """Remove the context `name`."""
    try:
        places.change(places.config_directory(), lambda known: known.without(name))
    except CommandError as error:
        log.warning("context %s is not removed: %s", name, error.message)


def make_private(directory: Path) -> None:
    """Make the data directory for this user only; one that exists is closed to others."""
    from blackboard.integrity.private_files import close_tree, make_directory

    try:
        make_directory(directory)
        close_tree(directory)
    except OSError as error:
        raise wrong_usage(f"--data: {directory} cannot be made: {error.strerror}") from error


def port_of(url: str) -> int | None:
    """The port in a service's address."""
    from urllib.parse import urlsplit

    return urlsplit(url).port


def remember(name: str, serving: "Serving", data: Path) -> str | None:
    """Write the context `name`; returns the name of the one that is in use now.

    The service goes on if the disk has no room for it, as its boards can still be read.
    """
    token_file = None if serving.token_path is None else str(serving.token_path.resolve())
    remembered = places.ServiceContext(serving.url, token_file=token_file, data=str(data.resolve()))
    directory = places.config_directory()
    try:
        places.change(directory, lambda known: known.adding(name, remembered))
        return places.load(directory).chosen
    except CommandError as error:
        log.warning(
            "context %s is not saved, so other commands need --url: %s", name, error.message
        )
        return None


def _print_banner(serving: "Serving", steps: Iterable[tuple[str, str]]) -> None:
    from importlib.metadata import version

    from rich.text import Text

    from blackboard.cli.keys import SURVIVES
    from blackboard.server.http.serve import NO_ARCHIVE

    facts, out = serving.facts, screen.console()
    rows = {
        "url": serving.url,
        "engine": f"{facts.name} {facts.version}",
        "boards": facts.location,
        "safety": f"an acknowledged commit is {SURVIVES[facts.level]}",
    }
    if not serving.archived:
        rows["archive"] = NO_ARCHIVE
    if serving.page is not None:
        once = "" if "#" not in serving.page else "   (this link is good once, for an hour)"
        rows["page"] = f"{serving.page}{once}"
    if serving.token_path is not None:
        rows["token"] = f"the operator's, in {serving.token_path}"
    out.print(Text.assemble("\n ", ("Blackboard", "bold"), f" {version('agent-blackboard')}\n"))
    for name, text in rows.items():
        out.print(Text.assemble("   ", (f"{name:<9}", "dim"), text), soft_wrap=True)
    for warning in facts.warnings:
        out.print(Text(f"   warning  {warning}", "yellow"), soft_wrap=True)
    out.print(Text("\n In another terminal:\n"))
    for command, remark in steps:
        line = Text.assemble("   ", (command, "cyan"), (f"   # {remark}", "dim"))
        out.print(line, soft_wrap=True)
    out.print(Text("\n Ctrl-C stops it.\n", "dim"))


def _steps_here(name: str, in_use: str | None) -> Iterator[tuple[str, str]]:
    if in_use not in (None, name):
        yield f"blackboard context use {name}", f"{in_use} is in use now"
    yield "blackboard watch", "see changes as they happen"
    yield "blackboard set public/hello world", "make one"
    yield "blackboard token create researcher", "let an agent in"


def _steps_elsewhere(url: str) -> Iterator[tuple[str, str]]:
    yield "blackboard token create researcher --secret-file FILE", "let an agent in"
    yield f"blackboard context add team --url {url} --token - --use", "there, with that token"
