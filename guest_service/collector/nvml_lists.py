"""What the groups ask that is a list: MIG instances, and the processes on a card.

One entry that cannot be read leaves the others, and is the reason that is told beside them. Places for instances have gaps; a gap is no
failure. The driver knows processes by id; their names, where they are asked for, are the kernel's short ones (/proc/PID/comm), which a
process may choose itself. Rejected: the command line, whose arguments hold secrets and whose reading waits for the process's memory.
Not asked: the graphics processes (a card of a data centre has none), and the processes of each instance (NVML gives those of the card
with their instances).
"""

from __future__ import annotations

import ctypes
import posix

from guest_contract.card_fields import INSTANCES_LIMIT, MEMORY_LIMIT_BYTES
from guest_service.collector.failure import (
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NOT_APPLICABLE,
    NOTHING_WRITTEN,
    UNWRITTEN,
    NvmlFailure,
    bounded,
)
from guest_service.collector.nvml import Nvml
from guest_service.collector.nvml_calls import UNWRITTEN_64, Handle, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeVar

    from guest_service.collector.loaded_library import Library

    Entry = dict[str, Any]
    T = TypeVar("T")

# More than run on a card; one that has more gives these.
PROCESSES_LIMIT = 1024
# Before the profile in an instance's name: "NVIDIA H200 MIG 1g.18gb".
PROFILE_MARK = " MIG "
NAME_BUFFER_BYTES = 96
# TASK_COMM_LEN is 16; the kernel's own threads may have up to 64 there.
PROCESS_NAME_BYTES = 64


class NvmlDriver(Nvml):
    """NVML as a sample asks it: with the questions of LISTS, each of which returns its entries, and why some could not be read.

    `procfs` is where the names of processes are read; None: they are not told.
    """

    def __init__(
        self, library: Library, binding: Any, calls: Callable[[str], object] = lambda _: None, procfs: str | None = None
    ) -> None:  # Any: the module pynvml
        super().__init__(library, binding, calls)
        self._procfs = procfs

    def ask_list(self, question: str, device: Handle) -> tuple[list[Entry], str]:
        """The method of that name."""
        found: tuple[list[Entry], str] = getattr(self, question)(device)
        return found

    def mig_instances(self, device: Handle) -> tuple[list[Entry], str]:
        """The instances of a card with MIG on, in NVML's order; none where it is off."""
        # That its mode could not be read is told by the question before.
        if not _or_none(lambda: self.mig_mode(device)):
            return [], ""
        entries: list[Entry] = []
        reason = ""
        for index in range(min(self._number("nvmlDeviceGetMaxMigDeviceCount", device), INSTANCES_LIMIT)):
            try:
                handle = self._mig_handle(device, index)
                if handle is not None:
                    entries.append(self._mig_instance(handle))
            except NvmlFailure as failure:
                if failure.code == INVALID_ARGUMENT:
                    break
                reason = reason or f"instance {index}: {failure}"
        return entries, reason

    def _mig_handle(self, device: Handle, index: int) -> Handle | None:
        handle = Handle()
        try:
            self._call("nvmlDeviceGetMigDeviceHandleByIndex", device, ctypes.c_uint(index), ctypes.byref(handle))
        except NvmlFailure as failure:
            if failure.code in NOT_APPLICABLE:
                return None
            raise
        if not handle.value:
            raise NvmlFailure(NOTHING_WRITTEN)
        return handle

    def _mig_instance(self, handle: Handle) -> Entry:
        number = self._number("nvmlDeviceGetGpuInstanceId", handle)
        if number == UNWRITTEN:
            raise NvmlFailure(NOTHING_WRITTEN)
        entry: Entry = {"gpu_instance": number}
        compute = _or_none(lambda: self._number("nvmlDeviceGetComputeInstanceId", handle))
        if compute is not None and compute != UNWRITTEN:
            entry["compute_instance"] = compute
        entry["uuid"] = bounded(_or_none(lambda: self.uuid(handle)) or "")
        name = _or_none(lambda: self._text("nvmlDeviceGetName", NAME_BUFFER_BYTES, handle)) or ""
        entry["profile"] = name.partition(PROFILE_MARK)[2]
        total, used, _ = _or_none(lambda: self.memory(handle)) or (0, 0, 0)
        if 0 < total <= MEMORY_LIMIT_BYTES and used <= total:
            entry.update(memory_total_bytes=total, memory_used_bytes=used)
        return entry

    def process_list(self, device: Handle) -> tuple[list[Entry], str]:
        """The compute processes on the card: their ids, and memory where the driver knows it."""
        kind = type(self._blank("c_nvmlProcessInfo_v2_t"))
        count = ctypes.c_uint(PROCESSES_LIMIT)
        found = (kind * PROCESSES_LIMIT)()
        ctypes.memset(found, 0xFF, ctypes.sizeof(found))
        try:
            self._call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), found)
        except NvmlFailure as failure:
            if failure.code != INSUFFICIENT_SIZE:
                raise
            return [], f"more than {PROCESSES_LIMIT} processes"
        told = [process for process in found[: min(count.value, PROCESSES_LIMIT)] if process.pid != UNWRITTEN]
        entries = [_process(process, self._procfs) for process in told]
        return entries, "" if len(told) == min(count.value, PROCESSES_LIMIT) else str(NvmlFailure(NOTHING_WRITTEN))


def _process(process: Any, procfs: str | None) -> Entry:  # Any: a structure of the binding
    entry: Entry = {"pid": process.pid}
    if process.usedGpuMemory != UNWRITTEN_64 and process.usedGpuMemory <= MEMORY_LIMIT_BYTES:
        entry["used_memory_bytes"] = process.usedGpuMemory
    if procfs is not None and (name := process_name(procfs, process.pid)):
        entry["name"] = name
    return entry


def process_name(procfs: str, pid: int) -> str:
    """The kernel's short name of a process, printable and on one line; empty where it is gone, or hidden from this user."""
    try:
        file = posix.open(f"{procfs}/{pid}/comm", posix.O_RDONLY | posix.O_CLOEXEC)
        try:
            name = text_of(posix.read(file, PROCESS_NAME_BYTES))
        finally:
            posix.close(file)
    except OSError:
        return ""
    return "".join(letter if letter.isprintable() else "?" for letter in bounded(name))


def _or_none(ask: Callable[[], T]) -> T | None:
    try:
        return ask()
    except NvmlFailure:
        return None
