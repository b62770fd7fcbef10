"""Real processes that behave like a collector, or unlike one."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from guest_api import guest_api_pb2
from guest_contract.card_fields import BASE, ROWS

# A card as one H200 shows it; the memory total does not fit into 32 bits.
CARD = guest_api_pb2.GpuDevice(
    index=0,
    uuid="GPU-8c1e2a60-0f3c-4f0e-9d6a-3a2b1c0d9e8f",
    pci_bus_id="00000000:01:00.0",
    utilization_gpu=0,
    utilization_memory=0,
    memory_total_bytes=150754820096,
    memory_used_bytes=0,
    memory_free_bytes=150754820096,
    temperature_c=31,
    power_usage_mw=79700,
)
CARD_KEYS = ("uuid", "pci_bus_id", *(row.name for row in ROWS if row.group == BASE))
MACHINE_KEYS = (
    "cc_ready", "cc_enabled", "cc_devtools", "cc_environment", "cc_multi_gpu_mode", "driver_version", "cuda_driver_version", "nvml_version"
)  # fmt: skip
SAMPLE = guest_api_pb2.GpuInfoResponse(gpus=[CARD], cc_ready=True, cc_enabled=True)


def parts_of(message: guest_api_pb2.GpuInfoResponse) -> str:
    """The parts, a line each, that the collector tells for `message`: what it was not asked is not there, what has no answer is null."""
    if message.error:
        return _lines({"error": message.error}, {"end": True})
    cards: list[dict[str, object]] = [
        {"card": card.index, "values": {name: _value(card, name) for name in CARD_KEYS}, "errors": list(card.errors)}
        for card in message.gpus
    ]
    machine: dict[str, object] = {"machine": {name: _value(message, name) for name in MACHINE_KEYS}}
    return _lines({"cards": len(cards)}, machine, {"opened": True}, *cards, {"end": True})


def _lines(*parts: dict[str, object]) -> str:
    return "".join(f"{json.dumps(part, separators=(',', ':'))}\n" for part in parts)


def _value(message: guest_api_pb2.GpuDevice | guest_api_pb2.GpuInfoResponse, name: str) -> object:
    field = message.DESCRIPTOR.fields_by_name[name]
    # mypy cannot know that `name` is one of the message's optional fields.
    if field.has_presence and not message.HasField(name):  # type: ignore[arg-type]
        return None
    return getattr(message, name)


def shell(script: str, *arguments: str) -> list[str]:
    """argv of a shell that runs `script`, a few milliseconds of work; its stdout is the descriptor that the sampler adds."""
    return ["/bin/sh", "-c", f'for last; do :; done; exec >"/proc/self/fd/$last"; {script}', "collector", *arguments]


def prints(text: str) -> list[str]:
    """argv of a process that tells `text` and exits with 0."""
    return shell('printf %s "$1"', text)


def python(script: str, *arguments: str) -> list[str]:
    """argv of a Python without site packages that runs `script`; its stdout is the descriptor that the sampler adds."""
    own = "import os, sys; os.dup2(int(sys.argv[-1]), 1); os.close(int(sys.argv[-1]))\n"
    return [sys.executable, "-I", "-S", "-c", own + script, *arguments]


def children_of(pid: int | None = None) -> list[int]:
    """Process ids of all children of this process (or of `pid`), zombies included."""
    parent = os.getpid() if pid is None else pid
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (stat := _stat(entry)) is not None and int(stat[1]) == parent:
            found.append(int(entry.name))
    return found


def state_of(pid: int) -> str | None:
    """The one-letter state of a process, None when it is gone."""
    stat = _stat(Path("/proc", str(pid)))
    return None if stat is None else stat[0]


def group_of(pgid: int) -> Iterable[int]:
    """All processes of a process group that still run."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            stat = _stat(entry)
            if stat is not None and int(stat[2]) == pgid and stat[0] != "Z":
                yield int(entry.name)


def _stat(entry: Path) -> list[str] | None:
    """State, parent, group, … of /proc/<pid>/stat (proc(5)); the name before them may hold anything."""
    try:
        return (entry / "stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
