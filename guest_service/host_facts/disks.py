"""Sizes of the data disks, read so that a file system that hangs (NFS, a lost SAN path) delays nobody.

One thread walks over the disks. When it makes no progress for a while, the disk it stands at counts as stuck: it is left out, and is not
asked again until that thread comes back, so there is never more than one stuck thread per disk. A path where nothing is mounted is left
out too: its sizes would be those of the disk below it. Rejected: one thread per disk (256 disks would be 256 threads each scrape).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from guest_api import guest_api_pb2
from guest_service.host_facts.errors import FactError, PartLog
from guest_service.host_facts.off_loop import OffLoop, start_thread
from guest_service.host_facts.procfs import UINT64_MAX, bounded, parse_mounts
from guest_service.host_facts.shared_read import SharedRead

# A local disk answers in microseconds; half a second without any progress is a disk that hangs.
PATIENCE_SECONDS = 0.5
# All disks together; the whole of SysInfo has to stay below 5 s.
BOUND_SECONDS = 2.0


class FileSystemSize(Protocol):
    """What is used of os.statvfs_result; f_bavail is what unprivileged users may still write."""

    @property
    def f_frsize(self) -> int: ...  # noqa: D102 -- statvfs(3)
    @property
    def f_blocks(self) -> int: ...  # noqa: D102 -- statvfs(3)
    @property
    def f_bavail(self) -> int: ...  # noqa: D102 -- statvfs(3)


@dataclass(frozen=True, slots=True)
class Size:
    """Bytes of a file system."""

    total: int
    free: int


class DiskSizes:
    """The sizes of what is mounted at `mount_points`."""

    def __init__(
        self,
        mount_points: Iterable[str],
        *,
        procfs: Path,
        part_log: PartLog,
        statvfs: Callable[[str], FileSystemSize] = os.statvfs,
        patience_seconds: float = PATIENCE_SECONDS,
    ) -> None:
        self._mount_points = sorted(set(mount_points))
        self._devices = OffLoop("mounts", lambda: read_mounts(procfs), BOUND_SECONDS)
        self._log = part_log
        self._statvfs = statvfs
        self._patience_seconds = patience_seconds
        self._shared = SharedRead("read disks", self._read)
        self._stuck: dict[str, _Walk] = {}

    async def read(self) -> list[guest_api_pb2.DiskInfo]:
        """One entry per disk that could be read, by mount point; the others are logged. Callers at one time share one reading."""
        return await self._shared.get()

    async def _read(self) -> list[guest_api_pb2.DiskInfo]:
        try:
            devices = await self._devices.get()
        except FactError as error:
            self._log.failed("mounts", error)
            return []
        self._log.works("mounts")
        sizes: dict[str, Size | str] = {path: "nothing is mounted there" for path in self._mount_points if path not in devices}
        try:
            await self._walk(sizes)
        except FactError as error:
            self._log.failed("disks", error)
            return []
        self._log.works("disks")
        return self._answer(sizes, devices)

    async def _walk(self, sizes: dict[str, Size | str]) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + BOUND_SECONDS
        while (left := self._left(sizes)) and loop.time() < deadline:
            walk = _Walk(loop, left, self._statvfs)
            stuck_at = await walk.wait(self._patience_seconds, deadline)
            sizes.update(walk.sizes)
            if stuck_at is not None:
                self._stuck[stuck_at] = walk

    def _left(self, sizes: Mapping[str, Size | str]) -> list[str]:
        self._stuck = {path: walk for path, walk in self._stuck.items() if walk.at == path}
        return [path for path in self._mount_points if path not in sizes and path not in self._stuck]

    def _answer(self, sizes: Mapping[str, Size | str], devices: Mapping[str, str]) -> list[guest_api_pb2.DiskInfo]:
        disks = []
        for path in self._mount_points:
            size = sizes.get(path, "the file system does not answer")
            if isinstance(size, str):
                self._log.failed(f"disk {path}", size)
                continue
            self._log.works(f"disk {path}")
            disk = guest_api_pb2.DiskInfo(name=devices[path], mount_point=path, total_size=size.total, free_size=size.free)
            disks.append(disk)
        return disks


class _Walk:
    """One thread that asks for one disk after the other; `at` is where it stands, None when it is over."""

    def __init__(self, loop: asyncio.AbstractEventLoop, paths: Sequence[str], statvfs: Callable[[str], FileSystemSize]) -> None:
        self._loop = loop
        self._paths = paths
        self._statvfs = statvfs
        self._done = asyncio.Event()
        self._abandoned = False
        self.at: str | None = paths[0]
        self.sizes: dict[str, Size | str] = {}
        start_thread("disks", self._run, name="read disks")

    async def wait(self, patience_seconds: float, deadline: float) -> str | None:
        """None when the walk is over; else the disk that it hangs at, from where it goes no further."""
        seen = -1
        while len(self.sizes) != seen and self._loop.time() < deadline:
            seen = len(self.sizes)
            try:
                await asyncio.wait_for(self._done.wait(), patience_seconds)
            except TimeoutError:
                continue
            return None
        self._abandoned = True
        return self.at

    def _run(self) -> None:
        for path in self._paths:
            self.at = path
            self.sizes[path] = read_size(path, self._statvfs)
            if self._abandoned:
                break
        self.at = None
        try:
            self._loop.call_soon_threadsafe(self._done.set)
        except RuntimeError:
            return  # The loop was closed meanwhile; nobody waits.


def read_mounts(procfs: Path) -> dict[str, str]:
    """Device by mount point; FactError when the table cannot be read."""
    try:
        return parse_mounts((procfs / "self" / "mounts").read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise FactError("mounts", error.strerror or str(error)) from error


def read_size(path: str, statvfs: Callable[[str], FileSystemSize] = os.statvfs) -> Size | str:
    """Size of the file system at `path`, or why there is none."""
    try:
        found = statvfs(path)
        return Size(
            total=bounded(found.f_blocks * found.f_frsize, UINT64_MAX),
            free=bounded(found.f_bavail * found.f_frsize, UINT64_MAX),
        )
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:
        return str(error)
