"""What a simulated rack holds, read from TOML or refused in one line that names the rack, the key and what is allowed.

    driver_version, cc_enabled, cc_ready    as NVML would answer; a key that is absent is "not supported"
    cuda_driver_version, nvml_version       likewise
    cc_multi_gpu_mode                       likewise: 0 none, 1 protected PCIe, 2 encrypted NVLink; NVML answers it with cc_enabled
    cc_devtools                             whether DevTools mode is on; NVML answers it with cc_enabled, so not without that key
    init_seconds                            how long nvmlInit takes
    fail_init                               the NVML code with which it then fails
    jitter                                  whether values move with time
    [every_card]                            what holds for each card that does not say otherwise: values and jitter
    [[card]]                                the contract's field names (GpuDevice), and jitter for this card alone
    [[card.mig_instances]]                  the contract's MigInstance; [[card.process_list]] its GpuProcess
    listed                                  false: on the bus, and the driver does not show it
    [card.fail]                             device, uuid, pci_bus_id or a question of guest_contract.card_fields: an NVML code, or "hang"

The fields of a card have the limits of a driver's answers, so an impossible number is refused here rather than shown as an unknown value.
Rejected: msgspec, which the agent's configuration uses: the collector's interpreter starts without site-packages.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from guest_contract.card_fields import (
    CHECKS,
    FIELDS,
    IDENTITY,
    IDENTITY_QUESTIONS,
    INSTANCES_LIMIT,
    LISTS,
    MEMORY_LIMIT_BYTES,
    QUESTIONS,
    ROWS,
)
from guest_contract.card_row import FLAG, TEXT_VALUE, Field, Value
from guest_service.collector.failure import DRIVER_NOT_LOADED
from guest_service.simulator.table import RackError, Table
from guest_transport.settings.toml_text import load_toml

BUILT_IN_RACKS = ("h200", "h200x8", "no-driver", "none", "sick-h200x8")
# A rack of CARDS_LIMIT cards takes about 50 kB; more is a wrong file.
RACK_LIMIT_BYTES = 1024 * 1024
# NVML's own maximum is 64; more would only slow a demonstration down.
CARDS_LIMIT = 64
# Far over any sample timeout; a rack that never starts is written as one that takes this long.
INIT_LIMIT_SECONDS = 86_400
CODE_LIMIT = 999  # NVML's last code, "unknown error"
PRINTABLE = re.compile(r"[ -~]{1,95}")  # NVML's longest buffer takes 96 bytes with its end
PRINTABLE_MEANING = "1 to 95 printable ASCII characters"
PCI_ADDRESS = re.compile(r"(?:[0-9A-Fa-f]{4,8}:)?[0-9A-Fa-f]{2}:[01][0-9A-Fa-f]\.[0-7]")
FAILING_FIELDS = (*IDENTITY_QUESTIONS, *QUESTIONS, *LISTS.values())
TOP_KEYS = (
    "driver_version", "cc_enabled", "cc_devtools", "cc_ready", "cuda_driver_version", "nvml_version", "cc_multi_gpu_mode", "init_seconds",
    "fail_init", "jitter", "every_card", "card",
)  # fmt: skip
# NVML knows 0 to 2 (none, protected PCIe, encrypted NVLink); a rack may try what comes next.
MULTI_GPU_MODE_LIMIT = 15
# PID_MAX_LIMIT of the kernel.
PID_LIMIT = 1 << 22
CARD_KEYS = (*IDENTITY, *FIELDS, *LISTS.values(), "jitter", "listed", "fail")

Failures = Mapping[str, int | str]


@dataclass(frozen=True, slots=True)
class RackCard:
    """One simulated card; a field that `values` lacks is one that the card does not support."""

    uuid: str
    pci_bus_id: str
    values: Mapping[str, Value] = field(default_factory=dict)
    jitter: bool = False
    listed: bool = True
    fail: Failures = field(default_factory=dict)
    # By the names of LISTS.
    lists: Mapping[str, tuple[Mapping[str, Value], ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rack:
    """A whole simulated machine."""

    name: str
    cards: tuple[RackCard, ...] = ()
    driver_version: str | None = None
    cc_enabled: bool | None = None
    cc_devtools: bool = False
    cuda_driver_version: str | None = None
    nvml_version: str | None = None
    cc_multi_gpu_mode: int | None = None
    cc_ready: bool | None = None
    init_seconds: float = 0.0
    fail_init: int | None = None

    @property
    def driver_loaded(self) -> bool:
        """Whether the kernel module is there: not when nvmlInit fails with NVML's "driver not loaded"."""
        return self.fail_init != DRIVER_NOT_LOADED


def load_rack(name_or_file: str) -> Rack:
    """The built-in rack of this name, else the rack in this file; raises RackError."""
    built_in = name_or_file in BUILT_IN_RACKS
    path = Path(__file__).parent / "racks" / f"{name_or_file}.toml" if built_in else Path(name_or_file)
    try:
        data = _read(path)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        allowed = ", ".join(BUILT_IN_RACKS)
        raise RackError(f"rack {name_or_file}: neither one of {allowed} nor a file that can be read: {reason}") from error
    if len(data) > RACK_LIMIT_BYTES:
        raise RackError(f"rack {name_or_file}: larger than {RACK_LIMIT_BYTES} bytes")
    return parse_rack(data, name_or_file)


def _read(path: Path) -> bytes:
    """What the file holds, at most one byte more than a rack may have; raises OSError or ValueError."""
    # Without O_NONBLOCK, opening a named pipe waits for a writer, perhaps for ever.
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(fd, "rb") as file:  # noqa: PTH123 (a descriptor, not a path)
        if stat.S_ISFIFO(os.fstat(fd).st_mode):
            # Each sample reads the rack anew, and a pipe gives it once.
            raise ValueError("a pipe")
        return file.read(RACK_LIMIT_BYTES + 1)


def parse_rack(data: bytes, name: str) -> Rack:
    """The rack in the TOML text `data`; `name` is what messages call it. Raises RackError."""
    try:
        tree = load_toml(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RackError(f"rack {name}: not UTF-8 at byte {error.start}") from error
    except RecursionError as error:
        raise RackError(f"rack {name}: not TOML that can be read: nested too deeply") from error
    except ValueError as error:
        # A TOMLDecodeError, or Python's limit on the digits of a number.
        raise RackError(f"rack {name}: not TOML: {error}") from error
    return _rack(Table(f"rack {name}: ", tree), name)


def _rack(top: Table, name: str) -> Rack:
    jitter = top.boolean("jitter") or False
    tables = top.tables("card", CARDS_LIMIT, top.table("every_card").only((*FIELDS, "jitter")))
    rack = Rack(
        name=name,
        cards=tuple(_card(table, index, jitter=jitter) for index, table in enumerate(tables)),
        driver_version=top.text("driver_version", PRINTABLE, PRINTABLE_MEANING),
        cc_enabled=top.boolean("cc_enabled"),
        cc_devtools=top.boolean("cc_devtools") or False,
        cuda_driver_version=top.text("cuda_driver_version", PRINTABLE, PRINTABLE_MEANING),
        nvml_version=top.text("nvml_version", PRINTABLE, PRINTABLE_MEANING),
        cc_multi_gpu_mode=top.integer("cc_multi_gpu_mode", 0, MULTI_GPU_MODE_LIMIT),
        cc_ready=top.boolean("cc_ready"),
        init_seconds=top.seconds("init_seconds", INIT_LIMIT_SECONDS) or 0.0,
        fail_init=top.integer("fail_init", 1, CODE_LIMIT),
    )
    top.end(TOP_KEYS)
    if rack.cc_multi_gpu_mode is not None and rack.cc_enabled is None:
        raise top.refuse("cc_multi_gpu_mode", "needs cc_enabled; NVML answers both or none")
    if rack.cc_devtools and rack.cc_enabled is None:
        raise top.refuse("cc_devtools", "needs cc_enabled; NVML answers both or none")
    for key in ("uuid", "pci_bus_id"):
        seen = {getattr(card, key).lower() for card in rack.cards}
        if len(seen) != len(rack.cards):
            raise top.refuse("card", f"two cards have the same {key}")
    return rack


def _card(table: Table, index: int, *, jitter: bool) -> RackCard:
    if table.integer("index", 0, CARDS_LIMIT) not in (None, index):
        raise table.refuse("index", f"must be {index}: cards are numbered in the order of the file")
    own_jitter, listed = table.boolean("jitter"), table.boolean("listed")
    fail = table.table("fail")
    card = RackCard(
        uuid=table.text("uuid", PRINTABLE, PRINTABLE_MEANING) or f"GPU-00000000-0000-4000-8000-{index:012x}",
        pci_bus_id=table.text("pci_bus_id", PCI_ADDRESS, "a PCI address as in 00000000:01:00.0")
        or f"00000000:{index + 1:02X}:00.0",
        values=_values(table),
        lists=_lists(table),
        jitter=jitter if own_jitter is None else own_jitter,
        listed=listed is not False,
        fail=_failures(fail),
    )
    table.end(CARD_KEYS)
    return card


def _values(table: Table) -> dict[str, Value]:
    """What the rack says of the card's values, within the ranges of the table; NVML answers a question's fields all or none."""
    given: dict[str, Value] = {}
    for row in ROWS:
        value = _value(table, row, given)
        if value is not None:
            given[row.name] = value
    total, used = given.get("memory_total_bytes"), given.get("memory_used_bytes")
    if isinstance(total, int) and isinstance(used, int):
        given.setdefault("memory_free_bytes", total - used)
    for question, fields in QUESTIONS.items():
        missing = [name for name in fields if name not in given]
        if missing and len(missing) < len(fields):
            raise table.refuse(missing[0], f"missing; NVML answers all of {question} or none")
    return given


def _lists(table: Table) -> dict[str, tuple[Mapping[str, Value], ...]]:
    instances = tuple(map(_mig_instance, table.tables("mig_instances", INSTANCES_LIMIT, {})))
    processes = tuple(map(_process, table.tables("process_list", INSTANCES_LIMIT, {})))
    return {"mig_instances": instances, "process_list": processes}


def _mig_instance(table: Table) -> Mapping[str, Value]:
    found: dict[str, Value] = {
        "gpu_instance": table.integer("gpu_instance", 0, INSTANCES_LIMIT),
        "compute_instance": table.integer("compute_instance", 0, INSTANCES_LIMIT),
        "uuid": table.text("uuid", PRINTABLE, PRINTABLE_MEANING),
        "profile": table.text("profile", PRINTABLE, PRINTABLE_MEANING),
        "memory_total_bytes": (total := table.integer("memory_total_bytes", 1, MEMORY_LIMIT_BYTES)),
        "memory_used_bytes": table.integer("memory_used_bytes", 0, MEMORY_LIMIT_BYTES if total is None else total),
    }
    return _entry(table, found, "gpu_instance", "NVML numbers each instance")


def _process(table: Table) -> Mapping[str, Value]:
    found: dict[str, Value] = {
        "pid": table.integer("pid", 1, PID_LIMIT),
        "used_memory_bytes": table.integer("used_memory_bytes", 0, MEMORY_LIMIT_BYTES),
        "name": table.text("name", PRINTABLE, PRINTABLE_MEANING),
    }
    return _entry(table, found, "pid", "NVML names each process by it")


def _entry(table: Table, found: dict[str, Value], known_by: str, why: str) -> Mapping[str, Value]:
    table.end(tuple(found))
    if found[known_by] is None:
        raise table.refuse(known_by, f"missing; {why}")
    return {name: value for name, value in found.items() if value is not None}


def _value(table: Table, row: Field, given: Mapping[str, Value]) -> Value:
    if row.unit == TEXT_VALUE:
        return table.text(row.name, PRINTABLE, PRINTABLE_MEANING)
    if row.unit == FLAG:
        return table.boolean(row.name)
    most = row.most
    for check in CHECKS:
        if row.name in check.parts and isinstance(whole := given.get(check.whole), int):
            rest = (given.get(part) for part in check.parts)
            most = min(most, check.times * whole - sum(part for part in rest if isinstance(part, int)))
    return table.integer(row.name, row.least, most)


def _failures(table: Table) -> Failures:
    codes = {name: table.code(name, CODE_LIMIT) for name in FAILING_FIELDS}
    table.end(FAILING_FIELDS)
    return {name: code for name, code in codes.items() if code is not None}
