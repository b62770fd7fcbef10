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
    return binding
