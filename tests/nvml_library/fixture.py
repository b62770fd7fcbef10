"""Builds the scripted libnvidia-ml.so.1 and puts one, with its script, into a folder of the test's own.

Import the fixture `scripted_nvml` where it is needed; `script.c` describes the rows. The objects are compiled once per test run, for all
workers together; a library that lacks symbols (an older driver's) is linked anew. Rejected: a Python fake of the binding, because then
neither the real loader nor the real binding runs.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import struct
import subprocess
from collections.abc import Callable, Sequence
from importlib.metadata import distribution
from pathlib import Path

import pytest

SOURCES = Path(__file__).parent
FUNCTIONS: list[str] = re.findall(r"^FUNCTION\((\w+)\)", (SOURCES / "functions.h").read_text(encoding="utf-8"), re.MULTILINE)
SLOTS = 1 + 32  # calls without a device, then CARDS_LIMIT of script.h
LIBRARY = "libnvidia-ml.so.1"


def nvml_header_folder() -> Path:
    """The folder of NVIDIA's nvml.h, from the PyPI package nvidia-nvml-dev-cu12."""
    for file in distribution("nvidia-nvml-dev-cu12").files or ():
        if file.name == "nvml.h":
            return Path(str(file.locate())).parent
    raise FileNotFoundError("nvml.h is not in nvidia-nvml-dev-cu12: install it anew")


class NvmlBuild:
    """Compiled objects and linked variants in one folder, shared by all workers of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def shared_library(self, hide: Sequence[str] = ()) -> Path:
        """A library without the symbols `hide`; compiled or linked when nobody did so before."""
        if unknown := set(hide) - set(FUNCTIONS):
            raise ValueError(f"not in functions.h: {sorted(unknown)}")
        linked = self._folder / "-".join(["nvml", *sorted(hide)])
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not linked.exists():
                self._link(linked, hide)
        return linked

    def _link(self, linked: Path, hide: Sequence[str]) -> None:
        objects = [self._compiled(name) for name in ("script", "nvml")]
        exports = linked.with_suffix(".exports")
        hidden = "".join(f" {name};" for name in hide)
        exports.write_text(f"{{ global: nvml*; local: script_*;{hidden} }};\n", encoding="utf-8")
        unfinished = linked.with_suffix(".unfinished")
        _run("gcc", "-shared", f"-Wl,-soname,{LIBRARY}", f"-Wl,--version-script,{exports}", *objects, "-o", str(unfinished))
        unfinished.rename(linked)

    def _compiled(self, name: str) -> str:
        compiled = self._folder / f"{name}.o"
        if not compiled.exists():
            flags = ["-std=c11", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", "-isystem", str(nvml_header_folder())]
            _run("gcc", *flags, "-c", str(SOURCES / f"{name}.c"), "-o", str(compiled))
        return str(compiled)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")


class ScriptedNvml:
    """One library with its script, in a folder of its own; `path` is what --nvml-library takes."""

    def __init__(self, folder: Path, build: NvmlBuild) -> None:
        self._folder = folder
        self._build = build
        self.path = folder / LIBRARY

    def write(self, script: str, *, hide: Sequence[str] = ()) -> None:
        """Put (or replace) the library and its script, as a driver installation does; call numbers go on."""
        self._put("script", lambda place: place.write_text(script, encoding="utf-8"))
        self._put(LIBRARY, lambda place: shutil.copyfile(self._build.shared_library(hide), place))

    def _put(self, name: str, make: Callable[[Path], object]) -> None:
        unfinished = self._folder / f"{name}.new"
        make(unfinished)
        unfinished.replace(self._folder / name)

    def calls(self, function: str, device: int | None = None) -> int:
        """How often `function` was called so far, over all processes: for one device, or without a device."""
        counters = self._folder / "calls"
        if not counters.exists():
            return 0
        slot = FUNCTIONS.index(function) * SLOTS + (0 if device is None else device + 1)
        (count,) = struct.unpack_from("=Q", counters.read_bytes(), slot * 8)
        return int(count)


@pytest.fixture(scope="session")
def nvml_build(tmp_path_factory: pytest.TempPathFactory) -> NvmlBuild:
    """The build of this test run; xdist's workers share it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    return NvmlBuild(shared / "scripted-nvml")


@pytest.fixture
def scripted_nvml(tmp_path: Path, nvml_build: NvmlBuild) -> Callable[..., ScriptedNvml]:
    """Makes scripted libraries: `scripted_nvml("cards 2\\n…", hide=["nvmlDeviceGetMemoryInfo_v2"]).path`."""
    made = 0

    def make(script: str = "cards 1\n", *, hide: Sequence[str] = ()) -> ScriptedNvml:
        nonlocal made
        made += 1
        folder = tmp_path / f"nvml-{made}"
        folder.mkdir()
        library = ScriptedNvml(folder, nvml_build)
        library.write(script, hide=hide)
        return library

    return make
