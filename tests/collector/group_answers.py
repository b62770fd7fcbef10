"""What the scripted library answers to each question of the groups, and one sample of it with every group.

A test of test_groups.py fails for a question without a row here.
"""

from __future__ import annotations

from typing import Any

from guest_contract.card_fields import QUESTIONS, QUESTIONS_OF
from guest_service.collector.command import collector_command
from tests.collector.process import run
from tests.nvml_library.fixture import ScriptedNvml

# What the scripted library answers, and the calls of each question, older ones included.
ANSWERS: dict[str, dict[str, Any]] = {  # Any: a value of the contract
    "identity": {
        "name": "NVIDIA H200",
        "architecture": "ampere",
        "compute_capability": "9.0",
        "vbios_version": "96.00.BC.00.02",
        "virtualization_mode": "passthrough",
    },
    "serial": {"serial": "1650000000001"},
    "limits": {
        "power_limit_mw": 700000,
        "power_limit_max_mw": 710000,
        "clock_graphics_max_mhz": 1980,
        "clock_sm_max_mhz": 1981,
        "clock_memory_max_mhz": 3201,
        "pcie_generation_max": 6,
        "pcie_width_max": 32,
        "temperature_slowdown_c": 87,
        "temperature_shutdown_c": 92,
    },
    "activity": {
        "performance_state": 2,
        "clock_graphics_mhz": 1700,
        "clock_sm_mhz": 1701,
        "clock_memory_mhz": 3200,
        "clock_video_mhz": 1400,
        "utilization_encoder": 11,
        "utilization_decoder": 12,
        "utilization_jpeg": 13,
        "utilization_ofa": 14,
        "memory_reserved_bytes": 700_000_000,
        "memory_bar1_total_bytes": 274_877_906_944,
        "memory_bar1_used_bytes": 1_048_576,
        "temperature_memory_c": 44,
        "temperature_margin_c": -3,
        "fan_percent": 33,
        "energy_mj": 123_456_789,
        "processes": 2,
    },
    "health": {
        "ecc_enabled": True,
        "ecc_corrected_volatile": 20,
        "ecc_uncorrected_volatile": 0,
        "ecc_corrected_aggregate": 21,
        "ecc_uncorrected_aggregate": 11,
        "rows_remapped_correctable": 2,
        "rows_remapped_uncorrectable": 3,
        "row_remap_pending": False,
        "row_remap_failed": False,
        "retired_pages_single_bit": 4,
        "retired_pages_double_bit": 5,
        "retired_pages_pending": False,
        "clocks_event_reasons": 4,
        "power_violation_ns": 5_000_000_000,
        "thermal_violation_ns": 5_000_000_001,
        "pcie_generation": 5,
        "pcie_width": 16,
        "pcie_replays": 7,
        "nvlinks_active": 17,
        "nvlinks_inactive": 1,
        "nvlink_errors": 54,
        "fabric_state": 3,
        "fabric_status": 0,
        "recovery_action": 0,
        "persistence_mode": True,
    },
    "cc": {"protected_memory_total_bytes": 150_754_820_096, "protected_memory_used_bytes": 1_048_576},
    "mig": {"mig_enabled": False},
    "throughput": {
        "pcie_received_bytes_per_second": 5 * 1024,
        "pcie_sent_bytes_per_second": 4 * 1024,
        "nvlink_received_bytes": 3 * 1024,
        "nvlink_sent_bytes": 2 * 1024,
    },
}
CALLS = {
    "name": ("nvmlDeviceGetName",),
    "architecture": ("nvmlDeviceGetArchitecture",),
    "compute_capability": ("nvmlDeviceGetCudaComputeCapability",),
    "vbios_version": ("nvmlDeviceGetVbiosVersion",),
    "virtualization_mode": ("nvmlDeviceGetVirtualizationMode",),
    "serial": ("nvmlDeviceGetSerial",),
    "power_limit": ("nvmlDeviceGetEnforcedPowerLimit",),
    "power_limit_max_mw": ("nvmlDeviceGetPowerManagementLimitConstraints",),
    **dict.fromkeys(
        ["clock_graphics_max_mhz", "clock_sm_max_mhz", "clock_memory_max_mhz"],
        ("nvmlDeviceGetMaxClockInfo",),
    ),
    "pcie_generation_max": ("nvmlDeviceGetMaxPcieLinkGeneration",),
    "pcie_width_max": ("nvmlDeviceGetMaxPcieLinkWidth",),
    "temperature_slowdown_c": ("nvmlDeviceGetTemperatureThreshold",),
    "temperature_shutdown_c": ("nvmlDeviceGetTemperatureThreshold",),
    "performance_state": ("nvmlDeviceGetPerformanceState",),
    **dict.fromkeys(
        ["clock_graphics_mhz", "clock_sm_mhz", "clock_memory_mhz", "clock_video_mhz"],
        ("nvmlDeviceGetClockInfo",),
    ),
    "utilization_encoder": ("nvmlDeviceGetEncoderUtilization",),
    "utilization_decoder": ("nvmlDeviceGetDecoderUtilization",),
    "utilization_jpeg": ("nvmlDeviceGetJpgUtilization",),
    "utilization_ofa": ("nvmlDeviceGetOfaUtilization",),
    "memory_reserved": ("nvmlDeviceGetMemoryInfo_v2",),
    "memory_bar1": ("nvmlDeviceGetBAR1MemoryInfo",),
    "temperature_memory_c": ("nvmlDeviceGetFieldValues",),
    "temperature_margin_c": ("nvmlDeviceGetMarginTemperature",),
    "fan_percent": ("nvmlDeviceGetFanSpeed_v2",),
    "energy_mj": ("nvmlDeviceGetTotalEnergyConsumption",),
    "processes": ("nvmlDeviceGetComputeRunningProcesses_v3",),
    "ecc_mode": ("nvmlDeviceGetEccMode",),
    **dict.fromkeys(
        [question for question in QUESTIONS if question.startswith("ecc_") and question != "ecc_mode"],
        ("nvmlDeviceGetTotalEccErrors",),
    ),
    "rows_remapped": ("nvmlDeviceGetRemappedRows",),
    "retired_pages_single_bit": ("nvmlDeviceGetRetiredPages_v2", "nvmlDeviceGetRetiredPages"),
    "retired_pages_double_bit": ("nvmlDeviceGetRetiredPages_v2", "nvmlDeviceGetRetiredPages"),
    "retired_pages_pending": ("nvmlDeviceGetRetiredPagesPendingStatus",),
    "clocks_event_reasons": ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    "power_violation": ("nvmlDeviceGetViolationStatus",),
    "thermal_violation": ("nvmlDeviceGetViolationStatus",),
    "pcie_generation": ("nvmlDeviceGetCurrPcieLinkGeneration",),
    "pcie_width": ("nvmlDeviceGetCurrPcieLinkWidth",),
    "pcie_replays": ("nvmlDeviceGetPcieReplayCounter",),
    "nvlinks": ("nvmlDeviceGetNvLinkState",),
    "nvlink_errors": ("nvmlDeviceGetFieldValues",),
    "fabric": ("nvmlDeviceGetGpuFabricInfoV",),
    "recovery_action": ("nvmlDeviceGetFieldValues",),
    "persistence_mode": ("nvmlDeviceGetPersistenceMode",),
    "protected_memory": ("nvmlDeviceGetConfComputeProtectedMemoryUsage",),
    "mig_mode": ("nvmlDeviceGetMigMode",),
    "pcie_received": ("nvmlDeviceGetPcieThroughput",),
    "pcie_sent": ("nvmlDeviceGetPcieThroughput",),
    "nvlink_data": ("nvmlDeviceGetFieldValues",),
}
# Those of the repeated messages; the functions of an instance are asked of its own handle, and some for the card as well.
LIST_CALLS = {
    "mig_instances": (
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetComputeInstanceId",
    ),
    "process_list": ("nvmlDeviceGetComputeRunningProcesses_v3",),
}
# Functions and the questions that each one answers.
QUESTIONS_BY_CALLS = {calls: [question for question in CALLS if CALLS[question] == calls] for calls in CALLS.values()}
# The count is given as 0, as NVML wants it: a 0 that the driver wrote is the same.
TELLS_NOTHING = ("nvmlDeviceGetRetiredPages_v2", "nvmlDeviceGetComputeRunningProcesses_v3")
# Where it is not `value` with every bit set, or all but the sign.
SENTINELS = {
    "nvmlDeviceGetEnforcedPowerLimit": "limit=0xFFFFFFFF",
    "nvmlDeviceGetMemoryInfo_v2": "reserved=0xFFFFFFFFFFFFFFFF",
    "nvmlDeviceGetMarginTemperature": "value=0x7FFFFFFF",
    "nvmlDeviceGetRemappedRows": "correctable=0xFFFFFFFF uncorrectable=0xFFFFFFFF pending=0xFFFFFFFF failed=0xFFFFFFFF",
    "nvmlDeviceGetFieldValues": "memoryTemperature=0xFFFFFFFF linkErrors=0xFFFFFFFF action=0xFFFFFFFF linkData=0xFFFFFFFFFFFFFFFF",
}


def sample(library: ScriptedNvml, groups: tuple[str, ...] = tuple(ANSWERS)) -> dict[str, Any]:  # Any: a JSON tree
    collected = run(collector_command(nvml_library=library.path, groups=groups))
    assert (collected.status, collected.stderr) == (0, ""), collected
    return collected.sample


def values(card: dict[str, Any], group: str) -> dict[str, Any]:  # Any: as above
    return {name: card[name] for question in QUESTIONS_OF[group] for name in QUESTIONS[question]}
