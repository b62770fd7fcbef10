"""Keeps a reporter running beside the proxy and passes on what it says; whatever libvirt does, the proxy serves on.

A reporter that ends, falls silent or writes nonsense is ended and another one started, after a pause that doubles up to half a minute.
Nothing is passed on meanwhile, because VMs run on without libvirt. Rejected: counting VMs as stopped while libvirt is away (an update of
libvirt would take every guest from its callers).
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from guest_transport.process.repeated_lines import about
from guest_transport.process.start_errors import why_not_started
from vmm_proxy.directory.libvirt.line_process import LineProcess
from vmm_proxy.directory.libvirt.report import LINE_LIMIT_BYTES, Domain, read_report

log = logging.getLogger(__name__)

# Six times the reporter's sign of life (reporter.ALIVE_MILLISECONDS): a loaded host is no hang, and longer would hide stopped guests.
PATIENCE_SECONDS = 30.0
# A libvirtd that restarts is back within a second or two; one that stays away is asked for twice a minute.
FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
# A reason comes from libvirt, which may quote a whole document.
REASON_LIMIT_CHARACTERS = 300

Sleep = Callable[[float], Awaitable[None]]
Tell = Callable[[Sequence[Domain]], None]


def reporter_command(uri: str, sysfs: Path) -> list[str]:
    """What runs a reporter. -P: nothing is imported from the working directory."""
    return [sys.executable, "-P", "-m", "vmm_proxy.directory.libvirt.reporter", str(os.getpid()), uri, str(sysfs)]


class _NotStartedError(Exception):
    """No reporter can be started; the message says why."""


class Follower:
    """Tells of every list of domains. `problem` says why there is none at present; empty while libvirt is being followed."""

    def __init__(
        self,
        command: Sequence[str],
        tell: Tell,
        *,
        sleep: Sleep = asyncio.sleep,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._command = command
        self._tell = tell
        self._sleep = sleep
        self._patience_seconds = patience_seconds
        self._task: asyncio.Task[None] | None = None
        self._pause_seconds = FIRST_PAUSE_SECONDS
        self.problem = "libvirt has not answered yet"
        # The reporter that runs now.
        self.pid: int | None = None

    def start(self) -> None:
        """Begin; waits for nothing."""
        self._task = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """End the reporter, within a bound."""
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            try:
                self._say((await self._run_reporter())[:REASON_LIMIT_CHARACTERS])
            except _NotStartedError as error:
                # Of this machine, not of libvirt: its line is not to wait behind one about libvirt.
                self._say(str(error), thing="reporter")
            except Exception:
                # A task's top: no fault in here may end the following for good.
                log.exception("following libvirt failed; please report it with these lines")
                self._say("a bug in the proxy, see its log")
            await self._sleep(self._pause_seconds)
            self._pause_seconds = min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)

    async def _run_reporter(self) -> str:
        """Run one reporter to its end; why it ended. Raises _NotStartedError."""
        try:
            process = await LineProcess.start(self._command, line_limit_bytes=LINE_LIMIT_BYTES)
        except OSError as error:
            raise _NotStartedError(f"{self._command[0]} cannot be started: {why_not_started(error)}") from error
        self.pid = process.pid
        try:
            reason = await self._listen(process)
        finally:
            self.pid = None
            status = await process.end()
        return reason or f"the process that talks to libvirt ended with status {status}"

    async def _listen(self, process: LineProcess) -> str:
        while True:
            try:
                line = await asyncio.wait_for(process.line(), self._patience_seconds)
                if not line:
                    return ""
                report = read_report(line)
            except TimeoutError:
                return f"libvirt has not answered for {self._patience_seconds:g} s"
            except ValueError as error:
                return f"the process that talks to libvirt wrote what is no report: {error}"
            if report.problem:
                return report.problem
            if report.domains is not None:
                self._pause_seconds = FIRST_PAUSE_SECONDS
                self._say("")
                self._tell(report.domains)

    def _say(self, problem: str, *, thing: str = "libvirt") -> None:
        if problem and problem != self.problem:
            log.warning("libvirt cannot be followed, the last known domains stay: %s", problem, extra=about(thing))
        elif self.problem and not problem:
            log.info("libvirt is being followed")
        self.problem = problem
