"""The process that talks to libvirt: lists the running domains whenever libvirt tells of a change, and writes each list as a line.

It is a process of its own because no call into libvirt can be cancelled: one that hangs (a daemon that is stopped, a lock held for ever) is
ended with the process, as is one that crashes. It tries nothing again and keeps nothing: any failure is its last line, and the proxy starts
the next. The connection is read-only, which needs no privilege and can change no domain. Rejected: a thread with libvirt's event loop (a
thread in a hanging call stays for ever), libvirtaio (events come to the proxy's loop, but each call still blocks it).

    python -P -m vmm_proxy.directory.libvirt.reporter PARENT_PID URI SYSFS
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import libvirt

from vmm_proxy.directory.libvirt.domain_xml import DomainXmlError, read_domain
from vmm_proxy.directory.libvirt.host_cards import cards_among
from vmm_proxy.directory.libvirt.report import Domain, Report, write_report

# More VMs than any host runs.
DOMAINS_LIMIT = 4096
# A hundred domains that start together are listed once, and nobody notices a fifth of a second.
GATHER_MILLISECONDS = 200
# The proxy takes silence of several times this for a hang (follower.PATIENCE_SECONDS).
ALIVE_MILLISECONDS = 5_000
# Not every change has an event (a live change through the monitor has none).
RELIST_MILLISECONDS = 60_000
# A daemon that does not answer twice in 5 s is gone (libvirt's own default).
KEEPALIVE_INTERVAL_SECONDS = 5
KEEPALIVE_COUNT = 2
# A domain's name in a report; libvirt takes any length, and a label has 256 bytes.
NAME_LIMIT_CHARACTERS = 256
_PR_SET_PDEATHSIG = 1

_EVENTS = (
    libvirt.VIR_DOMAIN_EVENT_ID_LIFECYCLE,
    libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_ADDED,
    libvirt.VIR_DOMAIN_EVENT_ID_DEVICE_REMOVED,
)


class Reporter:
    """Reports the active domains of one connection until the connection ends."""

    def __init__(self, connection: libvirt.virConnect, sysfs: Path, say: Callable[[Report], None]) -> None:
        self._connection = connection
        self._sysfs = sysfs
        self._say = say
        self._due = True
        self._gathering = False
        self._closed = False
        # By UUID: the domain's number, which each start makes anew, and what was read of it then.
        self._known: dict[str, tuple[int, Domain]] = {}

    def run(self) -> None:
        """Report until the connection is closed by the other side; raises libvirt.libvirtError."""
        self._connection.registerCloseCallback(self._on_close, None)
        for event in _EVENTS:
            self._connection.domainEventRegisterAny(None, event, self._on_event, None)
        self._gather = libvirt.virEventAddTimeout(-1, self._on_gathered, None)
        libvirt.virEventAddTimeout(ALIVE_MILLISECONDS, lambda *_: self._say(Report()), None)
        libvirt.virEventAddTimeout(RELIST_MILLISECONDS, self._on_relist, None)
        while not self._closed:
            if self._due:
                self._due = False
                self._say(Report(domains=self.look()))
            libvirt.virEventRunDefaultImpl()

    def look(self) -> tuple[Domain, ...]:
        """The active domains now."""
        domains: list[Domain] = []
        known: dict[str, tuple[int, Domain]] = {}
        for active in self._connection.listAllDomains(libvirt.VIR_CONNECT_LIST_DOMAINS_ACTIVE)[:DOMAINS_LIMIT]:
            uuid, number = active.UUIDString(), active.ID()
            before = self._known.get(uuid)
            domain = before[1] if before and before[0] == number else self._read(active, uuid)
            if domain:
                domains.append(domain)
                known[uuid] = number, domain
        self._known = known
        return tuple(domains)

    def _read(self, active: libvirt.virDomain, uuid: str) -> Domain | None:
        """What is to be known of `active`; None when it has ended meanwhile."""
        name = active.name()[:NAME_LIMIT_CHARACTERS]
        try:
            facts = read_domain(active.XMLDesc(0))
        except libvirt.libvirtError as error:
            if error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN:
                return None
            if not self._connection.isAlive():
                raise
            return Domain(uuid, name, problem=str(error))
        except DomainXmlError as error:
            return Domain(uuid, name, problem=f"its XML is refused: {error}")
        return Domain(uuid, name, facts.cid, cards_among(facts.host_pci, self._sysfs))

    def _on_event(self, _connection: libvirt.virConnect, domain: libvirt.virDomain, *_details: object) -> None:
        self._known.pop(domain.UUIDString(), None)
        if not self._gathering:
            # Set once, so that events without end put nothing off.
            self._gathering = True
            libvirt.virEventUpdateTimeout(self._gather, GATHER_MILLISECONDS)

    def _on_gathered(self, *_timer: object) -> None:
        self._gathering = False
        libvirt.virEventUpdateTimeout(self._gather, -1)
        self._due = True

    def _on_relist(self, *_timer: object) -> None:
        self._known.clear()
        self._due = True

    def _on_close(self, *_reason: object) -> None:
        self._closed = True


def main() -> int:
    """Report to stdout until libvirt is gone; the last line says why."""
    parent, uri, sysfs = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    _die_with(parent)
    libvirt.registerErrorHandler(lambda *_: None, None)
    libvirt.virEventRegisterDefaultImpl()
    try:
        connection = libvirt.openReadOnly(uri)
        _keep_alive(connection)
        Reporter(connection, sysfs, _say).run()
    except libvirt.libvirtError as error:
        _say(Report(problem=str(error)))
    else:
        _say(Report(problem="libvirt closed the connection"))
    return 1


def _keep_alive(connection: libvirt.virConnect) -> None:
    try:
        connection.setKeepAlive(KEEPALIVE_INTERVAL_SECONDS, KEEPALIVE_COUNT)
    except libvirt.libvirtError as error:
        # A driver within this process has no peer that could go.
        if error.get_error_code() != libvirt.VIR_ERR_NO_SUPPORT:
            raise


def _say(report: Report) -> None:
    sys.stdout.buffer.write(write_report(report))
    sys.stdout.buffer.flush()


def _die_with(parent: int) -> None:
    """Have the kernel end this process when the proxy ends: one that gets SIGKILL can do nothing any more (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(1)


if __name__ == "__main__":
    raise SystemExit(main())
