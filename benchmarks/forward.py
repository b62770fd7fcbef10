"""What forwarding through the proxy costs, against a bare forwarder that only decodes, forwards and encodes again.

All forwarders run as processes of their own beside one guest process, and each round measures each of them, so that a busy machine
slows all alike; medians are compared. Envoy and nginx are measured the same way and reported as they are: they copy frames and do
little of what the proxy does. Exit status 1 when a target is missed.

    python -m benchmarks.forward             # about two minutes
    python -m benchmarks.forward --quick     # half a minute, for a look
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from benchmarks.figures import Report
from benchmarks.forwarders import CONNECTIONS, DIRECT, KEPT, READ_ONLY, Forwarder, bare, guests, start, start_forwarders
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options

# The targets: added p50 at concurrency 1, CPU at 64 connections, calls per second of 64 callers of one guest; against the bare
# forwarder.
ADDED_P50_LIMIT = 1.25
CPU_LIMIT = 1.35
SHARED_LEAST = 1.3
# The same on the read-only socket.
READ_ONLY_LIMITS = (1.15, 1.25, SHARED_LEAST)
# The same where the caller takes an old answer, and the guest is not asked.
KEPT_LIMITS = (0.5, 0.5, 3.0)
LIMITS = {
    "vmm-proxy": (ADDED_P50_LIMIT, CPU_LIMIT, SHARED_LEAST),
    READ_ONLY: READ_ONLY_LIMITS,
    KEPT: KEPT_LIMITS,
}

NOT_DONE = {
    "bare": "limits, deadlines of its own, sharing, the status table, policy, identity, unknown ids (it ends them with UNKNOWN)",
    "envoy": "decoding and its limits, ids in the message, sharing, roles, pinned identity, words for what went wrong",
    "nginx": "what envoy does not, nor deadlines of the caller, nor more than one call at a time on a connection to a guest",
}


@dataclass
class Measured:
    """What the rounds gave for one forwarder."""

    p50_seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)
    shared_per_second: list[float] = field(default_factory=list)


async def p50(ask: Callable[[], Awaitable[bytes]], calls: int) -> float:
    took = []
    for _ in range(calls):
        started = time.perf_counter()
        await ask()
        took.append(time.perf_counter() - started)
    return statistics.median(took)


async def many(forwarder: Forwarder, calls: int, guest_id: Callable[[int], str]) -> tuple[float, float]:
    """CPU seconds per 1000 calls and calls per second, with CONNECTIONS connections of one call at a time."""
    channels = [forwarder.channel() for _ in range(CONNECTIONS)]
    asks = [forwarder.call(channel, guest_id(number)) for number, channel in enumerate(channels)]
    await asyncio.gather(*(p50(ask, 2) for ask in asks))
    cpu, started = forwarder.cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(p50(ask, calls) for ask in asks))
    wall = time.perf_counter() - started
    used = forwarder.cpu_seconds() - cpu
    for channel in channels:
        await channel.close()
    return used / (calls * CONNECTIONS) * 1000, calls * CONNECTIONS / wall


async def rounds_of(folder: Path, forwarders: list[Forwarder], rounds: int, alone: int, each: int) -> dict[str, Measured]:
    measured = {name: Measured() for name in ("direct", *(forwarder.name for forwarder in forwarders))}
    guest = UnixAddress(str(folder / "guest0"))
    for _ in range(rounds):
        async with grpc.aio.insecure_channel(guest.grpc_target, options=channel_options(guest)) as channel:
            rpc: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(DIRECT)
            await p50(lambda: rpc(b"", timeout=10), 50)  # noqa: B023  # called before the next round
            measured["direct"].p50_seconds.append(await p50(lambda: rpc(b"", timeout=10), alone))  # noqa: B023  # the same
        for forwarder in forwarders:
            one = measured[forwarder.name]
            async with forwarder.channel() as channel:
                ask = forwarder.call(channel, "vm0")
                await p50(ask, 50)
                one.p50_seconds.append(await p50(ask, alone))
            one.cpu_seconds.append((await many(forwarder, each, lambda number: f"vm{number}"))[0])
            one.shared_per_second.append((await many(forwarder, each, lambda _: "vm0"))[1])
    return measured


def show(measured: dict[str, Measured]) -> int:
    """The figures of each forwarder against the bare one, round by round; the exit status."""
    direct = measured.pop("direct").p50_seconds
    bare = measured["bare"]
    least = added(bare, direct)
    to = Report(
        "forward", f"GpuInfo of 8 cards, {CONNECTIONS} guests in one process, against the bare forwarder in the same round."
    )
    to.add("a call without a forwarder, p50", [1000 * each for each in direct], "ms")
    for name, one in measured.items():
        limits = LIMITS.get(name, (None, None, None))
        to.add(f"{name}: added p50", [1000 * each for each in added(one, direct)], "ms")
        to.add(f"{name}: CPU of 1000 calls", one.cpu_seconds, "s")
        if one is bare:
            continue
        to.add(f"{name}: added p50 / bare", ratios(added(one, direct), least), "x", limits[0])
        to.add(f"{name}: CPU / bare", ratios(one.cpu_seconds, bare.cpu_seconds), "x", limits[1])
        shared = ratios(one.shared_per_second, bare.shared_per_second)
        to.add(f"{name}: 64 callers of one guest / bare", shared, "x", limits[2], at_least=True)
        if missing := NOT_DONE.get(name.split()[0]):
            print(f"{name} does without: {missing}")
    print(f"bare does without: {NOT_DONE['bare']}")
    return to.end()


def added(one: Measured, direct: list[float]) -> list[float]:
    """What the forwarder adds to the p50 of a call, round by round."""
    return [with_it - without for with_it, without in zip(one.p50_seconds, direct, strict=True)]


def ratios(ours: list[float], theirs: list[float]) -> list[float]:
    return [one / other for one, other in zip(ours, theirs, strict=True)]


async def compare(folder: Path, rounds: int, alone: int, each: int) -> int:
    server = await start("-m", "benchmarks.forward", "guests", str(folder))
    forwarders, missing = await start_forwarders(folder)
    try:
        measured = await rounds_of(folder, forwarders, rounds, alone, each)
    finally:
        for process in {server, *(forwarder.process for forwarder in forwarders)}:
            process.kill()
            await process.wait()
    for words in missing:
        print(f"not measured: {words}")
    return show(measured)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["guests", "bare"], help=argparse.SUPPRESS)
    parser.add_argument("folder", nargs="?", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    arguments = parser.parse_args()
    if arguments.part == "guests":
        asyncio.run(guests([arguments.folder / f"guest{number}" for number in range(CONNECTIONS)]))
    elif arguments.part == "bare":
        asyncio.run(bare(arguments.folder))
    else:
        with tempfile.TemporaryDirectory(prefix="gs") as folder:
            rounds, alone, each = (5, 100, 5) if arguments.quick else (5, 600, 25)
            raise SystemExit(asyncio.run(compare(Path(folder), rounds, alone, each)))


if __name__ == "__main__":
    main()
