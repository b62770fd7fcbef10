"""Names of processes on a card: told only where they are asked for, bounded and printable whatever a process chose for itself."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guest_service.collector.command import collector_command
from guest_service.collector.nvml_lists import PROCESS_NAME_BYTES, process_name
from tests.collector.process import run
from tests.nvml_library.fixture import ScriptedNvml

Make = Callable[..., ScriptedNvml]
PROCESSES = "nvmlDeviceGetComputeRunningProcesses_v3 0 *"
TRAINING = '"train"\x1b[2J\u202e<b>\n'


def listed(library: ScriptedNvml, procfs: Path | None, groups: tuple[str, ...] = ("processes",)) -> list[dict[str, Any]]:
    collected = run(collector_command(nvml_library=library.path, groups=groups, process_names=procfs))
    assert (collected.status, collected.stderr) == (0, ""), collected
    found: list[dict[str, Any]] = collected.card["process_list"]
    return found


def proc_with(folder: Path, names: dict[int, bytes]) -> Path:
    for pid, name in names.items():
        place = folder / str(pid)
        place.mkdir()
        (place / "comm").write_bytes(name)
        (place / "cmdline").write_bytes(b"train\0--token=secret\0")
    return folder


def test_a_process_has_no_name_where_none_was_asked_for(scripted_nvml: Make) -> None:
    assert listed(scripted_nvml(f"{PROCESSES} set value=1 pid={os.getpid()}"), None) == [
        {"pid": os.getpid(), "used_memory_bytes": 1 << 30}
    ]


def test_a_running_process_has_the_kernel_s_name_of_it_and_not_its_arguments(scripted_nvml: Make) -> None:
    with subprocess.Popen(["sleep", "3600"]) as running:
        try:
            found = listed(scripted_nvml(f"{PROCESSES} set value=1 pid={running.pid}"), Path("/proc"))
        finally:
            running.kill()
    assert found == [{"pid": running.pid, "used_memory_bytes": 1 << 30, "name": "sleep"}]


def test_a_process_that_is_gone_or_hidden_is_listed_without_a_name_and_the_others_with_theirs(
    scripted_nvml: Make, tmp_path: Path
) -> None:
    found = listed(scripted_nvml(f"{PROCESSES} set value=3"), proc_with(tmp_path, {4242: b"python3\n", 4244: b"\n"}))
    assert [(each["pid"], each.get("name")) for each in found] == [(4242, "python3"), (4243, None), (4244, None)]


def test_a_name_with_controls_and_marks_is_one_printable_line(scripted_nvml: Make, tmp_path: Path) -> None:
    (first, _) = listed(scripted_nvml(), proc_with(tmp_path, {4242: TRAINING.encode()}))
    assert first["name"] == '"train"?[2J?<b>'


@given(name=st.binary(max_size=300))
@example(name=b"\xff" * 300)
@example(name=b"a\0b")
def test_whatever_stands_in_comm_is_a_bounded_printable_line(tmp_path_factory: pytest.TempPathFactory, name: bytes) -> None:
    folder = tmp_path_factory.mktemp("proc")
    shown = process_name(str(proc_with(folder, {7: name})), 7)
    assert len(shown) <= PROCESS_NAME_BYTES
    assert shown.isprintable()


def test_names_alone_ask_for_no_process(scripted_nvml: Make, tmp_path: Path) -> None:
    library = scripted_nvml()
    collected = run(collector_command(nvml_library=library.path, process_names=tmp_path))
    assert "process_list" not in collected.card
    assert library.calls("nvmlDeviceGetComputeRunningProcesses_v3", 0) == 0
