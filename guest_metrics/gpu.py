"""GpuInfoResponse as sample lines, for a guest's own page and, with the proxy's labels in front, for the fleet's.

A value that is unset or impossible has no sample: absent is not zero. An entry is a hostile guest's to choose, so two devices with equal
labels give the lines of the first only, and a page stays valid whatever a guest answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse, XidCount
from guest_contract.card_fields import ROWS
from guest_contract.card_values import BESIDE, judged_columns, pci_devices
from guest_contract.health import Level, Verdict, judge_cards
from guest_metrics import table
from guest_metrics.card_lines import CardLines
from guest_metrics.exposition import LabelText, Lines, Number, thousandths
from guest_metrics.forms import Told

_LINES = CardLines(ROWS, table.CARD_FAMILIES)
# Unknown is no number.
_HEALTH = {Level.OK: 0, Level.UNKNOWN: None, Level.DEGRADED: 1, Level.FAILED: 2}
# Series of one guest: some 100 XIDs exist, and a card that reports 64 different ones is as sick as it can be; 16 cards.
XIDS_LIMIT = 1024


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
    verdicts: dict[LabelText, Verdict] = {}
    for device, verdict in zip(reply.gpus, judge_cards(reply), strict=True):
        at = lines.labels(table.CARD_LABELS, _identity(device))
        cards.setdefault(at, device)
        verdicts.setdefault(at, verdict)
    _LINES.write(lines, cards)
    lines.put_numbers(table.GPU_QUERY_ERRORS, ((at, len(device.errors)) for at, device in cards.items()))
    lines.put_numbers(table.GPU_HEALTH, ((at, _HEALTH[verdict.level]) for at, verdict in verdicts.items()))
    for at, verdict in verdicts.items():
        for reason in verdict.reasons:
            lines.put(table.GPU_HEALTH_REASON, LabelText(f'{at[:-1]},reason="{reason.code}"}}'), 1)
    for xid in _xids(reply):
        lines.add(table.GPU_XID_ERRORS, xid.times, *xid.card, str(xid.number))


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
    verdicts, xids = judge_cards(reply), _xids(reply)
    codes = [tuple(reason.code for reason in verdict.reasons) for verdict in verdicts]
    numbers += [_HEALTH[verdict.level] for verdict in verdicts]
    numbers += [1] * sum(map(len, codes))
    numbers += [xid.times for xid in xids]
    return (*zip(*identity, strict=True), *texts, *codes, *((xid.card, xid.number) for xid in xids)), numbers


class Xid(NamedTuple):
    """One number's reports at one card's address; `age_ms` None: unknown."""

    card: tuple[str, str, str]
    number: int
    times: int
    age_ms: int | None


def xid_ages(lines: Lines, reply: GpuInfoResponse) -> list[tuple[LabelText, int]]:
    """For add_xid_times: the labels of each XID whose age is known, and that age in milliseconds."""
    if reply.first_sample_pending:
        return []
    names = table.GPU_XID_LAST.labels
    return [(lines.labels(names, (*xid.card, str(xid.number))), xid.age_ms) for xid in _xids(reply) if xid.age_ms is not None]


def add_xid_times(lines: Lines, ages: Iterable[tuple[LabelText, int]], at: float) -> None:
    """When each was reported, if the ages were true at `at`, in seconds since 1970; an age from before that is impossible."""
    times = ((labels, round(at - age_ms / 1000)) for labels, age_ms in ages)
    lines.put_numbers(table.GPU_XID_LAST, ((labels, time) for labels, time in times if time >= 0))


def _xids(reply: GpuInfoResponse) -> list[Xid]:
    """The XIDs of the reply's cards, then those that no card is shown for, each series once; an SXid of a switch is none."""
    found: dict[tuple[tuple[str, str, str], int], Xid] = {}
    for card, entries in _places(reply):
        for entry in entries:
            if len(found) >= XIDS_LIMIT:
                return list(found.values())
            if not entry.nvswitch:
                age = entry.last_age_ms if entry.HasField("last_age_ms") else None
                where = card or ("", "", entry.pci_bus_id)
                found.setdefault((where, entry.xid), Xid(where, entry.xid, entry.count, age))
    return list(found.values())


def _places(reply: GpuInfoResponse) -> Iterator[tuple[tuple[str, str, str] | None, Sequence[XidCount]]]:
    for device in reply.gpus:
        if device.xids:
            yield _identity(device), device.xids
    yield None, reply.unplaced_xids


def _identity(device: GpuDevice) -> tuple[str, str, str]:
    return str(device.index), device.uuid, device.pci_bus_id


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
