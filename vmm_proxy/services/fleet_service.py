"""guest_fleet.v1.FleetService: turns rpcs into work of the rooms that do it, and their failures into statuses.

Each call is about the guests that its caller sees: the others are as if they were not there, also where they are asked for by
name. Guests' addresses are shown to administrators only.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from guest_contract.methods import GPU_INFO_BOUND_SECONDS
from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from guest_transport.server.grpc_server import Service
from vmm_proxy.directory.directory import Directory
from vmm_proxy.directory.selector import selection
from vmm_proxy.errors import CallError, refuse
from vmm_proxy.fleet.collect import collect
from vmm_proxy.fleet.guest_list import GuestList
from vmm_proxy.fleet.outbox import OutboxClosedError
from vmm_proxy.fleet.outcome import GuestOutcome, ask_gpu_info
from vmm_proxy.fleet.watch import (
    DEFAULT_INTERVAL_SECONDS,
    LEAST_INTERVAL_SECONDS,
    LONGEST_INTERVAL_SECONDS,
    Watches,
)
from vmm_proxy.policy.permit import Permit, SeenGuests, current_permit
from vmm_proxy.upstream import passed_metadata
from vmm_proxy.upstream.deadlines import COLLECTION_MARGIN_SECONDS, guest_deadline
from vmm_proxy.upstream.limits import FLEET_STREAMS, FLEET_STREAMS_OF_ONE, SharedConcurrencyLimit
from vmm_proxy.upstream.pool import Pool
from vmm_proxy.upstream.shared_call import Answer

# The servicer's stubs want a context of both gRPC stacks; what is served here is grpc.aio's.
Context = grpc.aio.ServicerContext[Any, Any]

_NAME = fleet_pb2.DESCRIPTOR.services_by_name["FleetService"].full_name


class FleetService(fleet_pb2_grpc.FleetServiceServicer):
    """The servicer."""

    def __init__(
        self,
        *,
        directory: Directory,
        pool: Pool,
        guest_list: GuestList,
        watches: Watches,
        wall_clock: Callable[[], float],
    ) -> None:
        self._directory = directory
        self._pool = pool
        self._guest_list = guest_list
        self._watches = watches
        self._wall_clock = wall_clock
        self._streams = SharedConcurrencyLimit(FLEET_STREAMS, FLEET_STREAMS_OF_ONE, "the fleet")

    def service(self) -> Service:
        """What a server needs to serve it."""
        return Service(_NAME, lambda server: fleet_pb2_grpc.add_FleetServiceServicer_to_server(self, server))

    async def ListGuests(  # noqa: N802 - the contract's name
        self, request: fleet_pb2.ListGuestsRequest, context: Context
    ) -> fleet_pb2.ListGuestsResponse:
        """A page of guests."""
        try:
            permit = current_permit()
            guests = SeenGuests(self._directory, permit)
            return await self._guest_list.page(request, guests, with_addresses=lambda: permit.is_admin)
        except CallError as error:
            failure = error
        return await refuse(context, failure)

    async def CollectGpuInfo(  # noqa: N802 - the contract's name
        self, request: fleet_pb2.CollectGpuInfoRequest, context: Context
    ) -> AsyncIterator[fleet_pb2.CollectGpuInfoResponse]:
        """Every selected guest's outcome, as it comes."""
        try:
            permit = current_permit()
            guest_ids = selection(request.selector).choose(SeenGuests(self._directory, permit))
            metadata = passed_metadata.to_guest(context.invocation_metadata())
            account = permit.account
            self._streams.take(account)
        except CallError as error:
            await refuse(context, error)
        try:
            now = asyncio.get_running_loop().time()
            asked_until = guest_deadline(context, GPU_INFO_BOUND_SECONDS, COLLECTION_MARGIN_SECONDS)
            deadline = min(asked_until, now + GPU_INFO_BOUND_SECONDS)
            asked = functools.partial(ask_gpu_info, self._pool, require=permit.require)
            async with contextlib.aclosing(collect(asked, guest_ids, metadata, deadline, self._wall_clock)) as collected:
                async for outcomes in collected:
                    answer = fleet_pb2.CollectGpuInfoResponse()
                    for outcome in outcomes:
                        self._write(self._judged(outcome, permit), answer.guests.add())
                    yield answer
        finally:
            self._streams.give_back(account)

    def _write(self, outcome: GuestOutcome, message: fleet_pb2.GuestGpuInfo) -> None:
        outcome.write_to(message)
        # Beside an answer only: of a guest that its caller may not see, not even this is told.
        if isinstance(outcome.outcome, Answer) and (entry := self._directory.get(outcome.guest_id)) and entry.gpus_given:
            message.gpus_given = entry.gpus_given

    def _judged(self, outcome: GuestOutcome, permit: Permit) -> GuestOutcome:
        """`outcome`, or a failure in its place where it may not be sent any more."""
        try:
            self._pool.require_current(outcome.guest_id, outcome.generation, permit.require)
        except CallError as error:
            return outcome.failed_instead(error.as_value())
        return outcome

    async def WatchGpuInfo(  # noqa: N802 - the contract's name
        self, request: fleet_pb2.WatchGpuInfoRequest, context: Context
    ) -> AsyncIterator[fleet_pb2.WatchGpuInfoResponse]:
        """The selected guests' outcomes, again every interval."""
        try:
            interval = _interval_seconds(request)
            selected = selection(request.selector)
            permit = current_permit()
            guests = SeenGuests(self._directory, permit)
            metadata = passed_metadata.to_guest(context.invocation_metadata())
            account = permit.account
            self._streams.take(account)
        except CallError as error:
            await refuse(context, error)
        watcher = self._watches.join(selected, guests, interval, metadata)
        try:
            while True:
                update = fleet_pb2.WatchGpuInfoResponse()
                for outcome in await watcher.take():
                    self._write(outcome, update.guests.add())
                yield update
        except OutboxClosedError:
            stopping = CallError(grpc.StatusCode.UNAVAILABLE, "the proxy stops")
        finally:
            self._streams.give_back(account)
            await self._watches.leave(watcher, interval, metadata)
        await refuse(context, stopping)


def _interval_seconds(request: fleet_pb2.WatchGpuInfoRequest) -> float:
    if not request.HasField("interval"):
        return DEFAULT_INTERVAL_SECONDS
    seconds = request.interval.seconds + request.interval.nanos / 1e9
    if not 0 <= seconds <= LONGEST_INTERVAL_SECONDS:
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"interval: must be from 0 to {LONGEST_INTERVAL_SECONDS:.0f} s")
    return max(seconds, LEAST_INTERVAL_SECONDS)
