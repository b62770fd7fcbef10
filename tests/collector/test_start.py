"""How a sample begins and ends: what cannot start says why, each sample tries afresh, and init and shutdown pair up."""

from __future__ import annotations

import grp
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from guest_service.collector.failure import NvmlFailure, bounded, cannot_start
from guest_service.collector.parts import Whole
from tests.collector.process import collect, run
from tests.nvml_library.fixture import LIBRARY, ScriptedNvml

Make = Callable[..., ScriptedNvml]


def error(library: ScriptedNvml) -> str:
    """The error of a sample of which nothing is known."""
    sample = collect(library).sample
    assert sample == {**Whole().tree, "error": sample["error"]}
    assert sample["error"]
    return str(sample["error"])


def test_a_library_that_appears_is_found_by_the_next_sample(scripted_nvml: Make) -> None:
    library = scripted_nvml()
    library.path.rename(library.path.with_suffix(".away"))
    for _ in range(3):
        assert "cannot open shared object file: No such file or directory" in error(library)
    library.path.with_suffix(".away").rename(library.path)
    assert collect(library).sample["error"] == ""


def test_a_driver_mismatch_names_the_reason_and_heals_by_itself(scripted_nvml: Make) -> None:
    library = scripted_nvml("nvmlInit_v2 - 1 return 18")
    assert error(library).startswith("NVML cannot start: Driver/library version mismatch (18): ")
    assert collect(library).sample["error"] == ""


def test_no_permission_names_the_reason_the_device_files_and_their_group(scripted_nvml: Make) -> None:
    said = error(scripted_nvml("nvmlInit_v2 - * return 4"))
    assert said.startswith("NVML cannot start: Insufficient Permissions (4): add the user to the device group")
    assert "/dev/nvidiactl" in said


def test_the_device_group_is_the_one_that_owns_the_control_device(tmp_path: Path) -> None:
    device = tmp_path / "nvidiactl"
    device.touch()
    own = grp.getgrgid(device.stat().st_gid).gr_name
    assert f"device group {own}, which owns {device}" in cannot_start(NvmlFailure(4), str(device))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a file to a group without a name")
def test_a_device_group_without_a_name_is_named_by_its_number(tmp_path: Path) -> None:
    device = tmp_path / "nvidiactl"
    device.touch()
    nameless = next(number for number in range(60_000, 65_000) if not _has_name(number))
    os.chown(device, -1, nameless)
    assert f"device group {nameless}, which owns" in cannot_start(NvmlFailure(4), str(device))


def _has_name(group: int) -> bool:
    try:
        return bool(grp.getgrgid(group))
    except KeyError:
        return False


def test_a_library_that_is_a_text_file_is_reported_in_the_loaders_words(scripted_nvml: Make) -> None:
    library = scripted_nvml()
    library.path.write_text("not a library\n")
    said = error(library)
    assert "file too short" in said or "invalid ELF header" in said
    assert str(library.path) in said


def test_a_library_without_init_is_reported_in_the_loaders_words(scripted_nvml: Make) -> None:
    assert "undefined symbol: nvmlInit_v2" in error(scripted_nvml(hide=["nvmlInit_v2"]))


def test_without_a_library_the_loaders_words_name_the_one_it_looked_for(tmp_path: Path, scripted_nvml: Make) -> None:
    library = scripted_nvml()
    library.path.unlink()
    assert LIBRARY in error(library)


def test_a_driver_that_is_replaced_is_used_by_the_next_sample(scripted_nvml: Make) -> None:
    library = scripted_nvml("nvmlInit_v2 - * return 9")
    assert "Driver Not Loaded (9): load the kernel module nvidia" in error(library)
    library.write("nvmlInit_v2 - * return 18")
    assert "mismatch (18)" in error(library)
    library.write("cards 2")
    assert len(collect(library).sample["gpus"]) == 2


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (4, "add the user to the device group"),
        (9, "load the kernel module"),
        (12, "CUDA's stub: take …/stubs out of LD_LIBRARY_PATH"),
        (17, "allow these devices"),
        (18, "reload the module, or reboot"),
        (999, "restart the container"),
    ],
)
def test_each_code_that_people_meet_at_the_start_says_what_to_do(scripted_nvml: Make, code: int, advice: str) -> None:
    assert advice in error(scripted_nvml(f"nvmlInit_v2 - * return {code}"))


def test_a_good_init_is_followed_by_one_shutdown(scripted_nvml: Make) -> None:
    library = scripted_nvml()
    collect(library)
    assert (library.calls("nvmlInit_v2"), library.calls("nvmlShutdown")) == (1, 1)


@pytest.mark.parametrize("code", [1, 4, 9, 15, 17, 18, 77, 999])
def test_a_failed_init_is_never_shut_down_and_is_the_error_that_is_reported(scripted_nvml: Make, code: int) -> None:
    library = scripted_nvml(f"nvmlInit_v2 - * return {code}\nnvmlShutdown - * return 1")
    assert f"({code})" in error(library)
    assert (library.calls("nvmlInit_v2"), library.calls("nvmlShutdown")) == (1, 0)
    assert library.calls("nvmlDeviceGetCount_v2") == 0


def test_a_shutdown_that_fails_loses_nothing(scripted_nvml: Make) -> None:
    collected = collect(scripted_nvml("nvmlShutdown - * return 999"))
    assert len(collected.sample["gpus"]) == 1
    assert collected.stderr == "guest-service gpu-info: nvmlShutdown: Unknown Error (999)\n"
    assert "Function Not Found" in collect(scripted_nvml(hide=["nvmlShutdown"])).stderr


def test_a_shutdown_that_crashes_comes_after_the_line(scripted_nvml: Make) -> None:
    from guest_service.collector.command import collector_command

    collected = run(collector_command(nvml_library=scripted_nvml("nvmlShutdown - * abort").path))
    assert collected.status != 0
    assert len(collected.sample["gpus"]) == 1


def test_a_long_reason_is_bounded_and_on_one_line() -> None:
    said = bounded("a\nb\tc" + "x" * 1000)
    assert said.startswith("a b c")
    assert len(said) == 240
    assert said.endswith("…")
    assert bounded("\udcff") == "?"
