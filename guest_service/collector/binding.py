"""Finds and loads nvidia-ml-py: the one file pynvml.py, never a package of that name.

Not `import pynvml`: the deprecated distribution of that name is a package and would shadow the file, and the fast interpreter flags leave
site-packages off the path, so that nothing in it can slow a sample down or change it.
"""

from __future__ import annotations

import sys

from guest_service.collector.failure import SampleFailure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

FILE = "pynvml.py"
MISSING = "the NVML binding is not installed: install nvidia-ml-py"
# What the collector takes from the binding, with its size in nvml.h (CUDA 12 and 13). A buffer that is too small is written beyond its end
# by the library; one of another layout gives a cut PCI address.
SIZES = {"nvmlPciInfo_t": 68, "c_nvmlUtilization_t": 8, "c_nvmlMemory_t": 24, "c_nvmlMemory_v2_t": 40, "c_nvmlFieldValue_t": 40}


def binding_file(search: Sequence[str]) -> str:
    """The first file pynvml.py in these folders; empty when there is none."""
    import os  # noqa: PLC0415 (command.py is imported by the agent, which has it; the collector gets the answer as an argument)

    for folder in search:
        if os.path.isfile(f"{folder or '.'}/{FILE}"):  # noqa: PTH113 (pathlib costs 5 ms of a 10 ms start)
            return f"{folder or '.'}/{FILE}"
    return ""


def load_binding(path: str) -> Any:  # Any: the binding has no types
    """The module pynvml from exactly this file; raises SampleFailure.

    The binding imports ctypes.util without using it on Linux, and with it shutil, subprocess and tempfile (10 ms of 27 ms CPU, measured on
    Python 3.11 with nvidia-ml-py 13.615): an empty stand-in is put there while the binding is loaded.
    """
    from _frozen_importlib_external import SourceFileLoader  # noqa: PLC0415 (importlib.machinery costs 1 ms)

    if not path:
        raise SampleFailure(MISSING)
    stand_in = type(sys)("ctypes.util")
    stand_in.find_library = lambda _name: None  # type: ignore[attr-defined] # a module made here has no declared attributes
    absent = sys.modules.setdefault("ctypes.util", stand_in) is stand_in
    binding = sys.modules["pynvml"] = type(sys)("pynvml")
    binding.__file__ = path
    try:
        SourceFileLoader("pynvml", path).exec_module(binding)
    except (OSError, ImportError, SyntaxError) as error:
        raise SampleFailure(f"the NVML binding cannot be loaded: {error}; install nvidia-ml-py") from error
    finally:
        if absent:
            del sys.modules["ctypes.util"]
    _check(binding, path)
    return binding


def _check(binding: Any, path: str) -> None:  # Any: the binding has no types
    """Refuse a file of that name that is not NVIDIA's binding of today; raises SampleFailure."""
    from ctypes import sizeof  # noqa: PLC0415 (the binding has loaded it)

    for name, size in SIZES.items():
        structure = getattr(binding, name, None)
        if not isinstance(structure, type) or sizeof(structure) != size:
            other = _owner(path.rpartition("/")[0] or ".")
            raise SampleFailure(
                f"nvidia-ml-py is replaced by {other or 'another file'} ({path}; {name} is not NVIDIA's): "
                f"pip uninstall {other or 'what put it there'}, then pip install --force-reinstall nvidia-ml-py"
            )


def _owner(folder: str) -> str:
    """The other distribution in this folder whose list of files has the binding's name; empty when none says so."""
    import os  # noqa: PLC0415 (on this path only)

    for entry in sorted(os.listdir(folder)):  # noqa: PTH208 (as below)
        name = entry.partition("-")[0].replace("_", "-")
        listed = {".dist-info": "RECORD", ".egg-info": "installed-files.txt"}.get(entry[entry.rfind(".") :])
        if listed is None or name == "nvidia-ml-py":
            continue
        try:
            with open(f"{folder}/{entry}/{listed}", encoding="utf-8", errors="replace") as files:  # noqa: PTH123 (pathlib costs 5 ms)
                if any(line.partition(",")[0].strip().removeprefix("../") == FILE for line in files):
                    return name
        except OSError:
            continue
    return ""
