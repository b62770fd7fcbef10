"""Each value of a sample: what the driver says is shown, what it does not say or what cannot be is unset with one entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from guest_api import guest_api_pb2
from tests.collector.process import collect
from tests.nvml_library.fixture import ScriptedNvml

Make = Callable[..., ScriptedNvml]

HEALTHY = {
    "index": 0,
    "uuid": "GPU-00000000-0000-4000-8000-000000000000",
    "pci_bus_id": "00000000:01:00.0",
    "utilization_gpu": 40,
    "utilization_memory": 20,
    "memory_total_bytes": 150754820096,
    "memory_used_bytes": 54820096,
    "memory_free_bytes": 150000000000,
    "temperature_c": 35,
    "power_usage_mw": 79700,
    "errors": [],
}


def but(**values: object) -> dict[str, Any]:
    """The healthy card with other values."""
    assert values.keys() <= HEALTHY.keys()
    return {**HEALTHY, **values}


def test_a_healthy_card_has_every_value_and_no_entry(scripted_nvml: Make) -> None:
    sample = collect(scripted_nvml()).sample
    cc = {"cc_ready": True, "cc_enabled": True, "cc_devtools": False, "cc_environment": 2, "cc_multi_gpu_mode": 0}
    versions = {"driver_version": "570.00.00", "cuda_driver_version": "12.8", "nvml_version": "12.570.00.00"}
    assert sample == {"gpus": [HEALTHY], "error": "", **cc, **versions, "sample_age_ms": None, "groups": []}


def test_the_keys_are_the_contracts_in_the_contracts_order(scripted_nvml: Make) -> None:
    sample = collect(scripted_nvml()).sample
    contract = guest_api_pb2.DESCRIPTOR.message_types_by_name
    # Of our own numbers the collector answers what it asks of the driver; it looks neither at the bus nor at the kernel's log.
    asked = [*range(1001), *range(1002, 1008)]
    assert set(sample) == {field.name for field in contract["GpuInfoResponse"].fields if field.number in asked}
    assert list(sample["gpus"][0]) == [field.name for field in contract["GpuDevice"].fields if field.number < 1000]


def test_a_measured_zero_is_zero_and_not_unset(scripted_nvml: Make) -> None:
    script = """
        nvmlDeviceGetUtilizationRates 0 * set gpu=0 memory=0
        nvmlDeviceGetMemoryInfo_v2 0 * set used=0 free=0
        nvmlDeviceGetTemperature 0 * set temperature=0
        nvmlDeviceGetPowerUsage 0 * set power=0
    """
    zeros = ("utilization_gpu", "utilization_memory", "memory_used_bytes", "memory_free_bytes", "temperature_c", "power_usage_mw")
    assert collect(scripted_nvml(script)).card == but(**dict.fromkeys(zeros, 0))


@pytest.mark.parametrize(
    ("function", "field", "values"),
    [
        ("nvmlDeviceGetPowerUsage", "power", ["power_usage_mw"]),
        ("nvmlDeviceGetTemperature", "temperature", ["temperature_c"]),
        ("nvmlDeviceGetUtilizationRates", "utilization", ["utilization_gpu", "utilization_memory"]),
    ],
)
@pytest.mark.parametrize(("code", "words"), [(3, "Not Supported (3)"), (15, "GPU is lost (15)"), (999, "Unknown Error (999)")])
def test_a_value_that_cannot_be_read_is_unset_with_one_entry_and_the_rest_stays(
    scripted_nvml: Make, function: str, field: str, values: list[str], code: int, words: str
) -> None:
    card = collect(scripted_nvml(f"{function} 0 * return {code}")).card
    assert card == but(**dict.fromkeys(values), errors=[f"{field}: {words}"])


def test_one_card_without_power_leaves_the_other_cards_complete(scripted_nvml: Make) -> None:
    cards = collect(scripted_nvml("cards 3\nnvmlDeviceGetPowerUsage 1 * return 3")).sample["gpus"]
    assert [card["power_usage_mw"] for card in cards] == [79700, None, 79700]
    assert [len(card["errors"]) for card in cards] == [0, 1, 0]


def test_a_mig_card_without_utilization_is_unset_not_idle(scripted_nvml: Make) -> None:
    card = collect(scripted_nvml("nvmlDeviceGetUtilizationRates 0 * return 3")).card
    assert card["utilization_gpu"] is None
    assert card["memory_used_bytes"] == 54820096


def test_a_vgpu_without_temperature_and_power_is_listed_with_the_rest(scripted_nvml: Make) -> None:
    card = collect(scripted_nvml("nvmlDeviceGetTemperature 0 * return 3\nnvmlDeviceGetPowerUsage 0 * return 3")).card
    errors = ["temperature: Not Supported (3)", "power: Not Supported (3)"]
    assert card == but(temperature_c=None, power_usage_mw=None, errors=errors)


def test_instant_power_stands_in_where_power_usage_fails(scripted_nvml: Make) -> None:
    script = "nvmlDeviceGetPowerUsage 0 * return 3\nnvmlDeviceGetFieldValues 0 * set fieldReturn=0 power=81000"
    assert collect(scripted_nvml(script)).card == but(power_usage_mw=81000)


def test_a_fields_own_return_counts_though_the_call_as_a_whole_succeeded(scripted_nvml: Make) -> None:
    script = "nvmlDeviceGetPowerUsage 0 * return 3\nnvmlDeviceGetFieldValues 0 * set fieldReturn=3 power=81000"
    library = scripted_nvml(script)
    assert collect(library).card == but(power_usage_mw=None, errors=["power: Not Supported (3)"])
    assert library.calls("nvmlDeviceGetFieldValues", 0) == 1


def test_instant_power_that_was_never_written_is_unset(scripted_nvml: Make) -> None:
    card = collect(scripted_nvml("nvmlDeviceGetPowerUsage 0 * return 3\nnvmlDeviceGetFieldValues 0 * keep")).card
    assert card["power_usage_mw"] is None
    assert len(card["errors"]) == 1


@pytest.mark.parametrize(
    ("kind", "bits", "milliwatts"),
    [
        (0, 0x40F3C68000000000, 81000),  # the double 81000.0
        (1, 81000, 81000),
        (2, 81000, 81000),
        (3, 81000, 81000),
        (4, 81000, 81000),
        (5, 81000, 81000),
        (6, 0xFFFFFFFFFFFF1388, 5000),
    ],
)
def test_instant_power_is_read_by_the_type_that_the_driver_names(
    scripted_nvml: Make, kind: int, bits: int, milliwatts: int
) -> None:
    script = f"nvmlDeviceGetPowerUsage 0 * return 3\nnvmlDeviceGetFieldValues 0 * set fieldReturn=0 type={kind} bits={bits}"
    assert collect(scripted_nvml(script)).card == but(power_usage_mw=milliwatts)


@pytest.mark.parametrize(
    ("kind", "bits"),
    [
        (0, 0x7FF8000000000000),  # not a number
        (0, 0x7FF0000000000000),  # infinity
        (4, 0xFFFFFFFFFFFFFFFF),  # -1
        (7, 81000),  # a type of tomorrow
        (0xFFFFFFFF, 81000),
    ],
)
def test_instant_power_of_an_unknown_type_or_an_impossible_value_is_unset_and_no_zero(
    scripted_nvml: Make, kind: int, bits: int
) -> None:
    script = f"nvmlDeviceGetPowerUsage 0 * return 3\nnvmlDeviceGetFieldValues 0 * set fieldReturn=0 type={kind} bits={bits}"
    card = collect(scripted_nvml(script)).card
    assert card["power_usage_mw"] is None
    assert [entry.partition(":")[0] for entry in card["errors"]] == ["power"]


def test_an_impossible_utilization_is_refused_and_the_other_one_kept(scripted_nvml: Make) -> None:
    card = collect(scripted_nvml("nvmlDeviceGetUtilizationRates 0 * set gpu=808334905 memory=12")).card
    assert card == but(utilization_gpu=None, utilization_memory=12, errors=["utilization: gpu 808334905 % is over 100"])


@pytest.mark.parametrize("row", ["set power=0xFFFFFFFF", "keep", "set power=5000001", "set power=7000001"])
def test_an_impossible_power_is_refused_and_nothing_stands_in(scripted_nvml: Make, row: str) -> None:
    library = scripted_nvml(f"nvmlDeviceGetPowerUsage 0 * {row}")
    card = collect(library).card
    assert card["power_usage_mw"] is None
    assert [entry.partition(":")[0] for entry in card["errors"]] == ["power"]
    assert library.calls("nvmlDeviceGetFieldValues", 0) == 0


def test_power_over_ten_times_the_enforced_limit_is_refused(scripted_nvml: Make) -> None:
    script = "nvmlDeviceGetEnforcedPowerLimit 0 * set limit=70000\nnvmlDeviceGetPowerUsage 0 * set power="
    assert collect(scripted_nvml(script + "700000")).card["power_usage_mw"] == 700000
    card = collect(scripted_nvml(script + "700001")).card
    assert card == but(power_usage_mw=None, errors=["power: 700001 mW is over 10 times the limit of 70000 mW"])


@pytest.mark.parametrize("row", ["return 3", "keep", "set limit=0"])
def test_a_limit_that_is_unknown_refuses_no_power(scripted_nvml: Make, row: str) -> None:
    assert collect(scripted_nvml(f"nvmlDeviceGetEnforcedPowerLimit 0 * {row}")).card == HEALTHY


@pytest.mark.parametrize("function", ["nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperature"])
def test_a_success_that_writes_nothing_is_unset_not_zero(scripted_nvml: Make, function: str) -> None:
    card = collect(scripted_nvml(f"{function} 0 * keep")).card
    unset = [key for key, value in card.items() if value is None]
    assert unset
    assert len(card["errors"]) == 1
    assert {key: value for key, value in card.items() if key not in (*unset, "errors")} == {
        key: value for key, value in HEALTHY.items() if key not in (*unset, "errors")
    }


@pytest.mark.parametrize("failure", ["return 999", "return 3", "return 13"])
def test_the_older_memory_query_is_used_where_the_newer_one_fails(scripted_nvml: Make, failure: str) -> None:
    script = f"nvmlDeviceGetMemoryInfo_v2 0 * {failure}\nnvmlDeviceGetMemoryInfo 0 * set used=754820096"
    assert collect(scripted_nvml(script)).card == but(memory_used_bytes=754820096)


def test_the_older_memory_query_is_used_where_the_driver_lacks_the_newer_one(scripted_nvml: Make) -> None:
    library = scripted_nvml(hide=["nvmlDeviceGetMemoryInfo_v2"])
    assert collect(library).card == but(memory_used_bytes=754820096)
    assert library.calls("nvmlDeviceGetMemoryInfo", 0) == 1


def test_memory_is_unset_where_neither_query_is_supported(scripted_nvml: Make) -> None:
    script = """
        nvmlDeviceGetMemoryInfo_v2 0 * return 3
        nvmlDeviceGetMemoryInfo 0 * return 3
        nvmlDeviceGetPciInfo_v3 0 * text 0000000F:01:00.0
    """
    unset = dict.fromkeys(("memory_total_bytes", "memory_used_bytes", "memory_free_bytes"))
    errors = ["memory: Not Supported (3)"]
    assert collect(scripted_nvml(script)).card == but(**unset, errors=errors, pci_bus_id="0000000F:01:00.0")


def test_memory_that_the_driver_reserves_is_not_in_used(scripted_nvml: Make) -> None:
    mib = 1024 * 1024
    total = 81559 * mib
    script = f"""
        nvmlDeviceGetMemoryInfo 0 * set total={total} used={308 * mib} free={total - 308 * mib}
        nvmlDeviceGetMemoryInfo_v2 0 * set total={total} used={1 * mib} reserved={307 * mib} free={total - 308 * mib}
    """
    card = collect(scripted_nvml(script)).card
    assert card["memory_used_bytes"] == 1 * mib
    assert card["memory_used_bytes"] + card["memory_free_bytes"] + 307 * mib == card["memory_total_bytes"]


def test_memory_used_over_total_is_refused_and_total_kept(scripted_nvml: Make) -> None:
    card = collect(scripted_nvml("nvmlDeviceGetMemoryInfo_v2 0 * set total=1000 used=1001 free=0")).card
    errors = ["memory: used 1001 bytes is over the total"]
    assert card == but(memory_total_bytes=1000, memory_used_bytes=None, memory_free_bytes=0, errors=errors)


def test_used_and_free_that_are_more_than_the_total_are_refused_all_three(scripted_nvml: Make) -> None:
    card = collect(scripted_nvml("nvmlDeviceGetMemoryInfo_v2 0 * set total=100 used=80 free=80")).card
    errors = ["memory: used 80 and free 80 bytes together are over the total of 100"]
    assert card == but(memory_total_bytes=None, memory_used_bytes=None, memory_free_bytes=None, errors=errors)


def test_memory_of_64_bits_stays_exact(scripted_nvml: Make) -> None:
    total = (1 << 53) + 1  # a double would round it
    card = collect(scripted_nvml(f"nvmlDeviceGetMemoryInfo_v2 0 * set total={total} used={total} free=0")).card
    assert (card["memory_total_bytes"], card["memory_used_bytes"]) == (total, total)


@pytest.mark.parametrize("function", ["nvmlDeviceGetTemperature", "nvmlDeviceGetPciInfo_v3"])
def test_a_call_that_a_driver_no_longer_or_not_yet_has_is_replaced(scripted_nvml: Make, function: str) -> None:
    card = collect(scripted_nvml(hide=[function])).card
    assert card == but(temperature_c=36 if function == "nvmlDeviceGetTemperature" else 35)


def test_an_older_driver_too_gives_the_whole_pci_domain(scripted_nvml: Make) -> None:
    library = scripted_nvml("nvmlDeviceGetPciInfo_v2 0 * set domain=0x10A1B2 bus=0x3B", hide=["nvmlDeviceGetPciInfo_v3"])
    assert collect(library).card == but(pci_bus_id="0010A1B2:3B:00.0")


def test_a_negative_temperature_is_refused(scripted_nvml: Make) -> None:
    library = scripted_nvml("nvmlDeviceGetTemperatureV 0 * set temperature=0xFFFFFFFB", hide=["nvmlDeviceGetTemperature"])
    assert collect(library).card == but(temperature_c=None, errors=["temperature: -5 degrees Celsius is under 0"])


@pytest.mark.parametrize(
    ("hidden", "field"),
    [
        (["nvmlDeviceGetUUID"], "uuid"),
        (["nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo_v3"], "pci_bus_id"),
        (["nvmlDeviceGetUtilizationRates"], "utilization"),
        (["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"], "memory"),
        (["nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"], "temperature"),
        (["nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"], "power"),
        (["nvmlDeviceGetHandleByIndex_v2"], "device"),
    ],
)
def test_a_query_that_the_driver_lacks_leaves_its_field_unset(scripted_nvml: Make, hidden: list[str], field: str) -> None:
    assert collect(scripted_nvml(hide=hidden)).card["errors"] == [f"{field}: Function Not Found (13)"]


def test_a_uuid_of_broken_bytes_is_shown_with_replacements(scripted_nvml: Make) -> None:
    card = collect(scripted_nvml("nvmlDeviceGetUUID 0 * bytes F895A0475055")).card
    assert card == but(uuid="\ufffd\ufffd\ufffdGPU")


@pytest.mark.parametrize(("function", "field"), [("nvmlDeviceGetUUID", "uuid"), ("nvmlDeviceGetPciInfo_v3", "pci_bus_id")])
@pytest.mark.parametrize("row", ["keep", "return 999"])
def test_a_text_that_the_driver_does_not_give_is_empty_with_one_entry(
    scripted_nvml: Make, function: str, field: str, row: str
) -> None:
    card = collect(scripted_nvml(f"{function} 0 * {row}\nnvmlDeviceGetPciInfo_v2 0 * return 999")).card
    assert card[field] == ""
    assert [entry.partition(":")[0] for entry in card["errors"]] == [field]


@pytest.mark.parametrize("bus_id", ["00000000:3B:00.0", "0000:3b:00.0", "0001:00:00.0", "3B:00.0", "0010A1B2:3B:00.0"])
def test_a_pci_address_is_passed_on_as_the_driver_writes_it(scripted_nvml: Make, bus_id: str) -> None:
    assert collect(scripted_nvml(f"nvmlDeviceGetPciInfo_v3 0 * text {bus_id}")).card["pci_bus_id"] == bus_id


def test_an_error_code_newer_than_this_program_has_the_librarys_own_words(scripted_nvml: Make) -> None:
    script = "nvmlDeviceGetTemperature 0 * return 77\nnvmlErrorString - * bytes F8206F6464"
    assert collect(scripted_nvml(script)).card["errors"] == ["temperature: \ufffd odd (77)"]
    library = scripted_nvml("nvmlDeviceGetTemperature 0 * return 77", hide=["nvmlErrorString"])
    assert collect(library).card["errors"] == ["temperature: NVML error (77)"]
