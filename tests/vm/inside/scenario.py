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
TRIES = 5

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
    leave(results)
    power_off()


def leave(results: Results) -> None:
    """Give `results` to the test outside, whole or not at all."""
    unfinished = RESULTS / f".{RESULTS_FILE}"
    unfinished.write_text(json.dumps(results))
    unfinished.rename(RESULTS / RESULTS_FILE)
    os.sync()


async def told(name: str) -> None:
    """Wait until the test outside makes the file `name`."""
    while not (RESULTS / name).exists():
        # Shares over 9p tell of no change.
        await asyncio.sleep(0.1)


async def _timed(scenario: Callable[[], Awaitable[Results]]) -> Results:
    began = time.monotonic()
    return {**await scenario(), "seconds": time.monotonic() - began}


def power_off() -> None:
    subprocess.run([str(BUSYBOX), "poweroff", "-f"], check=True)
    while True:
        # Until the machine is off.
        time.sleep(1)


class Server:
    """A server of ours in the machine, with its log where the test outside reads it."""

    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self._log = RESULTS / f"{name}.log"
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


def gpus_by_guestctl(proxy: str, guest: str) -> dict[str, Any]:
    """guestctl's answer, asked again while the guest has no sample yet: in emulation the first one may take half a minute."""
    for _ in range(TRIES):
        answer = command("guest_client.guestctl", "gpu", "--proxy", proxy, "-o", "json", guest)
        if answer["status"] != 0 or json.loads(answer["stdout"])["gpus"]:
            break
    return answer


def patient_guest(name: str, *, listen: str, cids: Sequence[int] = (2,)) -> Server:
    """An agent with a simulated card that lets in `cids`, and has time for a sample even in here."""
    config = written(
        f"{name}.toml",
        f"[grpc]\nlisten = ['{listen}']\nvsock_cids = {list(cids)}\n"
        "[gpu]\nsimulate = 'h200'\nsample_timeout_seconds = 60\nfailure_backoff_seconds = 1\n",
    )
    return Server(name, ["guest_service", "serve", "--config", str(config), "--http", "off"])


def written(name: str, text: str) -> Path:
    """A file in the machine's memory."""
    path = SCRATCH / name
    path.write_text(text)
    return path
