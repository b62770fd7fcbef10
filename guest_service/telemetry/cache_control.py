"""Reads `cache-control: max-age=N` from a call's metadata (RFC 9111, section 5.2.1).

Directives that this product does not know are ignored, as the RFC wants. A max-age that is no number is refused instead of ignored:
whoever writes it wants a fresh sample and would silently get an old one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# RFC 9111, section 1.2.2: a value too large to be represented counts as this.
LONGEST_SECONDS = 2**31

# A directive, and perhaps a token or a quoted string; commas inside quotes separate nothing. RFC 9111 5.2, RFC 9110 5.6.
_DIRECTIVE = re.compile(r'[\s,]*([^\s,="]+)(?:[ \t]*=[ \t]*("(?:[^"\\]|\\.)*"|[^\s,"]*))?[^,]*')


class CacheControlError(ValueError):
    """max-age is there but is no number of seconds; the message is one line for the caller."""


def parse_max_age(values: Iterable[str]) -> float | None:
    """The smallest max-age in `values`, seconds; `no-cache` counts as 0; None when neither is there. Raises CacheControlError."""
    ages = [age for value in values for age in _ages(value)]
    return min(ages, default=None)


def _ages(value: str) -> Iterable[float]:
    for name, argument in _DIRECTIVE.findall(value):
        match name.lower():
            case "no-cache":
                yield 0.0
            case "max-age":
                yield _seconds(argument)


def _seconds(argument: str) -> float:
    digits = argument[1:-1] if argument.startswith('"') else argument
    # isdecimal alone would take digits of other scripts.
    if not (digits.isascii() and digits.isdecimal()):
        raise CacheControlError(f"cache-control: max-age must be a whole number of seconds, not {argument[:32]!r}")
    return float(LONGEST_SECONDS) if len(digits) > 10 else float(min(int(digits), LONGEST_SECONDS))
