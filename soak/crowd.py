"""Many guests that answer with many cards, in one process: they make the fleet's page as large as that of a fleet.

    python -m soak.crowd FOLDER NUMBER

FOLDER/green0.sock and so on. Rejected: as many agents, which would take all of the machine.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import grpc

from guest_api import guest_api_pb2
from soak.hostile import ready_until_stopped, start_guest

# A hundred guests with 26 cards: the page has some 2.6 MB (20 cards: 2.03 MB, measured).
CARDS = 26


def answer() -> bytes:
    """What each answers to GpuInfo."""
    cards = [
        guest_api_pb2.GpuDevice(
            index=number, uuid=f"GPU-{number:08d}-0000-0000-0000-000000000000", name="NVIDIA H200", utilization_gpu=number,
            utilization_memory=number, memory_total_bytes=150754820096, memory_used_bytes=1048576 * number, temperature_c=31,
            power_usage_mw=79700,
        )
        for number in range(CARDS)
    ]  # fmt: skip
    return guest_api_pb2.GpuInfoResponse(gpus=cards).SerializeToString()


async def serve(folder: Path, number: int) -> None:
    """Serve until SIGTERM."""
    reply = answer()

    async def gpu_info(_request: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        return reply

    servers = [await start_guest(folder / f"green{each}.sock", gpu_info) for each in range(number)]
    await ready_until_stopped()
    await asyncio.gather(*(server.stop(None) for server in servers))


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
