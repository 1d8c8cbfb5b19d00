"""How `blackboard serve` reports: lines for people, or JSON Lines for machines."""

import json
import logging
import sys
import time
from typing import Final

log = logging.getLogger("blackboard")
FORMATS: Final = ("text", "json")


class JsonFormatter(logging.Formatter):
    """One JSON object per record: time (RFC 3339, UTC), level, logger, message, error."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        told = {
            "time": f"{at}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            told["error"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)


def configure(log_format: str) -> None:
    """Send the records of this process to stderr: ours from INFO, those of others from WARNING."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    log.setLevel(logging.INFO)
