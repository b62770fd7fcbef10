"""docs/metrics.md has the whole table; that it is fresh is held in tests/pages with the other generated pages."""

from __future__ import annotations

from guest_metrics import table
from tools.metrics_reference import render


def test_every_family_is_in_the_reference_once() -> None:
    text = render()
    for family in table.ALL:
        assert text.count(f"| `{family.name}` |") == 1
