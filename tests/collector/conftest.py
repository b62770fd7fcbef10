"""The scripted library for the tests of the collector."""

from tests.nvml_library.fixture import nvml_build, scripted_nvml

__all__ = ["nvml_build", "scripted_nvml"]
