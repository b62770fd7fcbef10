"""One blocking read, kept off the event loop in a thread of its own.

A read of /proc, a file system or an engine's socket can hang for as long as the kernel likes. It gets a daemon thread, at most one at a
time: callers share the run in progress and wait with a bound, and a run that is overdue is not waited for again. Rejected: the loop's
default executor, whose threads are joined at exit and are used up by a few hung reads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from guest_service.host_facts.errors import FactError

T = TypeVar("T")


class OffLoop(Generic[T]):
    """`read` as an awaitable with a bound; `part` names it in errors and in the thread list."""

    def __init__(self, part: str, read: Callable[[], T], bound_seconds: float) -> None:
        self._part = part
        self._read = read
        self._bound_seconds = bound_seconds
        self._running: asyncio.Future[T] | None = None
        self._since = 0.0

    async def get(self) -> T:
        """What `read` returns or raises; FactError when it takes longer than the bound."""
        loop = asyncio.get_running_loop()
        if self._running is None:
            self._running = self._start(loop)
            self._since = loop.time()
        running = self._running
        left = self._since + self._bound_seconds - loop.time()
        if left > 0:
            # Waiting leaves the run alone when the caller is cancelled: others may share it.
            await asyncio.wait({running}, timeout=left)
        if not running.done():
            raise FactError(self._part, f"no answer within {self._bound_seconds:g} s")
        return running.result()

    def _start(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[T]:
        future: asyncio.Future[T] = loop.create_future()

        def finish(result: T | None, error: BaseException | None) -> None:
            self._running = None
            if error is None:
                future.set_result(result)  # type: ignore[arg-type] # without an error it is a T
            else:
                future.set_exception(error)
                future.exception()  # Read once: a run that nobody waits for any more is no surprise worth a log line.

        def run() -> None:
            result, error = None, None
            try:
                result = self._read()
            except Exception as caught:  # noqa: BLE001 -- the thread's top: it is raised again in every caller
                error = caught
            try:
                loop.call_soon_threadsafe(finish, result, error)
            except RuntimeError:
                return  # The loop was closed meanwhile; nobody waits.

        start_thread(self._part, run, name=f"read {self._part}")
        return future


def start_thread(part: str, run: Callable[[], None], *, name: str) -> None:
    """Run `run` in a daemon thread; FactError of `part` where the machine gives no thread (a limit on tasks or memory)."""
    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        raise FactError(part, "no thread can be started; raise the limit on tasks") from error
