"""Which descriptors this process has open, for tests that none is left.

What earlier tests left to the garbage collector, or to a library's thread, may be closed at any moment: so the garbage is collected first,
and a test asks for `descriptors() <= before`, never for an equal number.
"""

from __future__ import annotations

import gc
import os


def descriptors() -> set[tuple[str, str]]:
    """Number and what it leads to, of each."""
    gc.collect()
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add((number, os.readlink(f"/proc/self/fd/{number}")))
        except FileNotFoundError:
            continue  # The one that lists them.
    return found
