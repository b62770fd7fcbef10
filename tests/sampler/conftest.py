"""The scripted library for samples of the real collector."""

from tests.nvml_library.fixture import nvml_build, scripted_nvml

__all__ = ["nvml_build", "scripted_nvml"]
