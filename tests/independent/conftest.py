"""The guest and the proxy of the round trips, and a client for them in another language."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.round_trip.conftest import (
    folder,
    grpc_add_to_server,
    grpc_addr,
    grpc_servicer,
    proxy,
    proxy_contract,
    reply_kind,
)

__all__ = ["folder", "grpc_add_to_server", "grpc_addr", "grpc_servicer", "proxy", "proxy_contract", "reply_kind"]

GRPC_JS = Path(__file__).parent / "grpc_js"
# A registry that does not answer is the machine's, not the client's, failure.
INSTALL_SECONDS = 50
NO_REGISTRY = ("ENOTFOUND", "EAI_AGAIN", "ECONNREFUSED", "ETIMEDOUT", "ENETUNREACH", "ENOTCACHED")


@pytest.fixture(scope="session")
def grpc_js() -> Iterator[Path]:
    """A folder with client.js and the locked packages that it needs."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed: apt-get install nodejs npm")
    with tempfile.TemporaryDirectory(prefix="gs-js-") as name:
        for file in ("package.json", "package-lock.json", "client.js"):
            shutil.copy(GRPC_JS / file, name)
        command = [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefer-offline"]
        done = subprocess.run(command, cwd=name, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
        if done.returncode and any(sign in done.stderr for sign in NO_REGISTRY):
            pytest.skip(f"npm reaches no registry: {done.stderr.splitlines()[0]}")
        assert done.returncode == 0, done.stderr
        yield Path(name)
