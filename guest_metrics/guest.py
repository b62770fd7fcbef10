"""SystemInfo and the container list as sample lines, for a guest's own page and, with the proxy's labels in front, for the fleet's.

Entries with equal labels (two disks that a guest gives one name) count once, so that a page stays valid whatever a guest answers.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable

from guest_api.guest_api_pb2 import Container, DiskInfo, SystemInfo
from guest_contract import system_values
from guest_metrics import table
from guest_metrics.exposition import LabelText, Lines, Number, hundredths
from guest_metrics.forms import Told

# As docker ps shows them: enough to tell containers of one machine apart, and short in a label.
SHORT_ID_LENGTH = 12


def add_system(lines: Lines, info: SystemInfo) -> None:
    """The lines of one SystemInfo, disks included."""
    lines.add(table.GUEST_INFO, 1, info.os_name, info.os_version, info.kernel_version, info.cpu_model)
    samples = zip(_PLAIN, _plain(info), strict=True)
    lines.put_all(lines.labels((), ()), [(family, number) for family, number in samples if number is not None])
    disks: dict[LabelText, DiskInfo] = {}
    for disk in info.disks:
        # By the text of the labels: two names may be one once they are escaped.
        disks.setdefault(lines.labels(table.GUEST_DISK_TOTAL.labels, (disk.name, disk.mount_point)), disk)
    for labels, disk in disks.items():
        _add_disk(lines, labels, disk)
    for mode, seconds in system_values.cpu_seconds(info).items():
        lines.add(table.GUEST_CPU_SECONDS, seconds, mode)
    for interface, traffic in system_values.traffic(info).items():
        labels = lines.labels(table.GUEST_NETWORK_RECEIVED.labels, (interface,))
        for family, number in zip(_TRAFFIC, traffic, strict=True):
            lines.put(family, labels, number)


_SYSTEM = operator.attrgetter("os_name", "os_version", "kernel_version", "cpu_model")
_DISK = operator.attrgetter("name", "mount_point", "total_size", "free_size")
_PLAIN = (
    table.GUEST_CPUS, table.GUEST_MEMORY_TOTAL, table.GUEST_MEMORY_AVAILABLE, table.GUEST_MEMORY_USED, table.GUEST_MEMORY_FREE,
    table.GUEST_SWAP_TOTAL, table.GUEST_SWAP_USED, table.GUEST_SWAP_FREE, table.GUEST_UPTIME, table.GUEST_LOAD1, table.GUEST_LOAD5,
    table.GUEST_LOAD15,
)  # fmt: skip


_TRAFFIC = (
    table.GUEST_NETWORK_RECEIVED,
    table.GUEST_NETWORK_SENT,
    table.GUEST_NETWORK_RECEIVE_ERRORS,
    table.GUEST_NETWORK_SEND_ERRORS,
)


def _plain(info: SystemInfo) -> list[Number | None]:
    """The numbers of _PLAIN; None for what is impossible."""
    loads = (hundredths(info.loadavg_one), hundredths(info.loadavg_five), hundredths(info.loadavg_fifteen))
    return [info.num_cpus, *system_values.memory(info), *system_values.swap(info), info.uptime, *loads]


def read_system(info: SystemInfo) -> Told:
    """What add_system() writes: names, and the numbers in the lines' order."""
    numbers: list[Number | None] = [1, *_plain(info)]
    disks = list(map(_DISK, info.disks))
    sizes = [(total, free) for _, _, total, free in disks]
    used = [total - free if free <= total else None for total, free in sizes]
    numbers += [total for total, _ in sizes]
    numbers += [free for _, free in sizes]
    numbers += used
    numbers += [part / total if total and part is not None else None for (total, _), part in zip(sizes, used, strict=True)]
    seconds, traffic = system_values.cpu_seconds(info), system_values.traffic(info)
    numbers += [*seconds.values(), *itertools.chain.from_iterable(traffic.values())]
    return (_SYSTEM(info), *[(name, at) for name, at, _, _ in disks], *seconds, *traffic), numbers


def _add_disk(lines: Lines, labels: LabelText, disk: DiskInfo) -> None:
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
    family = table.GUEST_CONTAINER_INFO
    for labels in dict.fromkeys(
        lines.labels(family.labels, (each.id[:SHORT_ID_LENGTH], display_name(each), each.image, each.state))
        for each in containers
    ):
        lines.put(family, labels, 1)


def display_name(container: Container) -> str:
    """The container's own name without the engine's leading slash; further names are aliases that a link made (`/other/alias`)."""
    names = [name.removeprefix("/") for name in container.names]
    return next((name for name in names if "/" not in name), names[0] if names else "")
