"""What a row of card_fields is: one value of a card, and how it is asked, judged, shown, sorted, summed and exported.

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

Of a text, `most` is the number of characters. It refuses to import anything, as card_fields does and for the same reason.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
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
METRIC_PREFIX = "dstack_gpu_"


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
