"""One door under atheris: `python -m tests.fuzz.guided DOOR SECONDS`. A crasher is saved in the door's corpus.

atheris pays where the code under test is Python that looks at single characters: its instrumentation sees each branch and each compared
value. It is blind in msgspec, protobuf and expat, which are C, and a door with a socket costs more than the guidance brings; such doors
are Hypothesis's alone. The product is imported under instrumentation, so nothing of it may be imported before.
"""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path

import atheris

MODULES = {
    "address": "tests.fuzz.doors.addresses",
    "cache-control": "tests.fuzz.doors.cache_control",
    "log-query": "tests.fuzz.doors.log_query",
}


def main() -> None:
    """Fuzz until the seconds are over; never returns."""
    name, seconds = sys.argv[1:]
    with atheris.instrument_imports(include=["guest_service", "guest_transport"]):
        module = importlib.import_module(MODULES[name])
    from tests.fuzz.door import Door
    from tests.fuzz.made import MADE

    [door] = [value for value in vars(module).values() if isinstance(value, Door)]
    # What it finds interesting goes to a folder of its own: thousands of nameless files are no corpus for people.
    with tempfile.TemporaryDirectory(prefix="guestscope-fuzz-") as found:
        for entry, content in MADE.get(door.name, {}).items():
            (Path(found) / entry).write_bytes(content)
        atheris.Setup(
            [
                sys.argv[0],
                f"-max_total_time={seconds}",
                f"-artifact_prefix={door.folder}/",
                "-print_final_stats=1",
                found,
                str(door.folder),
            ],
            door.check,
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
