"""One row for each value of a card. Everything that asks, judges, shows, sums, sorts or exports values goes through these rows.

A new value is a field in the proto, a question in collector/nvml.py, a row here, and a value in the simulated racks. Without the row a
test fails by the field's name; with it the value is on metrics, pages, guestctl, CSV and in the simulator.

A row (Field) says, from left to right:

    name, question, group   GpuDevice's field; the collector's question, which is the word in `errors` and in a rack's `fail`, and the
                            name of the driver's method that answers it with the question's fields in the order of the rows; the
                            group in which it is asked
    title, column, said     words on pages; the column's title in tables, empty for a value that is no column; its name in a sentence
    unit, names, bits       what the number counts (words.say), or words for each number, or for each bit
    least, most             the plausible range; what is outside is unknown. `short` tells the question's values apart in the reason
    metric                  the family (Metric): gauge, counter, series of 0 and 1, or a label of an info series; None with not_on METRICS
    shown, of               BAR or TEXT on pages; `of` names the whole that a bar is a part of; WITHIN is such a whole, which has no
                            place of its own on pages because the bar names it
    on_fleet_page           a column of the fleet's page, which has room for few
    left_out                the turn in which `guestctl top` leaves the column out on a narrow screen: 1 goes first, 0 never
    sort, sums              the word to sort by; SUM or MEAN over many cards
    not_on                  surfaces that leave the value out on purpose

It refuses to import anything, protobuf included: the collector imports it at its start, which is counted in milliseconds (dataclasses
or enum would cost more than all else here). Rejected: options in the proto file (protobuf would be needed to read them, and the range and
the words of a value are no part of the wire).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import TypeAlias

# A value of a card; None for what is unset or impossible.
Value: TypeAlias = int | str | None
Pairs: TypeAlias = tuple[tuple[str, str], ...]

# Units; the text is the one in a reason, "70123 mW is over ...".
PERCENT = "%"
BYTES = "bytes"
CELSIUS = "degrees Celsius"
MILLIWATTS = "mW"
MEGAHERTZ = "MHz"
MILLIJOULES = "mJ"
NANOSECONDS = "ns"
BYTES_PER_SECOND = "bytes a second"
COUNT = ""
FLAG = "flag"
TEXT_VALUE = "text"

BAR, TEXT, WITHIN = "bar", "text", "within"
SUM, MEAN = "sum", "mean"
GAUGE, COUNTER, INFO = "gauge", "counter", "info"
METRICS, GUEST_PAGE, GUESTCTL, CSV, SIMULATOR = "metrics", "guest page", "guestctl", "csv", "simulator"
# Asked in every sample, whatever groups are configured; the others only where gpu.groups names them.
BASE = "base"
HEALTH = "health"

METRIC_PREFIX = "dstack_gpu_"
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


class Metric:
    """The family that a value stands in, `name` without the prefix. Rows that give the same name share the family; help is the first's.

    `labels` are pairs that the row adds to the card's own, such as clock="sm". The number is the value times `times` divided by `per`,
    exactly: milliwatts are watts with per=1000. `each` is a label whose values are the value's own words: one series of 0 or 1 for each
    of the row's `names` or `bits`; for a text, the label of the info series.
    """

    __slots__ = ("each", "help", "kind", "labels", "name", "per", "times")

    def __init__(
        self, name: str, text: str, *, kind: str = GAUGE, labels: Pairs = (), times: int = 1, per: int = 1, each: str = ""
    ) -> None:
        self.name, self.help, self.kind = METRIC_PREFIX + name, text, kind
        self.labels, self.times, self.per, self.each = labels, times, per, each


class Field:
    """One value of a card; the module's text says what each part means."""

    __slots__ = (
        "bits", "column", "group", "least", "left_out", "metric", "most", "name", "names", "not_on", "of", "on_fleet_page", "question",
        "said", "short", "shown", "sort", "sums", "title", "unit",
    )  # fmt: skip

    def __init__(
        self, name: str, question: str, group: str, *, title: str, unit: str, metric: Metric | None, most: int = 0, least: int = 0,
        column: str = "", said: str = "", short: str = "", names: Mapping[int, str] | None = None, bits: Mapping[int, str] | None = None,
        shown: str = TEXT, of: str = "", on_fleet_page: bool = False, left_out: int = 0, sort: str = "", sums: str = "",
        not_on: Sequence[str] = (),
    ) -> None:  # fmt: skip
        self.name, self.question, self.group = name, question, group
        self.title, self.column, self.said = title, column, said or title
        self.unit, self.names, self.bits, self.metric = unit, names, bits, metric
        self.least, self.most, self.short = least, most or int(unit == FLAG), f"{short} " if short else ""
        self.shown, self.of, self.on_fleet_page = shown, of, on_fleet_page
        self.left_out, self.sort, self.sums, self.not_on = left_out, sort, sums, not_on


class AtMost:
    """A check across values: each part alone, and all together, are at most `times` the whole. `over` says so in a reason.

    A part that is over alone is refused; parts that are over together are refused with their whole, for nobody knows which is wrong.
    """

    __slots__ = ("over", "parts", "times", "whole")

    def __init__(self, parts: tuple[str, ...], whole: str, over: str, times: int = 1) -> None:
        self.parts, self.whole, self.over, self.times = parts, whole, over, times


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


def _health(
    name: str, title: str, metric: Metric | None, *, question: str = "", unit: str = COUNT, most: int = 0,
    names: Mapping[int, str] | None = None, bits: Mapping[int, str] | None = None, not_on: Sequence[str] = _NARROW,
) -> Field:  # fmt: skip
    """A row of the group health; most are a question of their own."""
    return Field(
        name, question or name, HEALTH, title=title, unit=unit, most=most, names=names, bits=bits, metric=metric, not_on=not_on
    )


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
)  # fmt: skip

CHECKS: tuple[AtMost, ...] = (
    AtMost(("memory_used_bytes", "memory_free_bytes"), "memory_total_bytes", "the total"),
    AtMost(("power_usage_mw",), "power_limit_mw", f"{POWER_LIMIT_FACTOR} times the limit of {{}} mW", POWER_LIMIT_FACTOR),
)

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
# What gpu.groups may name.
GROUPS = tuple(group for group in QUESTIONS_OF if group != BASE)


def page_title(row: Field) -> str:
    """What a value is called on pages: its whole's title where it has one, because the bar says both."""
    return FIELDS[row.of].title if row.of else row.title


def judge(values: Mapping[str, Value]) -> tuple[dict[str, Value], dict[str, str]]:
    """`values` by field's name with None for what is impossible, and the reason for each question of which something was refused.

    Nothing is clamped or mended: whoever says nonsense for one value is no source for a guess. A name without a row is not judged by
    itself, but may be the whole of a check.
    """
    stands = dict(values)
    reasons: dict[str, list[str]] = {}
    for name, value in values.items():
        row = FIELDS.get(name)
        if row is not None and isinstance(value, int) and not row.least <= value <= row.most:
            stands[name] = None
            limit = f"over {row.most}" if value > row.most else f"under {row.least}"
            reasons.setdefault(row.question, []).append(f"{row.short}{value} {row.unit} is {limit}".replace("  ", " "))
    for check in CHECKS:
        question = FIELDS[check.parts[0]].question
        reasons.setdefault(question, []).extend(_refuse_parts(check, values, stands))
    return stands, {question: ", ".join(found) for question, found in reasons.items() if found}


def _refuse_parts(check: AtMost, values: Mapping[str, Value], stands: dict[str, Value]) -> Iterator[str]:
    """Put None in `stands` for what the check refuses; a reason for each."""
    whole = stands.get(check.whole)
    if whole is None:
        if values.get(check.whole) is not None:  # the whole is impossible, and with it what it was measured with
            stands.update(dict.fromkeys(part for part in check.parts if part in stands))
        return
    assert isinstance(whole, int)  # noqa: S101 - a check is of numbers
    most, together = check.times * whole, 0
    for part in check.parts:
        value = stands.get(part)
        if isinstance(value, int) and value > most:
            stands[part] = None
            yield f"{FIELDS[part].short}{value} {FIELDS[part].unit} is over {check.over.format(whole)}"
        elif isinstance(value, int):
            together += value
    if together > most:
        words = " and ".join(f"{FIELDS[part].short}{stands[part]}" for part in check.parts if stands.get(part) is not None)
        stands.update(dict.fromkeys((*check.parts, check.whole)))
        yield f"{words} {FIELDS[check.parts[0]].unit} together are over {check.over.format(whole)} of {whole}"
