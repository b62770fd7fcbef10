"""What runs as process 1 of a virtual machine: a scenario, its results in the shared folder, and power off, come what may."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from tests.vm.initrd import BUSYBOX, RESULTS, SCRATCH
from tests.vm.machine import RESULTS_FILE

# Both take seconds; emulated on a machine that does other things beside, a minute was seen.
LISTEN_LIMIT_SECONDS = 150.0
COMMAND_LIMIT_SECONDS = 90.0

# Any: what a scenario found, as JSON.
Results = dict[str, Any]


def run_as_first_process(scenario: Callable[[], Awaitable[Results]]) -> None:
    """Run `scenario`, write what it returns, power the machine off. Nothing else may be process 1's end: the kernel would panic."""
    if os.getpid() != 1:
        raise SystemExit("this runs inside a virtual machine of the tests")
    try:
        results = asyncio.run(_timed(scenario))
    except BaseException:
        # Whatever it is, the test outside shall read it.
        results = {"failure": traceback.format_exc()}
    (RESULTS / RESULTS_FILE).write_text(json.dumps(results))
    os.sync()
    power_off()


async def _timed(scenario: Callable[[], Awaitable[Results]]) -> Results:
    began = time.monotonic()
    return {**await scenario(), "seconds": time.monotonic() - began}


def power_off() -> None:
    subprocess.run([str(BUSYBOX), "poweroff", "-f"], check=True)
    while True:
        time.sleep(1)


class Server:
    """A server of ours in the machine, with its log in a file."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self._log = SCRATCH / f"{name}.log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", *arguments], stdin=subprocess.DEVNULL, stderr=log)

    def log(self) -> str:
        return self._log.read_text(errors="replace")

    async def says(self, words: str) -> None:
        """Wait until its log has `words`."""
        end = time.monotonic() + LISTEN_LIMIT_SECONDS
        while words not in self.log():
            assert self.process.poll() is None, f"it ended:\n{self.log()}"
            assert time.monotonic() < end, f"it does not say {words!r}:\n{self.log()}"
            # A file in memory tells of no change; the machine's own clock runs in emulation.
            await asyncio.sleep(0.1)


def command(*arguments: str) -> dict[str, Any]:
    """Run one of our commands: exit status, stdout and stderr. Any: JSON."""
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=COMMAND_LIMIT_SECONDS,
    )
    return {"status": done.returncode, "stdout": done.stdout, "stderr": done.stderr}


def written(name: str, text: str) -> Path:
    """A file in the machine's memory."""
    path = SCRATCH / name
    path.write_text(text)
    return path
