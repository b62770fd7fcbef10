"""A libvirtd of the test's own, with libvirt's test driver: real daemon, real protocol, real events, no VM.

Its hypervisor drivers are left out (LIBVIRT_DRIVER_DIR), so it touches neither networks nor machines; all of it lives in one folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# Where Debian's python3-libvirt puts its module: right for a virtual environment of Debian's own Python.
DEBIAN_MODULES = Path("/usr/lib/python3/dist-packages")
START_LIMIT_SECONDS = 30.0

# Changes domains over a connection that stays open: the domains of test:///default go with the last one.
_HANDS = """
import json, sys, libvirt
libvirt.registerErrorHandler(lambda *_: None, None)
connection = libvirt.open(sys.argv[1])
for domain in connection.listAllDomains():
    domain.destroy()
print("{}", flush=True)
for line in sys.stdin:
    what, text = json.loads(line)
    try:
        connection.createXML(text) if what == "start" else connection.lookupByUUIDString(text).destroy()
        print("{}", flush=True)
    except libvirt.libvirtError as error:
        print(json.dumps({"error": str(error)}), flush=True)
"""


def libvirt_modules(folder: Path) -> Path | None:
    """A folder for PYTHONPATH with libvirt's module for this Python; None where it can be imported anyway. Skips without it."""
    if importlib.util.find_spec("libvirt"):
        return None
    version = f"{sys.version_info.major}{sys.version_info.minor}"
    binary = list(DEBIAN_MODULES.glob(f"libvirtmod.cpython-{version}-*.so"))
    if not binary:
        pytest.skip("missing: python3-libvirt, for the Python that runs the tests")
    for file in (DEBIAN_MODULES / "libvirt.py", *binary):
        (folder / file.name).symlink_to(file)
    return folder


def module_environment(modules: Path | None) -> dict[str, str]:
    """The variables that let a child import libvirt."""
    return (
        {} if modules is None else {"PYTHONPATH": os.pathsep.join([str(modules), os.environ.get("PYTHONPATH", "")]).rstrip(":")}
    )


class LibvirtDaemon:
    """libvirtd in `folder`, whose path is short. A `read_only_uri` is what the proxy is given."""

    def __init__(self, folder: Path, modules: Path | None) -> None:
        self._folder = folder
        self._environment = {**os.environ, **module_environment(modules)}
        self._process: asyncio.subprocess.Process | None = None
        self._hands: asyncio.subprocess.Process | None = None

    @property
    def read_only_uri(self) -> str:
        return f"test+unix:///default?socket={self._folder}/libvirt-sock-ro"

    async def start(self) -> None:
        """Run it until it says that it is ready, with no domain active."""
        config = self._folder / "libvirtd.conf"
        config.write_text(
            f'unix_sock_dir = "{self._folder}"\nauth_unix_ro = "none"\nauth_unix_rw = "none"\n'
            'host_uuid = "11111111-2222-3333-4444-555555555555"\n'
        )
        (self._folder / "none").mkdir(exist_ok=True)
        own = {name: str(self._folder / "none") for name in ("LIBVIRT_DRIVER_DIR", "XDG_RUNTIME_DIR", "HOME")}
        with _notified(self._folder / "notify") as ready:
            self._process = await asyncio.create_subprocess_exec(
                shutil.which("libvirtd", path="/usr/sbin:/usr/bin") or "libvirtd",
                *("-f", str(config), "-p", str(self._folder / "pid")),
                env={**os.environ, **own, "NOTIFY_SOCKET": str(self._folder / "notify")},
                stderr=asyncio.subprocess.DEVNULL,
            )
            await asyncio.wait_for(asyncio.get_running_loop().sock_recv(ready, 1024), START_LIMIT_SECONDS)
        self._hands = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _HANDS, f"test+unix:///default?socket={self._folder}/libvirt-sock"),
            env=self._environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        await self._answered()

    async def start_domain(self, uuid: str, name: str, devices: str = "", metadata: str = "") -> None:
        """Start a domain; `name` as it stands in XML."""
        await self._ask(
            "start",
            f"<domain type='test'><name>{name}</name><uuid>{uuid}</uuid><memory>1024</memory><os><type>hvm</type></os>"
            f"{metadata}<devices>{devices}</devices></domain>",
        )

    async def stop_domain(self, uuid: str) -> None:
        await self._ask("stop", uuid)

    def send(self, number: signal.Signals) -> None:
        """Signal the daemon."""
        assert self._process
        self._process.send_signal(number)

    async def end(self) -> None:
        """Kill it, with its domains."""
        for process in (self._hands, self._process):
            if process and process.returncode is None:
                process.kill()
                await process.communicate()
        self._hands = self._process = None

    async def _ask(self, what: str, text: str) -> None:
        assert self._hands
        assert self._hands.stdin
        self._hands.stdin.write(json.dumps([what, text]).encode() + b"\n")
        await self._answered()

    async def _answered(self) -> None:
        assert self._hands
        assert self._hands.stdout
        line = await asyncio.wait_for(self._hands.stdout.readline(), START_LIMIT_SECONDS)
        assert json.loads(line) == {}


@contextlib.contextmanager
def _notified(path: Path) -> Iterator[socket.socket]:
    """What systemd gives a service to say READY=1 on (sd_notify(3))."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as ready:
        ready.bind(str(path))
        yield ready


def require_libvirtd() -> None:
    if not shutil.which("libvirtd", path="/usr/sbin:/usr/bin"):
        pytest.skip("missing: libvirtd (Debian: libvirt-daemon)")
