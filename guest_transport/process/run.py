"""Runs a server's main coroutine from start to exit status: signals, a bound on stopping, and the one line of a failed start.

The handlers are there before the event loop and stay until the process is gone, so that no second SIGTERM in the last milliseconds turns a
clean stop into a death by signal. Rejected: loop.add_signal_handler (gone with the loop, and absent before it).
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
import threading
from collections.abc import Awaitable, Callable
from types import FrameType

from guest_transport.errors import StartError
from guest_transport.process import allocator
from guest_transport.process.every import every
from guest_transport.process.logs import escape
from guest_transport.process.start_errors import limit_reached

log = logging.getLogger(__name__)

# The command promises 5 s from the signal to the end of the process. Whatever still runs then (a thread in a C library that nobody can
# cancel) is left behind.
STOP_LIMIT_SECONDS = 4.5
# A bug, or a stop that did not end by itself.
EXIT_FAILURE = 1
# Below it gRPC's core aborts the process as it starts (seen with 11); a server that serves nobody has 20.
LEAST_DESCRIPTORS = 24

Main = Callable[[asyncio.Event], Awaitable[None]]


def run(main: Main) -> int:
    """Run `main` in a fresh event loop until it returns; SIGTERM and SIGINT set its event.

    Returns the exit status: 0; that of the StartError that `main` raised, whose one line goes to stderr; or 1 for any other exception,
    with its traceback in the log, or in one line where a limit of the machine or of the unit was reached. Further signals change
    nothing: stopping is under way and bounded, and calls in flight have their time.
    """
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < LEAST_DESCRIPTORS:
        sys.stderr.write(
            f"cannot run with fewer than {LEAST_DESCRIPTORS} file descriptors: LimitNOFILE= of the unit, ulimit -n\n"
        )
        return EXIT_FAILURE
    allocator.keep_little()
    stopping = _Stop()
    # Linux gives a signal for the process to the main thread when that thread takes it, so the loop's wait is always interrupted.
    before = {number: signal.signal(number, stopping.on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    # A hang-up before reload.py listens, or after it, must not end a server that starts or finishes its calls. Not SIG_IGN: children would
    # inherit that.
    before[signal.SIGHUP] = signal.signal(signal.SIGHUP, _take_no_notice)
    try:
        asyncio.run(stopping.until_done(main))
    except StartError as error:
        sys.stderr.write(f"{escape(str(error))}\n")
        return error.exit_status
    except Exception as error:
        if (limit := limit_reached(error)) and not stopping.finished:
            sys.stderr.write(f"cannot run: {limit}\n")
            return EXIT_FAILURE
        if not stopping.finished:
            log.exception("stopped by a bug; please report it with these lines")
            return EXIT_FAILURE
        # asyncio ends its executor in a thread of its own, which a machine at its limit on tasks does not give.
        log.warning("stopped; the event loop did not close: %s", error)
    finally:
        for number, handler in before.items():
            # The interpreter's own end sets handlers back to the default, and leaves only what is ignored as it is.
            signal.signal(number, signal.SIG_IGN if stopping.asked else handler)
    return 0


def _take_no_notice(_number: int, _frame: FrameType | None) -> None:
    pass


class _Stop:
    """What a signal starts: the event for `main`, and a watch that the process ends in time."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._event: asyncio.Event | None = None
        self.asked = False
        self.finished = False

    async def until_done(self, main: Main) -> None:
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        if self.asked:
            self._event.set()
        async with every(allocator.GIVE_BACK_SECONDS, allocator.give_back_beside):
            await main(self._event)
        self.finished = True

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        # Runs between two bytecodes of the main thread: no logging lock may be taken here, the interrupted code may hold it.
        if self.asked:
            return
        self.asked = True
        watch = threading.Timer(STOP_LIMIT_SECONDS, _leave)
        watch.daemon = True
        try:
            watch.start()
        except RuntimeError:
            # No thread to be had: SIGALRM, which nobody handles, ends the process without a word but in time.
            signal.setitimer(signal.ITIMER_REAL, STOP_LIMIT_SECONDS)
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._begin, number)

    def _begin(self, number: int) -> None:
        log.info("stopping on %s", signal.Signals(number).name)
        if self._event is not None:
            self._event.set()


def _leave() -> None:
    # In a thread of its own, because a full stderr pipe may be what holds everything up.
    last_words = threading.Thread(
        target=log.error, args=("still not stopped after %s s; leaving now", STOP_LIMIT_SECONDS), daemon=True
    )
    last_words.start()
    last_words.join(0.1)
    os._exit(EXIT_FAILURE)
