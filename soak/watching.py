"""Measures the services while they are under load: what each holds, once a second, and how late its event loop told its watchdog.

A service that was started anew is another process with a series of its own; growth is only judged of those that ran all the time.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence

from soak.processes import Holding, read_holding
from soak.service import Service

MEASURE_SECONDS = 1.0
# In a quiet moment: how long until nothing changes any more, and for how many looks in a row.
QUIET_SECONDS = 20.0
QUIET_LOOK_SECONDS = 0.25
QUIET_LOOKS = 6


class Watch:
    """The measurements of `services`."""

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = services
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
        while True:
            for service in self._services:
                if service.running and (holding := read_holding(service.pid)):
                    self.series[service.name, service.pid].append((loop.time(), holding))
                self.stalls[service.name] += service.ear.take_stalls()
            await asyncio.sleep(MEASURE_SECONDS)
