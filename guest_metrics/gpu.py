"""GpuInfoResponse as sample lines, for a guest's own page and, with the proxy's labels in front, for the fleet's.

The lines come in the groups of card_fields, so that a page holds those that its reader chose; BASE has what is true of the guest too.
A value that is unset or impossible has no sample: absent is not zero. A hostile guest chooses the entries, so a device that has the
UUID or the PCI address of an earlier one, or all its labels, has no lines and is counted: a page stays valid, and sums over its series stay
true, whatever a guest answers.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse, XidCount
from guest_contract.card_fields import BASE, GROUPS, HEALTH, INSTANCES_LIMIT, MIG, OF_GUEST, ROWS, TEXT_LIMIT
from guest_contract.card_values import BESIDE, COLUMN_OF, Columns, instance_memory, judged_columns, once, pci_devices, repeated
from guest_contract.health import Level, judge_cards
from guest_metrics import table
from guest_metrics.card_lines import CardLines
from guest_metrics.exposition import LabelText, Lines, Number, thousandths
from guest_metrics.forms import Told

# In the order of the lines.
ALL_GROUPS = (BASE, *GROUPS)
_COLUMN_OF = {**COLUMN_OF, **{row.name: len(COLUMN_OF) + len(BESIDE) + at for at, row in enumerate(OF_GUEST)}}
_ERRORS = len(COLUMN_OF) + BESIDE.index("errors")
_LINES = {
    group: CardLines([row for row in (*ROWS, *OF_GUEST) if row.group == group], table.CARD_FAMILIES, _COLUMN_OF)
    for group in ALL_GROUPS
}
# Unknown is no number.
_HEALTH = {Level.OK: 0, Level.UNKNOWN: None, Level.DEGRADED: 1, Level.FAILED: 2}
# Series of one guest: some 100 XIDs exist, and a card that reports 64 different ones is as sick as it can be; 16 cards.
XIDS_LIMIT = 1024


def add_gpus(lines: Lines, reply: GpuInfoResponse, groups: Collection[str] = ALL_GROUPS, *, with_age: bool = True) -> None:
    """The lines of one reply in these groups. Without the age for a page that keeps lines while only that grows.

    None while the agent's first sample is taken: "up 0" would be an alarm at every start.
    """
    if reply.first_sample_pending:
        return
    if BASE in groups:
        _add_whole(lines, reply, with_age=with_age)
    devices = list(reply.gpus)
    # A later device never replaces an earlier one with the same labels.
    first: dict[LabelText, int] = {}
    again = repeated(devices)
    for at, device in enumerate(devices):
        if at in again:
            continue
        first.setdefault(lines.labels(table.CARD_LABELS, _identity(device)), at)
    labels, columns = list(first), _columns(reply, [devices[at] for at in first.values()])
    for group in ALL_GROUPS:
        if group in groups:
            _LINES[group].write_columns(lines, labels, columns)
            if group == BASE:
                lines.put_numbers(table.GPU_QUERY_ERRORS, zip(labels, map(len, columns[_ERRORS]), strict=True))
            elif group == HEALTH:
                _add_health(lines, reply, first)
            elif group == MIG:
                for instance in _instances(reply):
                    for family, number in zip(_OF_INSTANCE, instance.numbers, strict=True):
                        if number is not None:
                            lines.add(family, number, *instance.labels)


def _columns(reply: GpuInfoResponse, devices: Sequence[GpuDevice]) -> Columns:
    """The devices' values, what stands beside them, and what is true of the guest for each."""
    texts = (getattr(reply, row.name) for row in OF_GUEST)
    whole = (text if 0 < len(text) <= row.most else None for text, row in zip(texts, OF_GUEST, strict=True))
    return [*judged_columns(devices), *([text] * len(devices) for text in whole)]


def _add_whole(lines: Lines, reply: GpuInfoResponse, *, with_age: bool) -> None:
    """What is true of the guest and of no single card."""
    if with_age and reply.HasField("sample_age_ms"):
        lines.add(table.GPU_SAMPLE_AGE, thousandths(reply.sample_age_ms))
    for family, number in zip(_WHOLE, _whole(reply), strict=True):
        if number is not None:
            lines.add(family, number)


_WHOLE = (
    table.GPU_NVML_UP,
    table.GPU_CC_ENABLED,
    table.GPU_CC_READY,
    table.GPU_CC_DEVTOOLS,
    table.GPU_NVML_DEVICES,
    table.GPU_PCI_DEVICES,
    table.GPU_REPEATED_DEVICES,
)


def _whole(reply: GpuInfoResponse) -> list[Number | None]:
    """The numbers of _WHOLE."""
    again = len(repeated(reply.gpus))
    return [
        0 if reply.error else 1,
        int(reply.cc_enabled) if reply.HasField("cc_enabled") else None,
        int(reply.cc_ready) if reply.HasField("cc_ready") else None,
        int(reply.cc_devtools) if reply.HasField("cc_devtools") else None,
        None if reply.error else len(reply.gpus) - again,
        pci_devices(reply),
        again or None,
    ]


def _add_health(lines: Lines, reply: GpuInfoResponse, cards: Mapping[LabelText, int]) -> None:
    judged = judge_cards(reply)
    verdicts = [(labels, judged[at]) for labels, at in cards.items()]
    lines.put_numbers(table.GPU_HEALTH, ((labels, _HEALTH[verdict.level]) for labels, verdict in verdicts))
    for labels, verdict in verdicts:
        for reason in verdict.reasons:
            lines.put(table.GPU_HEALTH_REASON, LabelText(f'{labels[:-1]},reason="{reason.code}"}}'), 1)
    for xid in _xids(reply):
        lines.add(table.GPU_XID_ERRORS, xid.times, *xid.card, str(xid.number))


def read_gpus(reply: GpuInfoResponse, groups: Collection[str] = ALL_GROUPS) -> Told:
    """What add_gpus(without age) writes: names, and the numbers in the lines' order."""
    # Each access to a repeated field makes new objects of its entries.
    columns = _columns(reply, once(list(reply.gpus)))
    *identity, errors = columns[len(COLUMN_OF) : _ERRORS + 1]
    if reply.first_sample_pending:
        return (), []
    numbers: list[Number | None] = _whole(reply) if BASE in groups else []
    names: list[Hashable] = [*zip(*identity, strict=True)]
    for group in ALL_GROUPS:
        if group in groups:
            texts, values = _LINES[group].read(columns)
            names += texts
            numbers += values
            if group == BASE:
                numbers += map(len, errors)
            elif group == HEALTH:
                said, more = _read_health(reply)
                names += said
                numbers += more
            elif group == MIG:
                for instance in _instances(reply):
                    names.append(instance.labels)
                    numbers += instance.numbers
    return tuple(names), numbers


def _read_health(reply: GpuInfoResponse) -> tuple[list[Hashable], list[Number | None]]:
    again, xids = repeated(reply.gpus), _xids(reply)
    verdicts = [verdict for at, verdict in enumerate(judge_cards(reply)) if at not in again]
    codes = [tuple(reason.code for reason in verdict.reasons) for verdict in verdicts]
    numbers: list[Number | None] = [_HEALTH[verdict.level] for verdict in verdicts]
    numbers += [1] * sum(map(len, codes))
    numbers += [xid.times for xid in xids]
    return [*codes, *((xid.card, xid.number) for xid in xids)], numbers


_OF_INSTANCE = (table.GPU_MIG_MEMORY_TOTAL, table.GPU_MIG_MEMORY_USED)


class Instance(NamedTuple):
    """One MIG instance: its labels, and the numbers of _OF_INSTANCE."""

    labels: tuple[str, ...]
    numbers: tuple[int | None, int | None]


def _instances(reply: GpuInfoResponse) -> list[Instance]:
    """The instances of all cards, the first INSTANCES_LIMIT of each, each once; what is impossible is unknown."""
    found: dict[tuple[str, ...], Instance] = {}
    for card in once(reply.gpus):
        for each in card.mig_instances[:INSTANCES_LIMIT]:
            compute = str(each.compute_instance) if each.HasField("compute_instance") else ""
            profile = each.profile if len(each.profile) <= TEXT_LIMIT else ""
            labels = (*_identity(card), str(each.gpu_instance), compute, profile)
            used, total = instance_memory(each)
            found.setdefault(labels, Instance(labels, (total, used)))
    return list(found.values())


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
    for device in once(reply.gpus):
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
