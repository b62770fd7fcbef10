"""Reads `cache-control: max-age=N` from a call's metadata (RFC 9111, section 5.2.1).

Directives that this product does not know are ignored, as the RFC wants. A max-age that is no number is refused instead of ignored:
whoever writes it wants a fresh sample and would silently get an old one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

# RFC 9111, section 1.2.2: a value too large to be represented counts as this.
LONGEST_SECONDS = 2**31


class CacheControlError(ValueError):
    """max-age is there but is no number of seconds; the message is one line for the caller."""


def parse_max_age(values: Iterable[str]) -> float | None:
    """The smallest max-age in `values`, seconds; `no-cache` counts as 0; None when neither is there. Raises CacheControlError."""
    ages = [age for value in values for age in _ages(value)]
    return min(ages, default=None)


def _ages(value: str) -> Iterator[float]:
    for directive in _split(value):
        name, _, argument = directive.partition("=")
        match name.strip().lower():
            case "no-cache":
                yield 0.0
            case "max-age":
                yield _seconds(argument.strip())


def _split(value: str) -> Iterator[str]:
    """The directives of a list; commas inside quoted strings separate nothing (RFC 9110, sections 5.6.1 and 5.6.4)."""
    begin, quoted, escaped = 0, False, False
    for place, character in enumerate(value):
        if escaped:
            escaped = False
        elif character == "\\" and quoted:
            escaped = True
        elif character == '"':
            quoted = not quoted
        elif character == "," and not quoted:
            yield value[begin:place]
            begin = place + 1
    yield value[begin:]


def _seconds(argument: str) -> float:
    quoted = len(argument) >= 2 and argument[0] == argument[-1] == '"'
    digits = argument[1:-1] if quoted else argument
    # isdecimal alone would take digits of other scripts.
    if not (digits.isascii() and digits.isdecimal()):
        raise CacheControlError(f"cache-control: max-age must be a whole number of seconds, not {argument[:32]!r}")
    return float(LONGEST_SECONDS) if len(digits.lstrip("0")) > 10 else float(min(int(digits), LONGEST_SECONDS))
