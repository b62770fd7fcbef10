"""GpuInfoResponse as sample lines, for a guest's own page and, with the proxy's labels in front, for the fleet's.

A value that is unset or impossible has no sample: absent is not zero. An entry is a hostile guest's to choose, so two devices with equal
labels give the lines of the first only, and a page stays valid whatever a guest answers.
"""

from __future__ import annotations

from collections.abc import Mapping

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse
from guest_contract.card_fields import ROWS
from guest_contract.card_values import BESIDE, judged_columns, pci_devices
from guest_metrics import table
from guest_metrics.card_lines import CardLines
from guest_metrics.exposition import LabelText, Lines, Number, thousandths
from guest_metrics.forms import Told

_LINES = CardLines(ROWS, table.CARD_FAMILIES)


def add_gpus(lines: Lines, reply: GpuInfoResponse, *, with_age: bool = True) -> None:
    """The lines of one reply: up, age, CC state and every device. Without the age for a page that keeps lines while only that grows.

    None while the agent's first sample is taken: "up 0" would be an alarm at every start.
    """
    if reply.first_sample_pending:
        return
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
    if (on_the_bus := pci_devices(reply)) is not None:
        lines.add(table.GPU_PCI_DEVICES, on_the_bus)
    # A later device never replaces an earlier one with the same labels.
    cards: dict[LabelText, GpuDevice] = {}
    for device in reply.gpus:
        cards.setdefault(lines.labels(table.CARD_LABELS, (str(device.index), device.uuid, device.pci_bus_id)), device)
    _LINES.write(lines, cards)
    lines.put_numbers(table.GPU_QUERY_ERRORS, ((at, len(device.errors)) for at, device in cards.items()))


def read_gpus(reply: GpuInfoResponse) -> Told:
    """What stands on the lines of add_gpus(without age): names, and the numbers in the lines' order."""
    # Each look at a repeated field makes its entries' objects anew.
    columns = judged_columns(list(reply.gpus))
    *identity, errors = columns[-len(BESIDE) :]
    texts, values = _LINES.read(columns)
    if reply.first_sample_pending:
        return (), []
    numbers: list[Number | None] = [
        0 if reply.error else 1,
        int(reply.cc_enabled) if reply.HasField("cc_enabled") else None,
        int(reply.cc_ready) if reply.HasField("cc_ready") else None,
        int(reply.cc_devtools) if reply.HasField("cc_devtools") else None,
        None if reply.error else len(errors),
        pci_devices(reply),
    ]
    numbers += values
    numbers += map(len, errors)
    return (*zip(*identity, strict=True), *texts), numbers


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
