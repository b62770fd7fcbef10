"""Which of a card's values are possible: each within its row's range, and those that contradict each other refused together.

Apart from the rows because it is what all of them are judged by, on both sides of the wire: collector, proxy, pages and guestctl refuse the
same numbers. It imports the rows alone, as the collector needs it at its start.
"""

from __future__ import annotations

from guest_contract.card_fields import CHECKS, FIELDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from guest_contract.card_row import AtMost, Value


def judge(values: Mapping[str, Value]) -> tuple[dict[str, Value], dict[str, str]]:
    """`values` by field's name with None for what is impossible, and the reason for each question of which something was refused.

    Nothing is clamped or mended: whoever says nonsense for one value is no source for a guess. A name without a row is not judged by
    itself, but may be the whole of a check.
    """
    stands, given = dict(values), values.keys()
    reasons: dict[str, list[str]] = {}
    for name, value in values.items():
        row = FIELDS.get(name)
        if row is not None and isinstance(value, str) and len(value) > row.most:
            stands[name] = None
            reasons.setdefault(row.question, []).append(f"{len(value)} characters are over {row.most}")
        elif row is not None and isinstance(value, int) and not row.least <= value <= row.most:
            stands[name] = None
            limit = f"over {row.most}" if value > row.most else f"under {row.least}"
            reasons.setdefault(row.question, []).append(f"{row.short}{value} {row.unit} is {limit}".replace("  ", " "))
    for check in CHECKS:
        # The collector judges one answer at a time, which most checks are not about.
        if given.isdisjoint(check.parts):
            continue
        question = FIELDS[check.parts[0]].question
        reasons.setdefault(question, []).extend(_refuse_parts(check, values, stands))
    return stands, {question: ", ".join(found) for question, found in reasons.items() if found}


def _refuse_parts(check: AtMost, values: Mapping[str, Value], stands: dict[str, Value]) -> Iterator[str]:
    """Put None in `stands` for what the check refuses; a reason for each."""
    whole = stands.get(check.whole)
    if whole is None:
        if values.get(check.whole) is not None:  # the whole is impossible, and with it what came in the same answer
            same = FIELDS[check.whole].question
            stands.update(dict.fromkeys(part for part in check.parts if part in stands and FIELDS[part].question == same))
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
