"""What the page shows, as words and bar lengths, made from messages of the contract.

Judging happens here, so that templates only place words: unknown becomes a dash, never a zero; an error says so in the place of values.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from guest_api.guest_api_pb2 import (
    Container,
    DiskInfo,
    GpuDevice,
    GpuInfoResponse,
    GpuProcess,
    MigInstance,
    NetworkInformation,
    SystemInfo,
)
from guest_contract import card_values, health, system_values, words
from guest_contract.card_fields import BASE, GROUPS, HEALTH, MEMORY_LIMIT_BYTES, MIG, PROCESSES, ROWS, page_title
from guest_contract.card_row import BAR, GUEST_PAGE, TEXT, WITHIN
from guest_metrics.guest import SHORT_ID_LENGTH, display_name
from guest_transport.http import formats

# From here a disk or memory bar asks to be looked at. A full GPU is what it was bought for, and asks nothing.
FULL_PERCENT = 90
# A machine has 16 at most; one that lists a thousand means no good.
CARDS_LIMIT = 256
# Disks, interfaces, addresses and containers, for the same reason.
LINES_LIMIT = 256


@dataclass(frozen=True, slots=True)
class Bar:
    """A labelled bar; `fill` is None when the value is unknown."""

    label: str
    words: str
    fill: int | None
    alarming: bool = False


@dataclass(frozen=True, slots=True)
class Graph:
    """The last half hour of a value: from what to what it went, what the height means, and the corners of its line in SVG's words."""

    title: str
    span: str
    scale: str
    line: str


@dataclass(frozen=True, slots=True)
class CardView:
    """One GPU. `health` is the verdict's word, `why` its reasons with what to do."""

    index: int
    uuid: str
    pci: str
    bars: tuple[Bar, ...]
    texts: tuple[tuple[str, str], ...]
    # The values of each group of which something is known: its name, and titles with words.
    groups: tuple[tuple[str, tuple[tuple[str, str], ...]], ...]
    errors: tuple[str, ...]
    health: str
    why: tuple[str, ...]
    # Empty where nobody remembers.
    graphs: tuple[Graph, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuView:
    """The GPU section: `error` (why nothing is known) or cards, maybe none. `waiting`: no outcome yet."""

    waiting: bool
    error: str
    age: str
    cc_enabled: str
    cc_ready: str
    devtools: bool
    cards: tuple[CardView, ...]
    missing: str
    more_cards: int = 0


@dataclass(frozen=True, slots=True)
class SystemView:
    """The system section."""

    facts: tuple[tuple[str, str], ...]
    bars: tuple[Bar, ...]
    disks: tuple[Bar, ...]


@dataclass(frozen=True, slots=True)
class NetworkView:
    """The network section."""

    facts: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class ContainerView:
    """One container; `logs` is the name in the log link."""

    logs: str
    id: str
    name: str
    image: str
    state: str
    status: str
    running: bool


def gpu_view(reply: GpuInfoResponse, *, ready: bool, pci_devices: int | None, limit: int = CARDS_LIMIT) -> GpuView:
    """The GPU section from the last outcome, with `limit` cards at most."""
    seen = len(reply.gpus)
    shown = ready and not reply.error
    return GpuView(
        waiting=not ready,
        error=formats.text(reply.error),
        age=words.age(reply.sample_age_ms) if reply.HasField("sample_age_ms") else "",
        cc_enabled=words.yes_no(reply.cc_enabled if reply.HasField("cc_enabled") else None),
        cc_ready=words.yes_no(reply.cc_ready if reply.HasField("cc_ready") else None),
        devtools=reply.cc_devtools,
        cards=tuple(map(card_view, reply.gpus[:limit], health.judge_cards(reply))),
        missing=words.cards_missing(seen, pci_devices) if shown else "",
        more_cards=max(0, seen - limit),
    )


# What has a place of its own on the page.
_ON_PAGE = tuple(row for row in ROWS if row.shown != WITHIN and GUEST_PAGE not in row.not_on)
# Of a card's XIDs, instances and processes; a healthy one has none of the first and seven of the second at most.
LISTED = 16


# A card that nobody judged.
_NOT_JUDGED = health.Verdict(health.Level.UNKNOWN)


def card_view(device: GpuDevice, verdict: health.Verdict = _NOT_JUDGED) -> CardView:
    """One card: base values always, others by group where they are known."""
    card = card_values.read(device)
    rows = [row for row in _ON_PAGE if row.group == BASE]
    return CardView(
        index=device.index,
        uuid=formats.text(device.uuid) or words.UNKNOWN,
        pci=formats.pci(device.pci_bus_id) or words.UNKNOWN,
        bars=tuple(Bar(page_title(row), card.say(row), card.fill(row)) for row in rows if row.shown == BAR),
        texts=tuple((row.title, formats.text(card.say(row))) for row in rows if row.shown == TEXT),
        groups=tuple(_groups(device, card)),
        errors=tuple(map(formats.text, words.first_errors((*device.errors, *card.refused)))),
        health=verdict.level.word,
        why=health.in_words(verdict),
    )


def _groups(device: GpuDevice, card: card_values.CardValues) -> Iterator[tuple[str, tuple[tuple[str, str], ...]]]:
    for group in GROUPS:
        rows = [row for row in _ON_PAGE if row.group == group and card.say(row) != words.UNKNOWN]
        known = [(page_title(row), formats.text(card.say(row))) for row in rows]
        if group == HEALTH:
            known += _listed([(f"XID {xid.xid}", f"{xid.count} times") for xid in device.xids[: LISTED + 1]], len(device.xids))
        if group == MIG:
            instances = [_instance(each) for each in device.mig_instances[: LISTED + 1]]
            known += _listed(instances, len(device.mig_instances))
        if group == PROCESSES:
            processes = [_process(each) for each in device.process_list[: LISTED + 1]]
            known += _listed(processes, len(device.process_list))
        if known:
            yield group, tuple(known)


def _listed(entries: list[tuple[str, str]], count: int) -> list[tuple[str, str]]:
    more = count - LISTED
    return [*entries[:LISTED], *([("Further ones", str(more))] if more > 0 else [])]


def _instance(instance: MigInstance) -> tuple[str, str]:
    used, total = card_values.instance_memory(instance)
    title = f"Instance {instance.gpu_instance} {formats.text(instance.profile)}".strip()
    return title, words.part_of(words.size(used), words.size(total))


def _process(process: GpuProcess) -> tuple[str, str]:
    used = process.used_memory_bytes if process.HasField("used_memory_bytes") else None
    title = f"Process {process.pid} {formats.text(process.name)}".strip()
    return title, words.size(used if used is not None and used <= MEMORY_LIMIT_BYTES else None)


def system_view(info: SystemInfo) -> SystemView:
    """The system section."""
    name = " ".join(part for part in (info.os_name, info.os_version) if part)
    total, available, used, _ = system_values.memory(info)
    total_swap, used_swap, _ = system_values.swap(info)
    return SystemView(
        facts=(
            ("System", formats.text(name) or words.UNKNOWN),
            ("Kernel", formats.text(info.kernel_version) or words.UNKNOWN),
            ("Processor", formats.text(info.cpu_model) or words.UNKNOWN),
            ("CPUs", str(info.num_cpus)),
            ("Uptime", words.duration(info.uptime)),
            ("Load", words.load(info.loadavg_one, info.loadavg_five, info.loadavg_fifteen)),
            ("CPU since boot", formats.text(words.cpu_time(system_values.cpu_seconds(info)))),
            *(
                (f"Network {formats.text(name)}", words.traffic(*traffic))
                for name, traffic in itertools.islice(system_values.traffic(info).items(), LINES_LIMIT)
            ),
        ),
        bars=(
            _usage_bar("Memory", used, total, f"{words.size(available)} available"),
            _usage_bar("Swap", used_swap, total_swap) if total_swap != 0 else Bar("Swap", "none", None),
        ),
        disks=tuple(_disk_bar(disk) for disk in info.disks[:LINES_LIMIT]),
    )


def _usage_bar(label: str, used: int | None, total: int | None, more: str = "") -> Bar:
    said = words.part_of(words.size(used), words.size(total))
    if more:
        said = f"{said} · {more}"
    if used is None or total is None:
        return Bar(label, said, None)
    fill = words.percent_of(used, total)
    return Bar(label, said, fill, fill >= FULL_PERCENT)


def _disk_bar(disk: DiskInfo) -> Bar:
    label = f"{formats.text(disk.mount_point)} · {formats.text(disk.name)}"
    if disk.free_size > disk.total_size:
        return Bar(label, f"{words.UNKNOWN} / {words.size(disk.total_size)}", None)
    return _usage_bar(label, disk.total_size - disk.free_size, disk.total_size, f"{words.size(disk.free_size)} free")


def network_view(info: NetworkInformation) -> NetworkView:
    """The network section."""
    facts = [
        (f"Interface {formats.text(each.name)}", ", ".join(f"{one.address}/{one.prefix}" for one in each.addresses[:LINES_LIMIT]))
        for each in info.interfaces[:LINES_LIMIT]
    ]
    facts.append(("Gateways", ", ".join(gateway.address for gateway in info.gateways[:LINES_LIMIT])))
    facts.append(("Name servers", ", ".join(info.dns_servers[:LINES_LIMIT])))
    if info.wg_info:
        facts.append(("WireGuard", info.wg_info))
    return NetworkView(tuple((name, formats.text(said) or words.UNKNOWN) for name, said in facts))


def container_views(containers: Sequence[Container]) -> tuple[ContainerView, ...]:
    """The containers, running ones first, then by name."""
    views = [
        ContainerView(
            logs=container.id,
            id=formats.text(container.id[:SHORT_ID_LENGTH]),
            name=formats.text(display_name(container)) or words.UNKNOWN,
            image=formats.text(container.image),
            state=formats.text(container.state),
            status=formats.text(container.status),
            running=container.state == "running",
        )
        for container in containers[:LINES_LIMIT]
    ]
    return tuple(sorted(views, key=lambda view: (not view.running, view.name, view.id)))
