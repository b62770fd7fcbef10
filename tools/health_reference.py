"""Writes the tables of values and of verdict rules into docs/cards.md, whose other text is written by hand.

The rows of card_fields and health_rules are what holds; a table by hand would be believed and be wrong. Rejected: a page of its own for
each table (the words around it explain it).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from guest_contract.card_fields import ROWS
from guest_contract.card_row import COUNT, FLAG, Field, Metric
from guest_contract.health_rules import ATTENTION_XIDS, REBOOT_XIDS, RESET_XIDS, RULES, Rule
from tools.markdown_text import cell, code, table

FILE = Path(__file__).parent.parent / "docs/cards.md"
_BEGIN = "<!-- Written by `make reference` from guest_contract/health_rules.py, down to the next mark. Do not edit. -->\n"
_END = "<!-- end of health rules -->\n"
_BEGIN_VALUES = "<!-- Written by `make reference` from guest_contract/card_fields.py, down to the next mark. Do not edit. -->\n"
_END_VALUES = "<!-- end of values -->\n"


def render() -> str:
    """The page with today's values and rules."""
    values = table(("group", "value", "field", "unit", "metric"), map(_value_row, ROWS))
    before, after = _around(FILE.read_text(encoding="utf-8"), _BEGIN_VALUES, _END_VALUES)
    before, after = _around(f"{before}{_BEGIN_VALUES}\n{values}{_END_VALUES}{after}", _BEGIN, _END)
    xids = (
        ("xid_reboot", REBOOT_XIDS),
        ("xid_reset", RESET_XIDS),
        ("xid_attention", ATTENTION_XIDS),
    )
    return (
        f"{before}{_BEGIN}\n"
        + table(("reason", "verdict", "do", "source"), map(_row, RULES))
        + table(("reason", "XIDs"), ((code(reason), _numbers(numbers)) for reason, numbers in xids))
        + f"{_END}{after}"
    )


def _around(text: str, begin: str, end: str) -> tuple[str, str]:
    before, found, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"{FILE}: the marks of a table are gone: {begin.strip()}")
    return before, after


def _value_row(row: Field) -> tuple[str, str, str, str, str]:
    words = "0 or 1" if row.unit == FLAG else "words" if row.names or row.bits else "count" if row.unit == COUNT else row.unit
    metric = "" if row.metric is None else code(row.metric.name + _labels(row.metric))
    return row.group, cell(row.title), code(row.name), words, metric


def _labels(metric: Metric) -> str:
    pairs = [f'{name}="{value}"' for name, value in metric.labels] + ([metric.each] if metric.each else [])
    return f"{{{','.join(pairs)}}}" if pairs else ""


def _row(rule: Rule) -> tuple[str, str, str, str]:
    return code(rule.code), rule.level.word, cell(rule.action), cell(rule.source)


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
