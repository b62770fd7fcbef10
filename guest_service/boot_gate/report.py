"""The result of a boot gate run for a person and for a program.

The JSON has the evidence of the small witnesses and its hashes, in the form that the hash is taken of (sorted keys, no spaces), so
that whoever keeps the report can check it; the verifier's evidence is the evidence file, byte for byte. Foreign text is escaped here.
"""

from __future__ import annotations

import json
from pathlib import Path

from guest_service.boot_gate.gate import GateResult
from guest_transport.process.logs import escape

# One line on a terminal; the evidence has what is cut off.
LINE_LIMIT = 500


def one_line(text: str) -> str:
    """`text` escaped and bounded, fit for a log."""
    line = escape(text)
    return line if len(line) <= LINE_LIMIT else line[:LINE_LIMIT] + "…"


def as_json(result: GateResult, evidence_file: Path | None) -> str:
    """One JSON object on one line."""
    return json.dumps(
        {
            "verdict": "pass" if result.passed else "refused",
            "reason": one_line(result.reason),
            "checks": [
                {
                    "check": check.name,
                    "verdict": check.verdict.value,
                    "detail": one_line(check.detail),
                    "evidence_sha256": check.evidence_sha256,
                }
                for check in result.checks
            ],
            "nonce": result.nonce,
            "evidence": {
                "inventory": result.inventory,
                "verifier_file": None if evidence_file is None else str(evidence_file),
                "nvml": result.nvml,
                "nvml_when_ready": result.nvml_when_ready,
            },
        },
        sort_keys=True,
        separators=(",", ":"),
        allow_nan=False,
    )


def as_text(result: GateResult) -> str:
    """A line per check: verdict, name, detail and evidence; the verdict of the whole last."""
    lines = []
    for check in result.checks:
        evidence = f"[sha256 {check.evidence_sha256}]" if check.evidence_sha256 else ""
        words = "  ".join(filter(None, (one_line(check.detail), evidence)))
        lines.append(f"{check.verdict.value:<11}  {check.name:<13}  {words}".rstrip())
    lines.append(f"boot gate: {'pass' if result.passed else 'refused'}")
    return "\n".join(lines)
