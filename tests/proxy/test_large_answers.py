"""A guest whose answer is as large as an answer may be fails alone, whoever reads, and the others are shown.

Readers are ours (both clients and guestctl), and a plain gRPC one that takes no more than the 1 MiB which our clients once took.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from guest_api import guest_api_pb2
from guest_client import AsyncProxyClient, ProxyClient
from guest_fleet.v1 import fleet_pb2
from guest_transport.options import REPLY_LIMIT_BYTES
from tests.proxy.fleet_entries import Entries
from tests.proxy.raw_guest import Behaviour, Stream, raw_guest
from tests.proxy.running import Proxy
from vmm_proxy.directory.labels import LABEL_VALUE_LIMIT_BYTES, LABELS_LIMIT
from vmm_proxy.upstream.reply_limits import STRING_LIMIT_BYTES

# Usual ones, the largest that a guest may send, and such as no two of fit into one message.
SIZES = {"vm0": 1000, "vm1": REPLY_LIMIT_BYTES - 16, "vm2": 600_000, "vm3": 600_000, "vm4": REPLY_LIMIT_BYTES - 2000, "vm5": 1000}
CODES = {guest_id: grpc.StatusCode.RESOURCE_EXHAUSTED.value[0] if guest_id == "vm1" else 0 for guest_id in SIZES}


def answering(size: int) -> Behaviour:
    """With a reply of `size` bytes whose strings keep to their limit."""
    reply = guest_api_pb2.GpuInfoResponse()
    while (left := size - reply.ByteSize()) > 20:
        reply.gpus.add(uuid="x" * min(STRING_LIMIT_BYTES, left - 12))
    wire = reply.SerializeToString()
    assert size - 20 <= len(wire) <= size

    async def answer(stream: Stream) -> None:
        await stream.answer(wire)

    return answer


@pytest.fixture
async def fleet(proxy: Proxy, sockets: Path) -> AsyncIterator[Proxy]:
    async with contextlib.AsyncExitStack() as guests:
        for guest_id, size in SIZES.items():
            guest = await guests.enter_async_context(raw_guest(str(sockets / guest_id), answering(size)))
            proxy.add(guest_id, guest.address)
        yield proxy


def codes(entries: list[fleet_pb2.GuestGpuInfo]) -> dict[str, int]:
    return {entry.guest_id: entry.status.code for entry in entries}


async def test_a_reader_that_takes_one_mebibyte_gets_everybody_and_the_too_large_one_fails_alone(fleet: Proxy) -> None:
    assert codes(await Entries(fleet.fleet.CollectGpuInfo(fleet_pb2.CollectGpuInfoRequest(), timeout=30)).all()) == CODES
    watch = Entries(fleet.fleet.WatchGpuInfo(fleet_pb2.WatchGpuInfoRequest(), timeout=30))
    assert codes([await watch.read() for _ in SIZES]) == CODES
    watch.cancel()


async def test_both_clients_get_everybody_and_the_largest_answer_by_asking_it_alone(fleet: Proxy, sockets: Path) -> None:
    address = f"unix:{sockets}/proxy"
    async with AsyncProxyClient(address) as client:
        assert codes([entry async for entry in client.collect_gpu_info(timeout_seconds=30)]) == CODES
        assert (await client.gpu_info("vm1")).ByteSize() > REPLY_LIMIT_BYTES - 40

    def blocking() -> list[fleet_pb2.GuestGpuInfo]:
        with ProxyClient(address) as client:
            return list(client.collect_gpu_info(timeout_seconds=30))

    assert codes(await asyncio.to_thread(blocking)) == CODES


@pytest.mark.parametrize("command", [["gpu", "--all"], ["watch", "--count", str(len(SIZES))]])
async def test_guestctl_shows_everybody_but_the_too_large_one(fleet: Proxy, sockets: Path, command: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "guest_client.guestctl", "--proxy", f"unix:{sockets}/proxy", *command, "-o", "json"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, complaint = await asyncio.wait_for(process.communicate(), 40)
    text = out.decode()
    assert [guest_id for guest_id in SIZES if f'"{guest_id}"' in text] == list(SIZES), complaint.decode()
    assert text.count("RESOURCE_EXHAUSTED") == 1 or json.dumps(CODES["vm1"]) in text


async def test_a_page_of_guests_with_all_the_labels_they_may_have_ends_where_a_message_does(proxy: Proxy, sockets: Path) -> None:
    labels = {f"{number:060}": "x" * LABEL_VALUE_LIMIT_BYTES for number in range(LABELS_LIMIT)}
    known = [f"vm{number:04}" for number in range(2 * REPLY_LIMIT_BYTES // (LABELS_LIMIT * 320))]
    for guest_id in known:
        proxy.add(guest_id, f"unix:{sockets}/{guest_id}", labels=labels, running=False)
    listed: list[str] = []
    request = fleet_pb2.ListGuestsRequest(page_size=1000)
    pages = 0
    while not pages or request.page_token:
        answer = await proxy.fleet.ListGuests(request, timeout=30)
        listed += [guest.id for guest in answer.guests]
        request.page_token = answer.next_page_token
        pages += 1
    assert (listed, pages) == (known, 3)
