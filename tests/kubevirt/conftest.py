"""An API server of the test's own, and a short folder for sockets."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from tests.kubevirt.api_server import ApiServer
from tests.kubevirt.followed import Followed


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[ApiServer]:
    api = ApiServer(tmp_path)
    async with api.serving():
        yield api


@pytest.fixture
async def followed(api: ApiServer) -> AsyncIterator[Followed]:
    followed = Followed(api)
    followed.source.start()
    yield followed
    await followed.source.close()


@pytest.fixture
def sockets() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="kv"))
    yield folder
    shutil.rmtree(folder)
