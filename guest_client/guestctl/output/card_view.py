"""What `guestctl card` shows of one card: its verdict, then every value by group, as text, JSON or CSV.

The groups, their values and their units are the rows of guest_contract.card_fields, so that a new row appears here by itself. A value of a
group that was asked and that is unset is a dash; a group that was not asked has no values and is named as such. Lists of a card (XIDs, MIG
instances, processes) have no rows and stand below the values of their group. Rejected: the columns of the table of cards turned by 90
degrees (they are few on purpose).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rich.text import Text

from guest_api import guest_api_pb2
from guest_client.guestctl.output import columns
from guest_client.guestctl.output.card_cells import LEVEL_STYLES, PCI_ADDRESS_CELLS, TEXT_CELLS, UUID_CELLS, Card, cut, safe
from guest_client.guestctl.output.columns import Column
from guest_client.guestctl.output.csv_view import Row
from guest_client.guestctl.output.health_view import reason_json
from guest_client.guestctl.output.json_view import Json, view
from guest_contract import card_values, words
from guest_contract.card_fields import BASE, GROUPS, HEALTH, MEMORY_LIMIT_BYTES, MIG, PROCESSES, ROWS
from guest_contract.card_row import Field
from guest_contract.words import UNKNOWN

_Message: TypeAlias = guest_api_pb2.XidCount | guest_api_pb2.MigInstance | guest_api_pb2.GpuProcess
# The names of a card are rows of their own: a guest may send 64 KiB of UUID, and there is a row for each number of each XID.
CSV_COLUMNS = ["guest_id", "index", "group", "name", "value", "unit", "state"]
# A card has at most seven instances and some twenty kinds of XID; a guest may send thousands. JSON and CSV have all.
LIST_LIMIT = 64
_GROUPS = (BASE, *GROUPS)
_INDENT = "  "
# What is true of the whole guest and explains a card; by the contract's names.
_OF_GUEST = (
    "driver_version", "cuda_driver_version", "nvml_version", "cc_enabled", "cc_ready", "cc_devtools", "cc_environment",
    "cc_multi_gpu_mode",
)  # fmt: skip
_FACTS = (
    ("Driver", "driver_version"),
    ("CUDA", "cuda_driver_version"),
    ("NVML", "nvml_version"),
    ("CC enabled", "cc_enabled"),
    ("CC ready", "cc_ready"),
)


@dataclass(frozen=True, slots=True)
class WholeCard:
    """A card, and the answer of its guest."""

    guest: str
    answer: guest_api_pb2.GpuInfoResponse
    card: Card

    def rows(self, group: str) -> list[Field]:
        """The values of a group."""
        return [row for row in ROWS if row.group == group]

    def asked(self, group: str) -> bool:
        """Whether the guest asked for this group: it says so, or something of it is there."""
        there = any(self.card.judged.values[row.name] is not None for row in self.rows(group))
        return group == BASE or group in self.answer.groups or there or any(self.lists(group).values())

    def lists(self, group: str) -> dict[str, Sequence[_Message]]:
        """The card's lists that belong to a group, by the contract's name."""
        card = self.card.message
        lists: dict[str, dict[str, Sequence[_Message]]] = {
            HEALTH: {"xids": card.xids},
            MIG: {"mig_instances": card.mig_instances},
            PROCESSES: {"process_list": card.process_list},
        }
        return lists.get(group, {})


def lines(found: WholeCard) -> Iterator[Text]:
    """The card for people."""
    card, verdict = found.card, found.card.verdict
    yield Text.assemble(safe(f"{found.guest} GPU {card.index}", "bold"), ": ", (verdict.level.word, LEVEL_STYLES[verdict.level]))
    for reason in verdict.reasons:
        yield Text(_INDENT).append_text(cut(f"{reason.words}. {reason.action}", TEXT_CELLS))
    yield from _pairs([*_names(card), *_of_guest(found.answer)])
    for group in filter(found.asked, _GROUPS):
        yield Text(group, "bold")
        yield from _pairs([(row.title, _said(card, row)) for row in found.rows(group)])
        for entries in found.lists(group).values():
            yield from _table(entries)
    if left := [group for group in _GROUPS if not found.asked(group)]:
        yield Text(f"not asked: {', '.join(left)} (the agent asks for the groups that gpu.groups names)")
    for error in words.first_errors(card.errors):
        yield Text("", "red").append_text(cut(error, TEXT_CELLS))


def _names(card: Card) -> list[tuple[str, Text]]:
    return [
        ("UUID", cut(card.message.uuid or UNKNOWN, UUID_CELLS)),
        ("PCI address", cut(card.message.pci_bus_id or UNKNOWN, PCI_ADDRESS_CELLS)),
    ]


def _of_guest(answer: guest_api_pb2.GpuInfoResponse) -> list[tuple[str, Text]]:
    shown = view(answer)
    assert isinstance(shown, dict)  # noqa: S101 - a message with fields is an object
    facts = [(title, cut(_fact(shown[name]), TEXT_CELLS)) for title, name in _FACTS]
    age = words.age(answer.sample_age_ms) + " ago" if answer.HasField("sample_age_ms") else UNKNOWN
    return [*facts, *([("CC DevTools", Text("true"))] if answer.cc_devtools else []), ("Sampled", Text(age))]


def _fact(value: Json) -> str:
    return words.yes_no(value) if isinstance(value, bool) else str(value or UNKNOWN)


def _said(card: Card, row: Field) -> Text:
    return cut(words.say(row, card.judged.values[row.name]), TEXT_CELLS)


def _pairs(facts: Sequence[tuple[str, Text]]) -> Iterator[Text]:
    width = max((len(title) for title, _ in facts), default=0)
    for title, value in facts:
        yield Text.assemble(_INDENT, title.ljust(width), columns.GAP, value)


# --- Lists of a card ----------------------------------------------------------------------------------------------------------------------


def _table(entries: Sequence[_Message]) -> Iterator[Text]:
    if not entries:
        return
    titles, rows = _cells(entries)
    needed = columns.widths(titles, rows)
    yield Text(_INDENT).append_text(columns.header(titles, needed))
    for row in rows:
        yield Text(_INDENT).append_text(columns.line(titles, needed, row))
    if len(entries) > LIST_LIMIT:
        yield Text(f"{_INDENT}and {len(entries) - LIST_LIMIT} more, see -o json")


def _cells(entries: Sequence[_Message]) -> tuple[Sequence[Column], list[Sequence[Text]]]:
    right = [Column(title, right=True) for title in ("XID", "Count", "Last", "Pid", "Memory", "Used")]
    xid, count, last, pid, memory, used = right
    match entries[0]:
        case guest_api_pb2.XidCount():
            return (xid, count, last), [_xid(each) for each in _latest(entries)]
        case guest_api_pb2.MigInstance():
            titles = (Column("MIG"), Column("Profile"), used, memory, Column("UUID"))
            return titles, [_instance(each) for each in entries[:LIST_LIMIT] if isinstance(each, guest_api_pb2.MigInstance)]
    processes = [each for each in entries[:LIST_LIMIT] if isinstance(each, guest_api_pb2.GpuProcess)]
    return (pid, memory, Column("Name")), [
        (Text(str(each.pid)), _bytes(each.used_memory_bytes if each.HasField("used_memory_bytes") else None), _name(each.name))
        for each in processes
    ]


def _latest(entries: Iterable[_Message]) -> list[guest_api_pb2.XidCount]:
    """The XIDs, the last one first; one of unknown age stands before all others, as it counts against the card."""
    xids = [each for each in entries if isinstance(each, guest_api_pb2.XidCount)]
    return sorted(xids, key=lambda each: (not each.HasField("last_age_ms"), each.last_age_ms, each.xid))[:LIST_LIMIT]


def _xid(each: guest_api_pb2.XidCount) -> Sequence[Text]:
    last = f"{words.duration(each.last_age_ms // 1000)} ago" if each.HasField("last_age_ms") else UNKNOWN
    return Text(str(each.xid)), Text(str(each.count)), Text(last)


def _instance(each: guest_api_pb2.MigInstance) -> Sequence[Text]:
    compute = str(each.compute_instance) if each.HasField("compute_instance") else UNKNOWN
    used, total = map(_bytes, card_values.instance_memory(each))
    return Text(f"{each.gpu_instance}/{compute}"), _name(each.profile), used, total, _name(each.uuid)


def _bytes(count: int | None) -> Text:
    return Text(words.size(count if count is not None and count <= MEMORY_LIMIT_BYTES else None))


def _name(text: str) -> Text:
    return cut(text or UNKNOWN, UUID_CELLS)


# --- For scripts --------------------------------------------------------------------------------------------------------------------------


def as_json(found: WholeCard) -> Json:
    """One object: `groups` has an object for each group, null for one that was not asked; in it null for what is unset."""
    card = found.card
    shown = view(found.answer)
    assert isinstance(shown, dict)  # noqa: S101 - a message with fields is an object
    return {
        "guest_id": found.guest,
        "index": card.index,
        "uuid": card.message.uuid,
        "pci_bus_id": card.message.pci_bus_id,
        "health": card.verdict.level.word,
        "reasons": [reason_json(reason) for reason in card.verdict.reasons],
        "sample_age_ms": shown["sample_age_ms"],
        **{name: shown[name] for name in _OF_GUEST},
        "groups": {group: _group_json(found, group) for group in _GROUPS},
        "errors": list(card.errors),
    }


def _group_json(found: WholeCard, group: str) -> Json:
    if not found.asked(group):
        return None
    values: dict[str, Json] = {row.name: found.card.judged.values[row.name] for row in found.rows(group)}
    return values | {name: [view(each) for each in entries] for name, entries in found.lists(group).items()}


def as_rows(found: WholeCard) -> Iterator[Row]:
    """A row for each value, each number of a list, and each reason; `state` tells unset from not asked."""
    card = found.card
    whose: Row = [found.guest, card.index]
    for name, text in (("uuid", card.message.uuid), ("pci_bus_id", card.message.pci_bus_id)):
        yield [*whose, "card", name, text or None, None, "value" if text else "unset"]
    yield [*whose, "verdict", "health", card.verdict.level.word, None, "value"]
    for reason in card.verdict.reasons:
        yield [*whose, "verdict", reason.code, f"{reason.words}. {reason.action}", None, "value"]
    for group in _GROUPS:
        asked = found.asked(group)
        for row in found.rows(group):
            value = card.judged.values[row.name]
            state = "not asked" if not asked else "unset" if value is None else "value"
            yield [*whose, group, row.name, value, row.unit, state]
        for name, entries in found.lists(group).items():
            yield from ([*whose, group, f"{name}[{at}].{key}", *rest] for at, key, *rest in _numbers(entries))
    for error in card.errors:
        yield [*whose, "errors", "error", error, None, "value"]


def _numbers(entries: Sequence[_Message]) -> Iterator[Row]:
    for at, each in enumerate(entries):
        shown = view(each)
        assert isinstance(shown, dict)  # noqa: S101 - a message with fields is an object
        yield from ([at, key, value, None, "unset" if value is None else "value"] for key, value in shown.items())
