"""What a command tells on standard error: lines for people, or JSON objects for machines."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

log = logging.getLogger("latentbits")


def configure_logging(as_json: bool = False) -> None:
    """Write the messages of this program to standard error, one a line."""
    handler = logging.StreamHandler(sys.stderr)
    if as_json:
        handler.setFormatter(JsonLineFormatter())
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def is_logging_json() -> bool:
    """Tell whether messages are JSON objects."""
    return any(isinstance(handler.formatter, JsonLineFormatter) for handler in log.handlers)


class JsonLineFormatter(logging.Formatter):
    """Writes a message as a JSON object: time, level, message, and its `fields`, if it has any."""

    def format(self, record: logging.LogRecord) -> str:
        """Give one line."""
        written = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            written["traceback"] = self.formatException(record.exc_info)
        return json.dumps(written)
