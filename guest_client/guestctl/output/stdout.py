"""Standard output as a pipe, a file or a terminal that may refuse what is written.

Nothing else of `guestctl` writes an answer, so that a closed pipe and a full disk are met in one place, in the middle of a stream too; what
the interpreter still flushes at its end is the work of guest_transport.process.standard_streams. Rejected: print, which knows neither a
narrow encoding nor a reader that went while there was nothing to write.
"""

from __future__ import annotations

import select
import shutil
import sys
from dataclasses import dataclass

# As a process ended by SIGPIPE; a failure to write is any other failure.
PIPE_CLOSED, NOT_WRITTEN = 141, 1


class OutputError(Exception):
    """What should be shown cannot be written. An empty message: nobody is left to tell."""

    def __init__(self, message: str, exit_status: int) -> None:
        super().__init__(message)
        self.exit_status = exit_status


@dataclass(frozen=True, slots=True)
class Size:
    """Of a terminal, in characters."""

    columns: int
    lines: int


def is_terminal() -> bool:
    """Whether a person reads it."""
    return sys.stdout is not None and sys.stdout.isatty()


def terminal_size() -> Size:
    """Its size now; COLUMNS and LINES of the environment win, as everywhere."""
    found = shutil.get_terminal_size()
    return Size(found.columns, found.lines)


def write(text: str) -> None:
    """Write `text` at once; raises OutputError."""
    if sys.stdout is None:
        raise OutputError("the answer cannot be written: standard output is closed", NOT_WRITTEN)
    try:
        # A terminal or pipe that cannot show a character gets an escape for it.
        left = memoryview(text.encode(sys.stdout.encoding or "utf-8", "backslashreplace"))
        while left:  # an unbuffered stream (python -u) writes as much as a pipe takes
            left = left[sys.stdout.buffer.write(left) :]
        sys.stdout.flush()
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise OutputError("", PIPE_CLOSED) from error
        raise OutputError(f"the answer cannot be written: {error.strerror}", NOT_WRITTEN) from error


def check_reader() -> None:
    """Raise OutputError when the reader of the pipe is gone: a stream with nothing to write would not notice."""
    if sys.stdout is None:
        return
    try:
        descriptor = sys.stdout.fileno()
    except OSError:  # a buffer in memory has none, and nobody who could go away
        return
    poll = select.poll()
    poll.register(descriptor, 0)  # errors and hang-ups are told unasked
    if poll.poll(0):
        raise OutputError("", PIPE_CLOSED)
