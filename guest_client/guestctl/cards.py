"""One card's values as cells: the same words in every table, a dash for what is unset, and every text of a guest made safe."""

from __future__ import annotations

from rich.text import Text

from guest_api import guest_api_pb2
from guest_client.guestctl import units
from guest_client.guestctl.units import ABSENT
from guest_transport.logs import escape

Card = guest_api_pb2.GpuDevice


def safe(text: str, style: str = "") -> Text:
    """`text` of a server for a terminal: control characters and direction marks as escapes, no markup read from it."""
    return Text(escape(text), style)


def utilization(card: Card) -> Text:
    """`34 %`."""
    return Text(f"{card.utilization_gpu} %" if card.HasField("utilization_gpu") else ABSENT)


def memory_utilization(card: Card) -> Text:
    """`7 %`, of the memory's bandwidth."""
    return Text(f"{card.utilization_memory} %" if card.HasField("utilization_memory") else ABSENT)


def memory_used(card: Card) -> Text:
    """`1.00 GB`."""
    return Text(units.size(card.memory_used_bytes) if card.HasField("memory_used_bytes") else ABSENT)


def memory_total(card: Card) -> Text:
    """`140.40 GB`."""
    return Text(units.size(card.memory_total_bytes) if card.HasField("memory_total_bytes") else ABSENT)


def temperature(card: Card) -> Text:
    """`34 °C`."""
    return Text(f"{card.temperature_c} °C" if card.HasField("temperature_c") else ABSENT)


def power(card: Card) -> Text:
    """`79.7 W`."""
    return Text(units.power(card.power_usage_mw) if card.HasField("power_usage_mw") else ABSENT)


def uuid(card: Card) -> Text:
    """As the driver gave it; a dash when it did not."""
    return safe(card.uuid or ABSENT)


def pci_address(card: Card) -> Text:
    """The same."""
    return safe(card.pci_bus_id or ABSENT)


def in_words(card: Card) -> list[str]:
    """Its readings for a sentence, names included, not escaped; what is unset is left out."""
    used, whole = memory_used(card).plain, memory_total(card).plain
    facts = [
        ("GPU", utilization(card).plain),
        ("memory bandwidth", memory_utilization(card).plain),
        ("memory", ABSENT if used == whole == ABSENT else f"{used} of {whole}"),
        ("temperature", temperature(card).plain),
        ("power", power(card).plain),
    ]
    return [f"{name} {value}" for name, value in facts if value != ABSENT]
