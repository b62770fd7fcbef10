"""NVML's answers as Python values: what holds for all cards, and the base values of each.

An older call is used where the newer one fails, never where the newer one answered nonsense: that is for
guest_contract.card_fields to refuse. How a call is made stands in nvml_calls.py, what the groups ask in nvml_groups.py.
"""

from __future__ import annotations

import ctypes

from guest_service.collector.failure import DEPRECATED, FUNCTION_NOT_FOUND, NOTHING_WRITTEN, UNWRITTEN, NvmlFailure, flag
from guest_service.collector.nvml_calls import UNWRITTEN_64, UNWRITTEN_BYTE, Handle, text_of
from guest_service.collector.nvml_groups import GroupQuestions

TEMPERATURE_GPU = 0
POWER_INSTANT = 186  # NVML_FI_DEV_POWER_INSTANT
VERSION_BUFFER_BYTES = 80  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE and the one of NVML's version
UUID_BUFFER_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE


class Nvml(GroupQuestions):
    """NVML of one loaded library: the driver that a sample asks."""

    def device_count(self) -> int:
        """Number of cards that this process may see (nvmlDeviceGetCount_v2)."""
        return self._number("nvmlDeviceGetCount_v2")

    def device(self, index: int) -> Handle:
        """Handle of card `index`; a success without a handle is a failure too."""
        handle = Handle()
        self._call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        if not handle.value:
            raise NvmlFailure(NOTHING_WRITTEN)
        return handle

    def uuid(self, device: Handle) -> str:
        """UUID, decoded with replacement; empty when the driver wrote nothing."""
        buffer = ctypes.create_string_buffer(UUID_BUFFER_BYTES)
        self._call("nvmlDeviceGetUUID", device, buffer, ctypes.c_uint(UUID_BUFFER_BYTES))
        return text_of(buffer.raw)

    def pci_bus_id(self, device: Handle) -> str:
        """PCI address with its whole domain."""
        info = self._blank("nvmlPciInfo_t")
        try:
            self._call("nvmlDeviceGetPciInfo_v3", device, ctypes.byref(info))
        except NvmlFailure as newer:
            return self._older_pci_bus_id(device, newer)
        field = type(info).busId
        written = ctypes.string_at(ctypes.addressof(info) + field.offset, field.size)
        return "" if written[0] == UNWRITTEN_BYTE else text_of(written)

    def _older_pci_bus_id(self, device: Handle, newer: NvmlFailure) -> str:
        """From the older structure's numbers: its text has four digits of the domain only."""
        info = self._blank("nvmlPciInfo_v2_t")
        self._call_older("nvmlDeviceGetPciInfo_v2", newer, device, ctypes.byref(info))
        return "" if info.bus == UNWRITTEN else f"{info.domain:08X}:{info.bus:02X}:{info.device:02X}.0"

    def utilization(self, device: Handle) -> tuple[int, int]:
        """Shares of GPU and memory, percent (nvmlDeviceGetUtilizationRates)."""
        rates = self._blank("c_nvmlUtilization_t")
        self._call("nvmlDeviceGetUtilizationRates", device, ctypes.byref(rates))
        return rates.gpu, rates.memory

    def memory(self, device: Handle) -> tuple[int, int, int]:
        """Total, used, free bytes: version 2, where what the driver reserves is not in used; version 1 where that fails."""
        try:
            info = self._memory_info(device)
        except NvmlFailure as newer:
            info = self._blank("c_nvmlMemory_t")
            self._call_older("nvmlDeviceGetMemoryInfo", newer, device, ctypes.byref(info))
        return info.total, info.used, info.free

    def temperature(self, device: Handle) -> int:
        """Degrees Celsius; nvmlDeviceGetTemperature is announced to go with CUDA 14, its successor is used where it is gone."""
        try:
            return self._number("nvmlDeviceGetTemperature", device, ctypes.c_uint(TEMPERATURE_GPU))
        except NvmlFailure as failure:
            if failure.code not in (FUNCTION_NOT_FOUND, DEPRECATED):
                raise
        info = self._blank("c_nvmlTemperature_v1_t", "nvmlTemperature_v1")
        info.sensorType = TEMPERATURE_GPU
        self._call("nvmlDeviceGetTemperatureV", device, ctypes.byref(info))
        return int(info.temperature)

    def power(self, device: Handle) -> int:
        """Milliwatts: power usage, else the instant-power field."""
        try:
            return self._number("nvmlDeviceGetPowerUsage", device)
        except NvmlFailure as usage:
            try:
                return self._instant_power(device)
            except NvmlFailure:
                raise usage from None

    def _instant_power(self, device: Handle) -> int:
        return self._field_number(self._field_values(device, [(POWER_INSTANT, 0)])[0])

    def driver_version(self) -> str:
        """The kernel module's version, such as 580.95.05."""
        return self._text("nvmlSystemGetDriverVersion", VERSION_BUFFER_BYTES)

    def nvml_version(self) -> str:
        """The library's own version."""
        return self._text("nvmlSystemGetNVMLVersion", VERSION_BUFFER_BYTES)

    def cuda_driver_version(self) -> str:
        """The newest CUDA that the driver supports: 13.0 for NVML's 13000."""
        number = self._number("nvmlSystemGetCudaDriverVersion_v2")
        if not 0 < number < UNWRITTEN:
            raise NvmlFailure(NOTHING_WRITTEN)
        return f"{number // 1000}.{number % 1000 // 10}"

    def cc_settings(self) -> tuple[int, int, int, int | None]:
        """NVML's numbers for environment, feature, DevTools mode and multi-GPU mode.

        The settings, else the older state, which has no multi-GPU mode (nvmlSystemGetConfComputeSettings, nvmlSystemGetConfComputeState).
        """
        try:
            found = self._blank("c_nvmlSystemConfComputeSettings_v1_t", "nvmlSystemConfComputeSettings_v1")
            self._call("nvmlSystemGetConfComputeSettings", ctypes.byref(found))
        except NvmlFailure as newer:
            found = self._blank("c_nvmlConfComputeSystemState_t")
            self._call_older("nvmlSystemGetConfComputeState", newer, ctypes.byref(found))
            return found.environment, found.ccFeature, found.devToolsMode, None
        return found.environment, found.ccFeature, found.devToolsMode, found.multiGpuMode

    def protected_bytes(self, device: Handle) -> int:
        """Memory that only the confidential VM can read, none outside CC mode (nvmlDeviceGetConfComputeMemSizeInfo)."""
        info = self._blank("c_nvmlConfComputeMemSizeInfo_t")
        self._call("nvmlDeviceGetConfComputeMemSizeInfo", device, ctypes.byref(info))
        if info.protectedMemSizeKib == UNWRITTEN_64:
            raise NvmlFailure(NOTHING_WRITTEN)
        return int(info.protectedMemSizeKib) * 1024

    def set_cc_ready(self) -> None:
        """Let the GPUs accept work; needs CAP_SYS_ADMIN (nvmlSystemSetConfComputeGpusReadyState)."""
        self._call("nvmlSystemSetConfComputeGpusReadyState", ctypes.c_uint(1))

    def cc_ready(self) -> bool:
        """Whether the GPUs accept work (nvmlSystemGetConfComputeGpusReadyState)."""
        return flag(self._number("nvmlSystemGetConfComputeGpusReadyState"))

    def stop(self) -> int:
        """End NVML; returns its code."""
        return self._library.shutdown()
