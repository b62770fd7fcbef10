"""What the groups ask of a card, beyond its base values.

Most questions are one call that writes one number: these are a table. What a card or a driver does not have is a failure with one of the
codes of failure.NOT_APPLICABLE, which leaves a group's value unset without an entry. Never asked: the row remapper's histogram (it floods
the kernel log of vGPU guests), attestation, and fields whose id is over 250 (nvml_calls.py).
"""

from __future__ import annotations

import ctypes

from guest_service.collector.failure import (
    FUNCTION_NOT_FOUND,
    INSUFFICIENT_SIZE,
    INVALID_ARGUMENT,
    NOT_APPLICABLE,
    NOT_SUPPORTED,
    NOTHING_WRITTEN,
    UNWRITTEN,
    NvmlFailure,
    flag,
)
from guest_service.collector.nvml_calls import Handle, NvmlCalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Question -> NVML's function, and what it is given between the device and the place for its number; of 32 bits, of 64, or a flag.
NUMBERS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration", ()),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", ()),
    "pcie_replays": ("nvmlDeviceGetPcieReplayCounter", ()),
}
# nvmlMemoryErrorType_t: 0 corrected, 1 uncorrected; nvmlEccCounterType_t: 0 volatile, 1 aggregate.
WIDE_NUMBERS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "ecc_corrected_volatile": ("nvmlDeviceGetTotalEccErrors", (0, 0)),
    "ecc_uncorrected_volatile": ("nvmlDeviceGetTotalEccErrors", (1, 0)),
    "ecc_corrected_aggregate": ("nvmlDeviceGetTotalEccErrors", (0, 1)),
    "ecc_uncorrected_aggregate": ("nvmlDeviceGetTotalEccErrors", (1, 1)),
}
FLAGS: Mapping[str, str] = {
    "retired_pages_pending": "nvmlDeviceGetRetiredPagesPendingStatus",
    "persistence_mode": "nvmlDeviceGetPersistenceMode",
}
# NVML_NVLINK_MAX_LINKS
NVLINKS_LIMIT = 18
# NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, _RECOVERY and _CRC, by link; from Blackwell on _COUNT_LINK_RECOVERY_EVENTS stands for them.
NVLINK_ERRORS = (161, 162, 163)
NVLINK_RECOVERIES = (215,)
RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
FABRIC_NOT_SUPPORTED, FABRIC_COMPLETED = 0, 3  # nvmlGpuFabricState_t


class GroupQuestions(NvmlCalls):
    """The questions of the groups; each returns its fields in the order of the rows."""

    def ask(self, question: str, device: Handle) -> tuple[Any, ...]:  # Any: numbers, flags and texts, as the rows say
        """A question of the table of card fields: of the tables above, or the method of that name."""
        if question in NUMBERS:
            function, given = NUMBERS[question]
            return (self._number(function, device, *map(ctypes.c_uint, given)),)
        if question in WIDE_NUMBERS:
            function, given = WIDE_NUMBERS[question]
            return (self._wide_number(function, device, *map(ctypes.c_uint, given)),)
        if question in FLAGS:
            return (flag(self._number(FLAGS[question], device)),)
        answer = getattr(self, question)(device)
        return answer if isinstance(answer, tuple) else (answer,)

    def ecc_mode(self, device: Handle) -> bool:
        """Whether ECC is on; what it will be after the next reset is left out."""
        current, _ = self._numbers("nvmlDeviceGetEccMode", device, 2)
        return flag(current)

    def rows_remapped(self, device: Handle) -> tuple[int, int, bool, bool]:
        """Rows remapped after correctable and uncorrectable errors, one pending, one failed."""
        correctable, uncorrectable, pending, failed = self._numbers("nvmlDeviceGetRemappedRows", device, 4)
        return correctable, uncorrectable, flag(pending), flag(failed)

    def retired_pages_single_bit(self, device: Handle) -> int:
        """Pages retired after several single bit errors."""
        return self._retired_pages(device, 0)

    def retired_pages_double_bit(self, device: Handle) -> int:
        """Pages retired after a double bit error."""
        return self._retired_pages(device, 1)

    def _retired_pages(self, device: Handle, cause: int) -> int:
        """Room for no page is given: the driver then says how many there are, with "insufficient size" if there is one."""
        count = ctypes.c_uint(0)
        given = (device, ctypes.c_uint(cause), ctypes.byref(count), None)
        try:
            self._call("nvmlDeviceGetRetiredPages_v2", *given, None)
        except NvmlFailure as newer:
            if newer.code != INSUFFICIENT_SIZE:
                try:
                    self._call_older("nvmlDeviceGetRetiredPages", newer, *given)
                except NvmlFailure as older:
                    if older.code != INSUFFICIENT_SIZE:
                        raise
        return count.value

    def clocks_event_reasons(self, device: Handle) -> int:
        """Why the clocks are where they are, NVML's bits; the older name is of drivers before R535."""
        try:
            return self._wide_number("nvmlDeviceGetCurrentClocksEventReasons", device)
        except NvmlFailure as newer:
            if newer.code != FUNCTION_NOT_FOUND:
                raise
            return self._wide_number("nvmlDeviceGetCurrentClocksThrottleReasons", device)

    def power_violation(self, device: Handle) -> int:
        """Nanoseconds in which the power limit held the clocks down."""
        return self._violation(device, 0)

    def thermal_violation(self, device: Handle) -> int:
        """Nanoseconds in which heat did."""
        return self._violation(device, 1)

    def _violation(self, device: Handle, policy: int) -> int:
        time = self._blank("c_nvmlViolationTime_t")
        self._call("nvmlDeviceGetViolationStatus", device, ctypes.c_uint(policy), ctypes.byref(time))
        return int(time.violationTime)

    def nvlinks(self, device: Handle) -> tuple[int, int]:
        """Links that are up, and that are down; a card without links has no answer. A link that is not there is no failure."""
        found: list[bool] = []
        for link in range(NVLINKS_LIMIT):
            try:
                found.append(flag(self._number("nvmlDeviceGetNvLinkState", device, ctypes.c_uint(link))))
            except NvmlFailure as failure:
                if failure.code == INVALID_ARGUMENT:
                    break
                if failure.code not in NOT_APPLICABLE:
                    raise
        if not found:
            raise NvmlFailure(NOT_SUPPORTED)
        return found.count(True), found.count(False)

    def nvlink_errors(self, device: Handle) -> int:
        """Replay, recovery and CRC errors of all links together."""
        try:
            return self._sum_of_links(device, NVLINK_ERRORS)
        except NvmlFailure as failure:
            if failure.code not in NOT_APPLICABLE:
                raise
            return self._sum_of_links(device, NVLINK_RECOVERIES)

    def _sum_of_links(self, device: Handle, fields: tuple[int, ...]) -> int:
        """The fields of every link added up; those that are not there are left out, and without any it is not supported."""
        asked = [(field, link) for link in range(NVLINKS_LIMIT) for field in fields]
        values = self._field_values(device, asked)
        there = [value for value in values if value.nvmlReturn != INVALID_ARGUMENT and value.nvmlReturn not in NOT_APPLICABLE]
        if not there:
            raise NvmlFailure(NOT_SUPPORTED)
        return sum(map(self._field_number, there))

    def fabric(self, device: Handle) -> tuple[int, int | None]:
        """The state of joining the NVLink fabric, and what came of it once that is completed."""
        info = self._blank("c_nvmlGpuFabricInfo_v2_t", "nvmlGpuFabricInfo_v2")
        self._call("nvmlDeviceGetGpuFabricInfoV", device, ctypes.byref(info))
        if info.state == UNWRITTEN or (info.state == FABRIC_COMPLETED and info.status == UNWRITTEN):
            raise NvmlFailure(NOTHING_WRITTEN)
        if info.state == FABRIC_NOT_SUPPORTED:
            raise NvmlFailure(NOT_SUPPORTED)
        return info.state, info.status if info.state == FABRIC_COMPLETED else None

    def recovery_action(self, device: Handle) -> int:
        """What the driver asks for, NVML's number."""
        return self._field_number(self._field_values(device, [(RECOVERY_ACTION, 0)])[0])
