"""One guest's sample lines.

What an answer says stands still until the next answer, and its lines are kept with it; what grows by itself (ages) is made anew for each
page. Of a guest whose answers are too old only its state is said: absent is not zero.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from guest_api.guest_api_pb2 import GpuInfoResponse, ListContainersResponse, SystemInfo
from guest_contract.card_fields import BASE
from guest_metrics import gpu, guest, table
from guest_metrics.exposition import LabelText, Lines, thousandths
from guest_metrics.forms import NOTHING, KeptForm, filled
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.metrics.labels import own_labels
from vmm_proxy.metrics.last_answers import LastKnown


def add_answers(lines: Lines, known: LastKnown, now: float, groups: frozenset[str]) -> None:
    """The lines of the guest's answers in these groups, without what grows by itself."""
    if gpus := known.gpus.shown(now):
        gpu.add_gpus(lines, gpus, groups, with_age=False)
        if BASE in groups:
            add_host_addresses(lines, gpus, known.entry.gpus)
    if BASE not in groups:
        return
    if system := known.system.shown(now):
        guest.add_system(lines, system)
    if containers := known.containers.shown(now):
        guest.add_containers(lines, containers.containers)


def add_ages(lines: Lines, labels: LabelText, known: LastKnown, now: float) -> None:
    """What stands without an answer, or grows by itself: whether the guest is up, how many cards it was given, and the ages."""
    up = known.up
    if up is not None:
        lines.put(table.PROXY_GUEST_UP, labels, int(up))
    answered_at = known.answered_at
    if answered_at is not None:
        lines.put(table.PROXY_GUEST_ANSWER_AGE, labels, thousandths(_milliseconds(now - answered_at)))
    if known.entry.gpus_given:
        lines.put(table.PROXY_GUEST_GPUS_GIVEN, labels, known.entry.gpus_given)
    gpus = known.gpus.shown(now)
    if gpus is not None and gpus.HasField("sample_age_ms"):
        age = gpus.sample_age_ms + _milliseconds(now - known.gpus.received_at)
        lines.put(table.GPU_SAMPLE_AGE, labels, thousandths(age))


def add_xid_times(lines: Lines, ages: Sequence[tuple[LabelText, int]], known: LastKnown, now: float) -> None:
    """When XIDs were reported: their ages are those of the answer when it came."""
    if ages:
        gpu.add_xid_times(lines, ages, time.time() - (now - known.gpus.received_at))


def add_host_addresses(lines: Lines, reply: GpuInfoResponse, host_addresses: Sequence[str]) -> None:
    """What joins each card's address in the guest to its address on the host."""
    # The directory names cards in the guest's order. With one more or fewer than the guest sees, which is which is not known.
    if host_addresses and sorted(device.index for device in reply.gpus) == list(range(len(host_addresses))):
        for device in reply.gpus:
            address = host_addresses[device.index]
            lines.add(table.PROXY_GUEST_GPU_INFO, 1, str(device.index), device.uuid, device.pci_bus_id, address)


def _milliseconds(seconds: float) -> int:
    return max(0, round(seconds * 1000))


class KeptLines:
    """The lines of a guest's answers behind the labels of `entry`, in three parts: GPUs, system, and what seldom changes.

    Of the GPUs they are those of `groups`. The other parts are small beside these, and are kept whatever is chosen.
    """

    __slots__ = (
        "_containers",
        "_empty",
        "_gpu_form",
        "_gpus",
        "_system",
        "_system_form",
        "entry",
        "gpus",
        "groups",
        "labels",
        "rest",
        "system",
        "xid_ages",
    )

    def __init__(self, entry: GuestEntry, chosen: Mapping[str, str], groups: frozenset[str]) -> None:
        self.entry, self.groups = entry, groups
        self.gpus = self.system = self.rest = NOTHING
        self._empty = Lines(own_labels(entry, chosen))
        self.labels = self._empty.labels((), ())
        self.xid_ages: Sequence[tuple[LabelText, int]] = ()
        write = partial(gpu.add_gpus, groups=groups, with_age=False)
        self._gpu_form: KeptForm[GpuInfoResponse] = KeptForm(write, partial(gpu.read_gpus, groups=groups))
        self._system_form = KeptForm(guest.add_system, guest.read_system)
        # What the parts were made of. Compared as objects: each answer is a new one.
        self._gpus: GpuInfoResponse | None = None
        self._system: SystemInfo | None = None
        self._containers: ListContainersResponse | None = None

    def bring_up_to_date(self, known: LastKnown, now: float) -> None:
        """Make those parts anew of which `known` holds another answer."""
        gpus, system, containers = known.gpus.shown(now), known.system.shown(now), known.containers.shown(now)
        if system is not self._system:
            self.system = self._system_form.of(system, self._empty) if system is not None else NOTHING
        if gpus is not self._gpus:
            self.gpus = self._gpu_form.of(gpus, self._empty) if gpus is not None else NOTHING
            self.xid_ages = gpu.xid_ages(self._empty, gpus) if gpus is not None else ()
        if containers is not self._containers or (gpus is not self._gpus and self.entry.gpus):
            rest = self._empty.fresh()
            if gpus is not None:
                add_host_addresses(rest, gpus, self.entry.gpus)
            if containers is not None:
                guest.add_containers(rest, containers.containers)
            self.rest = filled(rest)
        self._gpus, self._system, self._containers = gpus, system, containers


def kept_lines(known: LastKnown, chosen: Mapping[str, str], groups: frozenset[str]) -> KeptLines:
    """The guest's kept lines; new ones when its entry, and so its labels, or the groups changed."""
    kept = known.lines
    if not isinstance(kept, KeptLines) or kept.entry is not known.entry or kept.groups != groups:
        kept = known.lines = KeptLines(known.entry, chosen, groups)
    return kept
