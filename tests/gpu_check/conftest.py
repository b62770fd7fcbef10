"""The scripted NVML library, built once per run."""

from tests.nvml_library.fixture import nvml_build, scripted_nvml

__all__ = ["nvml_build", "scripted_nvml"]
