"""Joins gate, sampler and cell into the telemetry of one agent; the only place that chooses between the machine and a simulated rack."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from guest_service.collector.command import collector_command
from guest_service.inventory import simulated_inventory
from guest_service.kernel_log.reader import KernelLog
from guest_service.sampler import Sampler
from guest_service.sampler.sampler import TIMEOUT_SECONDS
from guest_service.simulator import Rack
from guest_service.telemetry.gate import CardFacts, Gate, facts_of
from guest_service.telemetry.gpu_telemetry import GpuTelemetry
from guest_transport.process.clock import Clock, boottime

# Most scrapers come every 15 s; 5 s lets a person who reloads a page see movement, and keeps a busy dashboard below 2 % of a core.
SAMPLE_TTL_SECONDS = 5.0
# A wedged driver must not be met with a spawn-and-kill loop: at most two tries a minute.
FAILURE_BACKOFF_SECONDS = 30.0


def build_telemetry(
    *,
    sysfs: Path = Path("/sys"),
    simulate: Rack | None = None,
    nvml_library: Path | None = None,
    sample_ttl_seconds: float = SAMPLE_TTL_SECONDS,
    failure_backoff_seconds: float = FAILURE_BACKOFF_SECONDS,
    sample_timeout_seconds: float = TIMEOUT_SECONDS,
    first_sample_timeout_seconds: float = 0.0,
    refresh: Literal["ahead", "lazy"] = "ahead",
    groups: Sequence[str] = (),
    process_names: Path | None = None,
    collector: Sequence[str] | None = None,
    kernel_log: Path | None = None,
    clock: Clock = boottime,
) -> GpuTelemetry:
    """Telemetry of the cards under `sysfs`, or of a rack; reads files, so it belongs before the serving begins.

    `groups` are asked in addition to the base values, `process_names` is the procfs for names of processes. `collector` is the argument
    list that takes one sample, collector_command() with the library or the rack when it is not given.
    `kernel_log` is where XIDs are read; None: nowhere.
    """
    if collector is None:
        rack = None if simulate is None else simulate.name
        collector = collector_command(
            nvml_library=nvml_library, simulate=rack, groups=groups, process_names=process_names, parent=os.getpid()
        )
    return GpuTelemetry(
        Gate(facts_of(sysfs) if simulate is None else simulated_facts(simulate), clock),
        Sampler(
            collector,
            timeout_seconds=sample_timeout_seconds,
            first_timeout_seconds=first_sample_timeout_seconds,
            clock=clock,
        ),
        ttl_seconds=sample_ttl_seconds,
        backoff_seconds=failure_backoff_seconds,
        ahead=refresh == "ahead",
        clock=clock,
        kernel_log=None if kernel_log is None else KernelLog(kernel_log, clock=clock),
    )


def simulated_facts(rack: Rack) -> CardFacts:
    """The inventory of `rack`, in place of that of a /sys tree."""
    return CardFacts(
        inventory=lambda: simulated_inventory(card.pci_bus_id for card in rack.cards),
        driver_loaded=lambda: rack.driver_loaded,
        bound_driver=lambda _: "nvidia" if rack.driver_loaded else None,
        changes=False,
    )
