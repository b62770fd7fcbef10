"""Whether a guest is reachable is said once: ListGuests, `vmm_proxy_guest_up` and the dashboard agree, whichever calls were made."""

from __future__ import annotations

import asyncio

import grpc
import pytest
from google.protobuf import empty_pb2

from guest_api.guest_api_pb2 import GpuInfoResponse, SystemInfo
from guest_contract.methods import proxied_methods
from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options
from tests.fleet_http.fleet import Answers, Context, Fleet, running_fleet
from tests.fleet_http.scraping import later, page, settled
from tests.metrics.readers import at
from vmm_proxy.errors import CallError
from vmm_proxy.metrics.guest_answers import LOOK_AGAIN_SECONDS

pytestmark = pytest.mark.asyncio
INFO = next(method for method in proxied_methods() if method.name == "Info")
SERVING, UNREACHABLE = fleet_pb2.GUEST_STATE_SERVING, fleet_pb2.GUEST_STATE_UNREACHABLE


class Refusing(Answers):
    """A guest that is there, and answers what a page asks with an error."""

    async def GpuInfo(self, request: empty_pb2.Empty, context: Context) -> GpuInfoResponse:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not for you")

    async def SysInfo(self, request: empty_pb2.Empty, context: Context) -> SystemInfo:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "not here")


async def said(fleet: Fleet, guest_id: str, timeout: float = 3) -> tuple[int, float, str]:
    """What the list, the metrics and the dashboard say of it, after a look at all guests."""
    await page(fleet, timeout=timeout)
    await settled(fleet)
    samples = await page(fleet, timeout=timeout)
    address = UnixAddress(str(fleet.folder / "proxy"))
    async with grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel:
        listed = await fleet_pb2_grpc.FleetServiceStub(channel).ListGuests(
            fleet_pb2.ListGuestsRequest(selector=fleet_pb2.GuestSelector(ids=[guest_id])), timeout=10
        )
    known = fleet.pages.guest_answers.get(guest_id)
    assert known is not None
    rows = fleet.pages.view.rows(guest_id) or ""
    [shown] = [word for word in ("up", "down", "waiting") if f'class="badge {word}"' in rows]
    return listed.guests[0].state, samples[at("vmm_proxy_guest_up", vm_id=guest_id)], shown


async def test_a_guest_of_which_one_method_hangs_is_reachable_everywhere() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(silent={"GpuInfo"}))
        # The list itself asks for Info once; after that it is the page's two calls alone that are judged.
        for _ in range(2):
            assert await said(fleet, "vm-a", timeout=0.5) == (SERVING, 1, "up")
            later(fleet, LOOK_AGAIN_SECONDS)


async def test_a_guest_that_answers_with_errors_alone_is_reachable_everywhere() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Refusing())
        assert await said(fleet, "vm-a") == (SERVING, 1, "up")


async def test_a_call_that_fails_between_two_looks_makes_a_guest_unreachable_everywhere() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a")
        assert await said(fleet, "vm-a") == (SERVING, 1, "up")
        await fleet.stop("vm-a")
        # The page's clock stands still: its next look is not due yet, and its own last answers were good.
        now = fleet.pages.guest_answers.clock()
        fleet.pages.guest_answers.clock = lambda: now
        upstream = fleet.parts.pool.upstream("vm-a")
        with pytest.raises(CallError):
            await upstream.call(INFO, (), asyncio.get_running_loop().time() + 10)
        assert await said(fleet, "vm-a") == (UNREACHABLE, 0, "down")
