"""One row for each value of a card. Everything that asks, judges, shows, sums, sorts or exports values goes through these rows.

A new value is a field in the proto, a question in guest_service/collector, a row here, and a value in the simulated racks. Without the
row a test fails by the field's name; with it the value is on metrics, pages, guestctl, CSV and in the simulator.

What a row says stands in card_row.py. Both modules refuse to import anything, protobuf included: the collector imports them at its start,
which is counted in milliseconds (dataclasses or enum would cost more than all else here). Rejected: options in the proto file (protobuf
would be needed to read them, and the range and the words of a value are no part of the wire).
"""

from __future__ import annotations

from guest_contract.card_row import (
    BAR,
    BYTES,
    BYTES_PER_SECOND,
    CELSIUS,
    COUNT,
    COUNTER,
    FLAG,
    GUEST_PAGE,
    GUESTCTL,
    INFO,
    MEAN,
    MEGAHERTZ,
    METRICS,
    MILLIJOULES,
    MILLIWATTS,
    NANOSECONDS,
    PERCENT,
    SIMULATOR,
    SUM,
    TEXT,
    TEXT_VALUE,
    WITHIN,
    AtMost,
    Field,
    Metric,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

# Asked in every sample, whatever groups are configured; the others only where gpu.groups names them.
BASE = "base"
IDENTIFYING, SERIAL, LIMITS, ACTIVITY, HEALTH, CC, MIG, PROCESSES, THROUGHPUT = (
    "identity", "serial", "limits", "activity", "health", "cc", "mig", "processes", "throughput",
)  # fmt: skip
# What gpu.groups is where nobody says otherwise: all but what costs tens of milliseconds, and what names the owner's property.
DEFAULT_GROUPS = (IDENTIFYING, LIMITS, ACTIVITY, HEALTH, CC, MIG)

PERCENT_LIMIT = 100
# Half a million times a card of today fits; sentinels (0xFFFF…) do not.
MEMORY_LIMIT_BYTES = 1 << 56
# A GPU shuts itself off near 110 degrees; the margin is for future parts, the 32-bit sentinels are far above.
TEMPERATURE_LIMIT_C = 200
# What counts events, in 64 bits and in 32: never reached, and below NVML's sentinels (0xFFFF…, 0x7FFF…).
COUNT_LIMIT, COUNT_LIMIT_32 = 1 << 56, 1 << 30
# 36 years.
NANOSECONDS_LIMIT = 1 << 60
# From the design: no board takes 5 kW, and none takes ten times the limit that it enforces.
POWER_LIMIT_MW = 5_000_000
POWER_LIMIT_FACTOR = 10
# NVML's longest texts have 96 bytes; a guest may send more, which would stand in a label of each of its series.
TEXT_LIMIT = 256
# No clock is ten times the fastest of today; no bus moves a petabyte a second.
CLOCK_LIMIT_MHZ = 30_000
RATE_LIMIT = 1 << 50
# A terabyte a second for 36 years.
TRAFFIC_LIMIT_BYTES = 1 << 60
# NVML: it may exceed 100.
FAN_LIMIT_PERCENT = 200
LANES_LIMIT = GENERATIONS_LIMIT = 64

# Words for NVML's numbers, which are values of labels on the metrics page too: nvmlClocksEventReasons, nvmlGpuFabricState_t and
# nvmlDeviceGpuRecoveryAction_t of nvml.h in snake_case.
EVENT_REASONS = {
    0x1: "gpu_idle", 0x2: "applications_clocks_setting", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
    0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake_slowdown", 0x100: "display_clock_setting",
}  # fmt: skip
FABRIC_STATES = {1: "not_started", 2: "in_progress", 3: "completed"}
RECOVERY_ACTIONS = {0: "none", 1: "gpu_reset", 2: "node_reboot", 3: "drain_p2p", 4: "drain_and_reset"}

# A group's values stand on the guest's page, in CSV and on /metrics; guestctl's table stays narrow.
_NARROW = (GUESTCTL,)
# The same for what a Hopper card does not have, and with it no rack of one.
_NOT_ON_HOPPER = (GUESTCTL, SIMULATOR)


def _row(
    group: str, name: str, title: str, metric: Metric | None, *, question: str = "", unit: str = COUNT, most: int = 0, least: int = 0,
    names: Mapping[int, str] | None = None, bits: Mapping[int, str] | None = None, short: str = "", shown: str = TEXT, of: str = "",
    not_on: Sequence[str] = _NARROW,
) -> Field:  # fmt: skip
    """A row of a group; most are a question of their own."""
    return Field(
        name, question or name, group, title=title, unit=unit, most=most, least=least, names=names, bits=bits, short=short,
        shown=shown, of=of, metric=metric, not_on=not_on if metric else (*not_on, METRICS),
    )  # fmt: skip


def _health(
    name: str, title: str, metric: Metric | None, *, question: str = "", unit: str = COUNT, most: int = 0,
    names: Mapping[int, str] | None = None, bits: Mapping[int, str] | None = None, not_on: Sequence[str] = _NARROW,
) -> Field:  # fmt: skip
    return _row(HEALTH, name, title, metric, question=question, unit=unit, most=most, names=names, bits=bits, not_on=not_on)


def _text(name: str, title: str, *, group: str = IDENTIFYING, label: bool = False) -> Field:
    metric = Metric("info", "1, with what the card is as labels.", kind=INFO, each=name) if label else None
    return _row(group, name, title, metric, unit=TEXT_VALUE, most=TEXT_LIMIT)


def _clock(clock: str, title: str, *, highest: bool = False) -> Field:
    labels = (("clock", clock),)
    if highest:
        metric = Metric("clock_max_hertz", "Highest clock of the card.", labels=labels, times=10**6)
        return _row(LIMITS, f"clock_{clock}_max_mhz", title, metric, unit=MEGAHERTZ, most=CLOCK_LIMIT_MHZ)
    metric = Metric("clock_hertz", "Clock now.", labels=labels, times=10**6)
    return _row(ACTIVITY, f"clock_{clock}_mhz", title, metric, unit=MEGAHERTZ, most=CLOCK_LIMIT_MHZ)


def _engine(engine: str, title: str, words: str) -> Field:
    metric = Metric(f"{engine}_utilization_percent", f"Use of the {words}, 0 to 100.")
    return _row(ACTIVITY, f"utilization_{engine}", title, metric, unit=PERCENT, most=PERCENT_LIMIT)


def _memory_bytes(group: str, name: str, title: str, metric: Metric | None, **more: Any) -> Field:
    return _row(group, name, title, metric, unit=BYTES, most=MEMORY_LIMIT_BYTES, **more)


def _ecc(kind: str, lifetime: str, title: str) -> Field:
    text = "Memory errors by kind; volatile since the driver was loaded, aggregate in the card's life."
    metric = Metric("ecc_errors_total", text, kind=COUNTER, labels=(("kind", kind), ("lifetime", lifetime)))
    return _health(f"ecc_{kind}_{lifetime}", title, metric, most=COUNT_LIMIT)


def _rows_remapped(kind: str) -> Field:
    metric = Metric("rows_remapped_total", "Memory rows remapped after errors.", kind=COUNTER, labels=(("kind", kind),))
    return _health(f"rows_remapped_{kind}", f"Rows remapped, {kind}", metric, question="rows_remapped", most=COUNT_LIMIT_32)


def _retired_pages(kind: str) -> Field:
    metric = Metric("retired_pages", "Memory pages retired after errors, before Ampere.", labels=(("kind", kind),))
    words = kind.replace("_", " ")
    return _health(f"retired_pages_{kind}", f"Pages retired, {words}", metric, most=COUNT_LIMIT_32, not_on=_NOT_ON_HOPPER)


def _violation(reason: str, title: str) -> Field:
    metric = Metric(
        "violation_seconds_total",
        "Time in which the clocks were held down.",
        kind=COUNTER,
        labels=(("reason", reason),),
        per=10**9,
    )
    return _health(
        f"{reason}_violation_ns", title, metric, question=f"{reason}_violation", unit=NANOSECONDS, most=NANOSECONDS_LIMIT
    )


def _nvlinks(state: str, title: str) -> Field:
    metric = Metric("nvlinks", "NVLinks by state.", labels=(("state", state),))
    return _health(f"nvlinks_{state}", title, metric, question="nvlinks", most=1024)


ROWS: tuple[Field, ...] = (
    Field(
        "utilization_gpu", "utilization", BASE, title="Utilization", column="GPU %", said="GPU", unit=PERCENT, most=PERCENT_LIMIT,
        short="gpu", shown=BAR, on_fleet_page=True, sort="utilization", sums=MEAN,
        metric=Metric("utilization_percent", "Share of time in which a kernel ran, 0 to 100."),
    ),
    Field(
        "utilization_memory", "utilization", BASE, title="Memory bandwidth", column="Mem %", said="memory bandwidth", unit=PERCENT,
        most=PERCENT_LIMIT, short="memory", shown=BAR, left_out=5,
        metric=Metric("memory_utilization_percent", "Share of time in which GPU memory was read or written, 0 to 100."),
    ),
    Field(
        "memory_total_bytes", "memory", BASE, title="Memory", column="Memory", said="memory", unit=BYTES, least=1,
        most=MEMORY_LIMIT_BYTES, short="total", shown=WITHIN, left_out=4, sums=SUM,
        metric=Metric("memory_total_bytes", "Memory of the card."),
    ),
    Field(
        "memory_used_bytes", "memory", BASE, title="Memory used", column="Used", said="memory used", unit=BYTES,
        most=MEMORY_LIMIT_BYTES, short="used", shown=BAR, of="memory_total_bytes", on_fleet_page=True, left_out=8, sort="memory",
        sums=SUM, metric=Metric("memory_used_bytes", "Memory in use, without what the driver reserves for itself."),
    ),
    Field(
        "memory_free_bytes", "memory", BASE, title="Memory free", unit=BYTES, most=MEMORY_LIMIT_BYTES, short="free",
        metric=Metric("memory_free_bytes", "Memory not in use."),
        not_on=(GUEST_PAGE, GUESTCTL),  # used of total says it
    ),
    Field(
        "temperature_c", "temperature", BASE, title="Temperature", column="Temp", said="temperature", unit=CELSIUS,
        most=TEMPERATURE_LIMIT_C, on_fleet_page=True, left_out=6, sort="temperature",
        metric=Metric("temperature_celsius", "Temperature of the GPU die."),
    ),
    Field(
        "power_usage_mw", "power", BASE, title="Power", column="Power", said="power", unit=MILLIWATTS, most=POWER_LIMIT_MW,
        on_fleet_page=True, left_out=9, sort="power", sums=SUM,
        metric=Metric("power_usage_milliwatts", "Power drawn by the card."),
    ),
    _text("name", "Product", label=True),
    _text("architecture", "Architecture"),
    _text("compute_capability", "Compute capability", label=True),
    _text("vbios_version", "VBIOS", label=True),
    _text("virtualization_mode", "Virtualization"),
    _text("serial", "Serial number", group=SERIAL),
    _row(
        LIMITS, "power_limit_mw", "Power limit", Metric("power_limit_watts", "Power limit in force.", per=1000), question="power_limit",
        unit=MILLIWATTS, least=1, most=POWER_LIMIT_MW,
    ),
    _row(LIMITS, "power_limit_max_mw", "Power limit, largest", None, unit=MILLIWATTS, most=POWER_LIMIT_MW),
    _clock("graphics", "Graphics clock, highest", highest=True),
    _clock("sm", "SM clock, highest", highest=True),
    _clock("memory", "Memory clock, highest", highest=True),
    _row(
        LIMITS, "pcie_generation_max", "PCIe generation, highest",
        Metric("pcie_generation_max", "Highest PCIe generation that card and slot agree on."), most=GENERATIONS_LIMIT,
    ),
    _row(
        LIMITS, "pcie_width_max", "PCIe lanes, most", Metric("pcie_width_max", "Most PCIe lanes that card and slot agree on."),
        most=LANES_LIMIT,
    ),
    _row(
        LIMITS, "temperature_slowdown_c", "Slows down at",
        Metric("temperature_slowdown_celsius", "Temperature at which the card slows down, before Ada."),
        unit=CELSIUS, most=TEMPERATURE_LIMIT_C, not_on=_NOT_ON_HOPPER,
    ),
    _row(
        LIMITS, "temperature_shutdown_c", "Shuts down at", None, unit=CELSIUS, most=TEMPERATURE_LIMIT_C, not_on=_NOT_ON_HOPPER,
    ),
    _row(
        ACTIVITY, "performance_state", "Performance state", Metric("performance_state", "0 (P0, fastest) to 15."), most=15,
    ),
    _clock("graphics", "Graphics clock"),
    _clock("sm", "SM clock"),
    _clock("memory", "Memory clock"),
    _clock("video", "Video clock"),
    _engine("encoder", "Encoder", "video encoder"),
    _engine("decoder", "Decoder", "video decoder"),
    _engine("jpeg", "JPEG engine", "JPEG engine"),
    _engine("ofa", "Optical flow engine", "optical flow engine"),
    _memory_bytes(
        ACTIVITY, "memory_reserved_bytes", "Memory reserved",
        Metric("memory_reserved_bytes", "Memory that driver and firmware keep for themselves."), question="memory_reserved",
    ),
    _memory_bytes(ACTIVITY, "memory_bar1_total_bytes", "BAR1 memory", None, question="memory_bar1", short="total", least=1, shown=WITHIN),
    _memory_bytes(
        ACTIVITY, "memory_bar1_used_bytes", "BAR1 memory used",
        Metric("memory_bar1_used_bytes", "Use of the window through which the host reaches the card's memory."),
        question="memory_bar1", short="used", shown=BAR, of="memory_bar1_total_bytes",
    ),
    _row(
        ACTIVITY, "temperature_memory_c", "Memory temperature", Metric("memory_temperature_celsius", "Temperature of the memory."),
        unit=CELSIUS, most=TEMPERATURE_LIMIT_C,
    ),
    _row(
        ACTIVITY, "temperature_margin_c", "Margin to slowdown",
        Metric("temperature_margin_celsius", "Degrees left until the card slows down; negative above."), unit=CELSIUS,
        least=-TEMPERATURE_LIMIT_C, most=TEMPERATURE_LIMIT_C,
    ),
    _row(
        ACTIVITY, "fan_percent", "Fan", Metric("fan_percent", "Intended speed of the fan in percent of its maximum."), unit=PERCENT,
        most=FAN_LIMIT_PERCENT, not_on=_NOT_ON_HOPPER,
    ),
    _row(
        ACTIVITY, "energy_mj", "Energy", Metric("energy_joules_total", "Energy since the driver was loaded.", kind=COUNTER, per=1000),
        unit=MILLIJOULES, most=COUNT_LIMIT,
    ),
    _row(ACTIVITY, "processes", "Processes", Metric("processes", "Compute processes on the card."), most=COUNT_LIMIT_32),
    _health("ecc_enabled", "ECC", Metric("ecc_enabled", "1 when ECC is on."), question="ecc_mode", unit=FLAG),
    _ecc("corrected", "volatile", "ECC errors corrected, since start"),
    _ecc("uncorrected", "volatile", "ECC errors uncorrected, since start"),
    _ecc("corrected", "aggregate", "ECC errors corrected, in all"),
    _ecc("uncorrected", "aggregate", "ECC errors uncorrected, in all"),
    _rows_remapped("correctable"),
    _rows_remapped("uncorrectable"),
    _health(
        "row_remap_pending", "Row remap pending", Metric("row_remap_pending", "1 when a memory row waits to be remapped."),
        question="rows_remapped", unit=FLAG,
    ),
    _health(
        "row_remap_failed", "Row remap failed", Metric("row_remap_failed", "1 when a memory row could not be remapped."),
        question="rows_remapped", unit=FLAG,
    ),
    _retired_pages("single_bit"),
    _retired_pages("double_bit"),
    _health(
        "retired_pages_pending", "Page retirement pending",
        Metric("retired_pages_pending", "1 when a memory page waits to be retired, before Ampere."), unit=FLAG, not_on=_NOT_ON_HOPPER,
    ),
    _health(
        "clocks_event_reasons", "Clocks held by", Metric("clocks_event_active", "1 for what sets the clocks now.", each="reason"),
        bits=EVENT_REASONS, most=1 << 32,
    ),
    _violation("power", "Held by power"),
    _violation("thermal", "Held by heat"),
    _health("pcie_generation", "PCIe generation", Metric("pcie_generation", "PCIe generation now; it falls when idle."), most=64),
    _health("pcie_width", "PCIe lanes", Metric("pcie_width", "PCIe lanes now."), most=64),
    _health(
        "pcie_replays", "PCIe replays", Metric("pcie_replays_total", "PCIe replays since the driver was loaded.", kind=COUNTER),
        most=COUNT_LIMIT_32,
    ),
    _nvlinks("active", "NVLinks up"),
    _nvlinks("inactive", "NVLinks down"),
    _health(
        "nvlink_errors", "NVLink errors",
        Metric("nvlink_errors_total", "NVLink errors of all links: replay, recovery and CRC.", kind=COUNTER), most=COUNT_LIMIT,
    ),
    _health(
        "fabric_state", "NVLink fabric", Metric("fabric_state", "1 for the state of joining the NVLink fabric.", each="state"),
        question="fabric", names=FABRIC_STATES, most=64,
    ),
    # Shown in words by the verdict.
    _health("fabric_status", "NVLink fabric status", None, question="fabric", most=999, not_on=(GUESTCTL, METRICS)),
    _health(
        "recovery_action", "Recovery action", Metric("recovery_action", "1 for what the driver asks for.", each="action"),
        names=RECOVERY_ACTIONS, most=64,
    ),
    _health("persistence_mode", "Persistence mode", Metric("persistence_mode", "1 when persistence mode is on."), unit=FLAG),
    _memory_bytes(
        CC, "protected_memory_total_bytes", "Protected memory",
        Metric("protected_memory_total_bytes", "Memory that only the confidential VM can read."),
        question="protected_memory", short="total", least=1, shown=WITHIN,
    ),
    _memory_bytes(
        CC, "protected_memory_used_bytes", "Protected memory used",
        Metric("protected_memory_used_bytes", "Protected memory in use."), question="protected_memory", short="used",
        shown=BAR, of="protected_memory_total_bytes",
    ),
    _row(
        MIG, "mig_enabled", "MIG", Metric("mig_enabled", "1 when the card is divided into instances (MIG)."), question="mig_mode",
        unit=FLAG,
    ),
    _row(
        THROUGHPUT, "pcie_received_bytes_per_second", "PCIe received",
        Metric("pcie_received_bytes_per_second", "Received over PCIe in the last 20 ms."), question="pcie_received",
        unit=BYTES_PER_SECOND, most=RATE_LIMIT,
    ),
    _row(
        THROUGHPUT, "pcie_sent_bytes_per_second", "PCIe sent", Metric("pcie_sent_bytes_per_second", "Sent over PCIe in the last 20 ms."),
        question="pcie_sent", unit=BYTES_PER_SECOND, most=RATE_LIMIT,
    ),
    _row(
        THROUGHPUT, "nvlink_received_bytes", "NVLink received",
        Metric("nvlink_received_bytes_total", "Data received over all NVLinks.", kind=COUNTER), question="nvlink_data", unit=BYTES,
        most=TRAFFIC_LIMIT_BYTES, short="received",
    ),
    _row(
        THROUGHPUT, "nvlink_sent_bytes", "NVLink sent",
        Metric("nvlink_sent_bytes_total", "Data sent over all NVLinks.", kind=COUNTER), question="nvlink_data", unit=BYTES,
        most=TRAFFIC_LIMIT_BYTES, short="sent",
    ),
)  # fmt: skip

CHECKS: tuple[AtMost, ...] = (
    AtMost(("memory_used_bytes", "memory_free_bytes"), "memory_total_bytes", "the total"),
    AtMost(("memory_bar1_used_bytes",), "memory_bar1_total_bytes", "the total"),
    AtMost(("protected_memory_used_bytes",), "protected_memory_total_bytes", "the total"),
    AtMost(("power_usage_mw",), "power_limit_mw", f"{POWER_LIMIT_FACTOR} times the limit of {{}} mW", POWER_LIMIT_FACTOR),
)

# What is true of the guest and stands in each card's info series.
OF_GUEST = (_text("driver_version", "Driver", label=True),)

# What a card is known by: no values, and never judged.
IDENTITY = ("index", "uuid", "pci_bus_id")
# Questions about a card that are answered before those of the rows; a card whose handle fails is asked nothing more.
IDENTITY_QUESTIONS = ("device", "uuid", "pci_bus_id")
FIELDS: Mapping[str, Field] = {row.name: row for row in ROWS}
# Question -> its fields, in the order in which the driver answers them.
QUESTIONS: Mapping[str, tuple[str, ...]] = {
    question: tuple(row.name for row in ROWS if row.question == question)
    for question in dict.fromkeys(row.question for row in ROWS)
}
# Group -> its questions, in the rows' order; BASE is the first.
QUESTIONS_OF: Mapping[str, tuple[str, ...]] = {
    group: tuple(dict.fromkeys(row.question for row in ROWS if row.group == group))
    for group in dict.fromkeys(row.group for row in ROWS)
}
# A group's repeated messages: a question of its own, asked after the group's others. They are no values of the card, and have no rows.
LISTS: Mapping[str, str] = {MIG: "mig_instances", PROCESSES: "process_list"}
# Seven times what NVML knows of instances; what a page and its series hold of a card.
INSTANCES_LIMIT = 64
# What gpu.groups may name.
GROUPS = (*(group for group in QUESTIONS_OF if group != BASE), PROCESSES)


def page_title(row: Field) -> str:
    """What a value is called on pages: its whole's title where it has one, because the bar says both."""
    return FIELDS[row.of].title if row.of else row.title
