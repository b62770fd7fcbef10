"""Takes samples of mixed outcome in a process of its own and prints what that process has kept.

    python -m tests.telemetry.soak FOLDER SAMPLES

Prints one line of JSON: growth of resident memory, descriptors, threads and children from the end of a warm-up to the end, and the counts
of outcomes. The children (soak_child.c) print, fail, die, print garbage or hang.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import json
import logging
import subprocess
import sys
from pathlib import Path

from guest_api import guest_api_pb2
from guest_service.telemetry import GpuTelemetry, build_telemetry
from tests.eventually import eventually
from tests.inventory.sys_tree import SysTree
from tests.sampler.children import CARD, SAMPLE, children_of, parts_of

# Allocator, caches and counters have their size after this many.
WARM_UP = 200

CHILD = Path(__file__).with_name("soak_child.c")


def resident_bytes() -> int:
    """Resident memory of this process (proc(5), statm)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def kept() -> dict[str, int]:
    """What this process holds."""
    gc.collect()
    return {
        "resident_bytes": resident_bytes(),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "children": len(children_of()),
    }


async def take(telemetry: GpuTelemetry, count: int) -> None:
    """Let so many outcomes come, each asked for by another of a hundred callers; then let the last child go."""
    timeouts = telemetry.stats.samples["timeout"]
    goal = sum(telemetry.stats.samples.values()) + count
    for number in itertools.count():
        if sum(telemetry.stats.samples.values()) >= goal:
            break
        # On a busy machine now and then one meets a child that is still being ended, and gets no sample of its own.
        await telemetry.gpu_info(f"caller {number % 100}", max_age_seconds=0)
        if telemetry.stats.samples["timeout"] > timeouts:
            timeouts += 1
            await gone()
    await gone()


async def gone() -> None:
    """Wait until no child is left: one that was told to end takes a moment, and samples until then would be refused."""
    await eventually(lambda: not children_of())


async def soak(folder: Path, samples: int) -> dict[str, object]:
    """Sample on and on; what grew, and how often each outcome came."""
    tree = SysTree(folder / "sys")
    tree.add("0000:01:00.0", driver="nvidia")
    tree.load_module()
    partial = guest_api_pb2.GpuInfoResponse(gpus=[CARD])
    partial.gpus[0].ClearField("temperature_c")
    partial.gpus[0].errors.append("temperature: Not Supported")
    (folder / "sample").write_text(parts_of(SAMPLE))
    (folder / "partial").write_text(parts_of(partial))
    (folder / "error").write_text(parts_of(guest_api_pb2.GpuInfoResponse(error="Driver/library version mismatch")))
    (folder / "count").write_text("0\n")
    child = folder / "child"
    subprocess.run(["gcc", "-O1", "-static", str(CHILD), "-o", str(child)], check=True)
    telemetry = build_telemetry(
        collector=[str(child), str(folder)],
        sysfs=tree.root,
        sample_ttl_seconds=0.0,
        failure_backoff_seconds=0.0,
        sample_timeout_seconds=0.5,
    )
    await telemetry.start()
    await take(telemetry, WARM_UP)
    before = kept()
    await take(telemetry, samples)
    after = kept()
    await telemetry.close()
    return {"grew": {name: after[name] - before[name] for name in before}, "samples": telemetry.stats.samples}


if __name__ == "__main__":
    logging.disable()
    print(json.dumps(asyncio.run(soak(Path(sys.argv[1]), int(sys.argv[2])))))
