"""Answers as tables for a terminal. Values that are unset are dashes.

Every text of a server passes `safe`: control characters and direction marks become escapes, and rich's markup is never read from it. On
something that is no terminal, lines are as long as they need to be and hold no colour.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from google.rpc import status_pb2
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from guest_api import guest_api_pb2
from guest_client.guestctl.output import card_cells, statuses, stdout
from guest_client.guestctl.output.card_cells import TEXT_CELLS, cut, safe
from guest_client.guestctl.output.gpu_table import GpuTable
from guest_contract import system_values, words
from guest_contract.health import Level
from guest_contract.words import UNKNOWN
from guest_fleet.v1 import fleet_pb2

# Wider than any line that we write: 1024 cards are rows, not columns, and the longest text of a guest is an error of 1 KiB.
NOT_A_TERMINAL_WIDTH = 20_000
# Lines of one fact (`wg show`), and rows of one table: the proxy lets no more through, a guest that is asked directly may send a million.
ROWS_LIMIT = 4096
_STATES = {
    fleet_pb2.GUEST_STATE_SERVING: Text("serving", "green"),
    fleet_pb2.GUEST_STATE_UNREACHABLE: Text("unreachable", "red"),
    fleet_pb2.GUEST_STATE_STOPPED: Text("stopped", "yellow"),
}


def show(answer: Message, vm_id: str | None, gpus_given: int | None = None) -> str:
    """The text of any answer that `guestctl` can get; `vm_id` names the guest it is from, to which the host gave `gpus_given` cards."""
    match answer:
        case guest_api_pb2.GpuInfoResponse():
            guest = vm_id or "guest"
            return render(GpuTable({guest: answer}, {} if gpus_given is None else {guest: gpus_given}))
        case guest_api_pb2.GuestInfo():
            return render(_guest_info(answer))
        case guest_api_pb2.SystemInfo():
            return render(_system(answer))
        case guest_api_pb2.NetworkInformation():
            return render(_network(answer))
        case guest_api_pb2.ListContainersResponse():
            return render(_containers(answer))
        case Empty():
            return "the guest answered: it powers off\n"
    raise AssertionError(type(answer))


def render(shown: RenderableType) -> str:
    """`shown` as standard output can show it: colour on a terminal only, and not with NO_COLOR (rich obeys it)."""
    terminal = stdout.is_terminal()
    text = io.StringIO()  # rich writes to its file by itself, also while it captures, and would meet a closed pipe there
    width = stdout.terminal_size().columns if terminal else NOT_A_TERMINAL_WIDTH
    Console(file=text, force_terminal=terminal, width=width, highlight=False, emoji=False, markup=False).print(shown)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def _guest_info(info: guest_api_pb2.GuestInfo) -> Table:
    return _facts(
        ("Agent version", info.version),
        ("App id", info.app_id.hex()),
        ("Instance id", info.instance_id.hex()),
        ("Device id", info.device_id.hex()),
        ("App certificate", f"{len(info.app_cert)} characters, see -o json" if info.app_cert else ""),
        ("TCB info", f"{len(info.tcb_info)} characters, see -o json" if info.tcb_info else ""),
    )


def _system(info: guest_api_pb2.SystemInfo) -> Group:
    total, available, used, free = map(words.size, system_values.memory(info))
    total_swap, used_swap, free_swap = map(words.size, system_values.swap(info))
    facts = _facts(
        ("System", f"{info.os_name} {info.os_version}".strip()),
        ("Kernel", info.kernel_version),
        ("Processor", f"{info.cpu_model} x {info.num_cpus}" if info.num_cpus else info.cpu_model),
        ("Load", words.load(info.loadavg_one, info.loadavg_five, info.loadavg_fifteen)),
        ("CPU since boot", words.cpu_time(system_values.cpu_seconds(info))),
        ("Uptime", words.duration(info.uptime)),
        ("Memory", f"{used} used, {available} available"),
        ("", f"{free} free of {total}"),
        ("Swap", f"{used_swap} used, {free_swap} free of {total_swap}"),
    )
    disks = _table("Disk", "Mounted on", ">Free", ">Size")
    for disk in info.disks[:ROWS_LIMIT]:
        free_size = disk.free_size if disk.free_size <= disk.total_size else None
        disks.add_row(_cell(disk.name), _cell(disk.mount_point), Text(words.size(free_size)), Text(words.size(disk.total_size)))
    network = _table("Interface", ">Received", ">Sent", ">Errors in", ">Errors out")
    traffic = system_values.traffic(info)
    for name, (received, sent, *errors) in traffic.items():
        network.add_row(_cell(name), *map(Text, (words.size(received), words.size(sent), *map(str, errors))))
    more: list[RenderableType] = [disks, *_more(info.disks)] if info.disks else []
    return Group(facts, *more, *([network] if traffic else []))


def _network(info: guest_api_pb2.NetworkInformation) -> Group:
    facts = _facts(
        ("Name servers", ", ".join(info.dns_servers)),
        ("Gateways", ", ".join(gateway.address for gateway in info.gateways)),
        ("WireGuard", info.wg_info),
    )
    table = _table("Interface", "Addresses", ">Received", ">Sent", ">Errors in", ">Errors out")
    for each in info.interfaces[:ROWS_LIMIT]:
        addresses = ", ".join(f"{address.address}/{address.prefix}" for address in each.addresses)
        row = (addresses, words.size(each.rx_bytes), words.size(each.tx_bytes), str(each.rx_errors), str(each.tx_errors))
        table.add_row(*map(_cell, (each.name, *row)))
    return Group(facts, table, *_more(info.interfaces)) if info.interfaces else Group(facts)


def _containers(answer: guest_api_pb2.ListContainersResponse) -> RenderableType:
    if not answer.containers:
        return Text("no containers")
    table = _table("Container", "Name", "Image", "State", "Status", "Created")
    for each in answer.containers[:ROWS_LIMIT]:
        names = ", ".join(name.removeprefix("/") for name in each.names)
        row = (each.id[:12], names, each.image, each.state, each.status, words.moment(each.created))
        table.add_row(*map(_cell, row))
    return Group(table, *_more(answer.containers))


def _more(entries: Sequence[object]) -> list[Text]:
    return [Text(f"and {len(entries) - ROWS_LIMIT} more, see -o json")] if len(entries) > ROWS_LIMIT else []


class Listed(NamedTuple):
    """A line of a list: the host, empty where there is one, what the guest is called, and the guest; or why the host gave no answer."""

    host: str
    name: str
    answer: fleet_pb2.Guest | status_pb2.Status


def guests(listed: Sequence[Listed], levels: Mapping[str, Level]) -> RenderableType:
    """The guests that proxies know; `levels` has the health of those of which it is known."""
    if not listed:
        return Text("the proxy knows no guests")
    table = _table("Guest", "State", "Health", "Last contact", "Agent", "Labels", "Address")
    remarks: list[Text] = []
    for _, name, answer in listed:
        if isinstance(answer, status_pb2.Status):
            table.add_row(safe(name), Text("no answer", "red"), *[UNKNOWN] * 5)
            remarks.append(safe(f"{name}: {statuses.in_words(answer, name)}", "red"))
            continue
        table.add_row(safe(name), *_guest_cells(answer, levels.get(name, Level.UNKNOWN)))
        on_bus = answer.pci_devices if answer.HasField("pci_devices") else None
        given = answer.gpus_given if answer.HasField("gpus_given") else None
        if answer.HasField("gpus") and (missing := words.cards_missing(answer.gpus, on_bus, given)):
            remarks.append(safe(f"{name}: a card is missing ({missing})", "red"))
    return Group(table, *remarks)


def _guest_cells(guest: fleet_pb2.Guest, level: Level) -> list[Text]:
    contact = words.moment(guest.last_contact.seconds) if guest.HasField("last_contact") else UNKNOWN
    labels = ", ".join(f"{key}={guest.labels[key]}" for key in sorted(guest.labels))
    state = _STATES.get(guest.state, Text("unknown"))
    return [state, card_cells.level(level), *map(_cell, (contact, guest.agent_version, labels, guest.address))]


def _cell(text: str) -> Text:
    return cut(text or UNKNOWN, TEXT_CELLS)


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.removeprefix(">"), justify="right" if column.startswith(">") else "left", overflow="fold")
    return table


def _facts(*facts: tuple[str, str]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Group(*_lines(value)) if value else UNKNOWN)
    return table


def _lines(value: str) -> Iterable[Text]:
    """The text of one fact, which alone may have several lines (`wg show`)."""
    lines = value.rstrip("\n").split("\n", ROWS_LIMIT)
    return (cut(line, TEXT_CELLS) for line in lines)
