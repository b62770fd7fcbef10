"""Fixtures of the proxy's tests: a folder for sockets, and a proxy with guests as a caller sees it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.proxy.running import Proxy, running_proxy


@pytest.fixture
def sockets() -> Iterator[Path]:
    """A folder whose path is short enough for a socket's name (107 bytes)."""
    folder = Path(tempfile.mkdtemp(prefix="gs"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
async def proxy(sockets: Path) -> AsyncIterator[Proxy]:
    """A proxy that knows nobody yet, listening on a Unix socket."""
    async with running_proxy(sockets / "proxy") as proxy:
        yield proxy
