"""A libvirtd of the test's own, for those tests that ask a real one; they are skipped where it is missing."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.domains.libvirt_daemon import LibvirtDaemon, libvirt_modules, require_libvirtd


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, for sockets."""
    path = Path(tempfile.mkdtemp(prefix="lv"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def modules(folder: Path) -> Path | None:
    path = folder / "modules"
    path.mkdir()
    return libvirt_modules(path)


@pytest.fixture
async def daemon(folder: Path, modules: Path | None) -> AsyncIterator[LibvirtDaemon]:
    require_libvirtd()
    daemon = LibvirtDaemon(folder, modules)
    try:
        await daemon.start()
        yield daemon
    finally:
        await daemon.end()
