"""Fixtures of the doctors' tests."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nvml_library.fixture import nvml_build, scripted_nvml

__all__ = ["nvml_build", "scripted_nvml", "sockets"]


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder whose path is short enough for a socket's name (107 bytes), and that nobody else may write."""
    folder = Path(tempfile.mkdtemp(prefix="gs"))
    yield folder
    shutil.rmtree(folder)
