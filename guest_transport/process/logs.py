"""Logging of both servers: one line per event on stderr, as text or as JSON, never on stdout.

stdout belongs to results (a table, a sample), so that a pipe never carries a log line. Control characters are escaped here, at the last
door, because guests and drivers choose parts of what is logged. A repeated line is written once a minute (repeated_lines.py). Rejected:
structlog (one more dependency for two formats).
"""

from __future__ import annotations

import json
import logging
import sys
import threading
import time

from guest_transport.process.grpc_environment import prepare_grpc
from guest_transport.process.repeated_lines import RepeatedLinesHandler, message_of

# Longest line written: an exception of a library may quote a whole message.
LINE_LIMIT = 8192


def escape(text: str) -> str:
    """`text` on one line: control characters, line separators and bidirectional marks as escapes."""
    return "".join(c if c.isprintable() or c == " " else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


class _OfPeers(logging.Filter):
    """Makes one plain line of what gRPC (1.85) logs as an error with a traceback, and a peer alone has caused.

    A hostile guest's status text that is not UTF-8 makes two for each call; the call's own failure names the guest. A caller that leaves
    in the instant in which its answer is sent makes one. Rejected: checking the text before gRPC does, which gRPC has no place for.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Always true."""
        message = str(record.msg)
        if message.startswith("Invalid encoding on"):
            record.msg, record.args, record.exc_info = "a peer's status text is not UTF-8", (), None
        elif message.startswith("ExecuteBatchError raised in core by servicer method"):
            record.msg = message.replace(
                "ExecuteBatchError raised in core by servicer method", "a caller left while it was answered:"
            )
            record.exc_info, record.levelno, record.levelname = None, logging.INFO, "INFO"
        return True


class _Formatter(logging.Formatter):
    def message(self, record: logging.LogRecord) -> str:
        text = message_of(record)
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        if record.stack_info:
            text += "\n" + self.formatStack(record.stack_info)
        return text if len(text) <= LINE_LIMIT else text[:LINE_LIMIT] + "…"

    def stamp(self, record: logging.LogRecord) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


class TextFormatter(_Formatter):
    """`2026-11-30T12:00:00.000Z INFO guest_service.app: listening on unix:/run/x`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        held, seconds = record.__dict__.get("held"), record.__dict__.get("held_seconds")
        counted = f" ({held} like it in {seconds:.0f} s)" if held else ""
        return f"{self.stamp(record)} {record.levelname} {record.name}: {escape(self.message(record))}{counted}"


class JsonFormatter(_Formatter):
    """One JSON object with time, level, logger and message; with `held` and `held_seconds` where it stands for more lines."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        fields: dict[str, object] = {
            "time": self.stamp(record),
            "level": record.levelname,
            "logger": record.name,
            "message": self.message(record),
        }
        if "held" in record.__dict__:
            fields |= {"held": record.__dict__["held"], "held_seconds": round(record.__dict__["held_seconds"])}
        return json.dumps(fields)


def _log_what_python_prints() -> None:
    """Make lines of the log of what Python writes to stderr in its own form: warnings, and exceptions that nobody could be given."""
    log = logging.getLogger("python")

    def unraisable(lost: sys.UnraisableHookArgs) -> None:
        raised = (lost.exc_type, lost.exc_value, lost.exc_traceback) if lost.exc_value is not None else None
        log.error("%s: %r", lost.err_msg or "exception ignored in", lost.object, exc_info=raised)

    def in_thread(ended: threading.ExceptHookArgs) -> None:
        raised = (ended.exc_type, ended.exc_value, ended.exc_traceback) if ended.exc_value is not None else None
        log.error("a thread ended by an exception", exc_info=raised)

    sys.unraisablehook = unraisable
    threading.excepthook = in_thread
    logging.captureWarnings(True)


def log_to_stderr(log_format: str = "text", level: int = logging.INFO) -> None:
    """Send all logging of this process to stderr in `log_format` ("text" or "json").

    Called before grpc is imported, it also silences the lines that gRPC's C core writes to stderr past all of this (a client that breaks
    off a TLS handshake makes one); GRPC_VERBOSITY of the environment still wins.
    """
    prepare_grpc()
    handler = RepeatedLinesHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    _log_what_python_prints()
    logging.getLogger("grpc._cython.cygrpc").addFilter(_OfPeers())
    # At INFO it writes "1 change detected" for each, and not of what.
    logging.getLogger("watchfiles").setLevel(logging.WARNING)
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
