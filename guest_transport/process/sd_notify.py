"""Tells the service manager how this process is, over the socket that sd_notify(3) describes.

Guest agent and proxy share it. Without a service manager (no NOTIFY_SOCKET) every call does nothing; a message that cannot be sent is
logged once and never an error, since a service must not end because nobody listens. Rejected: libsystemd through a binding (a C library
for one datagram).

Source: sd_notify(3), sd_watchdog_enabled(3), systemd.service(5) on Type=notify-reload.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import AsyncIterator, MutableMapping

log = logging.getLogger(__name__)

# A watchdog that is told twice within its time survives one late tick; that is what sd_watchdog_enabled(3) recommends.
WATCHDOG_TELLS_PER_TIMEOUT = 2


class Notifier:
    """The service manager's ear. `address` is None where there is none; `watchdog_seconds` is None where no watchdog runs."""

    def __init__(self, address: str | None, watchdog_seconds: float | None = None) -> None:
        self.watchdog_seconds = watchdog_seconds
        self._complained = False
        self._address: str | None = None
        if address is None:
            return
        if not address.startswith(("/", "@")):
            log.warning(
                "NOTIFY_SOCKET %.200s: only a path and an abstract Unix socket are known; the service manager hears nothing",
                address,
            )
            return
        # An abstract address starts with a zero byte; the environment can only carry "@" in its place.
        self._address = "\0" + address[1:] if address.startswith("@") else address

    @classmethod
    def take(cls, environ: MutableMapping[str, str], pid: int) -> Notifier:
        """The notifier that `environ` names for process `pid`; the variables are removed, so that no child takes itself for the service."""
        address = environ.pop("NOTIFY_SOCKET", None)
        microseconds, for_pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", str(pid))
        watched = address is not None and for_pid == str(pid) and microseconds.isdecimal() and int(microseconds) > 0
        return cls(address, int(microseconds) / 1e6 if watched else None)

    def ready(self, status: str = "") -> None:
        """Started, or done with reloading: every address is served."""
        self._tell("READY=1", *_status(status))

    def reloading(self) -> None:
        """Configuration is being read again; ready() must follow."""
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str = "") -> None:
        """Calls in flight are being finished."""
        self._tell("STOPPING=1", *_status(status))

    def watchdog(self) -> None:
        """Still alive."""
        self._tell("WATCHDOG=1")

    @contextlib.asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Within it the watchdog hears from the running event loop: a loop that stalls for the watchdog's time gets the service killed."""
        task = asyncio.create_task(self._keep_telling()) if self.watchdog_seconds is not None else None
        try:
            yield
        finally:
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task

    async def _keep_telling(self) -> None:
        assert self.watchdog_seconds is not None  # noqa: S101 - watched() starts this only then
        while True:
            self.watchdog()
            await asyncio.sleep(self.watchdog_seconds / WATCHDOG_TELLS_PER_TIMEOUT)

    def _tell(self, *assignments: str) -> None:
        if self._address is None or not assignments:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as ear:
                ear.sendto("\n".join(assignments).encode("utf-8", "replace"), self._address)
        except OSError as error:
            if not self._complained:
                self._complained = True
                log.warning("service manager: cannot be told %s: %s", assignments[0], error)


def _status(text: str) -> list[str]:
    """A STATUS assignment; a line break would start another assignment."""
    return [f"STATUS={' '.join(text.split())}"] if text else []
