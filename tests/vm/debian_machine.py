"""A virtual machine that runs Debian from a disk of its own, systemd as process 1, with our packages installed by dpkg.

The packages are installed before the machine starts, in a chroot, by the tools that an owner of a machine would use; so their maintainer
scripts have run, and nothing of this machine is in there. The disk is read from one image and written nowhere: QEMU drops what a machine
writes. Rejected: installing inside the machine (a minute more in emulation), and this machine's root (masks, container marks, its users).
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.packaging import debian_root
from tests.packaging.debian_root import DebianRoot
from tests.vm.initrd import disk_initrd
from tests.vm.json_lines import Door, JsonLines
from tests.vm.kernel import Kernel
from tests.vm.machine import END_LIMIT_SECONDS, emulated
from tests.vm.monitor import Monitor

HAND = Path(__file__).parent / "inside/hand.py"
DISK_MODULES = ("virtio_pci", "virtio_blk", "crc32c_generic", "ext4", "vmw_vsock_virtio_transport", "vsock_loopback")
# Room beyond the files, for ext4's tables and for what a machine writes.
SPARE_BYTES = 256 * 1024 * 1024
# Log-ins, one of which waits a minute and a half for udev to tell of the console, and what takes half a minute in emulation.
NOT_NEEDED = ("serial-getty@ttyS0.service", "getty@tty1.service", "getty-static.service", "e2scrub_reap.service")
# Where the second serial line gets its root.
_HAND_UNIT = """
[Unit]
Description=Hand of the test outside
[Service]
ExecStart=/usr/bin/python3 /usr/local/lib/hand.py
Restart=no
[Install]
WantedBy=multi-user.target
"""


def require_packages() -> None:
    """Skips, printing what is missing for a Debian with our packages."""
    missing = debian_root.missing_parts()
    if shutil.which("mke2fs") is None:
        missing.append("e2fsprogs")
    if missing:
        pytest.skip(f"missing: {', '.join(missing)}")


def installed_root(folder: Path) -> DebianRoot:
    """A Debian with both packages, and with a hand for the test outside, in the new `folder`."""
    root = debian_root.unpacked(folder)
    for name in ("guest-service", "vmm-proxy"):
        package = debian_root.built(name)
        assert package
        root.install(package)
    shutil.copyfile(HAND, folder / "usr/local/lib/hand.py")
    (folder / "etc/systemd/system/hand.service").write_text(_HAND_UNIT)
    root.said("systemctl", "enable", "hand.service")
    root.said("systemctl", "mask", *NOT_NEEDED)
    return root


def disk_image(root: DebianRoot, image: Path) -> None:
    """Write the root into an ext4 image, owners and all."""
    size = sum(path.lstat().st_size for path in root.folder.rglob("*") if not path.is_symlink() and path.is_file())
    with image.open("wb") as file:
        file.truncate(size + SPARE_BYTES)
    subprocess.run(
        ["mke2fs", "-q", "-t", "ext4", "-O", "^has_journal", "-d", root.folder, image], check=True, capture_output=True
    )


@dataclass(frozen=True, slots=True)
class Done:
    """How a command in the machine ended; both streams together."""

    status: int
    said: str


class DebianMachine:
    """A running Debian."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path, monitor: Monitor, hand: JsonLines) -> None:
        self.monitor = monitor
        self._process = process
        self._folder = folder
        self._hand = hand

    async def run(self, *argv: str) -> Done:
        """Run a command in there, as root."""
        try:
            async with asyncio.timeout(END_LIMIT_SECONDS):
                await self._hand.say(list(argv))
                heard = await self._hand.hear()
        except (TimeoutError, EOFError) as error:
            raise AssertionError(f"{' '.join(argv)}: {error!r}\n{self.console()}") from error
        return Done(int(heard["status"]), str(heard["said"]))

    async def said(self, *argv: str) -> str:
        """What a command that must succeed says."""
        done = await self.run(*argv)
        assert done.status == 0, f"{' '.join(argv)}: {done}"
        return done.said

    async def shell(self, script: str) -> str:
        """What a shell script that must succeed says."""
        return await self.said("sh", "-ec", script)

    async def shows(self, unit: str, *properties: str) -> dict[str, str]:
        """What systemd says of a unit."""
        lines = (await self.said("systemctl", "show", unit, "--property", ",".join(properties))).splitlines()
        return dict(line.split("=", 1) for line in lines)

    async def until(self, unit: str, **wanted: str) -> None:
        """Wait until systemd says so of a unit."""
        shown: dict[str, str] = {}
        try:
            async with asyncio.timeout(END_LIMIT_SECONDS):
                while shown != wanted:
                    shown = await self.shows(unit, *wanted)
        except TimeoutError:
            raise AssertionError(f"{unit}: {shown}, not {wanted}\n{await self.story(unit)}") from None

    async def story(self, unit: str) -> str:
        """What a unit wrote."""
        return (await self.run("journalctl", "--no-pager", "--lines=60", "--unit", unit)).said

    def console(self) -> str:
        return (self._folder / "console").read_text(errors="replace")[-6000:]

    async def wakes(self) -> None:
        """Wait until the machine has booted and its hand is there."""
        try:
            async with asyncio.timeout(END_LIMIT_SECONDS):
                await self._hand.hear()
        except (TimeoutError, EOFError) as error:
            raise AssertionError(f"it does not boot: {error!r}\n{self.console()}") from error


@contextlib.asynccontextmanager
async def debian_machine(
    kernel: Kernel,
    image: Path,
    folder: Path,
    sockets: Path,
    *,
    suspends: bool = False,
    without: Sequence[str] = (),
    devices: Sequence[str] = (),
    descriptors: Sequence[int] = (),
) -> AsyncIterator[DebianMachine]:
    """A machine with a copy of the disk `image`, its sockets in a folder with a short path; units `without` are masked.

    One that `suspends` has an older board, and the packed kernel: the way out of sleep begins in real mode, which QEMU's start of an
    unpacked kernel does not prepare.
    """
    (folder / "initrd").write_bytes(disk_initrd(kernel.modules(*DISK_MODULES), ["/lib/systemd/systemd"]))
    with contextlib.ExitStack() as doors:
        monitor_door, hand_door = (doors.enter_context(contextlib.closing(Door(sockets / name))) for name in ("monitor", "hand"))
        arguments = [
            *("-drive", f"if=virtio,format=raw,snapshot=on,file={image}"),
            *("-chardev", f"socket,id=hand,path={hand_door.path}", "-device", "isa-serial,chardev=hand"),
            *("-qmp", f"unix:{monitor_door.path}"),
            *devices,
        ]
        started = emulated(
            kernel.packed if suspends else kernel.image,
            folder,
            board="pc" if suspends else "q35",
            words=[f"systemd.mask={unit}" for unit in without],
            devices=arguments,
            descriptors=descriptors,
        )
        async with started as process:
            monitor_lines, hand = await _opened(process, monitor_door, hand_door)
            doors.callback(monitor_lines.close)
            doors.callback(hand.close)
            monitor = Monitor(monitor_lines)
            listening = asyncio.create_task(monitor.listens())
            try:
                await monitor.does("qmp_capabilities")
                machine = DebianMachine(process, folder, monitor, hand)
                await machine.wakes()
                yield machine
            finally:
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)


async def _opened(process: asyncio.subprocess.Process, *doors: Door) -> list[JsonLines]:
    """QEMU's connections; a QEMU that refuses its arguments makes none."""
    opening = asyncio.ensure_future(asyncio.gather(*(door.opened() for door in doors)))
    ending = asyncio.ensure_future(process.wait())
    both: set[asyncio.Future[Any]] = {opening, ending}  # Any: which of them it was is asked below
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        assert opening.done(), f"QEMU ended with status {process.returncode}; what it said stands above"
        return opening.result()
    finally:
        for future in both:
            future.cancel()
        await asyncio.gather(*both, return_exceptions=True)
