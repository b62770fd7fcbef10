"""How much a guest's reply may hold: on the wire, before it is decoded, and after."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import grpc
import psutil
import pytest
from google.protobuf.message import DecodeError, Message
from hypothesis import given
from hypothesis import strategies as st

from guest_api import guest_api_pb2
from guest_contract.methods import proxied_methods
from tests.proxy.raw_guest import raw_guest
from tests.proxy.running import Proxy
from vmm_proxy.upstream import reply_limits
from vmm_proxy.upstream.reply_limits import OverLimitError, check_decoded, check_wire

GpuInfo = guest_api_pb2.GpuInfoResponse
Network = guest_api_pb2.NetworkInformation

# Each as a guest would send it: what it is, which method, the bytes.
TOO_MUCH = {
    "a million empty devices": ("GpuInfo", b"\x0a\x00" * 500_000),
    "1025 devices": ("GpuInfo", b"\x0a\x00" * 1025),
    "devices behind a group": ("GpuInfo", b"\x9b\x3f\x9c\x3f" + b"\x0a\x00" * 2000),
    "devices behind unknown fields": ("GpuInfo", b"\xf8\x3e\x01" * 3000 + b"\x0a\x00" * 2000),
    "half a million unknown fields": ("GpuInfo", b"\xf8\x3e\x01" * 300_000),
    "errors of one device": ("GpuInfo", GpuInfo(gpus=[guest_api_pb2.GpuDevice(errors=["x"] * 4097)]).SerializeToString()),
    "a long string": ("GpuInfo", GpuInfo(error="x" * (64 * 1024 + 1)).SerializeToString()),
    "a long string of wide characters": ("GpuInfo", GpuInfo(error="ä" * (32 * 1024 + 1)).SerializeToString()),
    "a long string in a device": ("GpuInfo", GpuInfo(gpus=[guest_api_pb2.GpuDevice(uuid="x" * 70_000)]).SerializeToString()),
    "long bytes": ("Info", guest_api_pb2.GuestInfo(app_id=bytes(70_000)).SerializeToString()),
    "disks": ("SysInfo", b"\x8a\x01\x00" * 4097),
    "containers": ("ListContainers", b"\x0a\x00" * 4097),
    "names of a container": (
        "ListContainers",
        guest_api_pb2.ListContainersResponse(containers=[guest_api_pb2.Container(names=["n"] * 4097)]).SerializeToString(),
    ),
    "addresses of one interface": (
        "NetworkInfo",
        Network(interfaces=[guest_api_pb2.Interface(addresses=[guest_api_pb2.IpAddress()] * 4097)]).SerializeToString(),
    ),
    "lists in lists": (
        "NetworkInfo",
        Network(interfaces=[guest_api_pb2.Interface(addresses=[guest_api_pb2.IpAddress()] * 100)] * 4000).SerializeToString(),
    ),
    "name servers": ("NetworkInfo", Network(dns_servers=["1"] * 4097).SerializeToString()),
}

JUST_ENOUGH = {
    "1024 devices": ("GpuInfo", GpuInfo(gpus=[guest_api_pb2.GpuDevice(index=n, uuid=f"GPU-{n}") for n in range(1024)])),
    "4096 containers": (
        "ListContainers",
        guest_api_pb2.ListContainersResponse(containers=[guest_api_pb2.Container(id="c")] * 4096),
    ),
    "4096 disks": ("SysInfo", guest_api_pb2.SystemInfo(disks=[guest_api_pb2.DiskInfo(name="d")] * 4096)),
    "64 KiB of text": ("Info", guest_api_pb2.GuestInfo(app_cert="x" * 64 * 1024, tcb_info="ä" * 32 * 1024)),
    "4096 interfaces with two addresses": (
        "NetworkInfo",
        Network(interfaces=[guest_api_pb2.Interface(addresses=[guest_api_pb2.IpAddress(prefix=1)] * 2)] * 4096),
    ),
}


@pytest.mark.parametrize("kind", TOO_MUCH)
async def test_a_reply_that_holds_too_much_is_refused_and_costs_no_memory(proxy: Proxy, sockets: Path, kind: str) -> None:
    method, wire = TOO_MUCH[kind]
    before = psutil.Process().memory_info().rss
    async with raw_guest(str(sockets / "g"), lambda stream: stream.answer(wire)) as guest:
        proxy.add("vm1", guest.address)
        error = await proxy.failure("vm1", method)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert (error.details() or "").startswith("guest vm1: its reply is over the ")
    assert psutil.Process().memory_info().rss - before < 25e6


@pytest.mark.parametrize("kind", JUST_ENOUGH)
async def test_a_reply_at_its_limit_arrives_whole(proxy: Proxy, sockets: Path, kind: str) -> None:
    method, reply = JUST_ENOUGH[kind]
    async with raw_guest(str(sockets / "g"), lambda stream: stream.answer(reply.SerializeToString())) as guest:
        proxy.add("vm1", guest.address)
        assert await getattr(proxy.api, method)(guest_api_pb2.Id(id="vm1"), timeout=10) == reply


def test_counting_a_hostile_reply_builds_nothing() -> None:
    wire = b"\x0a\x00" * 500_000
    tracemalloc.start()
    with pytest.raises(OverLimitError, match="more than 1024 entries in gpus"):
        check_wire(wire, GpuInfo)
    assert tracemalloc.get_traced_memory()[1] < 50_000
    tracemalloc.stop()


@given(
    st.binary(min_size=reply_limits.HARMLESS_BYTES + 1, max_size=3 * reply_limits.HARMLESS_BYTES),
    st.sampled_from(proxied_methods()),
)
def test_any_bytes_are_counted_to_their_end_without_a_fault(wire: bytes, method: object) -> None:
    for reply in (GpuInfo, Network):
        try:
            check_wire(wire, reply)
        except (OverLimitError, DecodeError):
            continue


def test_no_reply_type_holds_itself() -> None:
    # Any: protobuf's stubs have two types of descriptors that do not fit each other.
    def walk(descriptor: Any, above: tuple[str, ...]) -> None:
        assert descriptor.full_name not in above
        for field in descriptor.fields:
            if field.message_type is not None:
                walk(field.message_type, (*above, descriptor.full_name))

    for method in proxied_methods():
        walk(method.reply.DESCRIPTOR, ())


def test_a_reply_too_small_to_break_a_limit_is_not_looked_at() -> None:
    message: Message = GpuInfo(gpus=[guest_api_pb2.GpuDevice()] * 8)
    check_decoded(message, message.ByteSize())
    assert 2 * min(reply_limits.GPUS_LIMIT, reply_limits.ENTRIES_LIMIT) >= reply_limits.HARMLESS_BYTES
    assert reply_limits.HARMLESS_BYTES < reply_limits.STRING_LIMIT_BYTES
