"""client <- proxy <- guest: what the guest sent is what the client holds. Both servers are real, the proxy is a process of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message
from grpclib.client import Channel, UnaryUnaryMethod
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_client.async_client import AsyncProxyClient
from guest_client.errors import GuestNotFoundError
from guest_client.sync_client import GuestClient, ProxyClient
from tests.round_trip.conftest import METHODS, VM_ID, ScriptedGuest
from tests.round_trip.messages import any_message, filled, offered, seen

GpuDevice = guest_api_pb2.GpuDevice
GpuInfo = guest_api_pb2.GpuInfoResponse
# Enough threads of the guest's server for the client's calls and the proxy's own looks at the guest.
grpc_max_workers = 8

ASKS: dict[str, Callable[[ProxyClient], Message]] = {
    "Info": lambda proxy: proxy.info(VM_ID),
    "SysInfo": lambda proxy: proxy.sys_info(VM_ID),
    "GpuInfo": lambda proxy: proxy.gpu_info(VM_ID),
    "NetworkInfo": lambda proxy: proxy.network_info(VM_ID),
    "ListContainers": lambda proxy: proxy.list_containers(VM_ID),
    "Shutdown": lambda proxy: proxy.shutdown(VM_ID),
}
OPTIONAL = [
    (kind, field.name)
    for kind in (GpuDevice, GpuInfo)
    for field in kind.DESCRIPTOR.fields
    if field.has_presence and field.message_type is None
]


def test_every_method_is_asked_here() -> None:
    assert set(ASKS) == set(METHODS)


@pytest.mark.parametrize("method", METHODS)
def test_every_field_of_every_message_survives(grpc_servicer: ScriptedGuest, proxy: str, method: str) -> None:
    kind: Any = Empty if method == "Shutdown" else getattr(guest_api_pb2, METHODS[method].rpartition(".")[2])
    sent = filled(kind)
    assert seen(sent) == offered(kind), "the sent message leaves no field at its default"
    grpc_servicer.replies[method] = sent.SerializeToString(deterministic=True)
    grpc_servicer.calls.clear()
    with ProxyClient(proxy) as client:
        got = ASKS[method](client)
    assert got == sent
    assert got.SerializeToString(deterministic=True) == grpc_servicer.replies[method]
    assert method in grpc_servicer.calls, "the guest itself was asked"


# The largest value of each type; unset, zero and this one must be told apart.
_LARGEST: dict[int, Any] = {
    FieldDescriptor.TYPE_BOOL: True,
    FieldDescriptor.TYPE_UINT32: 2**32 - 1,
    FieldDescriptor.TYPE_SINT32: 2**31 - 1,
    FieldDescriptor.TYPE_UINT64: 2**64 - 1,
    FieldDescriptor.TYPE_STRING: "\U0010ffff" * 100,
}


def test_the_optional_fields_of_both_messages_are_tried() -> None:
    assert {name for _, name in OPTIONAL} >= {
        "utilization_gpu",
        "power_usage_mw",
        "cc_ready",
        "sample_age_ms",
        "cc_devtools",
        "pci_devices",
    }


@pytest.mark.parametrize(("kind", "name"), OPTIONAL, ids=[f"{kind.DESCRIPTOR.name}.{name}" for kind, name in OPTIONAL])
def test_set_zero_and_unset_are_three_answers(grpc_servicer: ScriptedGuest, proxy: str, kind: Any, name: str) -> None:
    largest = _LARGEST[kind.DESCRIPTOR.fields_by_name[name].type]
    with ProxyClient(proxy) as client:
        for value in (None, type(largest)(), largest):
            part = kind() if value is None else kind(**{name: value})
            sent = GpuInfo(gpus=[part]) if kind is GpuDevice else part
            grpc_servicer.replies["GpuInfo"] = sent.SerializeToString()
            got = client.gpu_info(VM_ID)
            answer: Any = got.gpus[0] if kind is GpuDevice else got
            assert answer.HasField(name) == (value is not None)
            assert value is None or getattr(answer, name) == value
            assert got == sent


def test_no_gpu_is_zero_bytes_at_both_ends(grpc_servicer: ScriptedGuest, proxy: str) -> None:
    grpc_servicer.replies["GpuInfo"] = b""
    with ProxyClient(proxy) as client:
        assert client.gpu_info(VM_ID).ByteSize() == 0


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sent=any_message(GpuInfo))
def test_any_gpu_info_survives(
    grpc_servicer: ScriptedGuest, proxy_client: ProxyClient, sent: guest_api_pb2.GpuInfoResponse
) -> None:
    grpc_servicer.replies["GpuInfo"] = sent.SerializeToString(deterministic=True)
    got = proxy_client.gpu_info(VM_ID)
    assert got == sent
    assert got.SerializeToString(deterministic=True) == grpc_servicer.replies["GpuInfo"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    sent=st.one_of(
        any_message(guest_api_pb2.GuestInfo),
        any_message(guest_api_pb2.SystemInfo),
        any_message(guest_api_pb2.NetworkInformation),
        any_message(guest_api_pb2.ListContainersResponse),
    )
)
def test_any_other_answer_survives(grpc_servicer: ScriptedGuest, proxy_client: ProxyClient, sent: Message) -> None:
    method = next(method for method, reply in METHODS.items() if reply == sent.DESCRIPTOR.full_name)
    grpc_servicer.replies[method] = sent.SerializeToString(deterministic=True)
    assert ASKS[method](proxy_client).SerializeToString(deterministic=True) == grpc_servicer.replies[method]


def test_a_guest_asked_directly_says_the_same(
    grpc_servicer: ScriptedGuest, proxy: str, grpc_addr: str, grpc_channel: grpc.Channel
) -> None:
    sent = filled(GpuInfo)
    grpc_servicer.replies["GpuInfo"] = sent.SerializeToString()
    with GuestClient(grpc_addr) as guest, ProxyClient(proxy) as through:
        assert guest.gpu_info() == through.gpu_info(VM_ID) == sent
    assert guest_api_pb2_grpc.GuestApiStub(grpc_channel).GpuInfo(Empty()) == sent


async def test_the_asynchronous_client_sees_the_same(grpc_servicer: ScriptedGuest, proxy: str) -> None:
    grpc_servicer.replies["GpuInfo"] = filled(GpuInfo).SerializeToString()
    async with AsyncProxyClient(proxy) as client:
        answers = await asyncio.gather(*(client.gpu_info(VM_ID) for _ in range(3)))
        assert answers == [filled(GpuInfo)] * 3
        with pytest.raises(GuestNotFoundError):
            await client.gpu_info("another")


async def test_the_fleet_passes_on_the_same_answer(grpc_servicer: ScriptedGuest, proxy: str) -> None:
    grpc_servicer.replies["GpuInfo"] = filled(GpuInfo).SerializeToString()
    async with AsyncProxyClient(proxy) as client:
        collected = [outcome async for outcome in client.collect_gpu_info()]
        assert [(outcome.guest_id, outcome.gpu_info) for outcome in collected] == [(VM_ID, filled(GpuInfo))]
        watch = client.watch_gpu_info(interval_seconds=1)
        assert [(await anext(watch)).gpu_info for _ in range(2)] == [filled(GpuInfo)] * 2
        await watch.aclose()
        assert [guest.id async for guest in client.list_guests(page_size=1)] == [VM_ID]
        assert [outcome async for outcome in client.collect_gpu_info(ids=[VM_ID], labels={"rack": "none"})] == []


@pytest.mark.parametrize("method", METHODS)
async def test_a_client_that_shares_no_code_with_grpcio_sees_the_same(
    grpc_servicer: ScriptedGuest, proxy: str, method: str
) -> None:
    kind: Any = Empty if method == "Shutdown" else getattr(guest_api_pb2, METHODS[method].rpartition(".")[2])
    grpc_servicer.replies[method] = filled(kind).SerializeToString()
    async with Channel(path=proxy.removeprefix("unix:")) as channel:
        call = UnaryUnaryMethod[guest_api_pb2.Id, Any](channel, f"/guest_api.ProxiedGuestApi/{method}", guest_api_pb2.Id, kind)
        assert await call(guest_api_pb2.Id(id=VM_ID), timeout=10) == filled(kind)


@pytest.fixture(scope="module")
def proxy_client(proxy: str) -> Any:
    with ProxyClient(proxy) as client:
        yield client
