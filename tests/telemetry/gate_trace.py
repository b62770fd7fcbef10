"""Counts the system calls between entering the gate and leaving it, with strace(1) on a process that does nothing else.

python -m tests.telemetry.gate_trace SYSFS      the process that is traced
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

from guest_service.telemetry import build_telemetry

ROOT = Path(__file__).resolve().parents[2]
CALLS = 1000
QUESTIONS_PER_CALL = 3


def system_calls_in_gate(sysfs: Path, folder: Path) -> list[str]:
    """strace's line of each system call that CALLS times QUESTIONS_PER_CALL answers took; the trace is kept in `folder`."""
    trace = folder / "trace"
    command = ["strace", "-f", "-o", str(trace), sys.executable, "-m", "tests.telemetry.gate_trace", str(sysfs)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=50, stdout=subprocess.DEVNULL)
    lines = trace.read_text().splitlines()
    if any("execve(" in line for line in lines[1:]):
        raise AssertionError("a process was started")
    entered = next(number for number, line in enumerate(lines) if "/gate-entered-measured" in line)
    left = next(number for number, line in enumerate(lines) if "/gate-left-measured" in line)
    return lines[entered + 1 : left]


async def ask(sysfs: Path) -> None:
    """Ask in every way, once to fill the allocator's pools and once between two marks that strace sees."""
    telemetry = build_telemetry(collector=["/nowhere"], sysfs=sysfs)
    await telemetry.start()
    gc.collect()
    gc.disable()
    for turn in ("warm", "measured"):
        calls = range(CALLS)
        os.path.exists(f"/gate-entered-{turn}")
        for _ in calls:
            await telemetry.gpu_info("unix:", max_age_seconds=1.0)
            telemetry.last("unix:")
            telemetry.peek()
        os.path.exists(f"/gate-left-{turn}")
    await telemetry.close()


if __name__ == "__main__":
    asyncio.run(ask(Path(sys.argv[1])))
