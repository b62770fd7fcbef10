"""NVML's answers as Python values.

The binding gives structures and constants; the calls are made here with buffers that are filled with 0xFF first, because a driver may
return success and write nothing, and the binding's zeroed buffers would turn that into a measured zero. Its text decoding is strict
(a broken byte would lose the card), its nvmlSystemGetConfComputeSettings returns a raw code: both are avoided the same way.

An older call is used where the newer one fails, never where the newer one answered nonsense: that is for
guest_contract.card_fields to refuse.
"""

from __future__ import annotations

import ctypes

from guest_service.collector.failure import (
    DEPRECATED,
    FUNCTION_NOT_FOUND,
    NOTHING_WRITTEN,
    UNWRITTEN,
    NvmlFailure,
    bounded,
    flag,
)
from guest_service.collector.loaded_library import Library

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

UNWRITTEN_64 = 0xFFFFFFFFFFFFFFFF
UNWRITTEN_BYTE = 0xFF
TEMPERATURE_GPU = 0
VERSION_BUFFER_BYTES = 80  # NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE and the one of NVML's version
UUID_BUFFER_BYTES = 96  # NVML_DEVICE_UUID_V2_BUFFER_SIZE

# nvmlValueType_t, and the member of nvmlValue_t that it names (nvml.h).
VALUE_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}

Handle = ctypes.c_void_p


def _text(buffer: bytes) -> str:
    return buffer.split(b"\0", 1)[0].decode("utf-8", "replace")


class Nvml:
    """NVML of one loaded library; every query raises NvmlFailure with the code. `calls` is told of each function before its call."""

    def __init__(
        self, library: Library, binding: Any, calls: Callable[[str], object] = lambda _: None
    ) -> None:  # Any: the module pynvml, see binding.py
        self._library = library
        self._binding = binding
        self._about_to = calls
        self._calls: Any = None  # Any: a ctypes library resolves its functions by attribute

    def start(self) -> None:
        """Go on when NVML has started; raises SampleFailure."""
        self._library.ready()
        self._calls = ctypes.CDLL(self._library.name, handle=self._library.handle)

    def _call(self, function: str, *arguments: object) -> None:
        try:
            call = getattr(self._calls, function)
        except AttributeError:
            raise NvmlFailure(FUNCTION_NOT_FOUND) from None
        self._about_to(function)
        if (code := call(*arguments)) != 0:
            raise NvmlFailure(code, self._library.words(code))

    def _blank(self, structure: str, version: str = "") -> Any:  # Any: a structure of the binding
        """A structure whose every byte is 0xFF but for its version; one that this binding lacks is a missing function."""
        kind = getattr(self._binding, structure, None)
        if kind is None or (version and not hasattr(self._binding, version)):
            raise NvmlFailure(FUNCTION_NOT_FOUND)
        blank = kind()
        ctypes.memset(ctypes.byref(blank), 0xFF, ctypes.sizeof(blank))
        if version:
            blank.version = getattr(self._binding, version)
        return blank

    def _number(self, function: str, *arguments: object) -> int:
        value = ctypes.c_uint(UNWRITTEN)
        self._call(function, *arguments, ctypes.byref(value))
        return value.value

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
        return _text(buffer.raw)

    def pci_bus_id(self, device: Handle) -> str:
        """PCI address with its whole domain."""
        info = self._blank("nvmlPciInfo_t")
        try:
            self._call("nvmlDeviceGetPciInfo_v3", device, ctypes.byref(info))
        except NvmlFailure as newer:
            return self._older_pci_bus_id(device, newer)
        field = type(info).busId
        written = ctypes.string_at(ctypes.addressof(info) + field.offset, field.size)
        return "" if written[0] == UNWRITTEN_BYTE else _text(written)

    def _older_pci_bus_id(self, device: Handle, newer: NvmlFailure) -> str:
        """From the older structure's numbers: its text has four digits of the domain only."""
        info = self._blank("nvmlPciInfo_v2_t")
        self._call_older("nvmlDeviceGetPciInfo_v2", newer, device, ctypes.byref(info))
        return "" if info.bus == UNWRITTEN else f"{info.domain:08X}:{info.bus:02X}:{info.device:02X}.0"

    def _call_older(self, function: str, newer: NvmlFailure, *arguments: object) -> None:
        """Call an older function after the newer one failed; when it is not there either, the newer one's failure stands."""
        try:
            self._call(function, *arguments)
        except NvmlFailure as older:
            raise (newer if older.code == FUNCTION_NOT_FOUND else older) from None

    def ask(self, question: str, device: Handle) -> tuple[int | str, ...]:
        """A question of the table of card fields: the method of that name, which returns the question's fields in their order."""
        answer = getattr(self, question)(device)
        return answer if isinstance(answer, tuple) else (answer,)

    def utilization(self, device: Handle) -> tuple[int, int]:
        """Shares of GPU and memory, percent (nvmlDeviceGetUtilizationRates)."""
        rates = self._blank("c_nvmlUtilization_t")
        self._call("nvmlDeviceGetUtilizationRates", device, ctypes.byref(rates))
        return rates.gpu, rates.memory

    def memory(self, device: Handle) -> tuple[int, int, int]:
        """Total, used, free bytes: version 2, where what the driver reserves is not in used; version 1 where that fails."""
        try:
            info = self._blank("c_nvmlMemory_v2_t", "nvmlMemory_v2")
            self._call("nvmlDeviceGetMemoryInfo_v2", device, ctypes.byref(info))
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
        field = self._blank("c_nvmlFieldValue_t")
        field.fieldId, field.scopeId = getattr(self._binding, "NVML_FI_DEV_POWER_INSTANT", 186), 0
        self._call("nvmlDeviceGetFieldValues", device, ctypes.c_int(1), ctypes.byref(field))
        return self._field_number(field)

    def _field_number(self, field: Any) -> int:  # Any: a structure of the binding
        """The whole number in a field, by the type that it says to have; what is no number of a value is not written."""
        if field.nvmlReturn != 0:
            raise NvmlFailure(field.nvmlReturn, self._library.words(field.nvmlReturn))
        member = VALUE_MEMBERS.get(field.valueType)
        value = None if member is None else getattr(field.value, member)
        # Infinity and "not a number" are not 0 less themselves.
        if value is None or value - value != 0:
            raise NvmlFailure(NOTHING_WRITTEN)
        number: int = round(value)
        return number

    def power_limit(self, device: Handle) -> int:
        """The enforced limit, milliwatts."""
        return self._number("nvmlDeviceGetEnforcedPowerLimit", device)

    def driver_version(self) -> str:
        """The kernel module's version, such as 580.95.05."""
        return self._version("nvmlSystemGetDriverVersion")

    def nvml_version(self) -> str:
        """The library's own version."""
        return self._version("nvmlSystemGetNVMLVersion")

    def cuda_driver_version(self) -> str:
        """The newest CUDA that the driver supports: 13.0 for NVML's 13000."""
        number = self._number("nvmlSystemGetCudaDriverVersion_v2")
        if not 0 < number < UNWRITTEN:
            raise NvmlFailure(NOTHING_WRITTEN)
        return f"{number // 1000}.{number % 1000 // 10}"

    def _version(self, function: str) -> str:
        buffer = ctypes.create_string_buffer(VERSION_BUFFER_BYTES)
        self._call(function, buffer, ctypes.c_uint(VERSION_BUFFER_BYTES))
        if not (text := bounded(_text(buffer.raw))):
            raise NvmlFailure(NOTHING_WRITTEN)
        return text

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
