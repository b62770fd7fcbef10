"""What one collection over a thousand guests costs through the proxy, against a bare gather over as many channels.

The guests are sockets of a few processes. Cold means that nobody has called a guest yet (a channel is made and connected for
each), warm that all connections stand. The bare gather runs in a process of its own, decodes each answer and throws it away;
the proxy checks, encodes and streams each to a client in another process, who decodes it. Rounds alternate and medians are
compared.

    python -m benchmarks.forward_fleet             # 1000 guests
    python -m benchmarks.forward_fleet --quick     # 200 guests, fewer rounds
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

import grpc
import psutil
from google.protobuf import empty_pb2

from benchmarks.forward import eight_cards, start
from guest_api import guest_api_pb2_grpc
from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options

GUEST_PROCESSES = 4
# The targets of the issue.
WARM_LIMIT = 1.4
COLD_LIMIT = 1.4
RSS_LIMIT_MIB = 140
BLACK_HOLED_LIMIT = 1.2
# One guest in so many takes connections and never answers.
BLACK_HOLED_ONE_IN = 100


def socket_path(folder: Path, number: int) -> Path:
    return folder / f"g{number}"


async def guests(folder: Path, first: int, last: int) -> None:
    """Guests number `first` to `last` - 1."""
    wire = eight_cards().SerializeToString()

    async def answer(_request: bytes, _context: object) -> bytes:
        return wire

    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer, None, None)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("guest_api.GuestApi", {"GpuInfo": handler}),))
    for number in range(first, last):
        server.add_insecure_port(f"unix:{socket_path(folder, number)}")
    await server.start()
    print("listening on", first, file=sys.stderr, flush=True)
    await server.wait_for_termination()


async def gather(folder: Path, count: int, rounds: int) -> None:
    """The bare gather: prints its times in seconds, the cold one first."""
    stubs = []
    started = time.perf_counter()
    for number in range(count):
        address = UnixAddress(str(socket_path(folder, number)))
        channel = grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address))
        stubs.append(guest_api_pb2_grpc.GuestApiStub(channel))
    times = []
    for _ in range(rounds):
        await asyncio.gather(*(stub.GpuInfo(empty_pb2.Empty(), timeout=15) for stub in stubs))
        times.append(time.perf_counter() - started)
        started = time.perf_counter()
    print("listening on", json.dumps(times), file=sys.stderr, flush=True)


async def bare(folder: Path, count: int, rounds: int) -> list[float]:
    arguments = ["-m", "benchmarks.forward_fleet", "gather", str(folder), "0", str(count), str(rounds)]
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stderr=asyncio.subprocess.PIPE)
    _, err = await process.communicate()
    times = json.loads(err.decode().split("listening on ")[1])
    return [float(value) for value in times]


async def collect(stub: fleet_pb2_grpc.FleetServiceAsyncStub, healthy: int) -> float:
    """Seconds until the last healthy guest's answer was there."""
    started = time.perf_counter()
    last = 0.0
    got = 0
    call = stub.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=15)
    async for answer in call:
        if answer.guest.WhichOneof("outcome") == "gpu_info":
            got += 1
            last = time.perf_counter() - started
        if got == healthy:
            break
    call.cancel()
    return last


async def proxied(folder: Path, config: Path, rounds: int, healthy: int) -> tuple[list[float], float, int]:
    """Times, RSS in MiB and descriptors of a fresh proxy."""
    process = await start("-m", "vmm_proxy", "serve", "--config", str(config))
    try:
        address = UnixAddress(str(folder / "proxy"))
        async with grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel:
            stub = fleet_pb2_grpc.FleetServiceStub(channel)
            await stub.ListGuests(fleet_pb2.ListGuestsRequest(selector=fleet_pb2.GuestSelector(ids=["nobody"])), timeout=5)
            times = [await collect(stub, healthy) for _ in range(rounds)]
            seen = psutil.Process(process.pid)
            return times, seen.memory_info().rss / 2**20, seen.num_fds()
    finally:
        process.terminate()
        await process.communicate()


def write_config(folder: Path, name: str, count: int, black_holed: set[int]) -> Path:
    lines = [f'[grpc]\nlisten = ["unix:{folder}/proxy"]\n']
    for number in range(count):
        path = folder / f"hole{number}" if number in black_holed else socket_path(folder, number)
        lines.append(f'[[guest]]\nid = "vm{number:04}"\naddress = "unix:{path}"\n')
    config = folder / name
    config.write_text("".join(lines))
    return config


async def measure(folder: Path, count: int, repeats: int, rounds: int) -> dict[str, object]:
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
    healthy_config = write_config(folder, "healthy.toml", count, set())
    holed_config = write_config(folder, "holed.toml", count, black_holed)
    cold: dict[str, list[float]] = {"bare": [], "proxy": [], "proxy with black holes": []}
    warm: dict[str, list[float]] = {"bare": [], "proxy": [], "proxy with black holes": []}
    try:
        for _ in range(repeats):
            first, *others = await bare(folder, count, rounds)
            cold["bare"].append(first)
            warm["bare"] += others
            (first, *others), rss, descriptors = await proxied(folder, healthy_config, rounds, count)
            cold["proxy"].append(first)
            warm["proxy"] += others
            (first, *others), _, _ = await proxied(folder, holed_config, rounds, count - len(black_holed))
            cold["proxy with black holes"].append(first)
            warm["proxy with black holes"] += others
    finally:
        for process in processes:
            process.kill()
            await process.wait()
        for hole in holes:
            hole.close()
    middle = {
        kind: {name: statistics.median(values) for name, values in of.items()} for kind, of in (("cold", cold), ("warm", warm))
    }
    return {
        "guests": count,
        "seconds": {kind: {name: round(value, 3) for name, value in of.items()} for kind, of in middle.items()},
        "cold_ratio": round(middle["cold"]["proxy"] / middle["cold"]["bare"], 3),
        "warm_ratio": round(middle["warm"]["proxy"] / middle["warm"]["bare"], 3),
        "black_holed_ratio": round(middle["warm"]["proxy with black holes"] / middle["warm"]["proxy"], 3),
        "rss_mib": round(rss),
        "descriptors_per_guest": round(descriptors / count, 2),
        "limits": {"cold": COLD_LIMIT, "warm": WARM_LIMIT, "black_holed": BLACK_HOLED_LIMIT, "rss_mib": RSS_LIMIT_MIB},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=["guests", "gather"], help=argparse.SUPPRESS)
    parser.add_argument("folder", nargs="?", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("numbers", nargs="*", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="fewer guests and rounds")
    arguments = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    if arguments.part == "guests":
        asyncio.run(guests(arguments.folder, *arguments.numbers))
    elif arguments.part == "gather":
        asyncio.run(gather(arguments.folder, *arguments.numbers[1:]))
    else:
        with tempfile.TemporaryDirectory(prefix="gs") as folder:
            count, repeats, rounds = (200, 1, 4) if arguments.quick else (1000, 3, 6)
            print(json.dumps(asyncio.run(measure(Path(folder), count, repeats, rounds)), indent=1))


if __name__ == "__main__":
    main()
