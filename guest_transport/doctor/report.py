"""The findings as text for people, one line each, and as one JSON object for scripts.

Parts of them were chosen by a guest, a driver or another program: each text is escaped and bounded in this one place. Nothing is shown
of what a file of secrets holds; the checks never put it in.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from guest_transport.doctor.checks import Examined
from guest_transport.doctor.findings import Verdict
from guest_transport.process.logs import escape

# A line for a screen; the longest honest one lists where a library was looked for.
TEXT_LIMIT_CHARACTERS = 600


def anything_wrong(report: Sequence[Examined]) -> bool:
    """Whether one of the findings is wrong."""
    return any(finding.verdict is Verdict.WRONG for examined in report for finding in examined.findings)


def as_text(report: Sequence[Examined]) -> str:
    """A line per finding and one with the counts; without a newline at the end."""
    rows = list(_rows(report))
    width = max((len(check) for check, *_ in rows), default=0)
    lines = [
        f"{verdict:5}  {check:{width}}  {seen}{f' -- {advice}' if advice else ''}".rstrip()
        for check, verdict, seen, advice in rows
    ]
    counts = ", ".join(f"{sum(verdict == kind for _, verdict, *_ in rows)} {kind}" for kind in Verdict)
    return "\n".join([*lines, f"{len(report)} checks, {len(rows)} findings: {counts}"])


def as_json(report: Sequence[Examined]) -> str:
    """One object: `verdict` of the whole (ok or wrong), and `findings` with check, verdict, seen and do; without a newline."""
    findings = [
        {"check": check, "verdict": verdict, "seen": seen, "do": advice} for check, verdict, seen, advice in _rows(report)
    ]
    whole = Verdict.WRONG if anything_wrong(report) else Verdict.OK
    return json.dumps({"verdict": whole, "findings": findings})


def _rows(report: Sequence[Examined]) -> Iterator[tuple[str, str, str, str]]:
    for examined in report:
        for finding in examined.findings:
            yield examined.check, finding.verdict, _shown(finding.seen), _shown(finding.advice)


def _shown(text: str) -> str:
    line = escape(text[: TEXT_LIMIT_CHARACTERS + 1])
    return line if len(line) <= TEXT_LIMIT_CHARACTERS else line[: TEXT_LIMIT_CHARACTERS - 1] + "…"
