"""Log lines: one per event, whatever a guest or a driver puts into them."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_transport.process.logs import LINE_LIMIT, JsonFormatter, TextFormatter, escape


def _record(message: str, *args: object, **more: object) -> logging.LogRecord:
    record = logging.LogRecord("guest_service.app", logging.WARNING, "x.py", 1, message, args, None)
    record.__dict__.update(more)
    return record


@given(st.text())
def test_any_text_is_one_printable_line(text: str) -> None:
    for line in (TextFormatter().format(_record("%s", text)), JsonFormatter().format(_record("%s", text))):
        assert line.isprintable()


@given(st.text(max_size=LINE_LIMIT))
def test_json_keeps_the_text_as_it_was(text: str) -> None:
    assert json.loads(JsonFormatter().format(_record("%s", text)))["message"] == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\r\nb", r"a\r\nb"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\u202etxt", r"\u202etxt"),
        ("\u2028", r"\u2028"),
        ("\x85", r"\x85"),
        ("\udcff", r"\udcff"),
        ("Grüße 東京", "Grüße 東京"),
    ],
)
def test_controls_and_marks_are_escaped_and_letters_are_not(text: str, shown: str) -> None:
    assert escape(text) == shown


def test_a_line_is_bounded() -> None:
    assert len(TextFormatter().format(_record("%s", "x" * 10 * LINE_LIMIT))) < LINE_LIMIT + 200


def test_a_traceback_stays_on_the_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = _record("failed", exc_info=sys.exc_info())
    line = TextFormatter().format(record)
    assert r"failed\nTraceback" in line
    assert r"two\nlines" in line
    assert line.isprintable()


def test_a_log_call_with_wrong_arguments_is_a_line_not_a_traceback_on_stderr() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(TextFormatter())
    handler.handle(_record("%d of %d", "many"))
    assert "'%d of %d' ('many',) (does not format" in stream.getvalue()
    assert stream.getvalue().count("\n") == 1


def test_text_starts_with_the_utc_time_and_the_level() -> None:
    line = TextFormatter().format(_record("hello", created=0.25, msecs=250.0))
    assert line == "1970-01-01T00:00:00.250Z WARNING guest_service.app: hello"


def test_what_python_itself_writes_is_one_line_of_the_log_each() -> None:
    code = """
import threading, warnings
from guest_transport.process.logs import log_to_stderr
log_to_stderr()

class Broken:
    def __del__(self):
        raise ValueError("in the\\nend")

def ends():
    raise LookupError("lost")

Broken()
thread = threading.Thread(target=ends)
thread.start()
thread.join()
warnings.warn("old", RuntimeWarning)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    lines = ended.stderr.splitlines()
    assert len(lines) == 3, lines
    assert r"ValueError: in the\nend" in lines[0]
    assert "LookupError: lost" in lines[1]
    assert "RuntimeWarning: old" in lines[2]


def test_a_caller_that_leaves_while_it_is_answered_is_no_error_with_a_traceback() -> None:
    code = """
import logging
from guest_transport.process.logs import log_to_stderr
log_to_stderr()
try:
    raise RuntimeError("Failed grpc_call_start_batch")
except RuntimeError:
    # The words of grpcio 1.85, seen when a call was cancelled in the instant in which its answer was sent.
    logging.getLogger("grpc._cython.cygrpc").exception(
        "ExecuteBatchError raised in core by servicer method [/guest_api.GuestApi/SysInfo]"
    )
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert "Traceback" not in ended.stderr
    assert "INFO grpc._cython.cygrpc: a caller left while it was answered: [/guest_api.GuestApi/SysInfo]" in ended.stderr
