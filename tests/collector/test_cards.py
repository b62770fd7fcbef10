"""Many cards: a bad one is bad for itself, and no handle that was not obtained is ever used (the scripted library aborts on one)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from guest_contract import card_fields
from tests.collector.process import collect
from tests.nvml_library.fixture import ScriptedNvml

Make = Callable[..., ScriptedNvml]

NO_CC = {
    "cc_ready": None, "cc_enabled": None, "cc_devtools": None, "driver_version": None, "cuda_driver_version": None, "nvml_version": None,
    "cc_environment": None, "cc_multi_gpu_mode": None,
}  # fmt: skip
UNSET = (
    "utilization_gpu",
    "utilization_memory",
    "memory_total_bytes",
    "memory_used_bytes",
    "memory_free_bytes",
    "temperature_c",
    "power_usage_mw",
)


def lost(index: int, reason: str = "GPU is lost (15)") -> dict[str, Any]:
    """A card of which nothing but its place is known."""
    return {"index": index, "uuid": "", "pci_bus_id": "", **dict.fromkeys(UNSET), "errors": [f"device: {reason}"]}


def test_a_card_that_fell_off_the_bus_is_unknown_and_the_others_complete(scripted_nvml: Make) -> None:
    sample = collect(scripted_nvml("cards 4\nnvmlDeviceGetHandleByIndex_v2 2 * return 15")).sample
    assert sample["gpus"][2] == lost(2)
    assert [card["index"] for card in sample["gpus"]] == [0, 1, 2, 3]
    assert all(card["power_usage_mw"] == 79700 and not card["errors"] for card in sample["gpus"] if card["index"] != 2)
    assert sample["error"] == ""


def test_a_card_lost_in_the_middle_of_a_sample_keeps_what_was_read(scripted_nvml: Make) -> None:
    getters = ("UtilizationRates", "MemoryInfo_v2", "MemoryInfo", "Temperature", "PowerUsage", "FieldValues")
    script = "cards 2\n" + "\n".join(f"nvmlDeviceGet{name} 1 * return 15" for name in getters)
    healthy, card = collect(scripted_nvml(script)).sample["gpus"]
    assert healthy["errors"] == []
    assert card["uuid"] == "GPU-00000000-0000-4000-8000-000000000001"
    assert card["pci_bus_id"] == "00000000:02:00.0"
    assert all(card[key] is None for key in UNSET)
    assert card["errors"] == [f"{field}: GPU is lost (15)" for field in ("utilization", "memory", "temperature", "power")]


def test_eight_lost_cards_are_eight_bad_entries_and_no_failed_sample(scripted_nvml: Make) -> None:
    sample = collect(scripted_nvml("cards 8\nnvmlDeviceGetHandleByIndex_v2 * * return 15")).sample
    assert sample["gpus"] == [lost(index) for index in range(8)]
    assert sample["error"] == ""


def test_a_success_without_a_handle_asks_nothing_of_it(scripted_nvml: Make) -> None:
    library = scripted_nvml("cards 2\nnvmlDeviceGetHandleByIndex_v2 0 * keep")
    cards = collect(library).sample["gpus"]
    assert cards[0] == lost(0, "Success, but nothing was written (-1)")
    assert cards[1]["errors"] == []
    assert library.calls("nvmlDeviceGetUUID", 0) == 0


def test_cards_that_change_places_keep_their_uuid_and_address(scripted_nvml: Make) -> None:
    script = """
        cards 2
        nvmlDeviceGetUUID 0 1 text GPU-a
        nvmlDeviceGetUUID 1 1 text GPU-b
        nvmlDeviceGetUUID 0 2 text GPU-b
        nvmlDeviceGetUUID 1 2 text GPU-a
        nvmlDeviceGetPciInfo_v3 0 2 text 00000000:02:00.0
        nvmlDeviceGetPciInfo_v3 1 2 text 00000000:01:00.0
        nvmlDeviceGetTemperature 0 1 set temperature=50
        nvmlDeviceGetTemperature 1 2 set temperature=50
    """
    library = scripted_nvml(script)
    seen = [{card["uuid"]: (card["pci_bus_id"], card["temperature_c"]) for card in collect(library).sample["gpus"]} for _ in "12"]
    assert seen[0] == seen[1] == {"GPU-a": ("00000000:01:00.0", 50), "GPU-b": ("00000000:02:00.0", 35)}


def test_a_card_that_appears_is_in_the_next_sample(scripted_nvml: Make) -> None:
    library = scripted_nvml("cards 2\nnvmlDeviceGetCount_v2 - 1-2 set count=1")
    assert [len(collect(library).sample["gpus"]) for _ in "123"] == [1, 1, 2]


def test_no_card_is_none_and_asks_nothing_more(scripted_nvml: Make) -> None:
    library = scripted_nvml("cards 0")
    assert collect(library).sample == {"gpus": [], "error": "", **NO_CC, "sample_age_ms": None, "groups": []}
    assert library.calls("nvmlSystemGetConfComputeSettings") == 0
    assert library.calls("nvmlShutdown") == 1


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ("return 999", "NVML cannot count the GPUs: Unknown Error (999)"),
        ("keep", "NVML counts 4294967295 GPUs, more than 1024: not believed"),
        ("set count=1025", "NVML counts 1025 GPUs, more than 1024: not believed"),
    ],
)
def test_an_unknown_number_of_cards_is_an_error_and_not_none(scripted_nvml: Make, row: str, reason: str) -> None:
    library = scripted_nvml(f"nvmlDeviceGetCount_v2 - * {row}")
    sample = collect(library).sample
    assert sample == {"gpus": [], "error": reason, **NO_CC, "sample_age_ms": None, "groups": []}
    assert library.calls("nvmlShutdown") == 1


CC = ("nvmlSystemGetConfComputeSettings", "nvmlSystemGetConfComputeState", "nvmlSystemGetConfComputeGpusReadyState")


def cc(library: ScriptedNvml) -> tuple[bool | None, bool | None, str]:
    """cc_enabled, cc_ready, and what was said on stderr."""
    collected = collect(library)
    assert collected.sample["gpus"][0]["errors"] == []
    return collected.sample["cc_enabled"], collected.sample["cc_ready"], collected.stderr


def test_cc_queries_that_are_not_supported_are_unknown_and_no_complaint(scripted_nvml: Make) -> None:
    assert cc(scripted_nvml("\n".join(f"{function} - * return 3" for function in CC))) == (None, None, "")


def test_cc_queries_that_the_driver_lacks_are_unknown_and_no_complaint(scripted_nvml: Make) -> None:
    assert cc(scripted_nvml(hide=CC)) == (None, None, "")


@pytest.mark.parametrize("failure", ["return 25", "return 13", "return 3"])
def test_the_older_cc_state_is_asked_where_the_settings_fail(scripted_nvml: Make, failure: str) -> None:
    script = f"""
        nvmlSystemGetConfComputeSettings - * {failure}
        nvmlSystemGetConfComputeState - * set environment=2 ccFeature=1 devToolsMode=0
        nvmlSystemGetConfComputeGpusReadyState - * set ready=0
    """
    assert cc(scripted_nvml(script)) == (True, False, "")


def test_the_older_cc_state_is_asked_where_the_driver_lacks_the_settings(scripted_nvml: Make) -> None:
    script = "nvmlSystemGetConfComputeState - * set ccFeature=0"
    assert cc(scripted_nvml(script, hide=["nvmlSystemGetConfComputeSettings"])) == (False, True, "")


def test_cc_that_is_off_is_false_and_not_unknown(scripted_nvml: Make) -> None:
    script = "nvmlSystemGetConfComputeSettings - * set ccFeature=0\nnvmlSystemGetConfComputeGpusReadyState - * set ready=0"
    assert cc(scripted_nvml(script)) == (False, False, "")


@pytest.mark.parametrize("row", ["return 999", "keep"])
def test_a_cc_query_that_fails_otherwise_is_unknown_and_said_on_stderr(scripted_nvml: Make, row: str) -> None:
    enabled, ready, stderr = cc(scripted_nvml(f"nvmlSystemGetConfComputeGpusReadyState - * {row}"))
    assert (enabled, ready) == (True, None)
    assert stderr.startswith("guest-service gpu-info: cc_ready: ")
    assert stderr.count("\n") == 1


def test_a_complaint_in_a_drivers_own_words_is_one_printable_line(scripted_nvml: Make) -> None:
    script = "nvmlSystemGetConfComputeGpusReadyState - * return 77\nnvmlErrorString - * bytes 1B5B324A0A78"
    *_, stderr = cc(scripted_nvml(script))
    assert stderr == "guest-service gpu-info: cc_ready: \\x1b[2J\\nx (77)\n"


def test_cc_settings_that_were_never_written_are_unknown_and_one_complaint(scripted_nvml: Make) -> None:
    enabled, ready, stderr = cc(scripted_nvml("nvmlSystemGetConfComputeSettings - * keep"))
    assert (enabled, ready) == (None, True)
    assert stderr == "guest-service gpu-info: cc_enabled: Success, but nothing was written (-1)\n"


SETTINGS = "nvmlSystemGetConfComputeSettings"
STATE = "nvmlSystemGetConfComputeState"


@pytest.mark.parametrize(
    ("script", "devtools"),
    [
        ("", False),
        (f"{SETTINGS} - * set devToolsMode=1", True),
        (f"{SETTINGS} - * return 13\n{STATE} - * set ccFeature=1 devToolsMode=1", True),
        (f"{SETTINGS} - * set ccFeature=0 devToolsMode=0", False),
        (f"{SETTINGS} - * return 3\n{STATE} - * return 3", None),
        (f"{SETTINGS} - * return 999\n{STATE} - * return 999", None),
        (f"{SETTINGS} - * keep", None),
    ],
)
def test_devtools_is_read_with_the_settings_and_unknown_where_they_are(
    scripted_nvml: Make, script: str, devtools: bool | None
) -> None:
    library = scripted_nvml(script)
    assert collect(library).sample["cc_devtools"] is devtools
    assert library.calls(SETTINGS) == 1, "one question answers both"


def test_a_devtools_mode_that_was_not_written_is_unknown_and_said_on_stderr(scripted_nvml: Make) -> None:
    collected = collect(scripted_nvml(f"{SETTINGS} - * set devToolsMode=4294967295"))
    assert (collected.sample["cc_enabled"], collected.sample["cc_devtools"]) == (True, None)
    assert collected.stderr == "guest-service gpu-info: cc_devtools: Success, but nothing was written (-1)\n"


def machine(library: ScriptedNvml, *names: str) -> list[object]:
    """What a sample says of the machine."""
    collected = collect(library)
    return [collected.sample[name] for name in names]


VERSIONS = ("driver_version", "cuda_driver_version", "nvml_version")
VERSION_CALLS = ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2", "nvmlSystemGetNVMLVersion")


def test_the_versions_of_the_driver_are_the_drivers_own(scripted_nvml: Make) -> None:
    script = "nvmlSystemGetDriverVersion - * text 580.95.05\nnvmlSystemGetCudaDriverVersion_v2 - * set version=13010"
    assert machine(scripted_nvml(script), *VERSIONS) == ["580.95.05", "13.1", "12.570.00.00"]


@pytest.mark.parametrize("row", ["return 3", "return 999", "keep"])
@pytest.mark.parametrize("place", range(3))
def test_a_version_that_is_not_told_is_unset_and_the_others_are_there(scripted_nvml: Make, row: str, place: int) -> None:
    found = machine(scripted_nvml(f"{VERSION_CALLS[place]} - * {row}"), *VERSIONS)
    assert [value is None for value in found] == [at == place for at in range(3)]


def test_versions_that_the_driver_lacks_are_unset_and_no_complaint(scripted_nvml: Make) -> None:
    collected = collect(scripted_nvml(hide=VERSION_CALLS))
    assert ([collected.sample[name] for name in VERSIONS], collected.stderr) == ([None, None, None], "")


@pytest.mark.parametrize(
    ("script", "environment", "multi_gpu"),
    [
        ("", 2, 0),
        (f"{SETTINGS} - * set environment=1 multiGpuMode=1", 1, 1),
        (f"{SETTINGS} - * return 13\n{STATE} - * set environment=2", 2, None),
        (f"{SETTINGS} - * set environment=0xFFFFFFFF multiGpuMode=0xFFFFFFFF", None, None),
        (f"{SETTINGS} - * keep", None, None),
    ],
)
def test_environment_and_multi_gpu_mode_are_nvmls_numbers_and_unset_where_it_wrote_none(
    scripted_nvml: Make, script: str, environment: int | None, multi_gpu: int | None
) -> None:
    assert machine(scripted_nvml(script), "cc_environment", "cc_multi_gpu_mode") == [environment, multi_gpu]


# Each question about a card: what is called for it, older calls included, and what it answers.
GETTERS = {
    "uuid": (("nvmlDeviceGetUUID",), ("uuid",)),
    "pci_bus_id": (("nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2"), ("pci_bus_id",)),
    "utilization": (("nvmlDeviceGetUtilizationRates",), UNSET[:2]),
    "memory": (("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"), UNSET[2:5]),
    "temperature": (("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"), UNSET[5:6]),
    "power": (("nvmlDeviceGetPowerUsage", "nvmlDeviceGetFieldValues"), UNSET[6:]),
}
SENTINELS = {
    "utilization": "set gpu=0xFFFFFFFF memory=0xFFFFFFFF",
    "memory": "set total=0xFFFFFFFFFFFFFFFF used=0xFFFFFFFFFFFFFFFF free=0xFFFFFFFFFFFFFFFF",
    "temperature": "set temperature=0xFFFFFFFF",
    "power": "set power=0xFFFFFFFF",
}
FAILURES = [*(f"return {code}" for code in (3, 4, 6, 13, 15, 27, 999)), "keep"]


def test_every_base_question_of_the_table_has_its_calls_here() -> None:
    assert list(GETTERS) == [*card_fields.IDENTITY_QUESTIONS[1:], *card_fields.QUESTIONS_OF[card_fields.BASE]]


@pytest.mark.parametrize(
    ("question", "row"),
    [(question, row) for question in GETTERS for row in [*FAILURES, *([SENTINELS[question]] if question in SENTINELS else [])]],
)
def test_a_getter_that_fails_on_one_card_of_eight_costs_its_values_on_that_card_and_nothing_else(
    scripted_nvml: Make, question: str, row: str
) -> None:
    calls, fields = GETTERS[question]
    # A success that is nonsense is refused, and nothing stands in for it: so it is scripted for the first call alone.
    script = [f"{call} 3 * {row}" for call in (calls if row.startswith("return") else calls[:1])]
    cards = collect(scripted_nvml("\n".join(["cards 8", *script]))).sample["gpus"]
    for card in cards:
        missing = {name for name in ("uuid", "pci_bus_id", *UNSET) if card[name] in (None, "")}
        assert missing == (set(fields) if card["index"] == 3 else set())
    assert [entry.partition(":")[0] for entry in cards[3]["errors"]] == [question]
    assert not any(card["errors"] for card in cards if card["index"] != 3)
