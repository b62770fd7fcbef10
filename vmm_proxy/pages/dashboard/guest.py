"""What the page of one guest in the fleet shows: its cards in detail with their last half hour, its system, network and containers.

The sections are those of the guest's own page (guest_pages). A guest that does not answer is shown as it last was, with its age and why it
is silent; what is older than the fleet remembers is not shown. A hostile guest's lists are cut.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse
from guest_contract import card_values, words
from guest_pages.view import (
    CardView,
    ContainerView,
    GpuView,
    Graph,
    NetworkView,
    SystemView,
    container_views,
    gpu_view,
    network_view,
    system_view,
)
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.metrics.last_answers import LastKnown
from vmm_proxy.pages.dashboard.history import CARDS_LIMIT, GRAPHED, History, card_key
from vmm_proxy.pages.dashboard.view import GuestHead, graph_line, guest_head

# The slots of each of GRAPHED, by card_key.
Past = Mapping[str, Sequence[Sequence[int | None]]]


@dataclass(frozen=True, slots=True)
class GuestView:
    """The page. `gpus` None: there is nothing to show, and `head` says why. The other sections as on the guest's own page."""

    head: GuestHead
    gpus: GpuView | None
    sysinfo: bool
    system: SystemView | None
    network: NetworkView | None
    containers_public: bool
    containers: tuple[ContainerView, ...] | None
    containers_note: str
    logs: bool = False


def past_of(entry: GuestEntry, known: LastKnown | None, history: History, now: float) -> Past:
    """The history of each card that is shown."""
    gpus = known.gpus.shown(now) if known else None
    devices = gpus.gpus[:CARDS_LIMIT] if gpus else ()
    return {card_key(device): [history.of(entry.id, device, graphed.name) for graphed in GRAPHED] for device in devices}


def guest_view(entry: GuestEntry, known: LastKnown | None, past: Past, now: float, *, with_containers: bool) -> GuestView:
    """The page of a guest; `known` is None for one that is stopped."""
    gpus = known.gpus.shown(now) if known else None
    system = known.system.shown(now) if known else None
    network = known.network.shown(now) if known else None
    containers = known.containers.shown(now) if known else None
    return GuestView(
        head=guest_head(entry, known, now),
        gpus=_gpus(entry, known, gpus, past, now) if known and gpus else None,
        sysinfo=known is not None,
        system=system_view(system) if system else None,
        network=network_view(network) if network else None,
        containers_public=with_containers and known is not None,
        containers=container_views(containers.containers) if containers else None,
        containers_note="The list of containers is not known now.",
    )


def _gpus(entry: GuestEntry, known: LastKnown, gpus: GpuInfoResponse, past: Past, now: float) -> GpuView:
    made = gpu_view(gpus, ready=not gpus.first_sample_pending, pci_devices=None, limit=CARDS_LIMIT)
    age = ""
    if gpus.HasField("sample_age_ms"):
        age = words.age(round(gpus.sample_age_ms + max(0.0, now - known.gpus.received_at) * 1000))
    cards = tuple(
        _with_graphs(card, device, past.get(card_key(device))) for card, device in zip(made.cards, gpus.gpus, strict=False)
    )
    return replace(made, age=age, missing=card_values.missing(gpus, entry.gpus_given), cards=cards)


def _with_graphs(card: CardView, device: GpuDevice, past: Sequence[Sequence[int | None]] | None) -> CardView:
    if past is None:
        return card
    limit_mw = card_values.read(device).number("power_limit_mw")
    graphs = []
    for graphed, slots in zip(GRAPHED, past, strict=True):
        known = [value for value in slots if value is not None]
        highest = max(known, default=0)
        # Power reaches to the limit in force, or to what was seen.
        top = graphed.top or (round(limit_mw / graphed.per) if limit_mw else 0) or highest or 1
        lowest = min(known, default=0)
        span = (
            (f"{highest}" if lowest == highest else f"{lowest} to {highest}") + f" {graphed.unit}" if known else "not known yet"
        )
        graphs.append(Graph(graphed.title, span, f"0 to {top} {graphed.unit}", graph_line(slots, top)))
    return replace(card, graphs=tuple(graphs))
