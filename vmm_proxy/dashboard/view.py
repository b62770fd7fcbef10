"""What stands in a guest's rows, as words and bar lengths.

Judging happens here, so that templates only place words: unknown is a dash and never a zero, and a guest that does not answer says why and
since when in the place of values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from guest_api.guest_api_pb2 import GpuDevice, GpuInfoResponse
from guest_transport.http import formats
from guest_transport.http.formats import UNKNOWN
from vmm_proxy.dashboard.history import CARDS_LIMIT, SLOTS, History
from vmm_proxy.directory import GuestEntry
from vmm_proxy.fleet_metrics.last_known import LastKnown

# A card in trouble has an entry per field, seven; more is noise, or meant to be.
ERRORS_SHOWN = 7
# From here on nobody reads tenths of a second.
SECONDS_SHOWN_TO = 600


@dataclass(frozen=True, slots=True)
class Meter:
    """A bar with its words; `fill` is None when the value is unknown."""

    words: str
    fill: int | None


@dataclass(frozen=True, slots=True)
class CardRow:
    """One GPU. `graph` holds the corners of the graph's line in SVG's words, empty when there is nothing to draw."""

    index: int
    uuid: str
    pci: str
    utilization: Meter
    graph: str
    memory: Meter
    temperature: str
    power: str
    errors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SortKeys:
    """What rows are sorted by; empty text stands for unknown and goes last."""

    state: int
    utilization: str
    memory: str
    temperature: str
    power: str
    age: str


@dataclass(frozen=True, slots=True)
class GuestRows:
    """One guest: its own cell and its cards', or a `note` in their place. `age_seconds` grows on the page by itself."""

    id: str
    state: str
    labels: tuple[tuple[str, str], ...]
    cc: str
    age_label: str
    age_seconds: float | None
    age_words: str
    cards: tuple[CardRow, ...]
    note: str
    bad: bool
    more_cards: int
    search: str
    keys: SortKeys


# In the order in which somebody on call wants to see them.
_STATES = ("down", "waiting", "up", "stopped")


def guest_rows(entry: GuestEntry, known: LastKnown | None, history: History, now: float) -> GuestRows:
    """The rows of one guest; `known` is None for one that is stopped."""
    gpus = known.gpus.shown(now) if known else None
    cards = tuple(_card_row(device, history.of(entry.id, device)) for device in gpus.gpus[:CARDS_LIMIT]) if gpus else ()
    state = _state(known)
    note = "" if cards else _note(known, gpus)
    age_label, age = _age(known, gpus, now)
    labels = tuple((formats.text(key), formats.text(value)) for key, value in sorted(entry.labels.items()))
    return GuestRows(
        id=entry.id,
        state=state,
        labels=labels,
        cc=_cc(gpus),
        age_label=age_label,
        age_seconds=age,
        age_words=UNKNOWN if age is None else _age_words(age),
        cards=cards,
        note=note or (_why_down(known) if known and state == "down" else ""),
        bad=state == "down" or bool(gpus and gpus.error),
        more_cards=max(0, len(gpus.gpus) - CARDS_LIMIT) if gpus else 0,
        search=_search(entry, state, labels, cards),
        keys=_keys(state, gpus, age),
    )


def _state(known: LastKnown | None) -> str:
    if known is None:
        return "stopped"
    return {True: "up", False: "down", None: "waiting"}[known.up]


def _note(known: LastKnown | None, gpus: GpuInfoResponse | None) -> str:
    if known is None:
        return "Stopped"
    if gpus is None:
        return _why_down(known) or "No answer yet"
    return formats.text(gpus.error) if gpus.error else "No NVIDIA GPUs"


def _why_down(known: LastKnown) -> str:
    failure = known.gpus.failure
    return formats.text(failure.text.removeprefix(f"guest {known.id}: ")) if failure else ""


def _age(known: LastKnown | None, gpus: GpuInfoResponse | None, now: float) -> tuple[str, float | None]:
    """The age of the sample that is shown; without one, the time since the guest last answered."""
    if known and gpus and gpus.HasField("sample_age_ms"):
        return "sample", gpus.sample_age_ms / 1000 + max(0.0, now - known.gpus.received_at)
    if known and known.answered_at is not None:
        return "last answer", max(0.0, now - known.answered_at)
    return "", None


def _age_words(seconds: float) -> str:
    """`60.0 s`, from ten minutes on `2h 5m`."""
    if seconds < SECONDS_SHOWN_TO:
        return formats.age(round(seconds * 1000))
    return formats.uptime(int(seconds)).rpartition(" ")[0]


def _cc(gpus: GpuInfoResponse | None) -> str:
    if gpus is None or not gpus.gpus:
        return ""
    if not gpus.HasField("cc_enabled"):
        return "CC unknown"
    words = {True: "CC ready", False: "CC not ready", None: "CC on"}[gpus.cc_ready if gpus.HasField("cc_ready") else None]
    if not gpus.cc_enabled:
        words = "CC off"
    return f"{words}, DevTools on" if gpus.cc_devtools else words


def _card_row(device: GpuDevice, past: Sequence[int | None]) -> CardRow:
    utilization = device.utilization_gpu if device.HasField("utilization_gpu") else None
    return CardRow(
        index=device.index,
        uuid=formats.text(device.uuid) or UNKNOWN,
        pci=formats.pci(device.pci_bus_id) or UNKNOWN,
        utilization=Meter(UNKNOWN, None) if utilization is None else Meter(f"{utilization} %", min(utilization, 100)),
        graph=graph_line(past),
        memory=_memory(device),
        temperature=f"{device.temperature_c} °C" if device.HasField("temperature_c") else UNKNOWN,
        power=formats.power(device.power_usage_mw) if device.HasField("power_usage_mw") else UNKNOWN,
        errors=_errors(device),
    )


def _errors(device: GpuDevice) -> tuple[str, ...]:
    shown = [formats.text(error) for error in device.errors[:ERRORS_SHOWN]]
    if more := len(device.errors) - len(shown):
        shown.append(f"and {more} more")
    return tuple(shown)


def _memory(device: GpuDevice) -> Meter:
    used = device.memory_used_bytes if device.HasField("memory_used_bytes") else None
    total = device.memory_total_bytes if device.HasField("memory_total_bytes") else None
    if used is None and total is None:
        return Meter(UNKNOWN, None)
    words = " / ".join(UNKNOWN if value is None else formats.size(value) for value in (used, total))
    return Meter(words, None if used is None or not total else formats.percent_of(used, total))


def graph_line(past: Sequence[int | None]) -> str:
    """An SVG path of SLOTS steps, from 0 to 100 downwards, broken where nothing is known; a value alone is a short stroke."""
    corners: list[str] = []
    drawing = False
    for at, value in enumerate(past):
        if value is None:
            drawing = False
            continue
        alone = not drawing and (at + 1 == len(past) or past[at + 1] is None)
        corners.append(f"{'L' if drawing else 'M'}{at} {100 - value}" + (f"h{min(1, SLOTS - at)}" if alone else ""))
        drawing = True
    return "".join(corners)


def _search(entry: GuestEntry, state: str, labels: Sequence[tuple[str, str]], cards: Sequence[CardRow]) -> str:
    """What the filter looks in, in lower case."""
    words = [entry.id, state, *(f"{key}={value}" for key, value in labels), *(f"{card.uuid} {card.pci}" for card in cards)]
    return " ".join(words).lower()


def _keys(state: str, gpus: GpuInfoResponse | None, age: float | None) -> SortKeys:
    devices = gpus.gpus if gpus else ()
    memory = [
        formats.percent_of(device.memory_used_bytes, device.memory_total_bytes)
        for device in devices
        if device.HasField("memory_used_bytes") and device.memory_total_bytes
    ]
    power = [device.power_usage_mw for device in devices if device.HasField("power_usage_mw")]
    return SortKeys(
        state=_STATES.index(state),
        utilization=_highest(device.utilization_gpu for device in devices if device.HasField("utilization_gpu")),
        memory=_highest(memory),
        temperature=_highest(device.temperature_c for device in devices if device.HasField("temperature_c")),
        power=str(sum(power)) if power else "",
        age="" if age is None else f"{age:.1f}",
    )


def _highest(values: Iterable[int]) -> str:
    return str(max(values, default=""))
