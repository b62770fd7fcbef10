"""GPU telemetry of the guest: what is known, how old it is, and when to look again.

It refuses to touch NVML or a process: the sampler does. Rejected: one module for all of it (gate, cell and beat are each understood, and
tested, alone).
"""

from guest_service.telemetry.build import build_telemetry
from guest_service.telemetry.gpu_telemetry import GpuTelemetry, Stats

__all__ = ["GpuTelemetry", "Stats", "build_telemetry"]
