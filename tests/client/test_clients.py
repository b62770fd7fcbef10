"""Both kinds of client, asked in the same words over a real socket."""

from __future__ import annotations

import asyncio
import inspect
import re
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty

from guest_api import guest_api_pb2
from guest_client import errors
from guest_client.async_client import AsyncProxyClient
from guest_client.methods import GuestMethods, ProxyMethods
from guest_client.prepared_call import Many, Unary
from guest_client.sync_client import ProxyClient
from guest_fleet.v1 import fleet_pb2
from tests.client.conftest import Ask
from tests.client.fake_proxy import Fleet, Guest

SERVICES = guest_api_pb2.DESCRIPTOR.services_by_name


def _spelled(methods: type) -> set[str]:
    names = [name for name, value in vars(methods).items() if isinstance(value, Unary | Many)]
    return {name.replace("_", "") for name in names}


def test_the_clients_offer_every_method_of_the_contract() -> None:
    guest = {method.name.lower() for method in SERVICES["GuestApi"].methods}
    proxied = {method.name.lower() for method in SERVICES["ProxiedGuestApi"].methods}
    of_fleet = {method.name.lower() for method in fleet_pb2.DESCRIPTOR.services_by_name["FleetService"].methods}
    assert _spelled(GuestMethods) == guest
    assert _spelled(ProxyMethods) == proxied | of_fleet


@pytest.mark.parametrize("method", ["info", "sys_info", "gpu_info", "network_info", "list_containers", "shutdown"])
async def test_every_method_reaches_the_guest_that_its_id_names(ask: Ask, fleet: Fleet, address: str, method: str) -> None:
    replies = {
        "info": guest_api_pb2.GuestInfo,
        "sys_info": guest_api_pb2.SystemInfo,
        "gpu_info": guest_api_pb2.GpuInfoResponse,
        "network_info": guest_api_pb2.NetworkInformation,
        "list_containers": guest_api_pb2.ListContainersResponse,
        "shutdown": Empty,
    }
    through_proxy = await ask(address, lambda client: getattr(client, method)("vm1"))
    directly = await ask(address, lambda client: getattr(client, method)(), guest=True)
    assert type(through_proxy) is replies[method]
    assert directly == through_proxy
    assert fleet.guests["vm1"].shut_down == (method == "shutdown")
    assert not fleet.guests["vm2"].shut_down
    with pytest.raises(errors.GuestNotFoundError):
        await ask(address, lambda client: getattr(client, method)("vm3"))


async def test_two_guests_are_not_mixed_up(ask: Ask, address: str) -> None:
    assert (await ask(address, lambda client: client.info("vm2"))).version == "agent of vm2"


async def test_a_call_without_a_timeout_has_the_bound_of_its_method(ask: Ask, fleet: Fleet, address: str) -> None:
    await ask(address, lambda client: client.gpu_info("vm1"))
    await ask(address, lambda client: client.info("vm1"))
    await ask(address, lambda client: client.collect_gpu_info())
    await ask(address, lambda client: client.info("vm1"), timeout_seconds=3)
    await ask(address, lambda client: client.info("vm1", timeout_seconds=2), timeout_seconds=3)
    bounds = [15, 20, 20, 3, 2]
    assert len(fleet.called_with_deadline) == len(bounds)
    for left, bound in zip(fleet.called_with_deadline, bounds, strict=True):
        assert left is not None
        assert bound - 2 < left < bound + 0.9, "gRPC rounds a timeout up on the wire"


async def test_an_old_sample_is_answered_unless_a_younger_one_is_demanded(ask: Ask, fleet: Fleet, address: str) -> None:
    assert (await ask(address, lambda client: client.gpu_info("vm1"))).sample_age_ms == 9_000
    assert (await ask(address, lambda client: client.gpu_info("vm1", max_age_seconds=9.9))).sample_age_ms == 9_000
    assert (await ask(address, lambda client: client.gpu_info("vm1", max_age_seconds=8.9))).sample_age_ms == 0
    assert fleet.guests["vm1"].samples == 2


async def test_metadata_of_the_client_goes_with_every_call(ask: Ask, fleet: Fleet, address: str) -> None:
    await ask(address, lambda client: client.gpu_info("vm1", max_age_seconds=60), metadata=[("x-request-id", "r1")])
    assert fleet.metadata["x-request-id"] == "r1"
    assert fleet.metadata["cache-control"] == "max-age=60"


# What the tree of errors says in its own page, by the name of the status; any other is a plain CallError.
CLASS_OF = {
    code: name
    for name, codes in re.findall(r"^ .*── (\w+Error) +([A-Z_, ]+)(?:\n|:)", errors.__doc__ or "", re.MULTILINE)
    for code in codes.split(", ")
}


def test_each_class_of_the_tree_but_the_first_four_has_a_status() -> None:
    assert {CLASS_OF["NOT_FOUND"], CLASS_OF["UNAUTHENTICATED"]} == {"GuestNotFoundError", "AccessDeniedError"}
    assert set(CLASS_OF.values()) == {kind.__name__ for kind in errors.CallError.__subclasses__()}


@pytest.mark.parametrize("code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
async def test_every_status_becomes_an_error_of_the_one_tree(ask: Ask, fleet: Fleet, address: str, code: grpc.StatusCode) -> None:
    fleet.guests["vm2"].refuses_with = (code, "told by the guest")
    with pytest.raises(errors.CallError) as caught:
        await ask(address, lambda client: client.gpu_info("vm2"))
    error = caught.value
    assert isinstance(error, errors.ClientError)
    # CANCELLED would say that the caller had cancelled the call itself.
    code = grpc.StatusCode.UNAVAILABLE if code is grpc.StatusCode.CANCELLED else code
    assert error.code is code
    assert error.reason == "told by the guest"
    assert str(error).startswith(f"GpuInfo of 'vm2' at {address}: ")
    assert isinstance(error.__cause__, grpc.RpcError)
    assert type(error).__name__ == CLASS_OF.get(code.name, "CallError")


async def test_hostile_text_of_a_guest_is_escaped_and_bounded_in_an_error(ask: Ask, fleet: Fleet, address: str) -> None:
    fleet.guests["vm2"].refuses_with = (grpc.StatusCode.INTERNAL, "\x1b[2J\r\nset-cookie: a\u202e" + "x" * 5000)
    with pytest.raises(errors.BadReplyError) as caught:
        await ask(address, lambda client: client.info("vm2"))
    shown = str(caught.value)
    assert shown.isprintable()
    assert "\\x1b[2J" in shown
    assert len(shown) < 1300


async def test_a_server_that_is_not_there_is_unavailable_and_named_once(ask: Ask, socket_folder: Path) -> None:
    nowhere = f"unix:{socket_folder}/nobody"
    with pytest.raises(errors.UnavailableError) as caught:
        await ask(nowhere, lambda client: client.info("vm1"))
    assert str(caught.value) == f"Info of 'vm1' at {nowhere}: unavailable: cannot connect: No such file or directory"


@pytest.mark.parametrize(
    ("where", "word"),
    [
        ("/run/x.sock", "no port"),
        ("localhost:99999", "0 to 65535"),
        ("localhost:0", "cannot be dialled"),
        ("ftp:x:1", "no other scheme"),
        ("unix:relative", "absolute"),
        ("vsock:any:8000", "cannot be dialled"),
    ],
)
async def test_what_is_no_address_is_refused_before_anything_is_dialled(ask: Ask, where: str, word: str) -> None:
    with pytest.raises(errors.InvalidAddressError, match=word):
        await ask(where, lambda client: client.info("vm1"))


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), float("inf")])
async def test_a_bound_that_is_none_is_the_callers_mistake(ask: Ask, fleet: Fleet, address: str, seconds: float) -> None:
    for question in (
        lambda client: client.info("vm1", timeout_seconds=seconds),
        lambda client: client.watch_gpu_info(timeout_seconds=seconds),
        lambda client: client.watch_gpu_info(interval_seconds=seconds),
    ):
        with pytest.raises(ValueError, match="must be a finite number over 0"):
            await ask(address, question)
    with pytest.raises(ValueError, match="timeout_seconds"):
        await ask(address, lambda client: client.info("vm1"), timeout_seconds=seconds)
    if seconds != 0:
        with pytest.raises(ValueError, match="max_age_seconds"):
            await ask(address, lambda client: client.gpu_info("vm1", max_age_seconds=seconds))
    assert fleet.called_with_deadline == []


async def test_pages_are_hidden_and_fetched_only_as_far_as_needed(ask: Ask, fleet: Fleet, address: str) -> None:
    fleet.guests = {f"vm{number:03}": Guest(labels={"odd": str(number % 2)}) for number in range(25)}
    guests = await ask(address, lambda client: client.list_guests(page_size=10))
    assert [guest.id for guest in guests] == sorted(fleet.guests)
    assert fleet.page_tokens == ["", "vm009", "vm019"]
    fleet.page_tokens.clear()

    def first() -> str:
        with ProxyClient(address) as client:
            return next(client.list_guests(page_size=10)).id

    assert await asyncio.to_thread(first) == "vm000"
    async with AsyncProxyClient(address) as aclient:
        assert (await anext(aclient.list_guests(page_size=10))).id == "vm000"
    assert fleet.page_tokens == ["", ""]


async def test_guests_are_selected_by_id_and_label(ask: Ask, address: str) -> None:
    by_label = await ask(address, lambda client: client.list_guests(labels={"rack": "b"}))
    by_id = await ask(address, lambda client: client.list_guests(ids=["vm1"]))
    by_text = await ask(address, lambda client: client.list_guests(ids="vm1"))
    assert ([g.id for g in by_label], [g.id for g in by_id], [g.id for g in by_text]) == (["vm2"], ["vm1"], ["vm1"])


async def test_a_list_that_never_ends_is_refused(ask: Ask, fleet: Fleet, address: str) -> None:
    fleet.repeats_page_tokens = True
    with pytest.raises(errors.BadReplyError, match="never ends"):
        await ask(address, lambda client: client.list_guests())


async def test_a_guest_that_fails_is_an_entry_and_not_the_end_of_a_collect(ask: Ask, fleet: Fleet, address: str) -> None:
    fleet.guests["vm1"].refuses_with = (grpc.StatusCode.UNAVAILABLE, "gone")
    outcomes = await ask(address, lambda client: client.collect_gpu_info())
    assert [(o.guest_id, o.WhichOneof("outcome")) for o in outcomes] == [("vm1", "status"), ("vm2", "gpu_info")]
    assert outcomes[0].status.message == "gone"


async def test_a_watch_goes_on_until_it_is_closed_and_then_the_call_is_cancelled(fleet: Fleet, address: str) -> None:
    async with AsyncProxyClient(address) as client:
        watch = client.watch_gpu_info(interval_seconds=1.5)
        seen = [(await anext(watch)).guest_id for _ in range(5)]
        await watch.aclose()
        assert seen == ["vm1", "vm2", "vm1", "vm2", "vm1"]
        assert await asyncio.to_thread(fleet.cancelled.wait, 10)
    assert fleet.watched_interval_seconds == 1.5
    left = fleet.called_with_deadline[-1]
    assert left is None or left > 1e6, "a watch without a bound lasts until it is closed"


async def test_a_blocking_watch_is_cancelled_by_closing_its_generator(fleet: Fleet, address: str) -> None:
    def watch_twice() -> list[str]:
        with ProxyClient(address) as client:
            watch = client.watch_gpu_info()
            seen = [next(watch).guest_id for _ in range(2)]
            watch.close()
            assert fleet.cancelled.wait(10)
            return seen

    assert await asyncio.to_thread(watch_twice) == ["vm1", "vm2"]


async def test_a_stream_that_is_not_offered_says_so_while_iterating(ask: Ask, socket_folder: Path) -> None:
    pool = futures.ThreadPoolExecutor(1)
    server = grpc.server(pool)
    server.add_insecure_port(f"unix:{socket_folder}/empty")
    server.start()
    with pytest.raises(errors.NotOfferedError):
        await ask(f"unix:{socket_folder}/empty", lambda client: client.watch_gpu_info())
    server.stop(None).wait()
    pool.shutdown()


@pytest.mark.parametrize("raw", [b"\x0a\x02\xff\xfe", b"\x08"], ids=["bad UTF-8 in a message field", "cut short"])
async def test_a_reply_that_does_not_decode_is_an_error_and_never_none(ask: Ask, socket_folder: Path, raw: bytes) -> None:
    class Raw(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: raw)

    pool = futures.ThreadPoolExecutor(1)
    server = grpc.server(pool, handlers=[Raw()])
    server.add_insecure_port(f"unix:{socket_folder}/raw")
    server.start()
    with pytest.raises(errors.BadReplyError):
        await ask(f"unix:{socket_folder}/raw", lambda client: client.gpu_info("vm1"))
    server.stop(None).wait()
    pool.shutdown()


def test_a_method_shows_its_own_signature_and_text() -> None:
    with ProxyClient("unix:/run/nowhere") as client:
        assert list(inspect.signature(client.gpu_info).parameters) == ["vm_id", "max_age_seconds", "timeout_seconds"]
        assert "older sample" in (client.gpu_info.__doc__ or "")
