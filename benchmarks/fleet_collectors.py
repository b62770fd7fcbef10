"""The processes that benchmarks.forward_fleet compares with the proxy, and the guests that all of them ask.

`gather` is the bare gather over one channel per guest: it decodes each answer and drops it. `streamer` does the least that a server
must which gives each answer on: the same gather, each answer put into a fleet message and streamed to a client. What the two differ
in is the price of a thousand stream messages in grpc.aio, which no proxy can avoid.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
from google.protobuf import empty_pb2

from benchmarks.forwarders import guests as serve_guests
from guest_api import guest_api_pb2_grpc
from guest_fleet.v1 import fleet_pb2
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options

COLLECT = "/guest_fleet.v1.FleetService/CollectGpuInfo"


def socket_path(folder: Path, number: int) -> Path:
    return folder / f"g{number}"


async def guests(folder: Path, first: int, last: int) -> None:
    """Guests number `first` to `last` - 1."""
    await serve_guests([socket_path(folder, number) for number in range(first, last)])


def stubs(folder: Path, count: int) -> list[guest_api_pb2_grpc.GuestApiAsyncStub]:
    made = []
    for number in range(count):
        address = UnixAddress(str(socket_path(folder, number)))
        channel = grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address))
        made.append(guest_api_pb2_grpc.GuestApiStub(channel))
    return made


async def gather(folder: Path, count: int) -> None:
    """Gathers once for each line of stdin and says how many seconds it took; the first time also makes the channels."""
    loop = asyncio.get_running_loop()
    print("listening on stdin", file=sys.stderr, flush=True)
    guests_of: list[guest_api_pb2_grpc.GuestApiAsyncStub] = []
    while await loop.run_in_executor(None, sys.stdin.readline):
        started = time.perf_counter()
        guests_of = guests_of or stubs(folder, count)
        await asyncio.gather(*(stub.GpuInfo(empty_pb2.Empty(), timeout=15) for stub in guests_of))
        print(time.perf_counter() - started, flush=True)


async def streamer(folder: Path, count: int) -> None:
    """Serves CollectGpuInfo, and does nothing else of what the proxy does."""
    guests_of: list[guest_api_pb2_grpc.GuestApiAsyncStub] = []

    async def ask(number: int) -> fleet_pb2.CollectGpuInfoResponse:
        answer = await guests_of[number].GpuInfo(empty_pb2.Empty(), timeout=15)
        return fleet_pb2.CollectGpuInfoResponse(guests=[fleet_pb2.GuestGpuInfo(guest_id=f"vm{number:04}", gpu_info=answer)])

    async def collect(_request: bytes, _context: object) -> AsyncIterator[bytes]:
        if not guests_of:
            guests_of.extend(stubs(folder, count))
        for done in asyncio.as_completed([ask(number) for number in range(count)]):
            yield (await done).SerializeToString()

    server = grpc.aio.server()
    handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(collect, None, None)
    service, method = COLLECT[1:].split("/")
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
    server.add_insecure_port(f"unix:{folder}/streamer")
    await server.start()
    print("listening on", folder / "streamer", file=sys.stderr, flush=True)
    await server.wait_for_termination()
