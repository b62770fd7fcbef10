"""Measures the services under load, once a second: what each holds, how late its loop told its watchdog, whether it got a processor.

A service that was started anew is another process with a series of its own; growth is only judged of those that ran all the time.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Sequence

from soak.judging import Book, Kind
from soak.processes import Holding, read_holding, waited_seconds
from soak.service import Service

MEASURE_SECONDS = 1.0
# Of the measurements of memory so many make one in the report.
SHOWN_EVERY = 30
MEBIBYTE = 1024 * 1024
STANDSTILL_SECONDS = 8.0
# Of the time between two looks. A main thread that is kept waiting half of it gets less than half of the processor that it asks for, and
# its calls queue up.
STARVED_SHARE = 0.5
# In a quiet moment: how long until nothing changes any more, and for how many looks in a row.
QUIET_SECONDS = 20.0
QUIET_LOOK_SECONDS = 0.25
QUIET_LOOKS = 6

log = logging.getLogger(__name__)


class Watch:
    """The measurements of `services`."""

    def __init__(self, services: Sequence[Service], proxy: Service, book: Book) -> None:
        self._services = services
        self._book = book
        # Whose want of a processor concerns which guest: the proxy's and this process's own concern all.
        self._starving = [Starving("", proxy), Starving("", None)]
        self._starving += [Starving(service.name, service) for service in services if service is not proxy]
        # By name and process id: times (the loop's) and what was held.
        self.series: dict[tuple[str, int], list[tuple[float, Holding]]] = defaultdict(list)
        self.stalls: dict[str, list[float]] = defaultdict(list)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Measure from now on."""
        for service in self._services:
            service.ear.excuse()
        self._task = asyncio.create_task(self._measure())

    async def stop(self) -> None:
        """Measure no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def resident(self, name: str, pid: int) -> list[tuple[int, float]]:
        """What this process held, twice a minute: seconds since the first measurement, MiB."""
        series = self.series[name, pid]
        return [(round(at - series[0][0]), round(held.resident_bytes / MEBIBYTE, 2)) for at, held in series[::SHOWN_EVERY]]

    async def quiet(self) -> dict[str, Holding]:
        """What each service holds once nothing changes any more, or after QUIET_SECONDS what it holds then."""
        loop = asyncio.get_running_loop()
        until, same = loop.time() + QUIET_SECONDS, 0
        before: dict[str, tuple[int, int, int]] = {}
        while True:
            now = {service.name: holding for service in self._services if (holding := read_holding(service.pid))}
            counts = {name: (each.descriptors, each.threads, each.children) for name, each in now.items()}
            settled = counts == before and all(each.children == 0 for each in now.values())
            same, before = (same + 1 if settled else 0), counts
            if same >= QUIET_LOOKS or loop.time() > until:
                return now
            await asyncio.sleep(QUIET_LOOK_SECONDS)

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        looked = loop.time()
        while True:
            # This process was not run either: the machine stood still, and no service can be told from a stalled one.
            if loop.time() - looked > STANDSTILL_SECONDS:
                log.warning("the whole machine stood still for %.1f s", loop.time() - looked)
                for service in self._services:
                    service.ear.take_stalls()
                    service.ear.excuse()
            looked = loop.time()
            for service in self._services:
                if service.running and (holding := read_holding(service.pid)):
                    self.series[service.name, service.pid].append((loop.time(), holding))
                self.stalls[service.name] += service.ear.take_stalls()
            for starving in self._starving:
                starving.look(self._book, loop.time())
            await asyncio.sleep(MEASURE_SECONDS)


class Starving:
    """Whether `service`, or without one this process, waits for a processor: noted in the book as what happens to `guest`."""

    def __init__(self, guest: str, service: Service | None) -> None:
        self._guest = guest
        self._service = service
        self._before: tuple[int, float, float] | None = None

    def look(self, book: Book, now: float) -> None:
        """Look at the time since the last look."""
        pid = self._service.pid if self._service else os.getpid()
        waited = waited_seconds(pid)
        before, self._before = self._before, None if waited is None else (pid, waited, now)
        if before is None or waited is None or before[0] != pid:
            return
        _, waited_before, looked_before = before
        if waited - waited_before > STARVED_SHARE * (now - looked_before):
            book.begin(self._guest, Kind.STARVED, looked_before).ended = now
