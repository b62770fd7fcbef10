"""SystemInfo and the container list as sample lines, for a guest's own page and, with the proxy's labels in front, for the fleet's.

Entries with equal labels (two disks that a guest gives one name) count once, so that a page stays valid whatever a guest answers.
"""

from __future__ import annotations

from collections.abc import Iterable

from guest_api.guest_api_pb2 import Container, DiskInfo, SystemInfo
from guest_metrics import table
from guest_metrics.exposition import Lines, hundredths

# As docker ps shows them: enough to tell containers of one machine apart, and short in a label.
SHORT_ID_LENGTH = 12


def add_system(lines: Lines, info: SystemInfo) -> None:
    """The lines of one SystemInfo, disks included."""
    lines.add(table.GUEST_INFO, 1, info.os_name, info.os_version, info.kernel_version, info.cpu_model)
    lines.add(table.GUEST_CPUS, info.num_cpus)
    lines.add(table.GUEST_MEMORY_TOTAL, info.total_memory)
    lines.add(table.GUEST_MEMORY_AVAILABLE, info.available_memory)
    lines.add(table.GUEST_MEMORY_USED, info.used_memory)
    lines.add(table.GUEST_MEMORY_FREE, info.free_memory)
    lines.add(table.GUEST_SWAP_TOTAL, info.total_swap)
    lines.add(table.GUEST_SWAP_USED, info.used_swap)
    lines.add(table.GUEST_SWAP_FREE, info.free_swap)
    lines.add(table.GUEST_UPTIME, info.uptime)
    lines.add(table.GUEST_LOAD1, hundredths(info.loadavg_one))
    lines.add(table.GUEST_LOAD5, hundredths(info.loadavg_five))
    lines.add(table.GUEST_LOAD15, hundredths(info.loadavg_fifteen))
    shown: set[tuple[str, str]] = set()
    for disk in info.disks:
        key = (disk.name, disk.mount_point)
        if key not in shown:
            shown.add(key)
            _add_disk(lines, disk)


def _add_disk(lines: Lines, disk: DiskInfo) -> None:
    labels = lines.labels(table.GUEST_DISK_TOTAL.labels, (disk.name, disk.mount_point))
    lines.put(table.GUEST_DISK_TOTAL, labels, disk.total_size)
    lines.put(table.GUEST_DISK_FREE, labels, disk.free_size)
    # A file system that grew between two reads, or a guest that lies: what is used is then unknown, not negative.
    if disk.free_size <= disk.total_size:
        used = disk.total_size - disk.free_size
        lines.put(table.GUEST_DISK_USED, labels, used)
        if disk.total_size:
            lines.put(table.GUEST_DISK_USED_RATIO, labels, used / disk.total_size)


def add_containers(lines: Lines, containers: Iterable[Container]) -> None:
    """One line per container."""
    shown: set[tuple[str, str, str, str]] = set()
    for container in containers:
        key = (container.id[:SHORT_ID_LENGTH], display_name(container), container.image, container.state)
        if key not in shown:
            shown.add(key)
            lines.add(table.GUEST_CONTAINER_INFO, 1, *key)


def display_name(container: Container) -> str:
    """The container's own name without the engine's leading slash; further names are aliases that a link made (`/other/alias`)."""
    names = [name.removeprefix("/") for name in container.names]
    return next((name for name in names if "/" not in name), names[0] if names else "")
