"""What a check says: passed, failed or skipped, what was seen, and how long it took.

A check that raises has failed with that error's words, and never takes another one with it.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """How a check ended."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


class CheckFailedError(Exception):
    """The product did not do what the check asks for; the message is one line."""


class CheckSkippedError(Exception):
    """Something is missing on this machine; the message names it."""


@dataclass(frozen=True, slots=True)
class Result:
    """One line of the table, and `table` below it; `figures` go to the JSON file."""

    name: str
    verdict: Verdict
    seen: str
    seconds: float
    figures: dict[str, object]
    table: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """What a check that passed saw."""

    words: str
    figures: dict[str, object]
    table: tuple[str, ...] = ()


def need(condition: object, words: str) -> None:
    """Fail the check with `words` unless `condition` holds."""
    if not condition:
        raise CheckFailedError(words)


def run(name: str, check: Callable[[], Seen]) -> Result:
    """The result of `check`, whatever it raises."""
    started = time.monotonic()
    figures: dict[str, object] = {}
    table: tuple[str, ...] = ()
    try:
        seen = check()
    except CheckSkippedError as reason:
        verdict, words = Verdict.SKIPPED, str(reason)
    except CheckFailedError as reason:
        verdict, words = Verdict.FAILED, str(reason)
    except Exception as error:  # the top of a check: its failure is a line of the table, and the next one runs
        verdict, words = Verdict.FAILED, f"{type(error).__name__}: {error}"
    else:
        verdict, words, figures, table = Verdict.PASSED, seen.words, seen.figures, seen.table
    return Result(name, verdict, " ".join(words.split())[:400], round(time.monotonic() - started, 2), figures, table)
