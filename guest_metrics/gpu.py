"""GpuInfoResponse as sample lines, for a guest's own page and, with the proxy's labels in front, for the fleet's.

A value that is unset has no sample: absent is not zero. An entry is a hostile guest's to choose, so two devices with equal labels give
the lines of the first only, and a page stays valid whatever a guest answers.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse
from guest_metrics import table
from guest_metrics.exposition import LabelText, Lines, Number, thousandths
from guest_metrics.forms import Told
from guest_metrics.table import Family

# Field of GpuDevice -> family; presence of the field decides about the sample.
OPTIONAL_FIELDS: tuple[tuple[str, Family], ...] = (
    ("utilization_gpu", table.GPU_UTILIZATION),
    ("utilization_memory", table.GPU_MEMORY_UTILIZATION),
    ("memory_total_bytes", table.GPU_MEMORY_TOTAL),
    ("memory_used_bytes", table.GPU_MEMORY_USED),
    ("memory_free_bytes", table.GPU_MEMORY_FREE),
    ("temperature_c", table.GPU_TEMPERATURE),
    ("power_usage_mw", table.GPU_POWER),
)


_CARD = operator.attrgetter("index", "uuid", "pci_bus_id")
_VALUES = operator.attrgetter(*(field for field, _ in OPTIONAL_FIELDS))


def add_gpus(lines: Lines, reply: GpuInfoResponse, *, with_age: bool = True) -> None:
    """The lines of one reply: up, age, CC state and every device. Without the age for a page that keeps lines while only that grows."""
    lines.add(table.GPU_NVML_UP, 0 if reply.error else 1)
    if with_age and reply.HasField("sample_age_ms"):
        lines.add(table.GPU_SAMPLE_AGE, thousandths(reply.sample_age_ms))
    if reply.HasField("cc_enabled"):
        lines.add(table.GPU_CC_ENABLED, int(reply.cc_enabled))
    if reply.HasField("cc_ready"):
        lines.add(table.GPU_CC_READY, int(reply.cc_ready))
    if reply.HasField("cc_devtools"):
        lines.add(table.GPU_CC_DEVTOOLS, int(reply.cc_devtools))
    if not reply.error:
        lines.add(table.GPU_NVML_DEVICES, len(reply.gpus))
    if reply.HasField("pci_devices"):
        lines.add(table.GPU_PCI_DEVICES, reply.pci_devices)
    # A later device never replaces an earlier one with the same labels.
    cards: dict[LabelText, GpuDevice] = {}
    for device in reply.gpus:
        cards.setdefault(lines.labels(table.CARD_LABELS, (str(device.index), device.uuid, device.pci_bus_id)), device)
    for field, family in OPTIONAL_FIELDS:
        lines.put_fields(family, field, cards)
    lines.put_lengths(table.GPU_QUERY_ERRORS, "errors", cards)


def read_gpus(reply: GpuInfoResponse) -> Told:
    """What stands on the lines of add_gpus(without age): names, and the numbers in the lines' order."""
    # Each look at a repeated field makes its entries' objects anew.
    devices = list(reply.gpus)
    numbers: list[Number | None] = [
        0 if reply.error else 1,
        int(reply.cc_enabled) if reply.HasField("cc_enabled") else None,
        int(reply.cc_ready) if reply.HasField("cc_ready") else None,
        int(reply.cc_devtools) if reply.HasField("cc_devtools") else None,
        None if reply.error else len(devices),
        reply.pci_devices if reply.HasField("pci_devices") else None,
    ]
    for (field, _), column in zip(OPTIONAL_FIELDS, zip(*map(_VALUES, devices), strict=True), strict=bool(devices)):
        # A field that is unset reads as 0; only then is it looked at more closely.
        numbers += (
            column if 0 not in column else [value or _zero(device, field) for value, device in zip(column, devices, strict=True)]
        )
    numbers += [len(device.errors) for device in devices]
    return tuple(map(_CARD, devices)), numbers


# Any: the stubs of HasField take each of the field's names as a type of its own.
def _zero(device: GpuDevice, field: Any) -> int | None:
    """What a field that reads as 0 means: measured, or unset."""
    return 0 if device.HasField(field) else None


def add_sampling(
    lines: Lines,
    *,
    samples: Mapping[str, int],
    duration_seconds: float | None,
    failed_cc_queries: int,
) -> None:
    """What only the guest's own page has: samples by outcome, the last one's duration (None: unknown), failed CC queries."""
    for outcome, count in sorted(samples.items()):
        lines.add(table.GPU_SAMPLES, count, outcome)
    if duration_seconds is not None:
        lines.add(table.GPU_SAMPLE_DURATION, duration_seconds)
    lines.add(table.GPU_CC_QUERY_ERRORS, failed_cc_queries)
