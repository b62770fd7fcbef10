"""Which groups of series a page holds: what `?group=` of a scraper chooses, and what is there without it.

The groups are those of gpu.groups, and BASE, which holds everything else too: a scraper that asks for one group gets nothing twice beside
a scraper of the usual page. It refuses a name that it does not know, because a job that scrapes nothing for a spelling mistake would look
like a fleet without cards. Rejected: names of single families (a list of them in each scraper's configuration would be wrong soon).
"""

from __future__ import annotations

from collections.abc import Iterable

from guest_contract.card_fields import BASE, GROUPS, HEALTH, IDENTIFYING

KNOWN = (BASE, *GROUPS)
PARAMETER = "group"
# A fleet is scraped whole, and most of its lines would be values that nobody looks at before a card is sick.
OF_A_FLEET = frozenset({BASE, IDENTIFYING, HEALTH})
OF_A_GUEST = frozenset(KNOWN)


def chosen(names: Iterable[str], without: frozenset[str]) -> frozenset[str]:
    """The groups of these values of the parameter; `without` where there are none. Raises ValueError for one that is not known."""
    groups = frozenset(names)
    if not groups <= OF_A_GUEST:
        raise ValueError(f"{PARAMETER}: known are {', '.join(KNOWN)}")
    return groups or without
