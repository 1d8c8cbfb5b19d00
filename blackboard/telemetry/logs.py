"""Log lines by OTLP: those that the process writes, with the ids of the trace that they belong to.

Invariants
- No value of a board and no secret leaves: of an error, whose message may quote something, the code
  or the class is sent, and of its traceback the places. Of a line of another library, which may
  show any object, the first line is.
- Lines about the sending itself are not sent, or each failure would cause the next one.
- Nothing waits for a collector: at most TELEMETRY_QUEUE_MAX lines wait, further ones are dropped.
"""

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from blackboard.errors import BlackboardError
from blackboard.limits import TELEMETRY_LOG_CHARACTERS_MAX
from blackboard.telemetry.sending import Signal, flush_at_exit, is_sent, queue_max, resource

if TYPE_CHECKING:
    from opentelemetry._logs import SeverityNumber

_SENDING: Final = frozenset({"opentelemetry", "requests", "urllib3"})
_SEVERITIES: Final = (
    (logging.CRITICAL, "FATAL"),
    (logging.ERROR, "ERROR"),
    (logging.WARNING, "WARN"),
    (logging.INFO, "INFO"),
    (logging.NOTSET, "DEBUG"),
)


@contextmanager
def sent(service: str) -> Iterator[None]:
    """A block in which the lines that reach the root logger are sent as well; nothing if
    OTEL_LOGS_EXPORTER says `none`.

    Errors: InvalidRequest for a variable that cannot be used.
    """
    if not is_sent(Signal.LOGS):
        yield
        return
    root, sender = logging.getLogger(), LogSender(service)
    root.addHandler(sender)
    try:
        yield
    finally:
        root.removeHandler(sender)


class LogSender(logging.Handler):
    """Gives each line to a batch of OpenTelemetry's SDK, which sends it from a thread of its
    own."""

    def __init__(self, service: str) -> None:
        from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
        from opentelemetry.sdk._logs import LoggerProvider
        from opentelemetry.sdk._logs.export import BatchLogRecordProcessor

        super().__init__()
        self._provider = LoggerProvider(resource(service), shutdown_on_exit=False)
        queued = queue_max("OTEL_BLRP_MAX_QUEUE_SIZE")
        batch = BatchLogRecordProcessor(OTLPLogExporter(), max_queue_size=queued)
        self._provider.add_log_record_processor(batch)
        flush_at_exit(self._provider.force_flush)

    def emit(self, record: logging.LogRecord) -> None:
        """Queue one line, with the current trace. One that cannot be formatted is reported as by
        other handlers: its writer must not get the error."""
        if record.name.partition(".")[0] in _SENDING:
            return
        try:
            self._queue(record)
        except Exception:  # noqa: BLE001 - whatever an argument raises
            self.handleError(record)

    def _queue(self, record: logging.LogRecord) -> None:
        from opentelemetry._logs import LogRecord

        # Not by the SDK's handler, which sends the message of an error, and any argument.
        attributes: dict[str, str | int] = {
            "code.function.name": record.funcName,
            "code.line.number": record.lineno,
            **_about(record.exc_info[1] if record.exc_info else None),
        }
        sending = LogRecord(
            timestamp=int(record.created * 1e9),
            severity_text=record.levelname,
            severity_number=_severity(record.levelno),
            body=said(record)[:TELEMETRY_LOG_CHARACTERS_MAX],
            attributes=attributes,
        )
        self._provider.get_logger(record.name).emit(sending)


def said(record: logging.LogRecord) -> str:
    """What a line says, without what an error says."""
    if record.name.partition(".")[0] != "blackboard":
        return record.getMessage().partition("\n")[0]
    given = record.args if isinstance(record.args, tuple) else ()
    told = tuple(_code(each) if isinstance(each, BaseException) else each for each in given)
    # As logging does it: a text without arguments is no format, and may contain a percent sign.
    return str(record.msg) % told if told else str(record.msg)


def _code(error: BaseException) -> str:
    return error.code if isinstance(error, BlackboardError) else type(error).__name__


def _about(error: BaseException | None) -> dict[str, str]:
    """The class of an error, and the calls that led to it."""
    if error is None:
        return {}
    places = "".join(traceback.format_tb(error.__traceback__))
    return {
        "exception.type": _code(error),
        # Its end: the calls that are nearest to the error.
        "exception.stacktrace": places[-TELEMETRY_LOG_CHARACTERS_MAX:],
    }


def _severity(level: int) -> "SeverityNumber":
    from opentelemetry._logs import SeverityNumber

    return SeverityNumber[next(name for least, name in _SEVERITIES if level >= least)]
