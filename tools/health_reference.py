"""Writes the table of verdict rules into docs/cards.md, whose other text is written by hand.

The rows of guest_contract.health_rules are the rules; a table by hand would be believed and be wrong. Rejected: a page of its own for the
table (the words around it explain it).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from guest_contract.health_rules import ATTENTION_XIDS, REBOOT_XIDS, RESET_XIDS, RULES, Rule
from tools.markdown_text import cell, code, table

FILE = Path(__file__).parent.parent / "docs/cards.md"
_BEGIN = "<!-- Written by `make reference` from guest_contract/health_rules.py, down to the next mark. Do not edit. -->\n"
_END = "<!-- end of health rules -->\n"


def render() -> str:
    """The page with today's rules."""
    before, begin, rest = FILE.read_text(encoding="utf-8").partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{FILE}: the marks of the table of rules are gone")
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


def _row(rule: Rule) -> tuple[str, str, str, str]:
    return code(rule.code), rule.level.word, cell(rule.action), cell(rule.source)


def _numbers(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, sorted(numbers)))
