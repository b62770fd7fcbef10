"""The script for a machine with a GPU, on a scripted library and a /sys tree: it passes what works and fails what does not."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpu_check.yardstick import HERE
from guest_contract.card_fields import GROUPS
from tests.inventory.sys_tree import SysTree
from tests.nvml_library.fixture import ScriptedNvml, nvml_header_folder

MakeNvml = Callable[..., ScriptedNvml]
CARDS = "cards 2\n"
BROKEN_INIT = f"{CARDS}nvmlInit_v2 - * return 9\n"
NO_MEMORY = f"{CARDS}nvmlDeviceGetMemoryInfo_v2 1 * return 3\nnvmlDeviceGetMemoryInfo 1 * return 3\n"


class Rented:
    """A machine with two cards, as the script's options describe it."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self.sysfs = SysTree(folder / "sys")
        self.nvml = library
        self.nvidia_smi = folder / "nvidia-smi"
        for address in ("0000:01:00.0", "0000:02:00.0"):
            self.sysfs.add(address, driver="nvidia")
        self.sysfs.load_module()

    def says(self, **changed: float) -> None:
        """What nvidia-smi prints: the values of the collector, and `changed` ones."""
        command = [sys.executable, "-m", "guest_service", "gpu-info", "--nvml-library", str(self.nvml)]
        sample = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        rows = []
        for card in sample["gpus"]:
            row = {
                "utilization": card["utilization_gpu"],
                "temperature": card["temperature_c"],
                "power": card["power_usage_mw"] / 1000,
                "used": card["memory_used_bytes"] // 2**20,
                "total": card["memory_total_bytes"] // 2**20,
            } | changed
            rows.append(", ".join([card["uuid"], *(str(value) for value in row.values())]))
        self.nvidia_smi.write_text("#!/bin/sh\ncat <<END\n" + "\n".join(rows) + "\nEND\n")
        self.nvidia_smi.chmod(0o755)

    def checked(self, *only: str) -> tuple[int, dict[str, dict[str, Any]]]:  # Any: a JSON tree
        """The exit status, and the results by name."""
        report = self.folder / "report.json"
        command = [sys.executable, "-m", "gpu_check", "--json", str(report), "--sysfs", str(self.sysfs.root)]
        command += ["--nvml-library", str(self.nvml), "--nvidia-smi", str(self.nvidia_smi), "--gap", "0.5", "--runs", "1"]
        done = subprocess.run([*command, *(f"--only={name}" for name in only)], capture_output=True, text=True, timeout=200)
        assert report.exists(), done.stdout + done.stderr
        tree = json.loads(report.read_text())
        assert tree["machine"]["library"] == str(self.nvml)
        assert all(result["name"] in done.stdout for result in tree["results"])
        assert all(line in done.stdout for result in tree["results"] for line in result["table"])
        return done.returncode, {result["name"]: result for result in tree["results"]}


@pytest.fixture
def rented(tmp_path: Path, scripted_nvml: MakeNvml) -> Callable[[str], Rented]:
    """Makes the machine whose driver follows a script."""
    return lambda script: Rented(tmp_path / "machine", scripted_nvml(script).path)


@pytest.mark.timeout(240)
def test_a_machine_that_works_passes_every_check(rented: Callable[[str], Rented]) -> None:
    machine = rented(f"{CARDS}nvmlInit_v2 - * sleep 90\n")
    machine.says()
    status, results = machine.checked()
    assert {name: result["seen"] for name, result in results.items() if result["verdict"] != "passed"} == {}
    assert status == 0
    assert list(results) == [
        *("collector", "proxy", "metrics", "no-gpu", "nothing-held", "late-driver", "hung-collector", "steady", "nvidia-smi"),
        *("ratio", "groups", "at-once", "confidential"),
    ]


# What each check has seen where the driver does not start.
WITHOUT_DRIVER = {
    "proxy": "GpuInfo:",
    "metrics": "GpuInfo:",
    "nothing-held": "GpuInfo:",
    "late-driver": "instead of cards",
    "hung-collector": "GpuInfo:",
    "ratio": "failed",
    "groups": "failed",
    "at-once": "of 8 failed",
    "confidential": "NVML",
}


def test_a_driver_that_does_not_start_fails_each_check_that_needs_it(rented: Callable[[str], Rented]) -> None:
    status, results = rented(BROKEN_INIT).checked(*WITHOUT_DRIVER)
    assert status == 1
    assert {name: result["verdict"] for name, result in results.items()} == dict.fromkeys(WITHOUT_DRIVER, "failed")
    assert {name: result["seen"] for name, result in results.items() if WITHOUT_DRIVER[name] not in str(result["seen"])} == {}


def test_the_table_of_groups_has_a_row_for_each_with_c_collector_and_ratio(rented: Callable[[str], Rented]) -> None:
    status, results = rented(f"{CARDS}nvmlDeviceGetPcieThroughput * * sleep 20\n").checked("groups")
    assert status == 0
    head, *rows = (line.split() for line in results["groups"]["table"])
    assert head[0] == "group"
    assert [row[0] for row in rows] == ["start", "machine", "open", "base", *GROUPS]
    assert all(len(row) == 6 for row in rows)
    assert "the dearest is " in str(results["groups"]["seen"])


def test_a_card_that_does_not_tell_its_memory_fails_the_check_of_steady_values(rented: Callable[[str], Rented]) -> None:
    status, results = rented(NO_MEMORY).checked("steady")
    assert (status, results["steady"]["verdict"]) == (1, "failed"), results
    assert "1 of 2 cards" in str(results["steady"]["seen"])


def test_a_card_of_the_bus_that_the_driver_does_not_show_fails_the_collectors_check(rented: Callable[[str], Rented]) -> None:
    machine = rented(CARDS)
    machine.sysfs.add("0000:03:00.0")
    status, results = machine.checked("collector")
    assert status == 1
    assert results["collector"]["seen"] == "3 NVIDIA cards on the PCI bus, 2 of the driver"


@pytest.mark.parametrize("changed", [{"temperature": 99, "power": 699, "used": 90_000}, {"total": 81_559, "utilization": 77}])
def test_a_dashboard_that_differs_from_nvidia_smi_fails_and_says_in_what(
    rented: Callable[[str], Rented], changed: dict[str, float]
) -> None:
    machine = rented("cards 1\n")
    machine.says(**changed)
    status, results = machine.checked("nvidia-smi")
    assert status == 1
    complaints = str(results["nvidia-smi"]["seen"]).split("; ")
    assert [any(field in complaint for complaint in complaints) for field in changed] == [True] * len(changed)
    assert len(complaints) == len(changed), "the values that are the same are not complained of"


def test_a_machine_without_a_library_skips_what_needs_its_file(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    only = ("--only=ratio", "--only=late-driver")
    subprocess.run([sys.executable, "-m", "gpu_check", "--json", str(report), *only], check=False, timeout=60)
    results = json.loads(report.read_text())["results"]
    assert [result["verdict"] for result in results] == ["skipped", "skipped"]


def test_a_machine_without_a_card_is_told_so_in_one_line_in_place_of_failed_checks(tmp_path: Path) -> None:
    report, tree = tmp_path / "report.json", SysTree(tmp_path / "sys")
    command = [sys.executable, "-m", "gpu_check", "--json", str(report), "--sysfs", str(tree.root)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "gpu_check: no NVIDIA card is on the PCI bus of this machine: nothing was checked\n"
    assert not report.exists(), "nothing was checked, and no file says otherwise"


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("nvmlPciInfo_t", ["domain", "pciDeviceId", "busId"]),
        ("nvmlUtilization_t", ["gpu", "memory"]),
        ("nvmlMemory_t", ["total", "free", "used"]),
        ("nvmlTemperature_v1_t", ["version", "sensorType", "temperature"]),
        ("nvmlMarginTemperature_v1_t", ["version", "marginTemperature"]),
        ("nvmlBAR1Memory_t", ["bar1Total", "bar1Free", "bar1Used"]),
        ("nvmlViolationTime_t", ["referenceTime", "violationTime"]),
        ("nvmlGpuFabricInfo_v2_t", ["version", "clusterUuid", "status", "cliqueId", "state", "healthMask"]),
        ("nvmlProcessInfo_t", ["pid", "usedGpuMemory", "gpuInstanceId", "computeInstanceId"]),
        ("nvmlValue_t", ["dVal", "siVal", "uiVal", "ullVal", "usVal"]),
        ("nvmlFieldValue_t", ["fieldId", "scopeId", "timestamp", "latencyUsec", "valueType", "nvmlReturn", "value"]),
        ("nvmlConfComputeSystemState_t", ["environment", "ccFeature", "devToolsMode"]),
        ("nvmlMemory_v2_t", ["version", "total", "reserved", "free", "used"]),
        ("nvmlSystemConfComputeSettings_t", ["version", "environment", "ccFeature", "devToolsMode", "multiGpuMode"]),
    ],
)
def test_the_few_declarations_are_laid_out_as_nvidias(tmp_path: Path, kind: str, fields: list[str]) -> None:
    values = ", ".join([f"sizeof({kind})", *(f"offsetof({kind}, {field})" for field in fields)])
    versions = ", ".join(
        f"nvml{name}"
        for name in ("Memory_v2", "Temperature_v1", "MarginTemperature_v1", "GpuFabricInfo_v2", "SystemConfComputeSettings_v1")
    )
    source = tmp_path / "layout.c"
    source.write_text(
        "#include <stddef.h>\n#include <stdio.h>\n#include HEADER\n"
        f"int main(void) {{ size_t all[] = {{{values}, {versions}}};\n"
        'for (size_t i = 0; i < sizeof all / sizeof *all; i++) printf("%zu ", all[i]); return 0; }\n'
    )
    seen = []
    for header in (HERE / "nvml_few.h", nvml_header_folder() / "nvml.h"):
        program = tmp_path / header.stem
        subprocess.run(["gcc", f'-DHEADER="{header}"', str(source), "-o", str(program)], check=True)
        seen.append(subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout)
    assert seen[0] == seen[1]
