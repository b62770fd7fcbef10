"""What groups ask beside the base values: each answer in its field, what is not applicable unset without an entry, all else with one.

How each question fails: test_questions.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from guest_api import guest_api_pb2
from guest_contract.card_fields import BASE, FIELDS, GROUPS, LISTS, QUESTIONS_OF, ROWS
from guest_contract.card_row import FLAG, TEXT_VALUE
from guest_service.collector.command import collector_command
from tests.collector.group_answers import ANSWERS, CALLS, LIST_CALLS, sample, values
from tests.collector.process import run
from tests.collector.test_cards import GETTERS
from tests.nvml_library.fixture import FUNCTIONS, ScriptedNvml

Make = Callable[..., ScriptedNvml]


def test_every_group_and_question_has_its_rows_here() -> None:
    assert (*ANSWERS, "processes") == GROUPS
    assert list(CALLS) == [question for group in ANSWERS for question in QUESTIONS_OF[group]]


def test_every_function_about_a_card_that_the_library_has_is_made_to_fail_by_a_table() -> None:
    told = {call for calls in (*CALLS.values(), *LIST_CALLS.values()) for call in calls}
    told |= {call for calls, _ in GETTERS.values() for call in calls}
    # Without a handle nothing is asked (test_cards.py); protected memory's size is the boot gate's question.
    others = {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetConfComputeMemSizeInfo"}
    assert {name for name in FUNCTIONS if name.startswith("nvmlDevice")} - others == told


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
