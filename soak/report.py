"""Prints what was found, and says on which machine. It judges nothing."""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from soak.ages import spread as spread_of

__all__ = ["conclude", "machine", "show", "show_kills", "show_spreads", "spread_of"]

MEBIBYTE = 1024 * 1024
# More reasons of one kind say no more; the JSON has them all.
SHOWN_REASONS = 20


def machine() -> dict[str, object]:
    """Where and when."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "load": os.getloadavg(),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def show(facts: Mapping[str, Any]) -> None:  # Any: JSON-like, made in soak.__main__
    """Print the tables of a soak."""
    print(
        f"\n{'part':12}{'RSS MiB':>16}{'growth':>9}{'descriptors':>14}{'threads':>10}{'children':>10}{'stall p99':>11}{'max':>7}"
    )
    for name, part in facts["parts"].items():
        start, end, stalls = part["start"], part["end"], part["stalls"]
        print(
            f"{name:12}{start['resident_bytes'] / MEBIBYTE:8.1f}{end['resident_bytes'] / MEBIBYTE:8.1f}"
            f"{part['memory_growth'] / MEBIBYTE:+9.2f}{start['descriptors']:9d}{end['descriptors']:5d}"
            f"{start['threads']:6d}{end['threads']:4d}{start['children']:6d}{end['children']:4d}"
            f"{stalls.get('p99', 0):11.3f}{stalls.get('greatest', 0):7.3f}"
        )
    print("(start and end of the measured time, both quiet; growth by slope under load; stalls of the event loop in seconds)")
    show_spreads(facts["ages and gaps, seconds"])
    print(f"\n{'calls':28}{'made':>8}")
    for what, count in sorted(facts["calls"].items()):
        print(f"{what:28}{count:8d}")
    done = ", ".join(f"{kind} {count} times" for kind, count in facts["disturbances"].items())
    print(f"\ndisturbed: {done or 'nothing'}")
    print(f"{'failed, and explained by':50}{'times':>8}")
    for what, status, reason, count in facts["explained"]:
        print(f"{f'{what}: {status}, because {reason}':50}{count:8d}")
    print(f"lost: {len(facts['lost'])}")


def show_kills(facts: Mapping[str, Any]) -> None:  # Any: as above, made in soak.kills
    """Print the tables of a run of kills."""
    done, all_of_them = facts["restarts back within 2 s of READY"]
    killed = ", ".join(f"{victim} {count}" for victim, count in sorted(facts["kills"].items()))
    print(f"\nkilled: {killed}; back within 2 s of READY: {done} of {all_of_them}")
    show_spreads(facts["seconds"])
    print(f"\nchanges of the directory that were answered: {facts['changes of the directory answered']}")
    print(f"calls: {sum(facts['calls'].values())}")
    for what, status, reason, count in facts["explained"]:
        print(f"  {f'{what}: {status}, because {reason}':50}{count:8d}")


def show_spreads(spreads: Mapping[str, Mapping[str, float]]) -> None:
    """Print medians and ends."""
    print(f"\n{'seconds':42}{'count':>8}{'median':>9}{'p99':>9}{'greatest':>10}")
    for what, found in spreads.items():
        ends = "".join(
            f"{found[name]:{width}.3f}" for name, width in (("median", 9), ("p99", 9), ("greatest", 10)) if name in found
        )
        print(f"{what:42}{found['count']:8d}{ends}")


def conclude(reasons: Sequence[str]) -> int:
    """Say whether it held; the exit status."""
    for reason in reasons[:SHOWN_REASONS]:
        print(f"FAILED {reason}", file=sys.stderr)
    if len(reasons) > SHOWN_REASONS:
        print(f"FAILED {len(reasons) - SHOWN_REASONS} more reasons", file=sys.stderr)
    print("every bound held" if not reasons else f"{len(reasons)} bounds were passed")
    return 1 if reasons else 0
