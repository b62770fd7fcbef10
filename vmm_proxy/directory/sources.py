"""How the places that guests are read from are doing, for whoever watches the proxy from outside.

A source that cannot be read keeps its last known guests, and what it refuses is missing from every list: both are silent but for the log,
so a number has to tell. Rejected: a series for each refused entry (its name is chosen by whoever wrote the entry).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SourceState:
    """Whether the source can be read now, and how many of its entries are refused."""

    readable: bool
    refused: int


# By name; only sources that are configured.
SourceStates = Callable[[], Mapping[str, SourceState]]
