"""The scripted library keeps NVML's rules, so that a collector that breaks one is seen; its scripts mean what they say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.nvml_library.fixture import FUNCTIONS, ScriptedNvml, nvml_build, scripted_nvml

__all__ = ["nvml_build", "scripted_nvml"]

Make = Callable[..., ScriptedNvml]


def python(library: ScriptedNvml, code: str) -> subprocess.CompletedProcess[str]:
    """Run code that finds the loaded library as `nvml`."""
    prelude = f"import ctypes\nnvml = ctypes.CDLL({str(library.path)!r})\n"
    return subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, text=True, check=False, timeout=30)


def test_a_handle_that_was_never_given_out_aborts(scripted_nvml: Make) -> None:
    code = "nvml.nvmlInit_v2(); nvml.nvmlDeviceGetPowerUsage(ctypes.c_void_p({}), ctypes.byref(ctypes.c_uint()))"
    for handle in ("0", "4096", "ctypes.addressof(ctypes.c_char.in_dll(nvml, 'nvmlInit_v2'))"):
        done = python(scripted_nvml(), code.format(handle))
        assert done.returncode == -6
        assert "a handle that was never given out" in done.stderr


def test_a_call_before_init_is_refused_and_written_nowhere(scripted_nvml: Make) -> None:
    code = "count = ctypes.c_uint(7); print(nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), count.value)"
    assert python(scripted_nvml(), code).stdout == "1 7\n"
    assert python(scripted_nvml(), f"nvml.nvmlInit_v2(); nvml.nvmlShutdown(); {code}").stdout == "1 7\n"


def test_a_structure_of_another_version_is_refused(scripted_nvml: Make) -> None:
    code = "nvml.nvmlInit_v2(); print(nvml.nvmlSystemGetConfComputeSettings(ctypes.byref((ctypes.c_uint * 5)(1))))"
    assert python(scripted_nvml(), code).stdout == "25\n"


def test_calls_are_counted_over_all_processes_and_pick_their_rows(scripted_nvml: Make) -> None:
    library = scripted_nvml("nvmlInit_v2 - 2 return 18\nnvmlInit_v2 - 3-4 return 4\nnvmlInit_v2 - 6- return 999")
    codes = [python(library, "print(nvml.nvmlInit_v2())").stdout for _ in range(7)]
    assert codes == [f"{code}\n" for code in (0, 18, 4, 4, 0, 999, 999)]
    assert library.calls("nvmlInit_v2") == 7
    assert library.calls("load") == 7


def test_a_hidden_symbol_is_missing_and_the_others_are_there(scripted_nvml: Make) -> None:
    code = "print([hasattr(nvml, name) for name in ('nvmlDeviceGetMemoryInfo_v2', 'nvmlDeviceGetMemoryInfo')])"
    assert python(scripted_nvml(hide=["nvmlDeviceGetMemoryInfo_v2"]), code).stdout == "[False, True]\n"
    assert python(scripted_nvml(), code).stdout == "[True, True]\n"
    with pytest.raises(ValueError, match="nvmlNoSuch"):
        scripted_nvml(hide=["nvmlNoSuch"])


def test_every_function_of_the_list_is_exported_and_nothing_else(scripted_nvml: Make) -> None:
    listed = subprocess.run(["nm", "-D", "--defined-only", scripted_nvml().path], capture_output=True, text=True, check=True)
    exported = {line.split()[-1] for line in listed.stdout.splitlines() if " T " in line}
    assert exported == set(FUNCTIONS) - {"load"}


@pytest.mark.parametrize(
    "script",
    [
        "nvmlNoSuch - * return 1",
        "nvmlInit_v2 - * explode",
        "nvmlInit_v2 - 0 return 1",
        "nvmlInit_v2 - 1-x return 1",
        "nvmlInit_v2 - *",
        "cards 33",
        "nvmlDeviceGetCount_v2 - * set number=1",
        "nvmlDeviceGetCount_v2 - * set count",
    ],
)
def test_a_script_that_means_nothing_aborts(scripted_nvml: Make, script: str) -> None:
    done = python(scripted_nvml(script), "nvml.nvmlInit_v2(); nvml.nvmlDeviceGetCount_v2(ctypes.byref(ctypes.c_uint()))")
    assert done.returncode == -6
    assert done.stderr.startswith("scripted NVML: ")
