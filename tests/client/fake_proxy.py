"""A proxy that behaves: guests with states, samples with ages, pages, streams; over a real socket, without a real guest behind it.

It offers GuestApi too, as the guest `vm1`, so that the direct clients meet the same answers.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent import futures
from dataclasses import dataclass, field
from typing import Any

import grpc
from google.protobuf.empty_pb2 import Empty
from google.rpc import code_pb2, status_pb2

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc

# Any: mypy-protobuf's context type joins the synchronous and the asynchronous one and exists for type checkers only.
Context = Any


@dataclass
class Guest:
    """One guest: what it answers, and what became of it."""

    gpu_info: guest_api_pb2.GpuInfoResponse = field(default_factory=guest_api_pb2.GpuInfoResponse)
    labels: dict[str, str] = field(default_factory=dict)
    refuses_with: tuple[grpc.StatusCode, str] | None = None
    samples: int = 1
    # Cards by the driver and on the bus, as a list of guests tells them.
    listed_cards: tuple[int | None, int | None] = (None, None)
    # Cards that the directory gives to it.
    gpus_given: int | None = None
    shut_down: bool = False


class Fleet:
    """The guests by id; every call ends here."""

    def __init__(self, guests: dict[str, Guest]) -> None:
        self.guests = guests
        self.page_tokens: list[str] = []
        self.repeats_page_tokens = False
        self.cancelled = threading.Event()
        self.metadata: dict[str, str] = {}
        self.called_with_deadline: list[float | None] = []
        self.watched_interval_seconds: float | None = None
        self.collect_breaks = False
        # Cleared: one more guest is silent.
        self.collect_goes_on = threading.Event()
        self.collect_goes_on.set()

    def guest(self, vm_id: str, context: Context) -> Guest:
        self.called_with_deadline.append(context.time_remaining())
        self.metadata = dict(context.invocation_metadata())
        if vm_id not in self.guests:
            context.abort(grpc.StatusCode.NOT_FOUND, f"no guest {vm_id}")
        guest = self.guests[vm_id]
        if guest.refuses_with:
            context.abort(*guest.refuses_with)
        return guest

    def gpu_info(self, vm_id: str, context: Context) -> guest_api_pb2.GpuInfoResponse:
        guest = self.guest(vm_id, context)
        asked = re.fullmatch(r"max-age=(\d+)", self.metadata.get("cache-control", ""))
        if asked and guest.gpu_info.sample_age_ms > int(asked.group(1)) * 1000:
            guest.samples += 1
            guest.gpu_info.sample_age_ms = 0
        return guest.gpu_info


class Proxied(guest_api_pb2_grpc.ProxiedGuestApiServicer):
    """The six methods, by id."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def Info(self, request: guest_api_pb2.Id, context: Context) -> guest_api_pb2.GuestInfo:
        self._fleet.guest(request.id, context)
        return guest_api_pb2.GuestInfo(version=f"agent of {request.id}", app_id=b"\x00\xff")

    def SysInfo(self, request: guest_api_pb2.Id, context: Context) -> guest_api_pb2.SystemInfo:
        self._fleet.guest(request.id, context)
        return guest_api_pb2.SystemInfo(os_name="Debian", total_memory=2**64 - 1, loadavg_one=1234, uptime=90061)

    def GpuInfo(self, request: guest_api_pb2.Id, context: Context) -> guest_api_pb2.GpuInfoResponse:
        return self._fleet.gpu_info(request.id, context)

    def NetworkInfo(self, request: guest_api_pb2.Id, context: Context) -> guest_api_pb2.NetworkInformation:
        self._fleet.guest(request.id, context)
        return guest_api_pb2.NetworkInformation(dns_servers=["192.0.2.53"], wg_info="interface: wg0\n  listening port: 1\n")

    def ListContainers(self, request: guest_api_pb2.Id, context: Context) -> guest_api_pb2.ListContainersResponse:
        self._fleet.guest(request.id, context)
        container = guest_api_pb2.Container(id="f" * 64, names=["/web"], image="nginx", state="running", created=-(2**63))
        return guest_api_pb2.ListContainersResponse(containers=[container])

    def Shutdown(self, request: guest_api_pb2.Id, context: Context) -> Empty:
        self._fleet.guest(request.id, context).shut_down = True
        return Empty()


class Direct(guest_api_pb2_grpc.GuestApiServicer):
    """The same, as the guest vm1."""

    def __init__(self, fleet: Fleet) -> None:
        self._as_vm1 = Proxied(fleet)

    def Info(self, request: Empty, context: Context) -> guest_api_pb2.GuestInfo:
        return self._as_vm1.Info(_VM1, context)

    def SysInfo(self, request: Empty, context: Context) -> guest_api_pb2.SystemInfo:
        return self._as_vm1.SysInfo(_VM1, context)

    def GpuInfo(self, request: Empty, context: Context) -> guest_api_pb2.GpuInfoResponse:
        return self._as_vm1.GpuInfo(_VM1, context)

    def NetworkInfo(self, request: Empty, context: Context) -> guest_api_pb2.NetworkInformation:
        return self._as_vm1.NetworkInfo(_VM1, context)

    def ListContainers(self, request: Empty, context: Context) -> guest_api_pb2.ListContainersResponse:
        return self._as_vm1.ListContainers(_VM1, context)

    def Shutdown(self, request: Empty, context: Context) -> Empty:
        return self._as_vm1.Shutdown(_VM1, context)


_VM1 = guest_api_pb2.Id(id="vm1")


class FleetService(fleet_pb2_grpc.FleetServiceServicer):
    """Pages and streams."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def _selected(self, selector: fleet_pb2.GuestSelector) -> list[tuple[str, Guest]]:
        return [
            (vm_id, guest)
            for vm_id, guest in sorted(self._fleet.guests.items())
            if (not selector.ids or vm_id in selector.ids) and selector.labels.items() <= guest.labels.items()
        ]

    def ListGuests(self, request: fleet_pb2.ListGuestsRequest, context: Context) -> fleet_pb2.ListGuestsResponse:
        self._fleet.page_tokens.append(request.page_token)
        self._fleet.metadata = dict(context.invocation_metadata())
        later = [entry for entry in self._selected(request.selector) if entry[0] > request.page_token]
        page = later[: request.page_size or 100]
        reply = fleet_pb2.ListGuestsResponse(
            guests=[
                fleet_pb2.Guest(
                    id=vm_id,
                    labels=guest.labels,
                    state=fleet_pb2.GUEST_STATE_UNREACHABLE if guest.refuses_with else fleet_pb2.GUEST_STATE_SERVING,
                    gpus=guest.listed_cards[0],
                    pci_devices=guest.listed_cards[1],
                    gpus_given=guest.gpus_given,
                )
                for vm_id, guest in page
            ]
        )
        if len(later) > len(page):
            reply.next_page_token = page[-1][0]
        if self._fleet.repeats_page_tokens:
            reply.next_page_token = "again"
        return reply

    def _outcomes(self, selector: fleet_pb2.GuestSelector) -> Iterator[fleet_pb2.GuestGpuInfo]:
        for vm_id, guest in self._selected(selector):
            if guest.refuses_with:
                status = status_pb2.Status(code=code_pb2.UNAVAILABLE, message=guest.refuses_with[1])
                yield fleet_pb2.GuestGpuInfo(guest_id=vm_id, status=status)
            else:
                yield fleet_pb2.GuestGpuInfo(guest_id=vm_id, gpu_info=guest.gpu_info, gpus_given=guest.gpus_given)

    def CollectGpuInfo(
        self, request: fleet_pb2.CollectGpuInfoRequest, context: Context
    ) -> Iterator[fleet_pb2.CollectGpuInfoResponse]:
        self._fleet.called_with_deadline.append(context.time_remaining())
        self._fleet.metadata = dict(context.invocation_metadata())
        for vm_id in sorted(set(request.selector.ids) - self._fleet.guests.keys()):
            status = status_pb2.Status(code=code_pb2.NOT_FOUND, message=f"guest {vm_id}: not known")
            yield fleet_pb2.CollectGpuInfoResponse(guests=[fleet_pb2.GuestGpuInfo(guest_id=vm_id, status=status)])
        for outcome in self._outcomes(request.selector):
            yield fleet_pb2.CollectGpuInfoResponse(guests=[outcome])
        self._fleet.collect_goes_on.wait(30)
        if self._fleet.collect_breaks:
            context.abort(grpc.StatusCode.UNAVAILABLE, "the proxy stops")

    def WatchGpuInfo(self, request: fleet_pb2.WatchGpuInfoRequest, context: Context) -> Iterator[fleet_pb2.WatchGpuInfoResponse]:
        self._fleet.called_with_deadline.append(context.time_remaining())
        context.add_callback(self._fleet.cancelled.set)
        if request.HasField("interval"):
            self._fleet.watched_interval_seconds = request.interval.ToNanoseconds() / 1e9
        while context.is_active():
            for outcome in self._outcomes(request.selector):
                yield fleet_pb2.WatchGpuInfoResponse(guests=[outcome])


def serve(
    fleet: Fleet, address: str, credentials: grpc.ServerCredentials | None = None
) -> tuple[grpc.Server, futures.ThreadPoolExecutor, int]:
    """A started server at `address`, and its port; stop it and its threads when done."""
    pool = futures.ThreadPoolExecutor(max_workers=8)
    server = grpc.server(pool)
    guest_api_pb2_grpc.add_ProxiedGuestApiServicer_to_server(Proxied(fleet), server)
    guest_api_pb2_grpc.add_GuestApiServicer_to_server(Direct(fleet), server)
    fleet_pb2_grpc.add_FleetServiceServicer_to_server(FleetService(fleet), server)
    port = server.add_insecure_port(address) if credentials is None else server.add_secure_port(address, credentials)
    server.start()
    return server, pool, port
