"""The log of a server: one line of JSON for each record, in ASCII, so that nothing in it acts."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

REQUESTS = "vitlab.serve.requests"
"""Logger with one record for each request, whose `fields` are its line."""
LOGGERS = ("uvicorn", "vitlab.serve", REQUESTS)


class JsonFormatter(logging.Formatter):
    """Formatter of records as JSON: time, and the fields of a request or level and message."""

    def format(self, record: logging.LogRecord) -> str:
        """One line without characters that act on a terminal."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields: dict[str, Any] | None = getattr(record, "fields", None)
        if fields is None:
            fields = {"level": record.levelname.lower(), "message": record.getMessage().strip()}
            if record.exc_info:
                fields["traceback"] = self.formatException(record.exc_info)
        return json.dumps({"time": moment.replace("+00:00", "Z"), **fields})


def log_to_stderr(*, requests: bool) -> None:
    """Write warnings of the server, and a line for each request, to standard error."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(logging.INFO if requests and name == REQUESTS else logging.WARNING)
