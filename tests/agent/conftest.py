"""What the tests of the agent share."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder whose name leaves room for a socket: sun_path holds 108 bytes, pytest's own folders can be longer."""
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        yield Path(folder)
