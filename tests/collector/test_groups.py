"""What groups ask beside the base values: each answer in its field, what is not applicable unset without an entry, all else with one.

The tables here have a row for each question of the groups, and a test fails for a question without one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from guest_api import guest_api_pb2
from guest_contract.card_fields import BASE, FIELDS, GROUPS, LISTS, QUESTIONS, QUESTIONS_OF, ROWS
from guest_contract.card_row import FLAG, TEXT_VALUE
from guest_service.collector.command import collector_command
from tests.collector.process import run
from tests.nvml_library.fixture import ScriptedNvml

Make = Callable[..., ScriptedNvml]

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
# Functions and the questions that each one answers.
QUESTIONS_BY_CALLS = {calls: [question for question in CALLS if CALLS[question] == calls] for calls in CALLS.values()}
# The count is given as 0, as NVML wants it: a 0 that the driver wrote is the same.
TELLS_NOTHING = ("nvmlDeviceGetRetiredPages_v2", "nvmlDeviceGetComputeRunningProcesses_v3")
# Where it is not `value` with every bit set, or all but the sign.
SENTINELS = {
    "nvmlDeviceGetEnforcedPowerLimit": "limit=0xFFFFFFFF",
    "nvmlDeviceGetMemoryInfo_v2": "reserved=0xFFFFFFFFFFFFFFFF",
    "nvmlDeviceGetMarginTemperature": "value=0x7FFFFFFF",
}


def sample(library: ScriptedNvml, groups: tuple[str, ...] = tuple(ANSWERS)) -> dict[str, Any]:  # Any: a JSON tree
    collected = run(collector_command(nvml_library=library.path, groups=groups))
    assert (collected.status, collected.stderr) == (0, ""), collected
    return collected.sample


def values(card: dict[str, Any], group: str) -> dict[str, Any]:  # Any: as above
    return {name: card[name] for question in QUESTIONS_OF[group] for name in QUESTIONS[question]}


def test_every_group_and_question_has_its_rows_here() -> None:
    assert (*ANSWERS, "processes") == GROUPS
    assert list(CALLS) == [question for group in ANSWERS for question in QUESTIONS_OF[group]]


@pytest.mark.parametrize("group", ANSWERS)
def test_a_group_is_asked_for_where_it_is_named_and_only_there(scripted_nvml: Make, group: str) -> None:
    base, named = sample(scripted_nvml(), ()), sample(scripted_nvml(), (group,))
    assert (base["groups"], named["groups"]) == ([], [group])
    (card,) = named["gpus"]
    assert values(card, group) == ANSWERS[group]
    asked = {*ANSWERS[group], LISTS.get(group, "")}
    assert base["gpus"] == [{name: value for name, value in card.items() if name not in asked}]


def test_the_keys_with_every_group_are_the_contracts_in_the_contracts_order(scripted_nvml: Make) -> None:
    (card,) = sample(scripted_nvml())["gpus"]
    known = {"index", "uuid", "pci_bus_id", "errors", *(row.name for row in ROWS)}
    card = {name: value for name, value in card.items() if name not in LISTS.values()}
    order = [field.name for field in guest_api_pb2.GpuDevice.DESCRIPTOR.fields if field.name in known]
    assert [name for name in order if name != "errors"] == [name for name in card if name != "errors"]


@pytest.mark.parametrize("code", [3, 6, 13, 25, 26])
@pytest.mark.parametrize("calls", QUESTIONS_BY_CALLS, ids="-".join)
def test_what_a_card_does_not_have_is_unset_without_an_entry(scripted_nvml: Make, calls: tuple[str, ...], code: int) -> None:
    cards = sample(scripted_nvml("\n".join(["cards 2", *(f"{call} 1 * return {code}" for call in calls)])))["gpus"]
    unset = {name for question in QUESTIONS_BY_CALLS[calls] for name in QUESTIONS[question]}
    assert [card["errors"] for card in cards] == [[], []]
    assert {name for name, value in cards[0].items() if value is None} == set()
    assert {name for name, value in cards[1].items() if value is None} == unset


@pytest.mark.parametrize("calls", QUESTIONS_BY_CALLS, ids="-".join)
def test_a_function_that_the_driver_lacks_leaves_its_values_unset_without_an_entry(
    scripted_nvml: Make, calls: tuple[str, ...]
) -> None:
    (card,) = sample(scripted_nvml(hide=list(calls)))["gpus"]
    assert card["errors"] == []
    unset = {name for question in QUESTIONS_BY_CALLS[calls] for name in QUESTIONS[question]}
    assert {name for name, value in card.items() if value is None} == unset


FAILURES = [
    (calls, row)
    for calls in QUESTIONS_BY_CALLS
    for row in ("return 4", "return 15", "return 27", "return 999", "keep")
    if row != "keep" or calls[0] not in (*TELLS_NOTHING, "nvmlDeviceGetMemoryInfo_v2")  # which a base value needs too
]


@pytest.mark.parametrize(("calls", "row"), FAILURES)
def test_any_other_failure_is_one_entry_for_each_question_and_costs_nothing_else(
    scripted_nvml: Make, calls: tuple[str, ...], row: str
) -> None:
    script = [f"{call} 1 * {row}" for call in (calls if row.startswith("return") else calls[:1])]
    cards = sample(scripted_nvml("\n".join(["cards 2", *script])))["gpus"]
    assert cards[0]["errors"] == []
    assert [entry.partition(":")[0] for entry in cards[1]["errors"]] == QUESTIONS_BY_CALLS[calls]
    unset = {name for question in QUESTIONS_BY_CALLS[calls] for name in QUESTIONS[question]}
    assert {name for name, value in cards[1].items() if value is None} == unset


SCRIPTED = [
    calls
    for calls in QUESTIONS_BY_CALLS
    if calls[0] not in ("nvmlDeviceGetRemappedRows", "nvmlDeviceGetFieldValues")
    and FIELDS[QUESTIONS[QUESTIONS_BY_CALLS[calls][0]][0]].unit != TEXT_VALUE
]


@pytest.mark.parametrize("calls", SCRIPTED, ids="-".join)
def test_a_sentinel_is_refused_with_an_entry(scripted_nvml: Make, calls: tuple[str, ...]) -> None:
    questions = QUESTIONS_BY_CALLS[calls]
    wide = guest_api_pb2.GpuDevice.DESCRIPTOR.fields_by_name[QUESTIONS[questions[0]][0]].cpp_type == 4
    sentinel = "0xFFFFFFFFFFFFFFFF" if wide and questions[0] != "pcie_replays" else "0xFFFFFFFF"
    (card,) = sample(scripted_nvml(f"{calls[0]} 0 * set {SENTINELS.get(calls[0], f'value={sentinel}')}"))["gpus"]
    assert [entry.partition(":")[0] for entry in card["errors"]] == questions
    assert all(card[QUESTIONS[question][0]] is None for question in questions)


def test_base_values_of_all_cards_are_asked_before_any_group(scripted_nvml: Make) -> None:
    library = scripted_nvml("cards 2\nnvmlDeviceGetEccMode 0 1 abort")
    assert run(collector_command(nvml_library=library.path, groups=("health",))).status != 0
    assert [library.calls("nvmlDeviceGetPowerUsage", card) for card in (0, 1)] == [1, 1]
    assert library.calls("nvmlDeviceGetEccMode", 1) == 0


@pytest.mark.parametrize("failure", ["", "return 999", "keep"])
def test_what_two_questions_want_of_a_card_is_asked_once_also_where_it_fails(scripted_nvml: Make, failure: str) -> None:
    names = ("MemoryInfo_v2", "EnforcedPowerLimit", "Architecture", "MigMode")
    twice = [f"nvmlDeviceGet{name}" for name in names]
    library = scripted_nvml("\n".join(["cards 2", *(f"{call} 1 * {failure}" for call in twice if failure)]))
    healthy, _ = sample(library)["gpus"]
    assert [library.calls(call, card) for call in twice for card in (0, 1)] == [1] * 8
    assert healthy["errors"] == []


def test_the_older_names_of_two_questions_are_used_where_the_newer_ones_are_not_there(scripted_nvml: Make) -> None:
    (card,) = sample(scripted_nvml(hide=["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetRetiredPages_v2"]))["gpus"]
    assert (card["clocks_event_reasons"], card["retired_pages_double_bit"], card["errors"]) == (1, 5, [])


def test_a_card_without_retired_pages_has_a_measured_zero(scripted_nvml: Make) -> None:
    (card,) = sample(scripted_nvml("nvmlDeviceGetRetiredPages_v2 0 * set value=0"))["gpus"]
    assert (card["retired_pages_single_bit"], card["retired_pages_double_bit"]) == (0, 0)


@pytest.mark.parametrize(("flags", "shown"), [("pending=1", (True, False)), ("failed=1", (False, True))])
def test_a_row_that_waits_is_told_from_one_that_could_not_be_remapped(
    scripted_nvml: Make, flags: str, shown: tuple[bool, bool]
) -> None:
    (card,) = sample(scripted_nvml(f"nvmlDeviceGetRemappedRows 0 * set {flags}"))["gpus"]
    assert (card["row_remap_pending"], card["row_remap_failed"]) == shown


def test_links_that_are_not_there_are_not_counted(scripted_nvml: Make) -> None:
    (card,) = sample(scripted_nvml("nvmlDeviceGetNvLinkState 0 5- return 2"))["gpus"]
    assert (card["nvlinks_active"], card["nvlinks_inactive"]) == (4, 0)


def test_a_card_whose_links_have_no_error_fields_gives_its_recoveries(scripted_nvml: Make) -> None:
    (card,) = sample(scripted_nvml("nvmlDeviceGetFieldValues 0 * set linksReturn=3 linkErrors=2"))["gpus"]
    assert card["nvlink_errors"] == 36


@pytest.mark.parametrize("code", [3, 999])
def test_a_field_s_own_return_counts_as_that_of_a_call(scripted_nvml: Make, code: int) -> None:
    (card,) = sample(scripted_nvml(f"nvmlDeviceGetFieldValues 0 * set groupReturn={code}"))["gpus"]
    assert (card["recovery_action"], card["nvlink_errors"]) == (None, None)
    assert [entry.partition(":")[0] for entry in card["errors"]] == (
        [] if code == 3 else ["temperature_memory_c", "nvlink_errors", "recovery_action", "nvlink_data"]
    )


@pytest.mark.parametrize(("state", "status", "shown"), [(0, 0, (None, None)), (2, 0, (2, None)), (3, 15, (3, 15))])
def test_a_fabric_s_status_is_told_once_its_state_is_completed(
    scripted_nvml: Make, state: int, status: int, shown: tuple[int | None, int | None]
) -> None:
    (card,) = sample(scripted_nvml(f"nvmlDeviceGetGpuFabricInfoV 0 * set value={state} status={status}"))["gpus"]
    assert ((card["fabric_state"], card["fabric_status"]), card["errors"]) == (shown, [])


def test_from_ada_on_thresholds_are_not_asked_for_and_the_margin_stands_for_them(scripted_nvml: Make) -> None:
    library = scripted_nvml("nvmlDeviceGetArchitecture 0 * set value=9")
    (card,) = sample(library, ("identity", "limits", "activity"))["gpus"]
    assert (card["architecture"], card["temperature_slowdown_c"], card["temperature_shutdown_c"]) == ("hopper", None, None)
    assert (card["temperature_margin_c"], card["errors"]) == (-3, [])
    assert library.calls("nvmlDeviceGetTemperatureThreshold", 0) == 0


def test_protected_memory_that_is_all_zero_is_confidential_computing_that_is_off(scripted_nvml: Make) -> None:
    (card,) = sample(scripted_nvml("nvmlDeviceGetConfComputeProtectedMemoryUsage 0 * set value=0 used=0"), ("cc",))["gpus"]
    assert (card["protected_memory_total_bytes"], card["protected_memory_used_bytes"], card["errors"]) == (None, None, [])


def test_a_performance_state_that_nvml_calls_unknown_is_unset(scripted_nvml: Make) -> None:
    (card,) = sample(scripted_nvml("nvmlDeviceGetPerformanceState 0 * set value=32"), ("activity",))["gpus"]
    assert (card["performance_state"], card["errors"]) == (None, [])


def test_an_architecture_that_this_version_does_not_know_is_its_number(scripted_nvml: Make) -> None:
    (card,) = sample(scripted_nvml("nvmlDeviceGetArchitecture 0 * set value=77"), ("identity",))["gpus"]
    assert card["architecture"] == "77"


INSTANCES = [
    {
        "gpu_instance": number,
        "compute_instance": number - 7,
        "uuid": "GPU-00000000-0000-4000-8000-000000000000",
        "profile": "1g.18gb",
        "memory_total_bytes": 150_754_820_096,
        "memory_used_bytes": 54_820_096,
    }
    for number in (7, 9)
]
MIG_ON = "nvmlDeviceGetMigMode 0 * set value=1\n"


def test_instances_are_told_over_gaps_on_the_card_that_has_them_and_on_no_other(scripted_nvml: Make) -> None:
    divided, whole = sample(scripted_nvml(f"cards 2\n{MIG_ON}"), ("mig",))["gpus"]
    assert (divided["mig_enabled"], divided["mig_instances"]) == (True, INSTANCES)
    assert (whole["mig_enabled"], whole["mig_instances"]) == (False, [])
    assert divided["errors"] == whole["errors"] == []


def test_instances_that_come_and_go_between_samples_are_those_of_the_sample(scripted_nvml: Make) -> None:
    library = scripted_nvml(f"{MIG_ON}nvmlDeviceGetMigDeviceHandleByIndex 0 1 return 6")
    (before,), (after,) = (sample(library, ("mig",))["gpus"] for _ in range(2))
    assert [each["gpu_instance"] for each in before["mig_instances"]] == [9]
    assert [each["gpu_instance"] for each in after["mig_instances"]] == [7, 9]


@pytest.mark.parametrize("call", ["nvmlDeviceGetMigDeviceHandleByIndex 0 1", "nvmlDeviceGetGpuInstanceId 0 1"])
def test_an_instance_that_cannot_be_read_leaves_the_others_and_is_an_entry(scripted_nvml: Make, call: str) -> None:
    (card,) = sample(scripted_nvml(f"{MIG_ON}{call} return 999"), ("mig",))["gpus"]
    assert [each["gpu_instance"] for each in card["mig_instances"]] == [9]
    assert card["errors"] == ["mig_instances: instance 0: Unknown Error (999)"]


def test_what_one_instance_does_not_tell_is_unset_there_alone(scripted_nvml: Make) -> None:
    script = f"{MIG_ON}nvmlDeviceGetComputeInstanceId 0 1 return 999\nnvmlDeviceGetName 0 1 return 999"
    (card,) = sample(scripted_nvml(script), ("mig",))["gpus"]
    first, second = card["mig_instances"]
    assert ("compute_instance" in first, first["profile"]) == (False, "")
    assert second == INSTANCES[1]


def test_processes_are_listed_with_memory_where_the_driver_knows_it(scripted_nvml: Make) -> None:
    (card,) = sample(scripted_nvml(), ("processes",))["gpus"]
    assert card["process_list"] == [{"pid": 4242, "used_memory_bytes": 1 << 30}, {"pid": 4243}]
    assert sample(scripted_nvml(), ())["gpus"][0].get("process_list") is None


def test_more_processes_than_a_card_runs_are_an_entry(scripted_nvml: Make) -> None:
    (card,) = sample(scripted_nvml("nvmlDeviceGetComputeRunningProcesses_v3 0 * set value=5000"), ("processes",))["gpus"]
    assert (card["process_list"], card["errors"]) == ([], ["process_list: more than 1024 processes"])


def test_an_unknown_group_is_refused_by_name(scripted_nvml: Make) -> None:
    refused = run(collector_command(nvml_library=scripted_nvml().path, groups=("heath",)))
    assert (refused.status, refused.stdout) == (2, "")
    assert "'heath'" in refused.stderr
    assert all(group in refused.stderr for group in GROUPS)


@pytest.mark.parametrize("row", [row for row in ROWS if row.group != BASE], ids=lambda row: row.name)
def test_a_group_s_value_has_the_type_that_its_row_says(row: Any) -> None:  # Any: a row
    value = ANSWERS[row.group][row.name]
    kind = bool if row.unit == FLAG else str if row.unit == TEXT_VALUE else int
    assert type(value) is kind
    assert FIELDS[row.name] is row
