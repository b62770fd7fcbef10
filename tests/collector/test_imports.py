"""What a sample imports: the binding by its file and no other, and nothing of gRPC, protobuf or JSON."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from guest_service.collector.command import collector_command
from tests.collector.process import TIMEOUT_SECONDS, run
from tests.nvml_library.fixture import ScriptedNvml

Make = Callable[..., ScriptedNvml]
GPU_INFO = [sys.executable, "-m", "guest_service", "gpu-info"]


def test_a_pythonpath_in_the_environment_changes_no_sample(scripted_nvml: Make, tmp_path: Path) -> None:
    for name in ("pynvml", "ctypes", "os", "guest_service"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONSTARTUP": str(tmp_path / "os.py")}
    command = collector_command(nvml_library=scripted_nvml().path)
    done = subprocess.run(command, capture_output=True, check=False, env=environment, cwd=tmp_path, timeout=TIMEOUT_SECONDS)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_missing_binding_is_an_error_that_names_the_package(scripted_nvml: Make) -> None:
    library = scripted_nvml()
    command = collector_command(nvml_library=library.path)
    binding = command.index(next(part for part in command if part.endswith("pynvml.py")))
    for instead, said in (("", "is not installed: install nvidia-ml-py"), ("/nowhere/pynvml.py", "cannot be loaded")):
        command[binding] = instead
        sample = run(command).sample
        assert said in sample["error"]
        assert sample["gpus"] == []
    assert library.calls("nvmlShutdown") == 2


def test_the_deprecated_package_of_the_bindings_name_does_not_shadow_it(tmp_path: Path) -> None:
    from guest_service.collector.binding import binding_file

    real = binding_file(sys.path)
    assert real.endswith("site-packages/pynvml.py")
    (tmp_path / "pynvml").mkdir()
    (tmp_path / "pynvml/__init__.py").touch()
    assert binding_file([str(tmp_path), *sys.path]) == real


# How the packages that take the binding's name began, and what each lists as its own.
REPLACEMENTS = {
    "nvidia_ml_py3-7.352.0.dist-info": "nvidia-ml-py3",
    "some_monitor-1.0.dist-info": "some-monitor",
}
OLD_BINDING = """
from ctypes import *
class nvmlPciInfo_t(Structure):
    _fields_ = [("busId", c_char * 16), ("numbers", c_uint * 5), ("reserved", c_uint * 4)]
class c_nvmlUtilization_t(Structure):
    _fields_ = [("gpu", c_uint), ("memory", c_uint)]
class c_nvmlMemory_t(Structure):
    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]
"""


@pytest.mark.parametrize("dist_info", REPLACEMENTS)
def test_another_package_over_the_binding_is_named_with_what_to_do_and_never_called(
    scripted_nvml: Make, tmp_path: Path, dist_info: str
) -> None:
    (tmp_path / "pynvml.py").write_text(OLD_BINDING)
    for name in (dist_info, "nvidia_ml_py-13.615.71.dist-info", "innocent-1.dist-info"):
        (tmp_path / name).mkdir()
    (tmp_path / dist_info / "RECORD").write_text("nvidia_smi.py,sha256=x,1\npynvml.py,sha256=x,1\n")
    (tmp_path / "nvidia_ml_py-13.615.71.dist-info/RECORD").write_text("pynvml.py,sha256=x,1\n")
    library = scripted_nvml()
    command = collector_command(nvml_library=library.path)
    command[next(place for place, part in enumerate(command) if part.endswith("pynvml.py"))] = str(tmp_path / "pynvml.py")
    name = REPLACEMENTS[dist_info]
    said = run(command).sample["error"]
    assert said.startswith(f"nvidia-ml-py is replaced by {name} (")
    assert f"pip uninstall {name}, then pip install --force-reinstall nvidia-ml-py" in said
    assert library.calls("nvmlDeviceGetCount_v2") == 0


MODULES = [
    str(path.relative_to(Path(__file__).parents[2]).with_suffix("")).replace("/", ".").removesuffix(".__init__")
    for name in ("guest_service/collector", "guest_service/simulator")
    for path in sorted((Path(__file__).parents[2] / name).glob("*.py"))
]


@pytest.mark.parametrize("module", MODULES)
def test_importing_a_module_touches_neither_nvml_nor_the_binding(module: str) -> None:
    code = f"import sys, {module}\nassert 'pynvml' not in sys.modules\nassert 'nvidia-ml' not in open('/proc/self/maps').read()"
    assert run([sys.executable, "-c", code]).stderr == ""


def test_a_real_sample_imports_neither_grpc_nor_protobuf_nor_json(scripted_nvml: Make) -> None:
    command = collector_command(nvml_library=scripted_nvml().path)
    command[1:1] = ["-X", "importtime"]
    imported = {line.rpartition("|")[2].strip() for line in run(command).stderr.splitlines()}
    assert "pynvml" in imported or "ctypes" in imported  # the list is one
    heavy = {"grpc", "google", "json", "typing", "dataclasses", "argparse", "logging", "subprocess", "site", "click", "msgspec"}
    assert imported & heavy == set()
