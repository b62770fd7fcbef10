"""What the boot gate's tests share."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.boot_gate.machine import Machine
from tests.nvml_library.fixture import ScriptedNvml, nvml_build, scripted_nvml

__all__ = ["nvml_build", "scripted_nvml"]

MakeNvml = Callable[..., ScriptedNvml]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine with one NVIDIA card and a verifier that attests it."""
    machine = Machine(tmp_path / "machine")
    machine.add_card()
    return machine


@pytest.fixture
def bare_machine(tmp_path: Path) -> Machine:
    """A machine without any display device."""
    return Machine(tmp_path / "machine")
