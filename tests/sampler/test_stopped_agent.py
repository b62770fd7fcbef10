"""An agent that was stopped (a debugger, a frozen cgroup) longer than a sample may take: what came meanwhile counts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.eventually import eventually_here
from tests.sampler.children import SAMPLE, children_of, parts_of, shell, state_of

TIMEOUT_SECONDS = 0.5
AGENT = f"""
import asyncio, sys
from guest_service.sampler import Sampler

async def main():
    sampler = Sampler(sys.argv[1:], timeout_seconds={TIMEOUT_SECONDS})
    for _ in range(2):
        print((await sampler.sample()).kind, flush=True)
    await sampler.close()

asyncio.run(main())
"""


def test_a_collector_that_finished_while_its_agent_was_stopped_is_not_called_hung(tmp_path: Path) -> None:
    fifo, parts, again = tmp_path / "go", tmp_path / "parts", tmp_path / "again"
    os.mkfifo(fifo)
    parts.write_text(parts_of(SAMPLE))
    # The second sample, in which no driver has to start any more.
    collector = shell(f"[ -e {again} ] && read go < {fifo}; touch {again}; cat {parts}")
    with subprocess.Popen([sys.executable, "-c", AGENT, *collector], stdout=subprocess.PIPE, text=True) as agent:
        # Opening it waits until the collector opens its end.
        with fifo.open("w") as go:
            (child,) = children_of(agent.pid)
            agent.send_signal(signal.SIGSTOP)
            stopped_at = time.monotonic()
            go.write("\n")
        # The bound of the stopped agent is real time, and over while it stands still.
        eventually_here(lambda: state_of(child) == "Z" and time.monotonic() >= stopped_at + TIMEOUT_SECONDS)
        agent.send_signal(signal.SIGCONT)
        out, _ = agent.communicate(timeout=30)
    assert out == "sample\nsample\n"
