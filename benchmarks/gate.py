"""What GPU telemetry costs a guest without a GPU: processes, system calls in the gate, and CPU per GpuInfo call.

    python -m benchmarks.gate [--calls N] [--rounds N]

The CPU is that of the server process alone, a grpc.aio server on a Unix socket with two handlers: one is the agent's own,
the other returns a constant. A B A B in one run, the median of the rounds' ratios. Targets: no child process over 1000 calls, no
system call between entering the gate and leaving it, at most 1.05 times the constant. Exit status 1 when one is missed. Rejected: timing
the client (its noise is larger than the difference).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import grpc
from google.protobuf import empty_pb2

from benchmarks.figures import ROUNDS_LEAST, Report
from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_service.api import GuestApi
from guest_service.telemetry import GpuTelemetry, build_telemetry
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options, server_options
from tests.sampler.children import children_of
from tests.telemetry.gate_trace import CALLS, QUESTIONS_PER_CALL, system_calls_in_gate

RATIO_LIMIT = 1.05
CHILDLESS_CALLS = 1000


Context = grpc.aio.ServicerContext[empty_pb2.Empty, guest_api_pb2.GpuInfoResponse]
GpuInfo = Callable[[empty_pb2.Empty, Context], Awaitable[guest_api_pb2.GpuInfoResponse]]


async def constant(_: empty_pb2.Empty, __: Context) -> guest_api_pb2.GpuInfoResponse:
    """What nothing can be cheaper than."""
    return guest_api_pb2.GpuInfoResponse()


def gated(telemetry: GpuTelemetry) -> GpuInfo:
    """The agent's own servicer; of its parts only telemetry is asked here."""
    unasked = cast("Any", None)  # Any: stands for parts of five types
    api = GuestApi(
        telemetry=telemetry,
        system=unasked,
        network=unasked,
        containers=unasked,
        info=unasked,
        power=unasked,
        peers=unasked,
        part_log=unasked,
    )
    return api.GpuInfo


async def used(_: empty_pb2.Empty, __: object) -> guest_api_pb2.GuestInfo:
    """The CPU time that this process has used."""
    return guest_api_pb2.GuestInfo(version=f"{time.process_time_ns()}")


def handlers(gpu_info: GpuInfo) -> grpc.GenericRpcHandler:
    """GuestApi, as far as it is called here."""
    methods = {
        name: grpc.unary_unary_rpc_method_handler(
            method,
            request_deserializer=empty_pb2.Empty.FromString,
            response_serializer=reply.SerializeToString,
        )
        for name, method, reply in (
            ("GpuInfo", gpu_info, guest_api_pb2.GpuInfoResponse),
            ("Info", used, guest_api_pb2.GuestInfo),
        )
    }
    return grpc.method_handlers_generic_handler("guest_api.GuestApi", methods)


NAMES = ("constant", "gated")
IN_FLIGHT = 8


async def serve(folder: Path) -> None:
    """Both servicers in one process, each on its own socket, until stdin ends."""
    telemetry = build_telemetry(collector=["/nowhere"], sysfs=folder / "sys")
    await telemetry.start()
    servers = []
    for name, method in zip(NAMES, (constant, gated(telemetry)), strict=True):
        server = grpc.aio.server(options=server_options())
        server.add_generic_rpc_handlers((handlers(method),))
        server.add_insecure_port(f"unix:{folder / name}")
        await server.start()
        servers.append(server)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for server in servers:
        await server.stop(None)
    await telemetry.close()


async def cpu_per_call(stub: guest_api_pb2_grpc.GuestApiAsyncStub, calls: int) -> float:
    """Microseconds of the server's CPU per call."""
    nothing = empty_pb2.Empty()

    async def caller() -> None:
        for _ in range(calls // IN_FLIGHT):
            await stub.GpuInfo(nothing, timeout=30)

    before = int((await stub.Info(nothing)).version)
    await asyncio.gather(*(caller() for _ in range(IN_FLIGHT)))
    return (int((await stub.Info(nothing)).version) - before) / 1000 / calls


async def compare(folder: Path, calls: int, rounds: int) -> list[tuple[float, float]]:
    """The CPU per call of both, in turns."""
    async with contextlib.AsyncExitStack() as opened:
        stubs = []
        for name in NAMES:
            address = UnixAddress(str(folder / name))
            channel = grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address))
            stubs.append(guest_api_pb2_grpc.GuestApiStub(await opened.enter_async_context(channel)))
        for stub in stubs:
            await cpu_per_call(stub, calls // 2)
        return [(await cpu_per_call(stubs[0], calls), await cpu_per_call(stubs[1], calls)) for _ in range(rounds)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calls", type=int, default=2000, help="per round and servicer")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.serve is not None:
        asyncio.run(serve(chosen.serve))
        return 0
    with tempfile.TemporaryDirectory(prefix="gate-") as name:
        return measure(Path(name), chosen.calls, chosen.rounds)


def measure(folder: Path, calls: int, rounds: int) -> int:
    """Print all three figures; 1 when one misses its target."""
    (folder / "sys/bus/pci/devices").mkdir(parents=True)
    command = [sys.executable, "-m", "benchmarks.gate", "--serve", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()
        found = asyncio.run(compare(folder, max(calls, CHILDLESS_CALLS), rounds))
        children = len(children_of(server.pid))
        server.communicate()
    to = Report(
        "gate",
        f"GpuInfo of a guest without a GPU: CPU of the server for a call, in rounds of {calls} calls.",
    )
    to.add("gated / a constant", [asked / least for least, asked in found], "x", RATIO_LIMIT)
    for name, column in zip(NAMES, zip(*found, strict=True), strict=True):
        to.add(name, column, "us")
    # Counts, the same in each round.
    to.add(f"processes over {max(calls, CHILDLESS_CALLS) * rounds} calls", [float(children)] * ROUNDS_LEAST, "", 0)
    if shutil.which("strace") is None:
        print("system calls were not counted: strace is missing")
    else:
        inside = len(system_calls_in_gate(folder / "sys", folder))
        to.add(f"system calls in {CALLS * QUESTIONS_PER_CALL} answers", [float(inside)] * ROUNDS_LEAST, "", 0)
    return to.end()


if __name__ == "__main__":
    sys.exit(main())
