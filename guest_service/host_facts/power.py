"""Powers the guest off when the host asks for it, once, after the asker has its answer.

Fails closed: who may ask is decided by configuration, or else by the kind of listener (a Unix socket and vsock are the host's own doors,
TCP is anybody's). Each call is logged with its caller. Rejected: reboot(2) by the agent itself, which would skip the services' own stop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from guest_service.host_facts.command import CommandError, run_on_its_own
from guest_service.host_facts.errors import FactError
from guest_transport.peers import lasting_name
from guest_transport.process.repeated_lines import EVERY_ONE, about

log = logging.getLogger(__name__)


class ShutdownRefusedError(FactError):
    """The caller may not shut this guest down."""


class Power:
    """The guest's off switch."""

    def __init__(self, command: Sequence[str], *, allow_shutdown: bool | None = None) -> None:
        self._argv = tuple(command)
        self._allow_shutdown = allow_shutdown
        # Set once the command was started.
        self.command: asyncio.Task[None] | None = None
        self._accepted = False

    def request(self, caller: str, *, local_listener: bool) -> bool:
        """Accept a call of `caller`, and log it; true when it is the one that has to go on to power_off() once it is answered.

        Raises ShutdownRefusedError when configuration, or by default the kind of listener, does not allow it.
        """
        allowed = local_listener if self._allow_shutdown is None else self._allow_shutdown
        if not allowed:
            log.warning("Shutdown by %s: refused", caller, extra=about(lasting_name(caller)))
            raise ShutdownRefusedError(
                "shutdown", "not allowed here; power.allow_shutdown in the guest agent's configuration decides"
            )
        first = not self._accepted
        self._accepted = True
        if first:
            log.warning("Shutdown by %s: accepted", caller, extra=EVERY_ONE)
        else:
            log.warning("Shutdown by %s: accepted, already under way", caller, extra=about(lasting_name(caller)))
        return first

    def power_off(self) -> None:
        """Start the shutdown command; it outlives this agent, which the shutdown itself will stop."""
        self.command = asyncio.create_task(self._run(), name="shutdown command")

    async def _run(self) -> None:
        log.warning("running %s", self._argv[0], extra=EVERY_ONE)
        try:
            status = await run_on_its_own(self._argv)
        except CommandError as error:
            log.error("the guest stays up: %s", error, extra=EVERY_ONE)  # noqa: TRY400 -- the message is the whole cause
            self._accepted = False
            return
        if status == 0:
            log.warning("%s has run", self._argv[0], extra=EVERY_ONE)
            return
        # The guest is still up, so the next call may try again.
        log.error("the guest stays up: %s ended with %d", self._argv[0], status, extra=EVERY_ONE)
        self._accepted = False
