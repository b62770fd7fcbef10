"""What one collection over a thousand guests costs through the proxy, against a bare gather over as many channels.

The guests are sockets of a few processes. Cold means that nobody has called a guest yet (a channel is made and connected for
each), warm that all connections stand. Each round asks all of them in turn (A B A B), and medians are compared. The gather drops
what it gets; the proxy checks each answer and streams it to a client in another process, who decodes it. `streamer` shows how
much of the difference is the stream. Exit status 1 when a target is missed.

    python -m benchmarks.forward_fleet             # 1000 guests, about a minute
    python -m benchmarks.forward_fleet --quick     # 200 guests, fewer rounds
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import resource
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import psutil

from benchmarks import fleet_collectors
from benchmarks.figures import Report
from benchmarks.fleet_collectors import COLLECT, socket_path
from benchmarks.forwarders import cpu_seconds, start
from guest_fleet.v1 import fleet_pb2
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options

GUEST_PROCESSES = 4
# The targets: times against the bare gather, and of the proxy with black holes against the proxy without.
WARM_LIMIT = 1.4
COLD_LIMIT = 1.4
RSS_LIMIT_MIB = 140
BLACK_HOLED_LIMIT = 1.2
# One guest in so many takes connections and never answers.
BLACK_HOLED_ONE_IN = 100
NAMES = ("bare gather", "bare streamer", "proxy", "proxy, black holes")

Collect = Callable[[], Awaitable[float]]


async def last_answer(channel: grpc.aio.Channel, healthy: int) -> float:
    """Seconds until the last healthy guest's answer was there."""
    started = time.perf_counter()
    rpc: grpc.aio.UnaryStreamMultiCallable[fleet_pb2.CollectGpuInfoRequest, fleet_pb2.CollectGpuInfoResponse]
    rpc = channel.unary_stream(
        COLLECT,
        request_serializer=fleet_pb2.CollectGpuInfoRequest.SerializeToString,
        response_deserializer=fleet_pb2.CollectGpuInfoResponse.FromString,
    )
    call = rpc(fleet_pb2.CollectGpuInfoRequest(), timeout=15)
    last, got = 0.0, 0
    async for answer in call:
        came = sum(entry.WhichOneof("outcome") == "gpu_info" for entry in answer.guests)
        if came:
            got += came
            last = time.perf_counter() - started
        if got == healthy:
            break
    call.cancel()
    return last


@contextlib.asynccontextmanager
async def served(socket: Path, healthy: int, *arguments: str) -> AsyncIterator[tuple[Collect, int]]:
    """A fresh process that serves CollectGpuInfo at `socket`: how to collect once through it, and its pid."""
    process = await start(*arguments)
    address = UnixAddress(str(socket))
    try:
        async with grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel:
            # Not a part of the collection: the connection to the collector.
            await channel.channel_ready()
            yield lambda: last_answer(channel, healthy), process.pid
    finally:
        process.terminate()
        await process.communicate()


@contextlib.asynccontextmanager
async def gathering(folder: Path, count: int) -> AsyncIterator[tuple[Collect, int]]:
    """A fresh process of the bare gather."""
    command = ["-m", "benchmarks.forward_fleet", "gather", str(folder), str(count)]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdin=pipe, stdout=pipe, stderr=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    await process.stderr.readline()
    stdin, stdout = process.stdin, process.stdout

    async def collect() -> float:
        stdin.write(b"once more\n")
        return float(await stdout.readline())

    try:
        yield collect, process.pid
    finally:
        process.kill()
        await process.communicate()


def write_config(folder: Path, name: str, count: int, black_holed: set[int]) -> Path:
    lines = [f'[grpc]\nlisten = ["unix:{folder}/{name}"]\n']
    for number in range(count):
        path = folder / f"hole{number}" if number in black_holed else socket_path(folder, number)
        lines.append(f'[[guest]]\nid = "vm{number:04}"\naddress = "unix:{path}"\n')
    config = folder / f"{name}.toml"
    config.write_text("".join(lines))
    return config


class Times:
    """What the rounds gave, by name; the first collection of each fresh process is cold."""

    def __init__(self) -> None:
        self.cold: dict[str, list[float]] = {name: [] for name in NAMES}
        self.warm: dict[str, list[float]] = {name: [] for name in NAMES}
        self.cpu: dict[str, list[float]] = {name: [] for name in NAMES}
        self.rss_mib: list[float] = []
        self.descriptors_per_guest: list[float] = []


async def repeat(folder: Path, count: int, rounds: int, black_holed: set[int], times: Times) -> None:
    """One fresh process of each, asked in turn."""
    serve = ["-m", "vmm_proxy", "serve", "--http", "off", "--config"]
    healthy, holed = write_config(folder, "proxy", count, set()), write_config(folder, "holed", count, black_holed)
    streamer = ["-m", "benchmarks.forward_fleet", "streamer", str(folder), str(count)]
    async with (
        gathering(folder, count) as bare,
        served(folder / "streamer", count, *streamer) as streaming,
        served(folder / "proxy", count, *serve, str(healthy)) as proxy,
        served(folder / "holed", count - len(black_holed), *serve, str(holed)) as with_holes,
    ):
        ours = dict(zip(NAMES, (bare, streaming, proxy, with_holes), strict=True))
        for name, (collect, _) in ours.items():
            times.cold[name].append(await collect())
        for _ in range(rounds):
            for name, (collect, pid) in ours.items():
                cpu = cpu_seconds(pid)
                times.warm[name].append(await collect())
                times.cpu[name].append(cpu_seconds(pid) - cpu)
        seen = psutil.Process(proxy[1])
        times.rss_mib.append(seen.memory_info().rss / 2**20)
        times.descriptors_per_guest.append(seen.num_fds() / count)


async def measure(folder: Path, count: int, repeats: int, rounds: int) -> Times:
    share = count // GUEST_PROCESSES
    processes = [
        await start("-m", "benchmarks.forward_fleet", "guests", str(folder), str(n * share), str((n + 1) * share))
        for n in range(GUEST_PROCESSES)
    ]
    black_holed = set(range(0, count, BLACK_HOLED_ONE_IN))
    holes = [
        await asyncio.start_unix_server(lambda _reader, _writer: asyncio.sleep(3600), folder / f"hole{number}")
        for number in black_holed
    ]
    times = Times()
    try:
        for _ in range(repeats):
            await repeat(folder, count, rounds, black_holed, times)
    finally:
        for process in processes:
            process.kill()
            await process.wait()
        for hole in holes:
            hole.close()
    return times


def show(times: Times, count: int) -> int:
    """The figures against the bare gather in the same round; the exit status."""
    to = Report(
        "fleet", f"One collection of GpuInfo over {count} guests with 8 cards, against a bare gather over as many channels."
    )
    bare, streamer, proxy, holed = NAMES
    for name in NAMES:
        to.add(f"{name}: cold", times.cold[name], "s")
        to.add(f"{name}: warm", times.warm[name], "s")
        to.add(f"{name}: CPU, warm", times.cpu[name], "s")
    to.add("proxy / bare gather: cold", ratios(times.cold[proxy], times.cold[bare]), "x", COLD_LIMIT)
    to.add("proxy / bare gather: warm", ratios(times.warm[proxy], times.warm[bare]), "x", WARM_LIMIT)
    to.add("proxy / bare gather: CPU", ratios(times.cpu[proxy], times.cpu[bare]), "x")
    to.add("proxy / bare streamer: warm", ratios(times.warm[proxy], times.warm[streamer]), "x")
    to.add("with 1 % black holes / without", ratios(times.warm[holed], times.warm[proxy]), "x", BLACK_HOLED_LIMIT)
    to.add("memory of the proxy", times.rss_mib, "MiB", RSS_LIMIT_MIB)
    to.add("descriptors per guest", times.descriptors_per_guest, "")
    return to.end()


def ratios(ours: list[float], theirs: list[float]) -> list[float]:
    return [one / other for one, other in zip(ours, theirs, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=["guests", "gather", "streamer"], help=argparse.SUPPRESS)
    parser.add_argument("folder", nargs="?", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("numbers", nargs="*", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="fewer guests and rounds")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    if arguments.part:
        asyncio.run(getattr(fleet_collectors, arguments.part)(arguments.folder, *arguments.numbers))
        return
    with tempfile.TemporaryDirectory(prefix="gs") as folder:
        count, repeats, rounds = (200, 1, 5) if arguments.quick else (1000, 5, 4)
        status = show(asyncio.run(measure(Path(folder), count, repeats, rounds)), count)
    raise SystemExit(status)


if __name__ == "__main__":
    main()
