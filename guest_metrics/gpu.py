"""GpuInfoResponse as sample lines, for a guest's own page and, with the proxy's labels in front, for the fleet's.

A value that is unset has no sample: absent is not zero. An entry is a hostile guest's to choose, so two devices with equal labels give
the lines of the first only, and a page stays valid whatever a guest answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse
from guest_metrics import table
from guest_metrics.exposition import LabelText, Lines, thousandths
from guest_metrics.table import Family

# Field of GpuDevice -> family; presence of the field decides about the sample.
_OPTIONAL: tuple[tuple[str, Family], ...] = (
    ("utilization_gpu", table.GPU_UTILIZATION),
    ("utilization_memory", table.GPU_MEMORY_UTILIZATION),
    ("memory_total_bytes", table.GPU_MEMORY_TOTAL),
    ("memory_used_bytes", table.GPU_MEMORY_USED),
    ("memory_free_bytes", table.GPU_MEMORY_FREE),
    ("temperature_c", table.GPU_TEMPERATURE),
    ("power_usage_mw", table.GPU_POWER),
)


def add_gpus(lines: Lines, reply: GpuInfoResponse, *, with_age: bool = True) -> None:
    """The lines of one reply: up, age, CC state and every device. Without the age for a page that keeps lines while only that grows."""
    lines.add(table.GPU_NVML_UP, 0 if reply.error else 1)
    if with_age and reply.HasField("sample_age_ms"):
        lines.add(table.GPU_SAMPLE_AGE, thousandths(reply.sample_age_ms))
    if reply.HasField("cc_enabled"):
        lines.add(table.GPU_CC_ENABLED, int(reply.cc_enabled))
    if reply.HasField("cc_ready"):
        lines.add(table.GPU_CC_READY, int(reply.cc_ready))
    if not reply.error:
        lines.add(table.GPU_NVML_DEVICES, len(reply.gpus))
    # A later device never replaces an earlier one with the same labels.
    cards: dict[LabelText, GpuDevice] = {}
    for device in reply.gpus:
        cards.setdefault(lines.labels(table.CARD_LABELS, (str(device.index), device.uuid, device.pci_bus_id)), device)
    for field, family in _OPTIONAL:
        lines.put_fields(family, field, cards)
    lines.put_lengths(table.GPU_QUERY_ERRORS, "errors", cards)


def add_sampling(lines: Lines, *, pci_devices: int | None, samples: Mapping[str, int], duration_seconds: float | None) -> None:
    """What only the guest's own page has: cards on the bus, samples taken by outcome, the last one's duration. None: unknown."""
    if pci_devices is not None:
        lines.add(table.GPU_PCI_DEVICES, pci_devices)
    for outcome, count in sorted(samples.items()):
        lines.add(table.GPU_SAMPLES, count, outcome)
    if duration_seconds is not None:
        lines.add(table.GPU_SAMPLE_DURATION, duration_seconds)
