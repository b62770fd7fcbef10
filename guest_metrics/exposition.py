"""Sample lines, and pages of them in Prometheus text 0.0.4 or OpenMetrics 1.0.

A page of 1000 guests with 8 GPUs each has 96,000 samples, of which few change between two scrapes. So lines are made once per source (a
Fragment), kept while the source's answer is unchanged, and a page is a join of fragments, family by family, because both
formats want a family's lines together. A sample line is the same text in both formats; only headers and the end differ.

It refuses names that are not in the table, and so a guest's text can never become a metric or label name. Rejected: prometheus_client
(15 times slower at that size; it is the oracle in the tests).

Format sources: prometheus.io "Exposition formats"; the OpenMetrics 1.0 specification.
"""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NewType, TypeAlias

from guest_metrics import table
from guest_metrics.table import Family, Kind

# A number already in its exact decimal form, such as milliseconds written as seconds.
NumberText = NewType("NumberText", str)
Number: TypeAlias = int | float | NumberText
# Labels in braces as they stand on a line, or empty; made by Lines.labels() only.
LabelText = NewType("LabelText", str)


class Format(enum.Enum):
    """The format of a page; the value is its Content-Type."""

    TEXT = "text/plain; version=0.0.4; charset=utf-8"
    OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


# What comes after the last family.
ENDS = {Format.TEXT: b"", Format.OPENMETRICS: b"# EOF\n"}


@dataclass(frozen=True, slots=True)
class Fragment:
    """The finished lines of one source, by family name."""

    lines: Mapping[str, str]


class Lines:
    """Collects the sample lines of one source. `own` labels (the proxy's `vm_id`, `vm_…`) stand in front on every line.

    Two samples with equal names and labels would make Prometheus drop one of them with a warning at every scrape; whoever adds lines
    for a list keeps its entries apart (see gpu and guest).
    """

    __slots__ = ("_bare", "_lines", "_own")

    def __init__(self, own: Mapping[str, str] | None = None) -> None:
        self._own = ",".join(f'{name}="{label_value(value)}"' for name, value in (own or {}).items())
        # The labels of a family without labels of its own: most lines of a guest's system.
        self._bare = LabelText(f"{{{self._own}}}" if self._own else "")
        self._lines: dict[str, list[str]] = {}

    def labels(self, names: Sequence[str], values: Sequence[str]) -> LabelText:
        """The label text for put(): one value for each name, any text at all."""
        if len(names) != len(values):
            raise ValueError(f"{len(names)} values for the labels {', '.join(names)}, not {len(values)}")
        if not names:
            return self._bare
        text = _template(tuple(names)) % tuple(values)
        # One look at the whole text: nothing to escape when its quotes are the template's own. Most label values are such.
        if not text.isprintable() or text.count('"') != 2 * len(names) or "\\" in text:
            text = _template(tuple(names)) % tuple(map(label_value, values))
        return LabelText(f"{{{self._own},{text}}}" if self._own else f"{{{text}}}")

    def add(self, family: Family, number: Number, *values: str) -> None:
        """One sample of `family` with `values` for its labels."""
        self.put(family, self.labels(family.labels, values) if values or family.labels else self._bare, number)

    def put(self, family: Family, labels: LabelText, number: Number) -> None:
        """One sample with label text that was made once for many families."""
        self._append(family, family.name, labels, number)

    def put_all(self, labels: LabelText, samples: Iterable[tuple[Family, Number]]) -> None:
        """One sample of each of many families, none of which has lines yet."""
        for family, number in samples:
            self._lines[family.name] = [f"{family.name}{labels} {number}\n"]

    def put_numbers(self, family: Family, numbers: Iterable[tuple[LabelText, Number | None]]) -> None:
        """A sample for each number that is known, with label text that was made once for many families."""
        name = family.name
        self._put_lines(name, [f"{name}{at} {number}\n" for at, number in numbers if number is not None])

    def _put_lines(self, name: str, lines: list[str]) -> None:
        held = self._lines.get(name)
        if held is not None:
            held.extend(lines)
        elif lines:
            self._lines[name] = lines

    def add_histogram(
        self, family: Family, bounds: Sequence[float], counts: Sequence[int], total: float, values: Sequence[str] = ()
    ) -> None:
        """One histogram: `counts` per bucket, not summed up, with one more than `bounds` for what lies above; `total` of all values."""
        if len(counts) != len(bounds) + 1:
            raise ValueError(f"{family.name}: {len(bounds)} bounds need {len(bounds) + 1} counts, not {len(counts)}")
        seen = 0
        for bound, count in zip([*bounds, math.inf], counts, strict=True):
            seen += count
            edge = self.labels((*family.labels, "le"), (*values, number_text(float(bound))))
            self._append(family, f"{family.name}_bucket", edge, seen)
        labels = self.labels(family.labels, values)
        self._append(family, f"{family.name}_sum", labels, total)
        self._append(family, f"{family.name}_count", labels, seen)

    def _append(self, family: Family, name: str, labels: LabelText, number: Number) -> None:
        # Integers are most of the numbers, and the quickest that way.
        line = f"{name}{labels} {number if type(number) is int else number_text(number)}\n"
        lines = self._lines.get(family.name)
        if lines is None:
            self._lines[family.name] = [line]
        else:
            lines.append(line)

    def fragment(self) -> Fragment:
        """The lines added so far, finished."""
        return Fragment({name: "".join(lines) if len(lines) > 1 else lines[0] for name, lines in self._lines.items()})

    def fresh(self) -> Lines:
        """Nothing yet, with the same own labels."""
        lines = Lines()
        lines._own, lines._bare = self._own, self._bare
        return lines


def chunks(fragments: Sequence[Fragment], form: Format) -> Iterator[bytes]:
    """A page, one family at a time, so that a server with thousands of fragments can do other work in between."""
    for family in table.ALL:
        name = family.name
        lines = [part for fragment in fragments if (part := fragment.lines.get(name))]
        if lines:
            yield "".join((header(family, form), *lines)).encode()
    yield ENDS[form]


def page(fragments: Sequence[Fragment], form: Format) -> bytes:
    """A whole page."""
    return b"".join(chunks(fragments, form))


def number_text(number: Number) -> str:
    """A number as both formats write it: integers with every digit, floats so that they read back equal."""
    if isinstance(number, str):
        return number
    if isinstance(number, int):
        return str(int(number))
    if math.isfinite(number):
        return repr(number)
    return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"


def thousandths(count: int) -> NumberText:
    """`count` thousandths as a decimal, every digit kept: 60000 ms are 60.000 s."""
    return NumberText(f"{count // 1000}.{count % 1000:03d}")


def hundredths(count: int) -> NumberText:
    """`count` hundredths as a decimal: a load average of 1234 is 12.34."""
    return NumberText(f"{count // 100}.{count % 100:02d}")


# Characters that move a cursor, turn the direction of what follows, or are not seen: Unicode 15's categories Cc, Cf, Zl and Zp. Both
# formats allow them raw, but people read pages with curl. They stand as in logs (\x1b, \u202e), whose reader sees a backslash.
_UNSEEN = (
    (0x00, 0x1F), (0x7F, 0x9F), (0xAD, 0xAD), (0x600, 0x605), (0x61C, 0x61C), (0x6DD, 0x6DD), (0x70F, 0x70F), (0x890, 0x891),
    (0x8E2, 0x8E2), (0x180E, 0x180E), (0x200B, 0x200F), (0x2028, 0x202E), (0x2060, 0x2064), (0x2066, 0x206F), (0xFEFF, 0xFEFF),
    (0xFFF9, 0xFFFB), (0x110BD, 0x110BD), (0x110CD, 0x110CD), (0x13430, 0x1343F), (0x1BCA0, 0x1BCA3), (0x1D173, 0x1D17A),
    (0xE0001, 0xE0001), (0xE0020, 0xE007F),
)  # fmt: skip
# A table and no function: a hostile guest's megabyte of ESC takes no longer than one of backslashes. A lone surrogate is no UTF-8 and
# stands as U+FFFD.
_ESCAPES = str.maketrans(
    {chr(code): "\ufffd" for code in range(0xD800, 0xE000)}
    | {
        chr(code): "\\" + chr(code).encode("unicode_escape").decode()
        for first, last in _UNSEEN
        for code in range(first, last + 1)
    }
    | {"\\": "\\\\", '"': '\\"', "\n": "\\n"}
)


def label_value(text: str) -> str:
    """`text` as it stands between the quotes of a label."""
    return text.translate(_ESCAPES)


@functools.cache
def _template(names: tuple[str, ...]) -> str:
    return ",".join(f'{name}="%s"' for name in names)


def header(family: Family, form: Format) -> str:
    """The lines that stand before a family's samples."""
    if form is Format.TEXT:
        kind = Kind.GAUGE if family.kind is Kind.INFO else family.kind
        return f"# HELP {family.name} {family.help}\n# TYPE {family.name} {kind.value}\n"
    name = family.openmetrics_name
    unit = f"# UNIT {name} {family.unit}\n" if family.unit else ""
    return f"# HELP {name} {family.help}\n# TYPE {name} {family.kind.value}\n{unit}"


# --- Content negotiation (RFC 9110, 12.5.1) ---------------------------------------------------------------------------------------------
_OPENMETRICS_VERSIONS = ("", "1.0.0")
_TEXT_VERSIONS = ("", "0.0.4")


def negotiate(accept: str | None) -> Format:
    """The format that an Accept header asks for: OpenMetrics when it is named and wanted at least as much as plain text."""
    openmetrics, plain = 0.0, {"text/plain": -1.0, "text/*": -1.0, "*/*": -1.0}
    for media, parameters, weight in _ranges(accept or ""):
        version = parameters.get("version", "")
        if media == "application/openmetrics-text" and version in _OPENMETRICS_VERSIONS:
            openmetrics = max(openmetrics, weight)
        elif media in plain and version in _TEXT_VERSIONS:
            plain[media] = max(plain[media], weight)
    text = next((weight for weight in plain.values() if weight >= 0), 0.0)
    return Format.OPENMETRICS if openmetrics > 0 and openmetrics >= text else Format.TEXT


def _ranges(accept: str) -> Iterable[tuple[str, dict[str, str], float]]:
    for entry in accept.split(","):
        media, *rest = (word.strip() for word in entry.split(";"))
        parameters = {name.strip().lower(): value.strip().strip('"') for name, _, value in (word.partition("=") for word in rest)}
        try:
            weight = float(parameters.get("q", "1"))
        except ValueError:
            continue
        if 0 <= weight <= 1:
            yield media.lower(), parameters, weight
