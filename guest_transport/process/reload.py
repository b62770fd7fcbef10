"""Reads configuration again on SIGHUP, while calls go on.

A reload that is refused changes nothing: the old configuration stays in force and the reason is logged. The service manager hears of the
begin and the end of every reload, so that `systemctl reload` returns when it is done; hang-ups that come meanwhile make one more. Rejected:
restarting the listeners; what a reload may change is what needs none (switches, log level), and the rest waits for a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Awaitable, Callable

from guest_transport.errors import StartError
from guest_transport.process.repeated_lines import EVERY_ONE
from guest_transport.process.sd_notify import Notifier

log = logging.getLogger(__name__)

# Reads the configuration (off the loop) and puts it in force, all of it or nothing; raises StartError when it is refused.
Reload = Callable[[], Awaitable[None]]


@contextlib.asynccontextmanager
async def reloaded_on_hangup(notifier: Notifier, reload: Reload) -> AsyncIterator[None]:
    """Within it each SIGHUP to this process runs `reload`, one at a time. Enter it before the service manager is told ready()."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    before = signal.getsignal(signal.SIGHUP)
    loop.add_signal_handler(signal.SIGHUP, asked.set)
    task = asyncio.create_task(_reload_when(asked, notifier, reload))
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        # asyncio leaves the default, which would end the process while it finishes its calls.
        signal.signal(signal.SIGHUP, before)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _reload_when(asked: asyncio.Event, notifier: Notifier, reload: Reload) -> None:
    while True:
        await asked.wait()
        asked.clear()
        notifier.reloading()
        try:
            await reload()
        except StartError as error:
            # One line for the operator.
            log.error("reload refused, the configuration before it stays in force: %s", error, extra=EVERY_ONE)  # noqa: TRY400
        except Exception:  # a task's top: a fault of one reload must not end the next
            log.exception("reload failed, the configuration before it stays in force", extra=EVERY_ONE)
        else:
            log.info("configuration reloaded", extra=EVERY_ONE)
        notifier.ready()
