"""One guest's sample lines.

What an answer says stands still until the next answer, and its lines are kept with it; what grows by itself (ages) is made anew for each
page. Of a guest that is known to be down or whose answers are too old, only that is said: absent is not zero.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence

from guest_api.guest_api_pb2 import GpuInfoResponse
from guest_metrics import gpu, guest, table
from guest_metrics.exposition import LabelText, Lines, thousandths
from vmm_proxy.fleet_metrics.labels import own_labels
from vmm_proxy.fleet_metrics.last_known import KeptLines, LastKnown


def kept_lines(known: LastKnown, chosen: Mapping[str, str], now: float) -> KeptLines:
    """The lines of the guest's answers, those of the last page where nothing changed."""
    # Compared as objects: each answer is a new one.
    made_of = (known.entry, known.gpus.shown(now), known.system.shown(now), known.containers.shown(now))
    if known.kept is None or not all(map(operator.is_, known.kept.made_of, made_of)):
        lines = Lines(own_labels(known.entry, chosen))
        add_answers(lines, known, now)
        known.kept = KeptLines(lines.fragment(), lines.labels((), ()), made_of)
    return known.kept


def add_answers(lines: Lines, known: LastKnown, now: float) -> None:
    """The lines of the guest's answers, without what grows by itself."""
    if gpus := known.gpus.shown(now):
        _add_gpus(lines, gpus, known.entry.gpus)
    if system := known.system.shown(now):
        guest.add_system(lines, system)
    if containers := known.containers.shown(now):
        guest.add_containers(lines, containers.containers)


def add_ages(lines: Lines, labels: LabelText, known: LastKnown, now: float) -> None:
    """Whether the guest is up, how long ago it answered, and how old its sample is now."""
    up = known.up
    if up is not None:
        lines.put(table.PROXY_GUEST_UP, labels, int(up))
    answered_at = known.answered_at
    if answered_at is not None:
        lines.put(table.PROXY_GUEST_ANSWER_AGE, labels, thousandths(_milliseconds(now - answered_at)))
    gpus = known.gpus.shown(now)
    if gpus is not None and gpus.HasField("sample_age_ms"):
        age = gpus.sample_age_ms + _milliseconds(now - known.gpus.received_at)
        lines.put(table.GPU_SAMPLE_AGE, labels, thousandths(age))


def _add_gpus(lines: Lines, reply: GpuInfoResponse, host_addresses: Sequence[str]) -> None:
    gpu.add_gpus(lines, reply, with_age=False)
    # The directory names cards in the guest's order. With one more or fewer than the guest sees, which is which is not known.
    if host_addresses and sorted(device.index for device in reply.gpus) == list(range(len(host_addresses))):
        for device in reply.gpus:
            address = host_addresses[device.index]
            lines.add(table.PROXY_GUEST_GPU_INFO, 1, str(device.index), device.uuid, device.pci_bus_id, address)


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))
