"""What a check found: a verdict, what was seen, and what to do about it.

Three verdicts, because "not wrong" has two kinds: what is as it should be, and what an operator should know although nothing is broken (a
guest without a card, a switch that is off). Only `wrong` changes the exit status. Rejected: levels of severity, which nobody agrees on.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """How it stands; the values are words of the report, which scripts read."""

    OK = "ok"
    WRONG = "wrong"
    """Something does not work, or lets somebody in who should not be; the finding says what to do."""
    NOTE = "note"
    """Not wrong, and worth knowing."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of a report. `advice` is what to do; empty where there is nothing to do."""

    verdict: Verdict
    seen: str
    advice: str = ""


def ok(seen: str) -> Finding:
    """As it should be."""
    return Finding(Verdict.OK, seen)


def wrong(seen: str, advice: str) -> Finding:
    """Wrong, and what to do."""
    return Finding(Verdict.WRONG, seen, advice)


def note(seen: str, advice: str = "") -> Finding:
    """Not wrong, and worth knowing."""
    return Finding(Verdict.NOTE, seen, advice)
