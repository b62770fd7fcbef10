"""What the group health asks of a card where it is more than one call that writes one number (those are in nvml_groups.py)."""

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
from guest_service.collector.nvml_calls import UNWRITTEN_64, Handle, NvmlCalls

# NVML_NVLINK_MAX_LINKS
NVLINKS_LIMIT = 18
# NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, _RECOVERY and _CRC, by link; from Blackwell on _COUNT_LINK_RECOVERY_EVENTS stands for them.
NVLINK_ERRORS = (161, 162, 163)
NVLINK_RECOVERIES = (215,)
RECOVERY_ACTION = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION
_NO_SUCH_LINK = (INVALID_ARGUMENT, *NOT_APPLICABLE)
FABRIC_NOT_SUPPORTED, FABRIC_COMPLETED = 0, 3  # nvmlGpuFabricState_t


class HealthQuestions(NvmlCalls):
    """Questions of the group health; each returns its fields in the order of the rows."""

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
        there = [value for value in values if value[0] not in _NO_SUCH_LINK]
        if not there:
            raise NvmlFailure(NOT_SUPPORTED)
        numbers = [self._field_number(value) for value in there]
        # Added up, what was not written looks like a count.
        if UNWRITTEN in numbers or UNWRITTEN_64 in numbers:
            raise NvmlFailure(NOTHING_WRITTEN)
        return sum(numbers)

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
