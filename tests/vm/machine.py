"""A virtual machine in QEMU's software emulation, which needs neither /dev/kvm nor privilege; ended whatever happens, within a bound.

Its root is this machine's, read-only, so that it runs exactly what the tests run. It has no network and reaches nothing. A program inside
leaves its results in a folder of the test's; a machine that ended without them has failed, whatever QEMU's exit status says.
"""

from __future__ import annotations

import asyncio
import compileall
import contextlib
import json
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.vm.initrd import BUSYBOX, RESULTS_TAG, ROOT_TAG, SCRATCH, initrd
from tests.vm.kernel import FOLDER, Kernel, kernel_in

QEMU = "qemu-system-x86_64"
REPOSITORY = Path(__file__).parents[2]
# Boot takes 5 s on two idle cores, and a scenario half a minute; a machine that is busy beside takes several times as long.
END_LIMIT_SECONDS = 240.0
RESULTS_FILE = "results.json"
# no_timer_check: on a busy machine the emulated timer may be late enough for the kernel to take it for broken, and panic.
KERNEL_LINE = "console=ttyS0 panic=-1 quiet no_timer_check nowatchdog"
# For the root over 9p; a scenario adds its own.
ROOT_MODULES = ("virtio_pci", "9pnet_virtio", "9p")


def require_parts() -> Kernel:
    """The kernel; skips, printing what is missing."""
    missing = []
    if not shutil.which(QEMU):
        missing.append("qemu-system-x86")
    if not BUSYBOX.exists():
        missing.append("busybox-static")
    kernel = kernel_in(FOLDER)
    if kernel is None:
        missing.append(f"a kernel in {FOLDER.relative_to(REPOSITORY)} (python -m tests.vm.kernel)")
    if kernel is None or missing:
        pytest.skip(f"missing: {', '.join(missing)}")
    return kernel


class Machine:
    """A running virtual machine."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path) -> None:
        self.process = process
        # What it shares with its test.
        self.folder = folder / "results"
        self._console_file = folder / "console"

    async def results(self) -> dict[str, Any]:
        """Wait until it powered itself off; what its program left. Any: whatever a scenario writes, as JSON."""
        await self.ends()
        return self.left()

    async def ends(self) -> None:
        """Wait until it powered itself off; nothing else makes QEMU end well."""
        try:
            await asyncio.wait_for(self.process.wait(), END_LIMIT_SECONDS)
        except TimeoutError:
            raise AssertionError(f"it does not end:\n{self.story()}") from None
        assert "Power down" in self._console(), f"it ended in another way:\n{self.story()}"

    async def leaves(self) -> None:
        """Wait until its program has left something, while it goes on."""
        async with asyncio.timeout(END_LIMIT_SECONDS):
            while not (self.folder / RESULTS_FILE).exists():
                assert self.process.returncode is None, f"it ended:\n{self.story()}"
                # The folder is QEMU's; a look now and then is all that it takes.
                await asyncio.sleep(0.1)

    def left(self) -> dict[str, Any]:
        """What its program left so far."""
        file = self.folder / RESULTS_FILE
        assert file.exists(), f"no results:\n{self.story()}"
        results = json.loads(file.read_text())
        assert isinstance(results, dict)
        assert "failure" not in results, f"{results['failure']}\n{self.story()}"
        return results

    def log(self, name: str) -> str:
        """What a server inside has logged."""
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def story(self) -> str:
        """The last of all that it wrote."""
        logs = "".join(f"{log.name}:\n{log.read_text(errors='replace')[-4000:]}\n" for log in sorted(self.folder.glob("*.log")))
        return logs + self._console()

    def _console(self) -> str:
        return self._console_file.read_text(errors="replace")[-8000:]


@contextlib.asynccontextmanager
async def virtual_machine(
    kernel: Kernel,
    folder: Path,
    scenario: str,
    *,
    modules: Sequence[str] = (),
    devices: Sequence[str] = (),
    descriptors: Sequence[int] = (),
    cpus: int = 2,
) -> AsyncIterator[Machine]:
    """A machine that runs the module `scenario` as process 1, with the QEMU arguments `devices` and the `descriptors` that they name."""
    _compile_once()
    (folder / "results").mkdir(exist_ok=True)
    program = ["/bin/sh", "-c", f"cd {str(REPOSITORY)!r} && exec {sys.executable!r} -m {scenario}"]
    environment = [f"HOME={SCRATCH}", f"TMPDIR={SCRATCH}", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONDONTWRITEBYTECODE=1"]
    (folder / "initrd").write_bytes(
        initrd(kernel.modules(*ROOT_MODULES, *modules), ["/usr/bin/env", "-i", *environment, *program])
    )
    shares = [
        *("-virtfs", f"local,path=/,mount_tag={ROOT_TAG},security_model=none,readonly=on,multidevs=remap"),
        *("-virtfs", f"local,path={folder / 'results'},mount_tag={RESULTS_TAG},security_model=none"),
    ]
    devices = [*shares, *devices]
    async with emulated(kernel.image, folder, devices=devices, descriptors=descriptors, cpus=cpus) as process:
        yield Machine(process, folder)


@contextlib.asynccontextmanager
async def emulated(
    image: Path,
    folder: Path,
    *,
    board: str = "q35",
    words: Sequence[str] = (),
    devices: Sequence[str] = (),
    descriptors: Sequence[int] = (),
    cpus: int = 2,
) -> AsyncIterator[asyncio.subprocess.Process]:
    """QEMU with the kernel `image`, `words` for it, and the initrd in `folder`, the console in a file beside it; killed at the end."""
    command = [
        *("-nodefaults", "-no-user-config", "-no-reboot", "-display", "none"),
        *("-machine", f"{board},memory-backend=memory"),
        *("-object", "memory-backend-memfd,id=memory,size=1G,share=on", "-m", "1G"),
        *("-accel", "tcg,thread=multi", "-cpu", "max,la57=off", "-smp", str(cpus)),
        *("-kernel", str(image), "-initrd", str(folder / "initrd"), "-append", " ".join([KERNEL_LINE, *words])),
        *("-serial", f"file:{folder / 'console'}"),
        *devices,
    ]
    process = await asyncio.create_subprocess_exec(
        *_dying_with_us(), QEMU, *command, stdin=asyncio.subprocess.DEVNULL, pass_fds=descriptors
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def _compile_once() -> None:
    """Compile what the machine runs, as in an installed wheel: its root is read-only, and emulated each process would need seconds."""
    ours = ("guest_service", "vmm_proxy", "guest_client", "guest_transport", "guest_metrics", "guest_pages", "guest_contract")
    for package in (*ours, "generated", "tests/vm"):
        compileall.compile_dir(REPOSITORY / package, quiet=1)


def _dying_with_us() -> list[str]:
    """Has the kernel kill the machine when the tests are killed (util-linux's setpriv; everywhere on Debian)."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL"] if setpriv else []
