"""Operating system, processor, memory, load and disks of the guest, as SysInfo and the metrics page show them.

Reads only what is asked, below a root of /proc that is passed in; no process is looked at. Memory, load, uptime and processors fail as a
whole with the part's name; a disk fails alone; names that the guest does not tell stay empty. Rejected: psutil's readers (their /proc root
is global to the process, and cpu_percent-like calls keep state).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from guest_api import guest_api_pb2
from guest_service.host_facts.disks import DiskSizes
from guest_service.host_facts.errors import FactError, PartLog
from guest_service.host_facts.off_loop import OffLoop
from guest_service.host_facts.procfs import (
    SHOWN_PREFIXES,
    parse_cpu_model,
    parse_cpu_ticks,
    parse_loadavg,
    parse_meminfo,
    parse_net_dev,
    parse_online_cpus,
    parse_os_release,
    parse_uptime,
)

T = TypeVar("T")

# With the disks' 2 s this stays below 5 s, and so below every usual scrape timeout. /proc answers in a millisecond.
PROC_BOUND_SECONDS = 2.0
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
# os-release(5): the first that exists.
OS_RELEASE_FILES = (Path("/etc/os-release"), Path("/usr/lib/os-release"))


@dataclass(frozen=True, slots=True)
class _Names:
    """What stays the same while the guest runs."""

    os_name: str
    os_version: str
    kernel_version: str
    cpu_model: str


class SystemFacts:
    """Reads SystemInfo afresh with each call; names of system and processor once."""

    def __init__(
        self,
        *,
        procfs: Path = Path("/proc"),
        data_disks: Iterable[str] = ("/",),
        os_release: Sequence[Path] = OS_RELEASE_FILES,
        extra_prefixes: Iterable[str] = (),
        part_log: PartLog | None = None,
    ) -> None:
        part_log = part_log or PartLog()
        self._part_log = part_log
        self._prefixes = (*SHOWN_PREFIXES, *extra_prefixes)
        self._procfs = procfs
        self._os_release = os_release
        self._names: _Names | None = None
        self._proc = OffLoop("system", self._read_proc, PROC_BOUND_SECONDS)
        self._disks = DiskSizes(data_disks, procfs=procfs, part_log=part_log)

    async def read(self) -> guest_api_pb2.SystemInfo:
        """The guest now; FactError naming the part that cannot be read."""
        info = guest_api_pb2.SystemInfo()
        info.CopyFrom(await self._proc.get())
        info.disks.extend(await self._disks.read())
        return info

    def _read_proc(self) -> guest_api_pb2.SystemInfo:
        names = self._names = self._names or self._read_names()
        memory = self._part("memory", "meminfo", parse_meminfo)
        cpus, ticks = self._part("processors", "stat", lambda text: (parse_online_cpus(text), parse_cpu_ticks(text)))
        one, five, fifteen = self._part("load", "loadavg", parse_loadavg)
        return guest_api_pb2.SystemInfo(
            os_name=names.os_name,
            os_version=names.os_version,
            kernel_version=names.kernel_version,
            cpu_model=names.cpu_model,
            num_cpus=cpus,
            cpu_times=[guest_api_pb2.CpuTime(mode=mode, seconds=count / _TICKS_A_SECOND) for mode, count in ticks.items()],
            network=self._traffic(),
            total_memory=memory.total,
            available_memory=memory.available,
            used_memory=memory.total - memory.available,
            free_memory=memory.free,
            total_swap=memory.swap_total,
            used_swap=memory.swap_total - memory.swap_free,
            free_swap=memory.swap_free,
            uptime=self._part("uptime", "uptime", parse_uptime),
            loadavg_one=one,
            loadavg_five=five,
            loadavg_fifteen=fifteen,
        )

    def _traffic(self) -> list[guest_api_pb2.InterfaceTraffic]:
        """Of the interfaces that NetworkInfo shows. A machine without networks has none, which is no failure."""
        try:
            found = self._part("interfaces", "net/dev", parse_net_dev)
        except FactError as error:
            self._part_log.failed("interfaces", error)
            return []
        self._part_log.works("interfaces")
        return [
            guest_api_pb2.InterfaceTraffic(
                interface=name, received_bytes=rx, transmitted_bytes=tx, receive_errors=rx_errors, transmit_errors=tx_errors
            )
            for name, (rx, tx, rx_errors, tx_errors) in sorted(found.items())
            if name.startswith(self._prefixes)
        ]

    def _read_names(self) -> _Names:
        os_name, os_version = parse_os_release(self._os_release_text())
        return _Names(
            os_name=os_name,
            os_version=os_version,
            kernel_version=self._part("kernel", "sys/kernel/osrelease", str.strip),
            cpu_model=self._part("processor", "cpuinfo", parse_cpu_model),
        )

    def _os_release_text(self) -> str:
        """The first of the files that can be read; empty where none can: a name that is not told is no failure."""
        for path in self._os_release:
            with contextlib.suppress(OSError):
                # A pipe or a device would be waited for.
                if path.is_file():
                    return path.read_text(encoding="utf-8", errors="replace")
        return ""

    def _part(self, part: str, file: str, parse: Callable[[str], T]) -> T:
        try:
            return parse((self._procfs / file).read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            raise FactError(part, f"{file}: {error.strerror or error}") from error
        except ValueError as error:
            raise FactError(part, str(error)) from error
