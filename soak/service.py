"""One service of the product, started, signalled and started again as a service manager would, at the same place with the same command.

It is harder on the service than systemd is: nothing is cleaned up between a death and the next start (no RuntimeDirectory is removed, no
private /tmp emptied, no control group killed) and nothing is waited for (RestartSec=1). Whatever ends this process ends the services.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from soak.ear import WATCHDOG_SECONDS, Ear
from soak.processes import children_of

# A cold start of Python with gRPC takes 1 s; with twelve other processes on two cores it was seen to take 9.
READY_SECONDS = 60.0
# The services promise to end 5 s after SIGTERM; a busy machine may take its time.
STOP_SECONDS = 15.0
# Enough of a log for a line of refusal or a traceback.
SHOWN_LOG_LINES = 20


class ServiceError(Exception):
    """A service did not start or ended by itself; the message has the end of its log."""


class Service:
    """A service named `name`: `python -m COMMAND…`, its log and its ear in `folder`, its temporary files in `folder`/tmp."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        self.name = name
        self._command = (*_dies_with_us(), sys.executable, "-m", *command)
        self._folder = folder
        self._log = folder / f"{name}.log"
        self._process: asyncio.subprocess.Process | None = None
        self._ear: Ear | None = None

    @property
    def ear(self) -> Ear:
        """What it tells of itself."""
        if self._ear is None:
            self._ear = Ear(self._folder / f"{self.name}.ear")
        return self._ear

    @property
    def pid(self) -> int:
        """Its process id, of the last start."""
        assert self._process is not None, f"{self.name} was never started"  # noqa: S101 - a mistake of the caller
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it was started and did not end."""
        return self._process is not None and self._process.returncode is None

    async def start(self) -> float:
        """Start it and wait for its READY; returns when that was said (epoch seconds). Raises ServiceError."""
        self.ear.expect()
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=self._environment()
            )
        ended = asyncio.create_task(self._process.wait())
        ready = asyncio.create_task(self.ear.ready(READY_SECONDS))
        try:
            await asyncio.wait({ended, ready}, return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                raise ServiceError(f"{self.name} ended with status {self._process.returncode} at its start\n{self.said()}")
            try:
                return await ready
            except TimeoutError as error:
                raise ServiceError(f"{self.name} is not ready after {READY_SECONDS:.0f} s\n{self.said()}") from error
        finally:
            for task in (ended, ready):
                task.cancel()
            await asyncio.gather(ended, ready, return_exceptions=True)

    def send(self, number: signal.Signals, *, children: bool = False) -> None:
        """Signal it, and its children with it when a whole machine is meant."""
        for pid in [self.pid, *(children_of(self.pid) if children else [])]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    async def kill(self) -> float:
        """Kill it with -9 and wait for its end; returns when it was sent (epoch seconds)."""
        at = time.time()
        self.send(signal.SIGKILL)
        assert self._process is not None  # noqa: S101 - send() has seen to it
        await self._process.wait()
        self.ear.excuse()
        return at

    async def stop(self) -> None:
        """End it politely, and with -9 when that does not help; raises ServiceError for an exit status other than 0."""
        if not self.running:
            return
        assert self._process is not None  # noqa: S101 - it runs
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        self.ear.excuse()
        try:
            status = await asyncio.wait_for(self._process.wait(), STOP_SECONDS)
        except TimeoutError as error:
            await self.kill()
            raise ServiceError(f"{self.name} did not end within {STOP_SECONDS:.0f} s of SIGTERM\n{self.said()}") from error
        if status != 0:
            raise ServiceError(f"{self.name} ended with status {status} after SIGTERM\n{self.said()}")

    async def discard(self) -> None:
        """End it at once, whatever state it is in, and hear it no more."""
        if self.running:
            await self.kill()
        if self._ear is not None:
            self._ear.close()
            self._ear = None

    def log_text(self) -> str:
        """Its log, of all its starts."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def said(self) -> str:
        """The end of its log."""
        lines = self.log_text().splitlines()
        return "\n".join(f"    {line}" for line in lines[-SHOWN_LOG_LINES:])

    def _environment(self) -> dict[str, str]:
        # Without PYTHONDONTWRITEBYTECODE, which would have each start compile everything anew.
        kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return kept | {
            "NOTIFY_SOCKET": str(self.ear.path),
            "WATCHDOG_USEC": str(round(WATCHDOG_SECONDS * 1e6)),
            "TMPDIR": str(self._folder / "tmp"),
        }


def _dies_with_us() -> list[str]:
    """What makes the kernel end a child should this process be killed, where util-linux is installed."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []
