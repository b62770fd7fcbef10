"""The fleet's page: the proxy's series, the ages, and every guest's lines, family by family.

It is made in steps of two milliseconds between which the loop serves others, and given away as blocks that are never joined: for 1000
guests with 8 cards it has 96,000 samples in 16 MB. Guests' blocks of the last page are used again while no guest's lines changed, so that
scrapers which come together cost one page. Numbers: benchmarks/fleet_metrics.py.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Mapping, Sequence

from guest_metrics import table
from guest_metrics.exposition import ENDS, Format, Fragment, Lines, header, page
from vmm_proxy.fleet_metrics.board import FleetBoard
from vmm_proxy.fleet_metrics.guest_lines import add_ages, add_answers, kept_lines
from vmm_proxy.fleet_metrics.labels import own_labels
from vmm_proxy.fleet_metrics.last_known import LastKnown
from vmm_proxy.fleet_metrics.pacing import Breath


class FleetPage:
    """Makes pages of what `board` knows. `chosen` are the directory's labels that stand on each line, by name (labels.py)."""

    def __init__(self, board: FleetBoard, chosen: Mapping[str, str], version: str) -> None:
        self._board = board
        self._chosen = chosen
        self._build = (version, platform.python_version())
        self._one_at_a_time = asyncio.Lock()
        self._fragments: list[Fragment] = []
        self._blocks: dict[str, bytes] = {}

    async def of_all(self, form: Format, own: Lines) -> list[bytes]:
        """The page of all guests, in blocks; `own` holds the proxy's own samples."""
        own.add(table.PROXY_BUILD_INFO, 1, *self._build)
        async with self._one_at_a_time:
            guests = self._board.guests()
            breath = Breath()
            fragments: list[Fragment] = []
            for guest in guests:
                await breath.take()
                now = self._board.clock()
                kept = kept_lines(guest, self._chosen, now)
                fragments.append(kept.fragment)
                add_ages(own, kept.labels, guest, now)
            if fragments != self._fragments:
                self._blocks = await _blocks_of(fragments, breath)
                self._fragments = fragments
            return _assembled(form, self._blocks, own.fragment().lines)

    def of_one(self, guest: LastKnown, form: Format, *, labels_from_target: bool = False) -> bytes:
        """One guest's page; without the proxy's labels where the scraper puts the same ones on its target."""
        now = self._board.clock()
        labels = {} if labels_from_target else own_labels(guest.entry, self._chosen)
        lines = Lines(labels)
        add_ages(lines, lines.labels((), ()), guest, now)
        add_answers(lines, guest, now)
        return page([lines.fragment()], form)


async def _blocks_of(fragments: Sequence[Fragment], breath: Breath) -> dict[str, bytes]:
    blocks: dict[str, bytes] = {}
    for family in table.ALL:
        await breath.take()
        name = family.name
        if lines := [part for fragment in fragments if (part := fragment.lines.get(name))]:
            blocks[name] = b"".join(lines)
    return blocks


def _assembled(form: Format, *sources: Mapping[str, bytes]) -> list[bytes]:
    assembled: list[bytes] = []
    for family in table.ALL:
        if blocks := [block for source in sources if (block := source.get(family.name))]:
            assembled += (header(family, form), *blocks)
    assembled.append(ENDS[form])
    return assembled
