"""Log lines for people or for machines. Neither shows what was asked or answered."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the facts of a request."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class TextLines(logging.Formatter):
    """The same for people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def format(self, record: logging.LogRecord) -> str:
        facts = getattr(record, "facts", {})
        told = ("method", "path", "status")
        rest = " ".join(f"{name}={value}" for name, value in facts.items() if name not in told)
        return super().format(record) + (f" {rest}" if rest else "")


def start_logging(level: str, form: str) -> None:
    """To stderr. `form`: "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else TextLines())
    logger = logging.getLogger("ingle")
    logger.addHandler(handler)
    logger.setLevel(level.upper())
    logger.propagate = False
