"""What forwarding through the proxy costs, against a bare forwarder that only decodes, forwards and encodes again.

Both forwarders run as processes of their own beside one guest process; rounds alternate (A B A B) and medians are compared, so
that a busy machine slows both alike. The bare one has no limits, deadlines, sharing, status table or identity: it is what the
same library does at least.

    python -m benchmarks.forward             # about a minute
    python -m benchmarks.forward --quick     # a few seconds, for a look
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc
import psutil

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options

CONNECTIONS = 64
# The targets of the issue: added p50 at concurrency 1, CPU at 64 connections, calls per second of 64 callers of one guest.
ADDED_P50_LIMIT = 1.25
CPU_LIMIT = 1.35
SHARED_LEAST = 1.3


def eight_cards() -> guest_api_pb2.GpuInfoResponse:
    cards = [
        guest_api_pb2.GpuDevice(
            index=index,
            uuid=f"GPU-0c5a3c6e-0000-4000-8000-{index:012}",
            pci_bus_id=f"00000000:{index + 1:02X}:00.0",
            utilization_gpu=index * 12,
            utilization_memory=index * 7,
            memory_total_bytes=150754820096,
            memory_used_bytes=index * 10**9,
            memory_free_bytes=150754820096 - index * 10**9,
            temperature_c=30 + index,
            power_usage_mw=79700,
        )
        for index in range(8)
    ]
    return guest_api_pb2.GpuInfoResponse(gpus=cards, cc_ready=True, cc_enabled=True, sample_age_ms=1234)


async def guest(folder: Path) -> None:
    """One process that is CONNECTIONS guests."""
    wire = eight_cards().SerializeToString()

    async def answer(_request: bytes, _context: object) -> bytes:
        return wire

    await serve("guest_api.GuestApi", answer, [folder / f"guest{number}" for number in range(CONNECTIONS)])


async def bare(folder: Path) -> None:
    """The forwarder to compare with: id to channel, decode, forward, encode."""
    paths = [f"unix:{folder}/guest{number}" for number in range(CONNECTIONS)]
    channels = [grpc.aio.insecure_channel(path, options=[("grpc.default_authority", "localhost")]) for path in paths]
    stubs = {f"vm{number}": guest_api_pb2_grpc.GuestApiStub(channel) for number, channel in enumerate(channels)}
    from google.protobuf import empty_pb2

    async def answer(request: bytes, _context: object) -> bytes:
        reply = await stubs[guest_api_pb2.Id.FromString(request).id].GpuInfo(empty_pb2.Empty(), timeout=15)
        return reply.SerializeToString(deterministic=True)

    await serve("guest_api.ProxiedGuestApi", answer, [folder / "bare"])


async def serve(service: str, answer: Callable[[bytes, object], Awaitable[bytes]], paths: list[Path]) -> None:
    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(answer, None, None)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"GpuInfo": handler}),))
    for path in paths:
        server.add_insecure_port(f"unix:{path}")
    await server.start()
    print("listening on", paths[0], file=sys.stderr, flush=True)
    await server.wait_for_termination()


@dataclass(frozen=True)
class Forwarder:
    """One process to measure, and how to call it."""

    name: str
    path: Path
    process: asyncio.subprocess.Process

    def channel(self) -> grpc.aio.Channel:
        address = UnixAddress(str(self.path))
        return grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address))

    def cpu_seconds(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)


async def start(*arguments: str) -> asyncio.subprocess.Process:
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    while line := await process.stderr.readline():
        if b"listening on" in line:
            return process
    raise SystemExit(f"{arguments} did not start")


async def caller(channel: grpc.aio.Channel, guest_id: str, path: str, calls: int, took: list[float]) -> None:
    rpc: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    request = guest_api_pb2.Id(id=guest_id).SerializeToString()
    for _ in range(calls):
        started = time.perf_counter()
        await rpc(request, timeout=10)
        took.append(time.perf_counter() - started)


PROXIED = "/guest_api.ProxiedGuestApi/GpuInfo"


async def p50_alone(channel: grpc.aio.Channel, path: str, calls: int) -> float:
    took: list[float] = []
    await caller(channel, "vm0", path, calls, took)
    return statistics.median(took)


async def many(forwarder: Forwarder, calls: int, guest_id: Callable[[int], str]) -> tuple[float, float]:
    """CPU seconds per 1000 calls and calls per second, with CONNECTIONS connections of one call at a time."""
    channels = [forwarder.channel() for _ in range(CONNECTIONS)]
    took: list[float] = []
    await asyncio.gather(*(caller(channel, guest_id(n), PROXIED, 2, took) for n, channel in enumerate(channels)))
    cpu, started = forwarder.cpu_seconds(), time.perf_counter()
    await asyncio.gather(*(caller(channel, guest_id(n), PROXIED, calls, took) for n, channel in enumerate(channels)))
    wall = time.perf_counter() - started
    used = forwarder.cpu_seconds() - cpu
    for channel in channels:
        await channel.close()
    return used / (calls * CONNECTIONS) * 1000, calls * CONNECTIONS / wall


async def measure(folder: Path, rounds: int, alone: int, each: int) -> dict[str, object]:
    processes = [await start("-m", "benchmarks.forward", "guest", str(folder))]
    guests = [f"--guest=vm{number}=unix:{folder}/guest{number}" for number in range(CONNECTIONS)]
    processes.append(await start("-m", "benchmarks.forward", "bare", str(folder)))
    processes.append(await start("-m", "vmm_proxy", "serve", "--grpc", f"unix:{folder}/proxy", *guests))
    forwarders = [Forwarder("bare", folder / "bare", processes[1]), Forwarder("proxy", folder / "proxy", processes[2])]
    direct = UnixAddress(str(folder / "guest0"))
    p50: dict[str, list[float]] = {"direct": [], "bare": [], "proxy": []}
    cpu: dict[str, list[float]] = {"bare": [], "proxy": []}
    shared: dict[str, list[float]] = {"bare": [], "proxy": []}
    try:
        for _ in range(rounds):
            async with grpc.aio.insecure_channel(direct.grpc_target, options=channel_options(direct)) as channel:
                p50["direct"].append(await p50_alone(channel, "/guest_api.GuestApi/GpuInfo", alone))
            for forwarder in forwarders:
                async with forwarder.channel() as channel:
                    await p50_alone(channel, PROXIED, 50)
                    p50[forwarder.name].append(await p50_alone(channel, PROXIED, alone))
                cpu[forwarder.name].append((await many(forwarder, each, lambda number: f"vm{number}"))[0])
                shared[forwarder.name].append((await many(forwarder, each, lambda _: "vm0"))[1])
    finally:
        for process in processes:
            process.kill()
            await process.wait()
    middle = {name: statistics.median(values) for name, values in p50.items()}
    added = {name: middle[name] - middle["direct"] for name in ("bare", "proxy")}
    return {
        "p50_ms": {name: round(value * 1000, 3) for name, value in middle.items()},
        "added_p50_ratio": round(added["proxy"] / added["bare"], 3),
        "cpu_s_per_1000_calls": {name: round(statistics.median(values), 4) for name, values in cpu.items()},
        "cpu_ratio": round(statistics.median(cpu["proxy"]) / statistics.median(cpu["bare"]), 3),
        "shared_calls_per_s": {name: round(statistics.median(values)) for name, values in shared.items()},
        "shared_ratio": round(statistics.median(shared["proxy"]) / statistics.median(shared["bare"]), 3),
        "limits": {"added_p50_ratio": ADDED_P50_LIMIT, "cpu_ratio": CPU_LIMIT, "shared_ratio at least": SHARED_LEAST},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", nargs="?", choices=["guest", "bare"], help=argparse.SUPPRESS)
    parser.add_argument("folder", nargs="?", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds")
    arguments = parser.parse_args()
    if arguments.part:
        asyncio.run({"guest": guest, "bare": bare}[arguments.part](arguments.folder))
        return
    with tempfile.TemporaryDirectory(prefix="gs") as folder:
        rounds, alone, each = (2, 300, 10) if arguments.quick else (7, 1500, 40)
        print(json.dumps(asyncio.run(measure(Path(folder), rounds, alone, each)), indent=1))


if __name__ == "__main__":
    main()
