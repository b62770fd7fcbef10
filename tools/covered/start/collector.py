"""Stands in for `python -I -S SCRIPT …` of a measured run: starts coverage.py, then runs the script as the interpreter would.

coverage.py follows threads of `threading` and ends at os._exit; the collector starts its thread with _thread and leaves by posix._exit,
each to save milliseconds, so both are led to coverage.py here. Rejected: leaving the collector out of the numbers, where they would say
least about the code that talks to drivers.
"""

import _thread
import os
import posix
import runpy
import sys
import threading
from collections.abc import Callable
from typing import Any

import coverage

start_new_thread = _thread.start_new_thread


def start_traced(function: Callable[..., object], arguments: tuple[Any, ...]) -> int:  # Any: as _thread has it
    """As _thread.start_new_thread, with the tracer of this process in the new thread too."""

    def traced(*arguments: Any) -> None:
        sys.settrace(threading.gettrace())
        function(*arguments)

    return start_new_thread(traced, arguments)


coverage.process_startup()
posix._exit = os._exit
_thread.start_new_thread = start_traced  # type: ignore[assignment]  # without keywords, which the collector passes none of
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
