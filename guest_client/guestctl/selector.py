r"""Labels as they are written: `key=value`, several of them with commas between, a comma in a value as `\,`.

For -l and for the file of contexts alike. Rejected: kubectl's other operators (a proxy compares labels for being equal, and nothing else).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias

from guest_contract.identifiers import valid_label_key

Pairs: TypeAlias = tuple[tuple[str, str], ...]
_COMMA = re.compile(r"(?<!\\),")


class SelectorError(ValueError):
    """A text that selects nothing; the message says what is allowed."""


def read_pairs(text: str) -> Pairs:
    """The pairs, none for an empty text; raises SelectorError."""
    pairs = []
    for part in _COMMA.split(text) if text else ():
        key, equals, wanted = part.partition("=")
        if not equals or not valid_label_key(key):
            hint = "guests are chosen by giving their ids as arguments" if not equals else "only KEY=VALUE is known"
            raise SelectorError(f"{part[:128]!r} is no KEY=VALUE ({hint}; a comma in a value is written \\,)")
        pairs.append((key, wanted.replace("\\,", ",")))
    return tuple(pairs)


def together(selectors: Iterable[Pairs]) -> dict[str, str]:
    """The labels of all selectors; raises SelectorError when two of them exclude each other."""
    labels: dict[str, str] = {}
    for key, value in (pair for selector in selectors for pair in selector):
        if labels.setdefault(key, value) != value:
            raise SelectorError(f"no guest has two values of {key}: {labels[key]!r} and {value!r}")
    return labels
