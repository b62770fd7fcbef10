"""What the page shows, as words and bar lengths, made from messages of the contract.

Judging happens here, so that templates only place words: unknown becomes a dash, never a zero; an error says so in the place of values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from guest_api.guest_api_pb2 import Container, DiskInfo, GpuDevice, GpuInfoResponse, SystemInfo
from guest_metrics.guest import SHORT_ID_LENGTH, display_name
from guest_transport.http import formats

# From here a disk or memory bar asks to be looked at. A full GPU is what it was bought for, and asks nothing.
FULL_PERCENT = 90


@dataclass(frozen=True, slots=True)
class Bar:
    """A labelled bar; `fill` is None when the value is unknown."""

    label: str
    words: str
    fill: int | None
    alarming: bool = False


@dataclass(frozen=True, slots=True)
class CardView:
    """One GPU."""

    index: int
    uuid: str
    pci: str
    bars: tuple[Bar, ...]
    temperature: str
    power: str
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GpuView:
    """The GPU section: `error` (why nothing is known) or cards, maybe none. `waiting`: no outcome yet."""

    waiting: bool
    error: str
    age: str
    cc_enabled: str
    cc_ready: str
    devtools: bool
    cards: tuple[CardView, ...]
    missing: str


@dataclass(frozen=True, slots=True)
class SystemView:
    """The system section."""

    facts: tuple[tuple[str, str], ...]
    bars: tuple[Bar, ...]
    disks: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One container; `logs` is the name in the log link."""

    logs: str
    id: str
    name: str
    image: str
    state: str
    status: str
    running: bool


def gpu_view(reply: GpuInfoResponse, *, ready: bool, pci_devices: int | None) -> GpuView:
    """The GPU section from the last outcome."""
    seen = len(reply.gpus)
    lost = pci_devices is not None and ready and not reply.error and seen < pci_devices
    return GpuView(
        waiting=not ready,
        error=formats.text(reply.error),
        age=formats.age(reply.sample_age_ms) if reply.HasField("sample_age_ms") else "",
        cc_enabled=formats.state(reply.cc_enabled if reply.HasField("cc_enabled") else None),
        cc_ready=formats.state(reply.cc_ready if reply.HasField("cc_ready") else None),
        devtools=reply.cc_devtools,
        cards=tuple(card_view(device) for device in reply.gpus),
        missing=f"{pci_devices} on the PCI bus, {seen} seen by the driver" if lost else "",
    )


def card_view(device: GpuDevice) -> CardView:
    """One card."""
    return CardView(
        index=device.index,
        uuid=formats.text(device.uuid) or formats.UNKNOWN,
        pci=formats.pci(device.pci_bus_id) or formats.UNKNOWN,
        bars=(
            _percent_bar("Utilization", device.utilization_gpu if device.HasField("utilization_gpu") else None),
            _memory_bar(device),
            _percent_bar("Memory bandwidth", device.utilization_memory if device.HasField("utilization_memory") else None),
        ),
        temperature=f"{device.temperature_c} °C" if device.HasField("temperature_c") else formats.UNKNOWN,
        power=formats.power(device.power_usage_mw) if device.HasField("power_usage_mw") else formats.UNKNOWN,
        errors=tuple(formats.text(error) for error in device.errors),
    )


def _percent_bar(label: str, percent: int | None) -> Bar:
    if percent is None:
        return Bar(label, formats.UNKNOWN, None)
    return Bar(label, f"{percent} %", min(percent, 100))


def _memory_bar(device: GpuDevice) -> Bar:
    used = device.memory_used_bytes if device.HasField("memory_used_bytes") else None
    total = device.memory_total_bytes if device.HasField("memory_total_bytes") else None
    if used is None and total is None:
        return Bar("Memory", formats.UNKNOWN, None)
    words = " / ".join(formats.UNKNOWN if value is None else formats.size(value) for value in (used, total))
    return Bar("Memory", words, None if used is None or not total else formats.percent_of(used, total))


def system_view(info: SystemInfo) -> SystemView:
    """The system section."""
    name = " ".join(part for part in (info.os_name, info.os_version) if part)
    return SystemView(
        facts=(
            ("System", formats.text(name) or formats.UNKNOWN),
            ("Kernel", formats.text(info.kernel_version) or formats.UNKNOWN),
            ("Processor", formats.text(info.cpu_model) or formats.UNKNOWN),
            ("CPUs", str(info.num_cpus)),
            ("Uptime", formats.uptime(info.uptime)),
            ("Load", formats.load(info.loadavg_one, info.loadavg_five, info.loadavg_fifteen)),
        ),
        bars=(
            _usage_bar("Memory", info.used_memory, info.total_memory, f"{formats.size(info.available_memory)} available"),
            _usage_bar("Swap", info.used_swap, info.total_swap) if info.total_swap else Bar("Swap", "none", None),
        ),
        disks=tuple(_disk_bar(disk) for disk in info.disks),
    )


def _usage_bar(label: str, used: int, total: int, more: str = "") -> Bar:
    fill = formats.percent_of(used, total)
    words = f"{formats.size(used)} / {formats.size(total)}"
    return Bar(label, f"{words} · {more}" if more else words, fill, fill >= FULL_PERCENT)


def _disk_bar(disk: DiskInfo) -> Bar:
    label = f"{formats.text(disk.mount_point)} · {formats.text(disk.name)}"
    if disk.free_size > disk.total_size:
        return Bar(label, f"{formats.UNKNOWN} / {formats.size(disk.total_size)}", None)
    return _usage_bar(label, disk.total_size - disk.free_size, disk.total_size, f"{formats.size(disk.free_size)} free")


def container_views(containers: Sequence[Container]) -> tuple[ContainerView, ...]:
    """The containers, running ones first, then by name."""
    views = [
        ContainerView(
            logs=container.id,
            id=formats.text(container.id[:SHORT_ID_LENGTH]),
            name=formats.text(display_name(container)) or formats.UNKNOWN,
            image=formats.text(container.image),
            state=formats.text(container.state),
            status=formats.text(container.status),
            running=container.state == "running",
        )
        for container in containers
    ]
    return tuple(sorted(views, key=lambda view: (not view.running, view.name, view.id)))
