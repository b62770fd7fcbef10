"""`make fuzz`: every door for a bounded time; what breaks one is saved in its corpus, where the ordinary suite tries it from then on.

Hypothesis makes the inputs and shrinks what it finds. Where a door is plain Python that decides byte by byte and atheris is installed
(make fuzz GUIDED=1), atheris runs it too, guided by which branches an input takes. Exit status 1 when a door was broken.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.door import SHOWN_BYTES, Door, Misbehaved, replay
from tests.fuzz.doors import DOORS

# Then Hypothesis begins anew with another seed, because it tries ever more alike inputs.
EXAMPLES_AT_ONCE = 100
SECONDS = 10.0
# atheris stops by itself; this is for one input that never ends.
GUIDED_GRACE_SECONDS = 60


@dataclass
class Tried:
    """How a door fared."""

    inputs: int = 0
    # The smallest input that broke it.
    crasher: bytes | None = None


def main() -> int:
    """Run the doors that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description="Fuzz the doors of the product.")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time for each door (default: %(default)s)")
    parser.add_argument("--guided", action="store_true", help="run atheris on the doors that it can guide, after Hypothesis")
    parser.add_argument(
        "doors", nargs="*", metavar="DOOR", help=f"one of {', '.join(door.name for door in DOORS)} (default: all)"
    )
    asked = parser.parse_args()
    if unknown := set(asked.doors) - {door.name for door in DOORS}:
        parser.error(f"no door {', '.join(sorted(unknown))}; there are {', '.join(door.name for door in DOORS)}")
    if asked.guided and importlib.util.find_spec("atheris") is None:
        parser.error("atheris is not installed: make fuzz GUIDED=1 installs it")
    broken = [door for door in DOORS if door.name in (asked.doors or {door.name}) and not _holds(door, asked)]
    return 1 if broken else 0


def _holds(door: Door, asked: argparse.Namespace) -> bool:
    try:
        replay(door)
    except Misbehaved as known:
        sys.stdout.write(f"{door.name}: {known}\n")
        return False
    started = time.monotonic()
    tried = fuzz(door, asked.seconds)
    sys.stdout.write(
        f"{door.name}: {tried.inputs} inputs in {time.monotonic() - started:.1f} s, {'BROKEN' if tried.crasher is not None else 'held'}\n"
    )
    sys.stdout.flush()
    if tried.crasher is not None:
        _save(door, tried.crasher)
        return False
    return _guided(door, asked.seconds) if asked.guided and door.guided else True


def fuzz(door: Door, seconds: float) -> Tried:
    """Try inputs until the time is over or one breaks the door; shrinking it takes what it takes."""
    tried = Tried()
    until = time.monotonic() + seconds

    def check(data: bytes) -> None:
        if tried.crasher is None and time.monotonic() > until:
            return
        tried.inputs += 1
        try:
            door.check(data)
        except Exception:
            # Hypothesis ends with the smallest one that it found.
            tried.crasher = data
            raise

    round_number = int.from_bytes(hashlib.sha256(repr(time.time_ns()).encode()).digest()[:6])
    while time.monotonic() < until:
        round_number += 1
        once = settings(
            max_examples=EXAMPLES_AT_ONCE,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )
        try:
            # hypothesis marks what it has wrapped, so each round wraps a function of its own.
            seed(round_number)(once(given(door.all_inputs())(lambda data: check(data))))()
        except Exception:
            if tried.crasher is None:
                raise
            break
    return tried


def _save(door: Door, content: bytes) -> None:
    """Put a crasher into the corpus, and say what to do."""
    file = door.folder / f"crash-{hashlib.sha256(content).hexdigest()[:12]}"
    file.write_bytes(content)
    shown = repr(content[:SHOWN_BYTES]) + ("…" if len(content) > SHOWN_BYTES else "")
    sys.stdout.write(
        f"{door.name}: broken by {len(content)} bytes: {shown}\n"
        f"  saved as {file.relative_to(file.parents[4])}: give it a name that says what it is, mend the product, commit both\n"
        f"  again: python -m tests.fuzz.run --seconds 0 {door.name}\n"
    )
    try:
        door.check(content)
    except Exception:
        sys.stdout.write("".join(f"  {line}\n" for line in traceback.format_exc().splitlines()))
    else:
        sys.stdout.write("  it held when it was tried again: what breaks it depends on time or on what was before\n")


def _guided(door: Door, seconds: float) -> bool:
    """Run atheris in a process of its own: it never returns, and it must instrument before the product is imported."""
    before = set(door.folder.iterdir())
    command = [sys.executable, "-m", "tests.fuzz.guided", door.name, str(max(1, round(seconds)))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=seconds + GUIDED_GRACE_SECONDS)
    found = sorted(set(door.folder.iterdir()) - before)
    if done.returncode == 0 and not found:
        last = next((line for line in reversed(done.stderr.splitlines()) if "DONE" in line or "exec/s" in line), "")
        sys.stdout.write(f"{door.name}: guided: held; {last}\n")
        return True
    sys.stdout.write(
        f"{door.name}: guided: BROKEN, see {', '.join(file.name for file in found) or 'below'}\n{done.stderr[-4000:]}\n"
    )
    return False


if __name__ == "__main__":
    raise SystemExit(main())
