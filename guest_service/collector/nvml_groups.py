"""What the groups ask of a card, beyond its base values.

Most questions are one call that writes one number: these are a table. What a card or a driver does not have is a failure with one of the
codes of failure.NOT_APPLICABLE, which leaves a group's value unset without an entry. Never asked: the row remapper's histogram (it floods
the kernel log of vGPU guests), attestation, and fields whose id is over 250 (nvml_calls.py).
"""

from __future__ import annotations

import ctypes

from guest_service.collector.failure import (
    INSUFFICIENT_SIZE,
    NOT_SUPPORTED,
    NOTHING_WRITTEN,
    UNWRITTEN,
    NvmlFailure,
    flag,
)
from guest_service.collector.nvml_calls import Handle
from guest_service.collector.nvml_health import HealthQuestions

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# Question -> NVML's function, and what it is given between the device and the place for its number; of 32 bits, of 64, or a flag.
NUMBERS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    # nvmlClockType_t: 0 graphics, 1 SM, 2 memory, 3 video.
    "clock_graphics_max_mhz": ("nvmlDeviceGetMaxClockInfo", (0,)),
    "clock_sm_max_mhz": ("nvmlDeviceGetMaxClockInfo", (1,)),
    "clock_memory_max_mhz": ("nvmlDeviceGetMaxClockInfo", (2,)),
    "pcie_generation_max": ("nvmlDeviceGetMaxPcieLinkGeneration", ()),
    "pcie_width_max": ("nvmlDeviceGetMaxPcieLinkWidth", ()),
    "clock_graphics_mhz": ("nvmlDeviceGetClockInfo", (0,)),
    "clock_sm_mhz": ("nvmlDeviceGetClockInfo", (1,)),
    "clock_memory_mhz": ("nvmlDeviceGetClockInfo", (2,)),
    "clock_video_mhz": ("nvmlDeviceGetClockInfo", (3,)),
    # The first fan.
    "fan_percent": ("nvmlDeviceGetFanSpeed_v2", (0,)),
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration", ()),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth", ()),
    "pcie_replays": ("nvmlDeviceGetPcieReplayCounter", ()),
}
# nvmlMemoryErrorType_t: 0 corrected, 1 uncorrected; nvmlEccCounterType_t: 0 volatile, 1 aggregate.
WIDE_NUMBERS: Mapping[str, tuple[str, tuple[int, ...]]] = {
    "energy_mj": ("nvmlDeviceGetTotalEnergyConsumption", ()),
    "ecc_corrected_volatile": ("nvmlDeviceGetTotalEccErrors", (0, 0)),
    "ecc_uncorrected_volatile": ("nvmlDeviceGetTotalEccErrors", (1, 0)),
    "ecc_corrected_aggregate": ("nvmlDeviceGetTotalEccErrors", (0, 1)),
    "ecc_uncorrected_aggregate": ("nvmlDeviceGetTotalEccErrors", (1, 1)),
}
# Question -> the function that writes a percentage and the time in which it was measured.
SHARES: Mapping[str, str] = {
    "utilization_encoder": "nvmlDeviceGetEncoderUtilization",
    "utilization_decoder": "nvmlDeviceGetDecoderUtilization",
    "utilization_jpeg": "nvmlDeviceGetJpgUtilization",
    "utilization_ofa": "nvmlDeviceGetOfaUtilization",
}
# Question -> the function, and the bytes of its buffer (nvml.h).
TEXTS: Mapping[str, tuple[str, int]] = {
    "name": ("nvmlDeviceGetName", 96),
    "vbios_version": ("nvmlDeviceGetVbiosVersion", 32),
    "serial": ("nvmlDeviceGetSerial", 30),
}
# Question -> the function that writes a number, and the number's words; one without is shown as it is.
WORDS_OF: Mapping[str, tuple[str, Mapping[int, str]]] = {
    # nvmlDeviceArchitecture_t
    "architecture": (
        "nvmlDeviceGetArchitecture",
        {2: "kepler", 3: "maxwell", 4: "pascal", 5: "volta", 6: "turing", 7: "ampere", 8: "ada", 9: "hopper", 10: "blackwell"},
    ),
    # nvmlGpuVirtualizationMode_t
    "virtualization_mode": (
        "nvmlDeviceGetVirtualizationMode",
        {0: "none", 1: "passthrough", 2: "vgpu", 3: "host_vgpu", 4: "host_vsga"},
    ),
}
FLAGS: Mapping[str, str] = {
    "retired_pages_pending": "nvmlDeviceGetRetiredPagesPendingStatus",
    "persistence_mode": "nvmlDeviceGetPersistenceMode",
}
MEMORY_TEMPERATURE = 82  # NVML_FI_DEV_MEMORY_TEMP
# NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX and _TX, in KiB, of all links together; 140 and 141 count the protocol too.
NVLINK_RECEIVED, NVLINK_SENT, ALL_LINKS = 139, 138, 0xFFFFFFFF
# From here on (NVML_DEVICE_ARCH_ADA) thresholds are no temperatures any more, or will be gone: the margin stands for them.
ARCHITECTURE_ADA = 8
UNKNOWN_STATE = 32  # NVML_PSTATE_UNKNOWN
UNWRITTEN_SIGNED = 0x7FFFFFFF
KIB = 1024


class GroupQuestions(HealthQuestions):
    """The questions of the groups; each returns its fields in the order of the rows."""

    def ask(self, question: str, device: Handle) -> tuple[Any, ...]:  # Any: numbers, flags and texts, as the rows say
        """A question of the table of card fields: of the tables above, or the method of that name."""
        if question in NUMBERS:
            function, given = NUMBERS[question]
            return (self._number(function, device, *map(ctypes.c_uint, given)),)
        if question in WIDE_NUMBERS:
            function, given = WIDE_NUMBERS[question]
            return (self._wide_number(function, device, *map(ctypes.c_uint, given)),)
        if question in SHARES:
            return (self._numbers(SHARES[question], device, 2)[0],)
        if question in TEXTS:
            function, size = TEXTS[question]
            return (self._text(function, size, device),)
        if question in WORDS_OF:
            return (self._word(device, *WORDS_OF[question]),)
        if question in FLAGS:
            return (flag(self._number(FLAGS[question], device)),)
        answer = getattr(self, question)(device)
        return answer if isinstance(answer, tuple) else (answer,)

    def _word(self, device: Handle, function: str, words: Mapping[int, str]) -> str:
        number = self._once(function, device, lambda: self._number(function, device))
        if number == UNWRITTEN:
            raise NvmlFailure(NOTHING_WRITTEN)
        return words.get(number, str(number))

    def compute_capability(self, device: Handle) -> str:
        """CUDA's number for what the card can do, such as 9.0."""
        major, minor = self._numbers("nvmlDeviceGetCudaComputeCapability", device, 2)
        if UNWRITTEN in (major, minor):
            raise NvmlFailure(NOTHING_WRITTEN)
        return f"{major}.{minor}"

    def power_limit(self, device: Handle) -> int:
        """The enforced limit, milliwatts; the base values are judged by it."""
        return self._once("power_limit", device, lambda: self._number("nvmlDeviceGetEnforcedPowerLimit", device))

    def power_limit_max_mw(self, device: Handle) -> int:
        """The largest limit that may be set, milliwatts."""
        return self._numbers("nvmlDeviceGetPowerManagementLimitConstraints", device, 2)[1]

    def temperature_shutdown_c(self, device: Handle) -> int:
        """Degrees at which the card turns itself off; before Ada."""
        return self._threshold(device, 0)

    def temperature_slowdown_c(self, device: Handle) -> int:
        """Degrees at which it slows down; before Ada."""
        return self._threshold(device, 1)

    def _threshold(self, device: Handle, kind: int) -> int:
        try:
            function = "nvmlDeviceGetArchitecture"
            architecture = self._once(function, device, lambda: self._number(function, device))
        except NvmlFailure:
            architecture = UNWRITTEN
        if ARCHITECTURE_ADA <= architecture < UNWRITTEN:
            raise NvmlFailure(NOT_SUPPORTED)
        return self._number("nvmlDeviceGetTemperatureThreshold", device, ctypes.c_uint(kind))

    def performance_state(self, device: Handle) -> int:
        """0 is P0, the fastest; a state that NVML calls unknown is none."""
        state = self._number("nvmlDeviceGetPerformanceState", device)
        if state == UNKNOWN_STATE:
            raise NvmlFailure(NOT_SUPPORTED)
        return state

    def memory_reserved(self, device: Handle) -> int:
        """Bytes that driver and firmware keep for themselves; they came with the base values."""
        return int(self._memory_info(device).reserved)

    def _memory_info(self, device: Handle) -> Any:  # Any: a structure of the binding
        def ask() -> Any:  # Any: the same
            info = self._blank("c_nvmlMemory_v2_t", "nvmlMemory_v2")
            self._call("nvmlDeviceGetMemoryInfo_v2", device, ctypes.byref(info))
            return info

        return self._once("memory", device, ask)

    def memory_bar1(self, device: Handle) -> tuple[int, int]:
        """Size and use of the BAR1 window, bytes."""
        info = self._blank("c_nvmlBAR1Memory_t")
        self._call("nvmlDeviceGetBAR1MemoryInfo", device, ctypes.byref(info))
        return info.bar1Total, info.bar1Used

    def temperature_memory_c(self, device: Handle) -> int:
        """Degrees Celsius of the memory."""
        return self._field_number(self._field_values(device, [(MEMORY_TEMPERATURE, 0)])[0])

    def temperature_margin_c(self, device: Handle) -> int:
        """Degrees that are left until the card slows down."""
        margin = self._blank("c_nvmlMarginTemperature_v1_t", "nvmlMarginTemperature_v1")
        # -1 is a margin.
        margin.marginTemperature = UNWRITTEN_SIGNED
        self._call("nvmlDeviceGetMarginTemperature", device, ctypes.byref(margin))
        if margin.marginTemperature == UNWRITTEN_SIGNED:
            raise NvmlFailure(NOTHING_WRITTEN)
        return int(margin.marginTemperature)

    def processes(self, device: Handle) -> int:
        """How many compute processes use the card: as with retired pages, room for none is given."""
        count = ctypes.c_uint(0)
        try:
            self._call("nvmlDeviceGetComputeRunningProcesses_v3", device, ctypes.byref(count), None)
        except NvmlFailure as failure:
            if failure.code != INSUFFICIENT_SIZE:
                raise
        return count.value

    def protected_memory(self, device: Handle) -> tuple[int, int]:
        """Size and use of protected memory, bytes; all zero is confidential computing off."""
        info = self._blank("c_nvmlMemory_t")
        self._call("nvmlDeviceGetConfComputeProtectedMemoryUsage", device, ctypes.byref(info))
        if not info.total and not info.used:
            raise NvmlFailure(NOT_SUPPORTED)
        return info.total, info.used

    def mig_mode(self, device: Handle) -> bool:
        """Whether the card is divided into instances; what it will be after the next reset is left out."""
        return flag(self._once("mig_mode", device, lambda: self._numbers("nvmlDeviceGetMigMode", device, 2)[0]))

    def pcie_received(self, device: Handle) -> int:
        """Bytes a second in the last 20 ms, for which the call waits."""
        return self._pcie_rate(device, 1)

    def pcie_sent(self, device: Handle) -> int:
        """The same the other way."""
        return self._pcie_rate(device, 0)

    def _pcie_rate(self, device: Handle, direction: int) -> int:
        rate = self._number("nvmlDeviceGetPcieThroughput", device, ctypes.c_uint(direction))
        if rate == UNWRITTEN:
            raise NvmlFailure(NOTHING_WRITTEN)
        # nvml.h says "KB/s", where it says "KiB" of NVLink's: 1000 or 1024 is not documented, see docs/cards.md.
        return rate * KIB

    def nvlink_data(self, device: Handle) -> tuple[int, int]:
        """Bytes received and sent over all links together, without the protocol's own."""
        fields = self._field_values(device, [(NVLINK_RECEIVED, ALL_LINKS), (NVLINK_SENT, ALL_LINKS)])
        received, sent = map(self._field_number, fields)
        return received * KIB, sent * KIB
