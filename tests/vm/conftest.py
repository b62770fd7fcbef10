"""What the tests with virtual machines share: a folder for sockets, and a disk with a Debian on which our packages are installed."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nvml_library.fixture import NvmlBuild, ScriptedNvml, nvml_build
from tests.packaging.debian_root import DebianRoot
from tests.vm.debian_machine import disk_image, installed_root, require_packages

__all__ = ["nvml_build"]

# Where the scripted library lies in there; it counts its calls beside it.
LIBRARY_FOLDER = Path("srv/nvml")
# In emulation, on a machine that does other things beside, a start takes a minute.
_PATIENCE = "[Service]\nTimeoutStartSec=300\n"
# What a loaded driver shows in /sys; the scripted library answers in its place.
_MODULE_UNIT = """
[Unit]
Description=Mark of a loaded NVIDIA module
DefaultDependencies=no
Before=sysinit.target
[Service]
Type=oneshot
ExecStart=/bin/mount -t tmpfs modules /sys/module
ExecStart=/bin/mkdir /sys/module/nvidia
[Install]
WantedBy=sysinit.target
"""
# Of somebody who may do everything.
TOKEN = "4f0c9a17" * 8


@pytest.fixture
def sockets() -> Iterator[Path]:
    """Short, for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="vm"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def debian_image(tmp_path_factory: pytest.TempPathFactory, nvml_build: NvmlBuild) -> Iterator[Path]:
    """The disk, made once: both packages, the agent with a library for two cards, the proxy with that agent as its guest `own`."""
    require_packages()
    folder = tmp_path_factory.mktemp("debian")
    root = installed_root(folder / "root")
    _configure_agent(root, nvml_build)
    _configure_proxy(root)
    disk_image(root, folder / "image")
    shutil.rmtree(root.folder)
    yield folder / "image"
    shutil.rmtree(folder)


def _configure_agent(root: DebianRoot, build: NvmlBuild) -> None:
    library = root.folder / LIBRARY_FOLDER
    library.mkdir(parents=True)
    ScriptedNvml(library, build).write("cards 2\n")
    _change(
        root.folder / "etc/guest-service/config.toml",
        ("sample_timeout_seconds = 10.0", f'sample_timeout_seconds = 60.0\nnvml_library = "/{LIBRARY_FOLDER}/libnvidia-ml.so.1"'),
        ("failure_backoff_seconds = 30.0", "failure_backoff_seconds = 1.0"),
        ("vsock_cids = [2]", "vsock_cids = [1, 2]"),
    )
    _drop_in(root, "guest-service", f"{_PATIENCE}ReadWritePaths=/{LIBRARY_FOLDER}\n")
    (root.folder / "etc/systemd/system/nvidia-module.service").write_text(_MODULE_UNIT)
    root.said("systemctl", "enable", "nvidia-module.service")


def _configure_proxy(root: DebianRoot) -> None:
    """As docs/install-host.md says: tokens that only root may read, a guest in the folder."""
    credentials = root.folder / "etc/credstore"
    credentials.mkdir(mode=0o700, exist_ok=True)
    tokens = credentials / "vmm-proxy.tokens"
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    tokens.write_text(f'[[token]]\nname = "test"\nhash = "sha256:{digest}"\nrole = "admin"\n')
    tokens.chmod(0o600)
    with (root.folder / "etc/vmm-proxy/config.toml").open("a") as file:
        file.write('\n[access]\ntoken_file = "/run/credentials/vmm-proxy.service/vmm-proxy.tokens"\n')
    (root.folder / "etc/vmm-proxy/guests.d/own.toml").write_text('id = "own"\naddress = "vsock:local:8000"\n')
    _drop_in(root, "vmm-proxy", _PATIENCE)


def _drop_in(root: DebianRoot, unit: str, text: str) -> None:
    folder = root.folder / f"etc/systemd/system/{unit}.service.d"
    folder.mkdir()
    (folder / "test.conf").write_text(text)


def _change(file: Path, *changes: tuple[str, str]) -> None:
    text = file.read_text()
    for old, new in changes:
        assert text.count(old) == 1, f"{file}: {old}"
        text = text.replace(old, new)
    file.write_text(text)
