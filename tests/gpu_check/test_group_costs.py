"""The C program does the collector's work: the same calls for each group, the same values; and each side tells its cost."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from typing import Any

import pytest

from gpu_check.group_costs import Row, commands, group_costs, told
from gpu_check.yardstick import compiled
from guest_contract.card_fields import BASE, FIELDS, GROUPS
from guest_service.collector.command import collector_command
from tests.collector.process import run
from tests.nvml_library.fixture import FUNCTIONS, ScriptedNvml

MakeNvml = Callable[..., ScriptedNvml]
CARDS = 2
# Without which nothing is asked.
NEEDED = ("load", "nvmlInit_v2", "nvmlShutdown", "nvmlDeviceGetCount_v2", "nvmlDeviceGetHandleByIndex_v2")
# Only the collector asks for it, for a code's words.
ASIDE = ("nvmlErrorString",)
# What the contract has in words, and NVML in numbers.
IN_WORDS = ("architecture", "virtualization_mode")
MIG = "nvmlDeviceGetMigMode * * set value=1\n"
NEWEST = (
    "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetTemperature", "nvmlSystemGetConfComputeSettings",
    "nvmlDeviceGetRetiredPages_v2", "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetPowerUsage",
)  # fmt: skip


def _all_return(code: int) -> str:
    of_cards = (name for name in FUNCTIONS if name not in (*NEEDED, *ASIDE) and name.startswith("nvmlDevice"))
    return "".join(f"{name} * * return {code}\n" for name in of_cards)


# By what the driver or the card is: a script, and the functions that it lacks.
DRIVERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "healthy": ("", ()),
    "hopper": ("nvmlDeviceGetArchitecture * * set value=9\n", ()),
    "mig": (MIG, ()),
    "mig with an instance that cannot be read": (f"{MIG}nvmlDeviceGetGpuInstanceId * 1 return 999\n", ()),
    "older": (MIG, NEWEST),
    "blackwell's links": ("nvmlDeviceGetFieldValues * * set linksReturn=3\n", ()),
    "no links": ("nvmlDeviceGetNvLinkState * * return 2\n", ()),
    "instant power": ("nvmlDeviceGetPowerUsage * * return 3\nnvmlDeviceGetFieldValues * * set fieldReturn=0\n", ()),
    "nothing supported": (_all_return(3), ()),
    "lost": (_all_return(15), ()),
    "deprecated": (_all_return(26), ()),
    "one card that cannot be opened": ("nvmlDeviceGetHandleByIndex_v2 0 * return 15\n", ()),
}


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The C program."""
    return compiled("sample", tmp_path_factory.mktemp("yardstick"))


def asked(library: ScriptedNvml, command: list[str]) -> dict[tuple[str, int | None], int]:
    """How often each function was called, for each card and for none, in one run of a command that must end well."""
    done = run(command)
    assert done.status == 0, done
    places = (None, *range(CARDS))
    calls = {(name, card): library.calls(name, card) for name in FUNCTIONS if name not in ASIDE for card in places}
    return {place: count for place, count in calls.items() if count}


def both_asked(
    make: MakeNvml, program: str, driver: str, groups: tuple[str, ...]
) -> tuple[dict[tuple[str, int | None], int], dict[tuple[str, int | None], int]]:
    script, hide = DRIVERS[driver]
    counts = []
    for side in ("C program", "collector"):
        library = make(f"cards {CARDS}\n{script}", hide=hide)
        counts.append(asked(library, commands(program, library.path, groups)[side]))
    return counts[0], counts[1]


@pytest.mark.parametrize("group", GROUPS)
def test_the_c_program_makes_the_collector_s_calls_for_a_group_and_no_others(
    scripted_nvml: MakeNvml, program: str, group: str
) -> None:
    without, _ = both_asked(scripted_nvml, program, "healthy", ())
    in_c, ours = both_asked(scripted_nvml, program, "healthy", (group,))
    assert in_c == ours
    # Protects from comparing two sides that ask nothing.
    assert in_c != without


@pytest.mark.parametrize("driver", DRIVERS)
def test_the_c_program_makes_the_collector_s_calls_on_any_driver(scripted_nvml: MakeNvml, program: str, driver: str) -> None:
    in_c, ours = both_asked(scripted_nvml, program, driver, GROUPS)
    assert in_c == ours


@pytest.mark.parametrize("driver", ["healthy", "hopper", "mig", "older", "blackwell's links", "instant power"])
def test_the_c_program_reads_the_collector_s_values(scripted_nvml: MakeNvml, program: str, driver: str) -> None:
    script, hide = DRIVERS[driver]
    library = scripted_nvml(f"cards {CARDS}\n{script}", hide=hide)
    in_c = sampled([program, str(library.path), *GROUPS])
    ours = sampled(
        collector_command(nvml_library=library.path, groups=GROUPS),
    )
    names = [name for name in FIELDS if name not in IN_WORDS] + ["uuid", "pci_bus_id", "mig_instances", "process_list"]
    for card, expected in zip(in_c["gpus"], ours["gpus"], strict=True):
        assert {name: card[name] for name in names} == {name: expected[name] for name in names}
    for name in ("cc_enabled", "cc_devtools", "cc_ready", "driver_version", "cuda_driver_version", "nvml_version"):
        assert in_c[name] == ours[name]


def sampled(command: list[str]) -> dict[str, Any]:  # Any: a JSON tree
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    tree: dict[str, Any] = json.loads(done.stdout)  # Any: the same
    return tree


PARTS = ("start", "machine", "open", BASE)


@pytest.mark.parametrize("side", ["C program", "collector"])
@pytest.mark.parametrize(
    ("part", "function"),
    [
        ("start", "nvmlInit_v2"),
        ("machine", "nvmlSystemGetDriverVersion"),
        ("open", "nvmlDeviceGetUUID"),
        (BASE, "nvmlDeviceGetUtilizationRates"),
        ("activity", "nvmlDeviceGetBAR1MemoryInfo"),
        ("mig", "nvmlDeviceGetMigMode"),
        ("processes", "nvmlDeviceGetComputeRunningProcesses_v3"),
        ("throughput", "nvmlDeviceGetPcieThroughput"),
    ],
)
def test_a_call_that_waits_is_in_the_cost_of_its_own_part(
    scripted_nvml: MakeNvml, program: str, side: str, part: str, function: str
) -> None:
    # The count of processes is asked by the group activity too.
    groups = (part,) if part in GROUPS else GROUPS
    library = scripted_nvml(f"cards {CARDS}\n{function} * * sleep 150\n")
    began = time.monotonic()
    cost = told(commands(program, library.path, groups)[side])
    took_us = (time.monotonic() - began) * 1_000_000
    assert list(cost) == [*PARTS, *groups]
    assert cost[part][0] >= 150_000, "wall time"
    # However slow the machine is, no time is in two parts.
    assert sum(wall for wall, _ in cost.values()) <= took_us


def test_a_row_has_both_sides_medians_and_their_ratio(scripted_nvml: MakeNvml, program: str) -> None:
    rows = group_costs(program, scripted_nvml(f"cards {CARDS}\n").path, 1)
    assert [row.name for row in rows] == [*PARTS, *GROUPS]
    for row in rows:
        assert isinstance(row, Row)
        assert row.ratio == row.collector.wall_ms / max(row.in_c.wall_ms, 0.001)
        assert str(row).split()[0] == row.name


def test_a_group_that_is_none_is_refused_by_its_name(program: str, scripted_nvml: MakeNvml) -> None:
    done = run([program, str(scripted_nvml().path), "heath"])
    assert (done.status, done.stderr) == (2, "sample: not a group: heath\n")
