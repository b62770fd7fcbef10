"""How long a page may take, from what the scraper says of its own patience.

A page that comes after the scraper's timeout is worth nothing and shows the target as down; one without a part is worth the rest.
Source: Prometheus sends X-Prometheus-Scrape-Timeout-Seconds with each scrape.
"""

from __future__ import annotations

import math

SCRAPE_TIMEOUT_HEADER = "x-prometheus-scrape-timeout-seconds"
# Without the scraper's word: below Prometheus's default timeout of 10 s, and long enough for a busy disk.
PAGE_SECONDS = 5.0
# Kept back from the scraper's time for sending; a tenth, but never more than this.
RESERVE_SECONDS = 0.5


def page_seconds(scrape_timeout: str | None) -> float:
    """The time that a page may take; a header that is no positive number says nothing."""
    try:
        timeout = float(scrape_timeout or "")
    except ValueError:
        return PAGE_SECONDS
    if not (math.isfinite(timeout) and timeout > 0):
        return PAGE_SECONDS
    return min(PAGE_SECONDS, timeout - min(RESERVE_SECONDS, timeout / 10))
