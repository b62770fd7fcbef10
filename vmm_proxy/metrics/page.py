"""The fleet's page: the proxy's series, the ages, and every guest's lines, family by family.

It is made in steps of a millisecond or two between which the loop serves others, and given away as blocks that are never joined: for 1000
guests with 8 cards it has 92,000 samples in 11 MB. What did not change since the last page is used again, so that scrapers which
come together cost one page. Numbers: benchmarks/fleet_metrics.py.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Mapping, Sequence

from guest_contract.card_fields import BASE, HEALTH
from guest_metrics import table
from guest_metrics.exposition import ENDS, Format, Fragment, Lines, header
from guest_metrics.exposition import page as page_of
from guest_metrics.forms import Sheet
from guest_metrics.gpu import xid_ages
from guest_metrics.groups import OF_A_FLEET
from vmm_proxy.metrics.guest_answers import GuestAnswers
from vmm_proxy.metrics.guest_series import KeptLines, add_ages, add_answers, add_xid_times, kept_lines
from vmm_proxy.metrics.labels import own_labels
from vmm_proxy.metrics.last_answers import LastKnown
from vmm_proxy.pacing import LoopTurns

# Where guests come and go faster than a page is made, the last attempt is made in one go; what it needs is mostly there by then.
ATTEMPTS = 3
# Prometheus's longest usual interval is a minute; a group that nobody chose for so long costs nothing more.
GROUP_KEPT_SECONDS = 300.0


class FleetPage:
    """Makes pages of what `guest_answers` knows. `chosen` are the directory's labels that stand on each line, by name (labels.py)."""

    def __init__(self, guest_answers: GuestAnswers, chosen: Mapping[str, str], version: str) -> None:
        self._answers = guest_answers
        self._chosen = chosen
        self._build = (version, platform.python_version())
        self._one_at_a_time = asyncio.Lock()
        self._gpus, self._systems, self._rest = Sheet(), Sheet(), Sheet()
        # When each group was last chosen, by the clock of GuestAnswers.
        self._chosen_at: dict[str, float] = {}

    async def of_all(self, form: Format, own: Lines, groups: frozenset[str] = OF_A_FLEET) -> list[bytes]:
        """The page of all guests in these groups, in blocks; `own` holds the proxy's own samples."""
        own.add(table.PROXY_BUILD_INFO, 1, *self._build)
        async with self._one_at_a_time:
            for attempt in range(ATTEMPTS):
                guests = self._answers.guests()
                turns = LoopTurns() if attempt + 1 < ATTEMPTS else None
                ages = await self._filled(guests, self._kept_groups(groups), turns)
                # A guest that left meanwhile, or became another VM, may not be on a page that is made now.
                if guests is self._answers.guests():
                    break
            sheets = [sheet.blocks for sheet in (self._gpus, self._systems, self._rest)]
            return _assembled(form, groups, [own.fragment(), ages], sheets)

    def _kept_groups(self, groups: frozenset[str]) -> frozenset[str]:
        """The groups to keep lines for: these, and those that were chosen lately."""
        now = self._answers.clock()
        self._chosen_at |= dict.fromkeys(groups, now)
        self._chosen_at = {group: at for group, at in self._chosen_at.items() if now - at <= GROUP_KEPT_SECONDS}
        return frozenset(self._chosen_at)

    async def _filled(self, guests: Sequence[LastKnown], groups: frozenset[str], turns: LoopTurns | None) -> Fragment:
        """Fill the sheets with `guests`, and give their ages; without `turns` in one go."""
        ages, kept = Lines(), list[KeptLines]()
        for guest in guests:
            if turns:
                await turns.yield_if_due()
            now = self._answers.clock()
            lines = kept_lines(guest, self._chosen, groups)
            lines.bring_up_to_date(guest, now)
            add_ages(ages, lines.labels, guest, now)
            add_xid_times(ages, lines.xid_ages, guest, now)
            kept.append(lines)
        parts = {
            self._gpus: [lines.gpus for lines in kept],
            self._systems: [lines.system for lines in kept],
            self._rest: [lines.rest for lines in kept],
        }
        for sheet, sources in parts.items():
            for _ in sheet.fill(sources):
                if turns:
                    await turns.yield_if_due()
        return ages.fragment()

    def of_one(
        self, guest: LastKnown, form: Format, groups: frozenset[str] = OF_A_FLEET, *, labels_from_target: bool = False
    ) -> bytes:
        """One guest's page in these groups; without the proxy's labels where the scraper puts the same ones on its target."""
        now = self._answers.clock()
        labels = {} if labels_from_target else own_labels(guest.entry, self._chosen)
        lines = Lines(labels)
        if BASE in groups:
            add_ages(lines, lines.labels((), ()), guest, now)
        add_answers(lines, guest, now, groups)
        if HEALTH in groups and (gpus := guest.gpus.shown(now)) is not None:
            add_xid_times(lines, xid_ages(lines, gpus), guest, now)
        return page_of([lines.fragment()], form)


def _assembled(
    form: Format, groups: frozenset[str], own: Sequence[Fragment], sheets: Sequence[Mapping[str, Sequence[bytes]]]
) -> list[bytes]:
    page: list[bytes] = []
    for family in table.of_groups(groups):
        lines = "".join(part.lines.get(family.name, "") for part in own)
        blocks = [block for sheet in sheets for block in sheet.get(family.name, ())]
        if lines or blocks:
            page += (f"{header(family, form)}{lines}".encode(), *blocks)
    page.append(ENDS[form])
    return page
