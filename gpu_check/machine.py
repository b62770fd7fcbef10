"""The machine that is checked: where its /sys and its NVML library are, and a /sys of our own that hides parts of it.

The library is looked for as the collector's loader does, in a process that ends at once, so that this process never holds a driver.
"""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gpu_check.verdict import CheckSkippedError

LIBRARY = "libnvidia-ml.so.1"
# Loads it and says where the kernel has it mapped from.
_WHERE = f"""
import ctypes
ctypes.CDLL("{LIBRARY}")
print(next(line.split(maxsplit=5)[5].strip() for line in open("/proc/self/maps") if "libnvidia-ml" in line))
"""
COMMAND_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Machine:
    """What the command line chose; `nvml` None: the loader finds it."""

    sysfs: Path
    nvml: Path | None
    nvidia_smi: str | None
    # Length of the pause between the two scrapes of check 8, as a scraper makes it.
    gap_seconds: float
    # Runs of each program in each of the rounds of the figure.
    runs: int

    def nvml_file(self) -> Path:
        """The library's file; raises CheckSkippedError where the loader finds none."""
        if self.nvml is not None:
            return self.nvml
        done = subprocess.run([sys.executable, "-I", "-c", _WHERE], capture_output=True, text=True, timeout=COMMAND_SECONDS)
        if done.returncode != 0:
            last = done.stderr.strip().rpartition("\n")[2]
            raise CheckSkippedError(f"{LIBRARY} cannot be loaded: {last.removeprefix('OSError: ') or 'no reason given'}")
        return Path(done.stdout.strip())

    def nvml_flags(self) -> list[str]:
        """What makes a command use the chosen library."""
        return [] if self.nvml is None else ["--nvml-library", str(self.nvml)]


def mirrored_sysfs(real: Path, folder: Path, *, pci: bool) -> Path:
    """A /sys in `folder` that leads to `real`, but has no loaded NVIDIA driver and, without `pci`, no PCI device."""
    root = folder / "sys"
    (root / "module").mkdir(parents=True)
    hidden = {"module"} if pci else {"module", "bus"}
    for entry in real.iterdir():
        if entry.name not in hidden:
            (root / entry.name).symlink_to(entry)
    if not pci:
        (root / "bus/pci/devices").mkdir(parents=True)
    return root


def load_driver_in(root: Path) -> None:
    """Let the module appear in a mirrored /sys."""
    (root / "module/nvidia").mkdir()


def facts(machine: Machine) -> dict[str, object]:
    """The machine, for the head of the report; what cannot be found out is None."""
    try:
        library: str | None = str(machine.nvml_file())
    except CheckSkippedError:
        library = None
    driver = machine.sysfs / "module/nvidia/version"
    return {
        "kernel": platform.release(),
        "cpu": _cpu(),
        "python": platform.python_version(),
        "library": library,
        "driver": driver.read_text().strip() if driver.exists() else None,
        "nvidia_smi": machine.nvidia_smi,
        "gcc": shutil.which("gcc"),
    }


def _cpu() -> str | None:
    found = re.search(r"^model name\s*:\s*(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1] if found else None
