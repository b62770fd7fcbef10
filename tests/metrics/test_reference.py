"""docs/metrics.md is what the table says."""

from __future__ import annotations

from guest_metrics import table
from tools.metrics_reference import FILE, render


def test_the_reference_is_what_the_table_says_now() -> None:
    assert FILE.read_text(encoding="utf-8") == render(), "run `make metrics-reference` and commit docs/metrics.md"


def test_every_family_is_in_the_reference_once() -> None:
    text = render()
    for family in table.ALL:
        assert text.count(f"| `{family.name}` |") == 1
