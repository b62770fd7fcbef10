"""In a virtual machine with NVIDIA's PCI functions and no driver: the agent on vsock, until the host has it powered off."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from pathlib import Path

from guest_service.inventory import read_inventory
from tests.vm.initrd import BUSYBOX, RESULTS, SCRATCH
from tests.vm.inside.scenario import Results, Server, command, leave, run_as_first_process, told, written

SYSFS = Path("/sys")


async def scenario() -> Results:
    """The host asks before and after the driver comes; then it has the machine powered off."""
    library = shutil.copytree(RESULTS / "nvml", SCRATCH / "nvml") / "libnvidia-ml.so.1"
    config = written(
        "guest.toml",
        f"""
        [grpc]
        listen = ["vsock:any:8000"]
        [gpu]
        nvml_library = "{library}"
        sample_timeout_seconds = 60
        failure_backoff_seconds = 1
        [power]
        shutdown_command = ["{BUSYBOX}", "poweroff", "-f"]
        """,
    )
    agent = Server("agent", ["guest_service", "serve", "--config", str(config), "--http", "off"])
    await agent.says("listening on")
    gate = command("guest_service", "boot-gate", "-o", "json")
    leave({"inventory": json.loads(read_inventory(SYSFS).to_json()), "gate": gate})
    await told("load-driver")
    _load_driver()
    await asyncio.Event().wait()
    raise AssertionError("only the host ends this machine")


def _load_driver() -> None:
    """What a loaded module shows in /sys, and nothing else: the scripted library answers in the driver's place."""
    subprocess.run([str(BUSYBOX), "mount", "-t", "tmpfs", "modules", str(SYSFS / "module")], check=True)
    (SYSFS / "module/nvidia").mkdir()


if __name__ == "__main__":
    run_as_first_process(scenario)
