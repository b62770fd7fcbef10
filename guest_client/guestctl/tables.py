"""Answers as tables for a terminal. Values that are unset are dashes, errors of cards stand below their table.

Every text of a server passes `_safe`: control characters and direction marks become escapes, and rich's markup is never read from it. On
something that is no terminal, lines are as long as they need to be and hold no colour.
"""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from guest_api import guest_api_pb2
from guest_client.guestctl import units
from guest_client.guestctl.units import ABSENT
from guest_fleet.v1 import fleet_pb2
from guest_transport.logs import escape

# Wider than any line that we write: 1024 cards are rows, not columns, and the longest text of a guest is an error of 1 KiB.
_NOT_A_TERMINAL_WIDTH = 20_000
_STATES = {
    fleet_pb2.GUEST_STATE_SERVING: Text("serving", "green"),
    fleet_pb2.GUEST_STATE_UNREACHABLE: Text("unreachable", "red"),
    fleet_pb2.GUEST_STATE_STOPPED: Text("stopped", "yellow"),
}


def show(answer: Message, vm_id: str | None) -> str:
    """The text of any answer that `guestctl` can get; `vm_id` names the guest it is from."""
    match answer:
        case guest_api_pb2.GpuInfoResponse():
            return render(gpus({vm_id or "guest": answer}))
        case guest_api_pb2.GuestInfo():
            return render(_guest_info(answer))
        case guest_api_pb2.SystemInfo():
            return render(_system(answer))
        case guest_api_pb2.NetworkInformation():
            return render(_network(answer))
        case guest_api_pb2.ListContainersResponse():
            return render(_containers(answer))
        case fleet_pb2.ListGuestsResponse():
            return render(_guests(answer))
        case Empty():
            return "the guest answered: it powers off\n"
    raise AssertionError(type(answer))


def render(shown: RenderableType) -> str:
    """`shown` as standard output can show it: colour on a terminal only, and not with NO_COLOR (rich obeys it)."""
    terminal = sys.stdout is not None and sys.stdout.isatty()
    text = io.StringIO()  # rich writes to its file by itself, also while it captures, and would meet a closed pipe there
    width = shutil.get_terminal_size().columns if terminal else _NOT_A_TERMINAL_WIDTH
    Console(file=text, force_terminal=terminal, width=width, highlight=False, emoji=False, markup=False).print(shown)
    return "\n".join(line.rstrip() for line in text.getvalue().splitlines()) + "\n"


def gpus(answers: Mapping[str, guest_api_pb2.GpuInfoResponse]) -> Group:
    """One line per guest (none, unknown, or how many cards, CC state and age), one per card, one per value that could not be read."""
    table = _table("Guest", "GPU", "UUID", "PCI address", ">GPU %", ">Mem %", ">Used", ">Memory", ">Temp", ">Power")
    errors = []
    for guest, answer in answers.items():
        for card in answer.gpus:
            table.add_row(*_card(guest, card))
            errors += [_safe(f"{guest} GPU {card.index}: {error}", "red") for error in card.errors]
    return Group(
        *(_guest_line(guest, answer) for guest, answer in answers.items()), *([table] if table.row_count else []), *errors
    )


def _guest_line(guest: str, answer: guest_api_pb2.GpuInfoResponse) -> Text:
    facts = [_cards(answer)]
    if answer.gpus:
        enabled = answer.cc_enabled if answer.HasField("cc_enabled") else None
        ready = answer.cc_ready if answer.HasField("cc_ready") else None
        facts += [f"CC enabled {units.yes_no(enabled)}", f"CC ready {units.yes_no(ready)}"]
    if answer.HasField("sample_age_ms"):
        facts.append(f"sampled {units.age(answer.sample_age_ms)} ago")
    return _safe(f"{guest}: {', '.join(facts)}", "red" if answer.error else "")


def _cards(answer: guest_api_pb2.GpuInfoResponse) -> str:
    if answer.error:
        return f"GPUs unknown: {answer.error}"
    return f"{len(answer.gpus)} GPU{'' if len(answer.gpus) == 1 else 's'}" if answer.gpus else "no NVIDIA GPU"


def _card(guest: str, card: guest_api_pb2.GpuDevice) -> list[Text]:
    return [
        _safe(guest),
        Text(str(card.index)),
        _safe(card.uuid or ABSENT),
        _safe(card.pci_bus_id or ABSENT),
        Text(f"{card.utilization_gpu} %" if card.HasField("utilization_gpu") else ABSENT),
        Text(f"{card.utilization_memory} %" if card.HasField("utilization_memory") else ABSENT),
        Text(units.size(card.memory_used_bytes) if card.HasField("memory_used_bytes") else ABSENT),
        Text(units.size(card.memory_total_bytes) if card.HasField("memory_total_bytes") else ABSENT),
        Text(f"{card.temperature_c} °C" if card.HasField("temperature_c") else ABSENT),
        Text(units.power(card.power_usage_mw) if card.HasField("power_usage_mw") else ABSENT),
    ]


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
    loads = (("1min", info.loadavg_one), ("5min", info.loadavg_five), ("15min", info.loadavg_fifteen))
    facts = _facts(
        ("System", f"{info.os_name} {info.os_version}".strip()),
        ("Kernel", info.kernel_version),
        ("Processor", f"{info.cpu_model} x {info.num_cpus}" if info.num_cpus else info.cpu_model),
        ("Load", ", ".join(f"{name}: {units.load(value)}" for name, value in loads)),
        ("Uptime", units.duration(info.uptime)),
        ("Memory", f"{units.size(info.used_memory)} used, {units.size(info.available_memory)} available"),
        ("", f"{units.size(info.free_memory)} free of {units.size(info.total_memory)}"),
        ("Swap", f"{units.size(info.used_swap)} used, {units.size(info.free_swap)} free of {units.size(info.total_swap)}"),
    )
    disks = _table("Disk", "Mounted on", ">Free", ">Size")
    for disk in info.disks:
        disks.add_row(
            _safe(disk.name), _safe(disk.mount_point), Text(units.size(disk.free_size)), Text(units.size(disk.total_size))
        )
    return Group(facts, disks) if info.disks else Group(facts)


def _network(info: guest_api_pb2.NetworkInformation) -> Group:
    facts = _facts(
        ("Name servers", ", ".join(info.dns_servers)),
        ("Gateways", ", ".join(gateway.address for gateway in info.gateways)),
        ("WireGuard", info.wg_info),
    )
    table = _table("Interface", "Addresses", ">Received", ">Sent", ">Errors in", ">Errors out")
    for each in info.interfaces:
        addresses = ", ".join(f"{address.address}/{address.prefix}" for address in each.addresses)
        row = (addresses, units.size(each.rx_bytes), units.size(each.tx_bytes), str(each.rx_errors), str(each.tx_errors))
        table.add_row(_safe(each.name), *(_safe(cell or ABSENT) for cell in row))
    return Group(facts, table) if info.interfaces else Group(facts)


def _containers(answer: guest_api_pb2.ListContainersResponse) -> RenderableType:
    if not answer.containers:
        return Text("no containers")
    table = _table("Container", "Name", "Image", "State", "Status", "Created")
    for each in answer.containers:
        names = ", ".join(name.removeprefix("/") for name in each.names)
        row = (each.id[:12], names, each.image, each.state, each.status, _moment(each.created))
        table.add_row(*(_safe(cell or ABSENT) for cell in row))
    return table


def _guests(answer: fleet_pb2.ListGuestsResponse) -> RenderableType:
    if not answer.guests:
        return Text("the proxy knows no guests")
    table = _table("Guest", "State", "Last contact", "Agent", "Labels", "Address")
    for guest in answer.guests:
        contact = _moment(guest.last_contact.seconds) if guest.HasField("last_contact") else ABSENT
        labels = ", ".join(f"{key}={guest.labels[key]}" for key in sorted(guest.labels))
        state = _STATES.get(guest.state, Text("unknown"))
        table.add_row(
            _safe(guest.id), state, *(_safe(cell or ABSENT) for cell in (contact, guest.agent_version, labels, guest.address))
        )
    return table


def _moment(unix_seconds: int) -> str:
    try:
        return datetime.fromtimestamp(unix_seconds, UTC).strftime("%Y-%m-%d %H:%M:%SZ") if unix_seconds else ""
    except (ValueError, OverflowError, OSError):
        return f"{unix_seconds} s after 1970"  # a guest may send any 64-bit number


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
        table.add_row(name, Group(*_lines(value)) if value else ABSENT)
    return table


def _lines(value: str) -> Iterable[Text]:
    """The text of one fact, which alone may have several lines (`wg show`)."""
    return (_safe(line) for line in value.rstrip("\n").split("\n"))


def _safe(text: str, style: str = "") -> Text:
    return Text(escape(text), style)
