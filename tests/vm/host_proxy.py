"""The proxy on the host of a virtual machine, and the questions that tests ask it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import TypeAlias

import grpc

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options
from tests.proxy import processes
from tests.vm.machine import END_LIMIT_SECONDS

# Stands in the stubs only.
Api: TypeAlias = "guest_api_pb2_grpc.ProxiedGuestApiAsyncStub"


@contextlib.asynccontextmanager
async def proxy_to(guest: str, folder: Path, *arguments: str) -> AsyncIterator[Api]:
    """A proxy on this host that knows one guest, `vm`."""
    address = UnixAddress(str(folder / "proxy"))
    async with (
        processes.serving("--grpc", str(address), "--guest", f"vm={guest}", *arguments),
        grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel,
    ):
        yield guest_api_pb2_grpc.ProxiedGuestApiStub(channel)


async def gpu_info(api: Api, story: Callable[[], str], *, error: str = "") -> guest_api_pb2.GpuInfoResponse:
    """The first answer with this `error`; until then the guest may be booting or taking its first sample."""
    last: object = None
    try:
        async with asyncio.timeout(END_LIMIT_SECONDS):
            while True:
                try:
                    last = answer = await api.GpuInfo(guest_api_pb2.Id(id="vm"), timeout=30)
                    if answer.error == error:
                        return answer
                except grpc.aio.AioRpcError as failure:
                    last = failure.details()
                # Nobody outside can be told of a guest's first answer.
                await asyncio.sleep(0.3)
    except TimeoutError:
        raise AssertionError(f"last answer: {last}\n{story()}") from None


async def scraped(pages: Path, guest: str) -> None:
    """Scrape until the cards of a guest are on the proxy's page: it is asked behind the first scrape."""
    async with asyncio.timeout(END_LIMIT_SECONDS):
        while f'dstack_gpu_sample_age_seconds{{vm_id="{guest}"' not in await _page(pages):
            # Each look is a scrape, and an emulated guest has little time for them.
            await asyncio.sleep(0.3)


async def figure(pages: Path, name: str, guest: str) -> float:
    """The value of a series of one guest on the proxy's page."""
    page = await _page(pages)
    lines = [line for line in page.splitlines() if line.startswith(f"{name}{{") and f'vm_id="{guest}"' in line]
    assert len(lines) == 1, f"{name}: {lines}\n{page[:4000]}"
    return float(lines[0].rpartition(" ")[2])


async def _page(pages: Path) -> str:
    reader, writer = await asyncio.open_unix_connection(pages)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    page = (await reader.read()).decode()
    writer.close()
    return page
