"""What the process that talks to libvirt tells the proxy: one JSON object a line.

Every line shows that it is alive; one with `domains` is the whole truth of that moment, one with `problem` is its last. Rejected: telling
changes only (a lost or misread line would stay wrong until the next restart).
"""

from __future__ import annotations

import msgspec

# 4096 domains with 64 cards each and names of 256 characters take 8 MB; a longer line is no report.
LINE_LIMIT_BYTES = 16 * 1024 * 1024


class Domain(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A running domain. `problem`: why nothing is known of it but its id and name."""

    uuid: str
    name: str
    cid: int | None = None
    gpus: tuple[str, ...] = ()
    problem: str = ""


class Report(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One line."""

    domains: tuple[Domain, ...] | None = None
    problem: str = ""


def write_report(report: Report) -> bytes:
    """`report` as a line."""
    return msgspec.json.encode(report) + b"\n"


def read_report(line: bytes) -> Report:
    """The report in `line`; raises ValueError."""
    try:
        return msgspec.json.decode(line, type=Report)
    except msgspec.MsgspecError as error:
        # A ValueError by itself only from msgspec 0.20 on.
        raise ValueError(str(error)) from error
