"""Runs one function in a thread, beside a call that cannot be interrupted.

Not threading.Thread and not concurrent.futures: importing either costs more than the thread does (1 ms and 12 ms).
"""

import _thread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Beside:
    """The function's result, being worked out since this was made."""

    def __init__(self, function: "Callable[[], object]") -> None:
        self._function = function
        self._result: object = None
        self._error: Exception | None = None
        self._finished = _thread.allocate_lock()
        self._finished.acquire()
        try:
            _thread.start_new_thread(self._run, ())
        except RuntimeError:  # no thread to be had (a task limit): slower, but a sample
            self._run()

    def _run(self) -> None:
        try:
            self._result = self._function()
        except Exception as error:  # noqa: BLE001 (raised again where the result is asked for)
            self._error = error
        finally:
            self._finished.release()

    def result(self) -> "Any":  # Any: whatever the function returns; a generic class costs an import of typing
        """Wait for the function; its result, or the exception that it raised."""
        with self._finished:
            pass
        if self._error is not None:
            raise self._error
        return self._result
