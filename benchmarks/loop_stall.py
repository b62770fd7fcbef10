"""For how long starting a sample stalls the event loop of a process that has gRPC loaded and serving.

    python -m benchmarks.loop_stall [--samples N]

The stall is the time spent in starting the real collector (pipes, Popen, pidfd, readers), all of it on the loop. Target: 0.5 ms at the
median. Exit status 1 when it is missed. Rejected: a watchdog task that measures its own delay (it sees everything else that the machine
does); a thread for the start (Popen holds the interpreter lock from vfork to exec, so the loop stands still all the same).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from statistics import median

import grpc

from benchmarks.figures import ROUNDS_LEAST, Report
from guest_service.collector.command import collector_command
from guest_service.sampler.child import Child
from guest_service.sampler.judge import PARTS_LIMIT_BYTES
from guest_service.sampler.parts import END
from guest_service.sampler.sampler import STDERR_LIMIT_BYTES

STALL_LIMIT_MS = 0.5


async def stall_of_one_start(argv: list[str]) -> float:
    """Milliseconds that the loop stood still."""
    began = time.perf_counter()
    child = Child(
        [*argv, "--parts-to"], stdout_limit_bytes=PARTS_LIMIT_BYTES, stderr_limit_bytes=STDERR_LIMIT_BYTES, marks=(END,)
    )
    stalled = time.perf_counter() - began
    ended = await child.ended
    if ended.status != 0 or not ended.stdout:
        raise SystemExit(f"the collector failed: {ended.stderr!r}")
    return stalled * 1000


async def measure(samples: int) -> int:
    """The median of each of ROUNDS_LEAST rounds; 1 when the target is missed."""
    server = grpc.aio.server()
    server.add_insecure_port("127.0.0.1:0")
    await server.start()
    argv = collector_command(simulate="h200")
    rounds = [[await stall_of_one_start(argv) for _ in range(max(2, samples // ROUNDS_LEAST))] for _ in range(ROUNDS_LEAST)]
    await server.stop(None)
    to = Report("stall", "For how long the event loop of a gRPC server stands still while a sample is started.")
    to.add("median", [median(stalls) for stalls in rounds], "ms", STALL_LIMIT_MS)
    to.add("longest", [max(stalls) for stalls in rounds], "ms")
    return to.end()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--samples", type=int, default=40)
    return asyncio.run(measure(parser.parse_args().samples))


if __name__ == "__main__":
    sys.exit(main())
