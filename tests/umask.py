"""The umask of the test process for a while: it is banned in the product, whose threads make files meanwhile."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

_umask = os.umask  # noqa: TID251  # a test process has one thread that makes files


@contextlib.contextmanager
def umask(mask: int) -> Iterator[None]:
    """Files are made under `mask`, which is still set at the end."""
    before = _umask(mask)
    try:
        yield
        assert _umask(mask) == mask, "the umask was changed"
    finally:
        _umask(before)
