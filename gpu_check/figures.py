"""What only a real card can tell, and no check judges: ratio to C, cost of each group, eight samples at once, confidential computing."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

from gpu_check import yardstick
from gpu_check.group_costs import HEAD, group_costs
from gpu_check.machine import COMMAND_SECONDS, Machine
from gpu_check.verdict import Seen, need
from guest_contract.card_fields import GROUPS
from guest_service.collector.command import collector_command

AT_ONCE = 8


def ratio(machine: Machine, folder: Path) -> Seen:
    """The collector against the C program on the machine's own library."""
    library = machine.nvml_file()
    timer, program = yardstick.compiled("time_process", folder), yardstick.compiled("sample", folder)
    commands = {"C program": [program, str(library)], "collector": collector_command(nvml_library=library)}
    figures = yardstick.compared(timer, machine.runs, commands)
    in_c, ours = figures["C program"], figures["collector"]
    words = f"{ours.wall_ms:.1f} ms against {in_c.wall_ms:.1f} ms in C: {ours.wall_ms / in_c.wall_ms:.3f}"
    return Seen(
        f"{words} (target {yardstick.RATIO_LIMIT} where nvmlInit takes 90 ms); {ours.cpu_ms:.1f} ms CPU, {ours.peak_rss_mib:.1f} MiB",
        {name: asdict(row) for name, row in figures.items()},
    )


def groups(machine: Machine, folder: Path) -> Seen:
    """What each group costs over all cards, for the C program and for the collector's code: both ask the same calls."""
    library = machine.nvml_file()
    rows = group_costs(yardstick.compiled("sample", folder), library, machine.runs)
    of_groups = [row for row in rows if row.name in GROUPS]
    ours, in_c = sum(row.collector.wall_ms for row in of_groups), sum(row.in_c.wall_ms for row in of_groups)
    dearest = max(of_groups, key=lambda row: row.collector.wall_ms)
    words = (
        f"all groups {ours:.1f} ms against {in_c:.1f} ms in C; the dearest is {dearest.name}: {dearest.collector.wall_ms:.1f} ms"
    )
    return Seen(words, {row.name: asdict(row) for row in rows}, (HEAD, *map(str, rows)))


def at_once(machine: Machine) -> Seen:
    """Eight samples started together: a driver may serve one after the other."""
    command = collector_command(nvml_library=machine.nvml)
    started = time.monotonic()
    several = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(AT_ONCE)]
    try:
        answers = [process.communicate(timeout=COMMAND_SECONDS)[0] for process in several]
    finally:
        for process in several:
            if process.poll() is None:
                process.kill()
                process.communicate()
    took = time.monotonic() - started
    errors = [error for answer in answers if (error := json.loads(answer or "{}").get("error", "no answer"))]
    need(not errors, f"{len(errors)} of {AT_ONCE} failed: {errors[:1]}")
    return Seen(f"{AT_ONCE} samples at once took {took * 1000:.0f} ms", {"seconds": took})


def confidential(machine: Machine) -> Seen:
    """NVML's own numbers, and the protected memory by which the boot gate tells a card in CC mode."""
    command = [sys.executable, "-I", "-m", "guest_service.collector.confidential", "read", *machine.nvml_flags()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    need(done.returncode == 0, f"exited with {done.returncode}: {done.stderr[-200:]}")
    state = json.loads(done.stdout)
    need(not state["error"], str(state["error"]))
    numbers = ", ".join(f"{name} {state[name]}" for name in ("environment", "feature", "devtools", "ready"))
    protected = [card.get("protected_bytes") for card in state["cards"]]
    return Seen(f"{numbers}; protected bytes by card {protected}", {"state": state})
