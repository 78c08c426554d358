"""Log messages on standard error: plain lines for people, or JSON objects for programs."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

log = logging.getLogger("latentbits")


def configure_logging(as_json: bool = False) -> None:
    """Write the log messages of this program to standard error, one per line."""
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(JsonLineFormatter())
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def is_logging_json() -> bool:
    """Return whether log messages are written as JSON."""
    return any(isinstance(handler.formatter, JsonLineFormatter) for handler in log.handlers)


class JsonLineFormatter(logging.Formatter):
    """Formats a message as a JSON object: time, level, message and the record's `fields`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record as one line."""
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["traceback"] = self.formatException(record.exc_info)
        return json.dumps(entry)
