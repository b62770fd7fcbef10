"""`/metrics`: what the guest knows now, within the scraper's time.

Nothing here waits for the GPU (the last outcome is served with its age) or for Docker (the board's list). System facts are read afresh,
within what the scraper allows; a part that is late or fails is left off, and `guest_service_part_up` says so, because a zero would be a
lie and a failed scrape would take the other parts with it. What `?group=` leaves out is not read either.
"""

from __future__ import annotations

import asyncio
import platform
import time

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from guest_contract.card_fields import BASE, HEALTH
from guest_metrics import gpu, groups, guest, process, table
from guest_metrics.exposition import Lines, negotiate, page
from guest_metrics.scrape_time import SCRAPE_TIMEOUT_HEADER, page_seconds
from guest_service.http.parts import HttpParts
from guest_transport.http.answers import answer, caller


class MetricsPage:
    """Answers `/metrics`."""

    def __init__(self, parts: HttpParts) -> None:
        self._parts = parts

    async def answer(self, request: Request) -> Response:
        """The page in the format that the client asks for; 404 unless system facts are public."""
        switches = self._parts.switches()
        if not switches.public_sysinfo:
            raise HTTPException(404, "not found: /metrics is off; http.public_sysinfo turns it on")
        chosen = _groups(request)
        form = negotiate(request.headers.get("accept"))
        lines = Lines()
        self._add_gpus(lines, caller(request, "metrics"), chosen)
        if BASE in chosen:
            if switches.public_containers:
                self._add_containers(lines)
            await self._add_looks(lines, page_seconds(request.headers.get(SCRAPE_TIMEOUT_HEADER)))
            lines.add(table.AGENT_BUILD_INFO, 1, self._parts.version, platform.python_version())
            for reason, count in self._parts.rejected.items():
                lines.add(table.AGENT_REJECTED, count, reason)
        return await answer(request, page([lines.fragment()], form), form.value)

    def _add_gpus(self, lines: Lines, who: str, chosen: frozenset[str]) -> None:
        telemetry = self._parts.telemetry
        reply = telemetry.last(who)
        gpu.add_gpus(lines, reply, chosen)
        if HEALTH in chosen:
            gpu.add_xid_times(lines, gpu.xid_ages(lines, reply), time.time())
        if BASE not in chosen:
            return
        inventory, stats = telemetry.inventory, telemetry.stats
        # A reply says it with its cards only; here it is known without them too.
        if inventory is not None and not reply.HasField("pci_devices"):
            lines.add(table.GPU_PCI_DEVICES, inventory.nvidia)
        gpu.add_sampling(
            lines,
            samples=stats.samples,
            duration_seconds=stats.last_duration_seconds,
            failed_cc_queries=stats.failed_cc_queries,
        )

    def _add_containers(self, lines: Lines) -> None:
        listing = self._parts.containers.last()
        if listing.containers is not None:
            guest.add_containers(lines, listing.containers)
        if listing.containers is not None or listing.failed:
            lines.add(table.AGENT_PART_UP, int(listing.containers is not None), "containers")

    async def _add_looks(self, lines: Lines, seconds: float) -> None:
        info, figures = await asyncio.gather(self._parts.system.within(seconds), self._parts.process.within(seconds))
        if info is not None:
            guest.add_system(lines, info)
        if figures is not None:
            process.add_process(lines, figures)
        lines.add(table.AGENT_PART_UP, int(info is not None), "system")
        lines.add(table.AGENT_PART_UP, int(figures is not None), "process")


def _groups(request: Request) -> frozenset[str]:
    """The groups that the query chooses; other parameters have no meaning here and are ignored."""
    try:
        return groups.chosen(request.query_params.getlist(groups.PARAMETER), groups.OF_A_GUEST)
    except ValueError as error:
        raise HTTPException(400, str(error)) from error
