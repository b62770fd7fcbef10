"""The one list of what a client can ask: of a guest, and of a proxy, with each method's bound and what travels with it.

Every method takes `timeout_seconds`; without it the client's own default applies, and without that one the product's bound, so that no call
is ever unbounded. The one exception is a watch, which lasts until it is closed: there the keepalive of the channel notices a dead proxy
within 40 s. Methods are prepared here and made by the client (see guest_client.prepared_call).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from google.protobuf.duration_pb2 import Duration
from google.protobuf.empty_pb2 import Empty
from google.protobuf.message import Message

from guest_api import guest_api_pb2
from guest_client.prepared_call import Ask, AsyncCaller, Many, Pages, ReplyT, Stream, SyncCaller, Unary
from guest_contract.methods import GUEST_SERVICE, PROXIED_SERVICE, bound_seconds
from guest_fleet.v1 import fleet_pb2

# An id in an error message: the contract's longest id has 128 characters, and what is longer is no id.
_SHOWN_ID_CHARACTERS = 128

_GUEST = f"/{GUEST_SERVICE.full_name}/"
_PROXIED = f"/{PROXIED_SERVICE.full_name}/"
_FLEET = f"/{fleet_pb2.DESCRIPTOR.services_by_name['FleetService'].full_name}/"

_Caller = AsyncCaller | SyncCaller


class GuestMethods:
    """What a guest's agent answers."""

    @Unary
    def info(self: _Caller, *, timeout_seconds: float | None = None) -> Ask[guest_api_pb2.GuestInfo]:
        """Who the guest is."""
        return _of_guest(self, "Info", guest_api_pb2.GuestInfo, timeout_seconds)

    @Unary
    def sys_info(self: _Caller, *, timeout_seconds: float | None = None) -> Ask[guest_api_pb2.SystemInfo]:
        """Operating system and resources."""
        return _of_guest(self, "SysInfo", guest_api_pb2.SystemInfo, timeout_seconds)

    @Unary
    def gpu_info(
        self: _Caller, *, max_age_seconds: float | None = None, timeout_seconds: float | None = None
    ) -> Ask[guest_api_pb2.GpuInfoResponse]:
        """GPUs. With `max_age_seconds` (rounded down, as RFC 9111 counts whole seconds) an older sample is not answered."""
        return _of_guest(
            self, "GpuInfo", guest_api_pb2.GpuInfoResponse, timeout_seconds, metadata=_no_older_than(max_age_seconds)
        )

    @Unary
    def network_info(self: _Caller, *, timeout_seconds: float | None = None) -> Ask[guest_api_pb2.NetworkInformation]:
        """Name servers, gateways, interfaces, WireGuard."""
        return _of_guest(self, "NetworkInfo", guest_api_pb2.NetworkInformation, timeout_seconds)

    @Unary
    def list_containers(self: _Caller, *, timeout_seconds: float | None = None) -> Ask[guest_api_pb2.ListContainersResponse]:
        """Containers, running or not."""
        return _of_guest(self, "ListContainers", guest_api_pb2.ListContainersResponse, timeout_seconds)

    @Unary
    def shutdown(self: _Caller, *, timeout_seconds: float | None = None) -> Ask[Empty]:
        """Power the guest off; it answers first."""
        return _of_guest(self, "Shutdown", Empty, timeout_seconds)


class ProxyMethods:
    """What the VMM proxy answers: the same for the guest with a VM id, and what concerns all guests of the host."""

    @Unary
    def info(self: _Caller, vm_id: str, *, timeout_seconds: float | None = None) -> Ask[guest_api_pb2.GuestInfo]:
        """Who the guest is."""
        return _proxied(self, "Info", vm_id, guest_api_pb2.GuestInfo, timeout_seconds)

    @Unary
    def sys_info(self: _Caller, vm_id: str, *, timeout_seconds: float | None = None) -> Ask[guest_api_pb2.SystemInfo]:
        """Operating system and resources."""
        return _proxied(self, "SysInfo", vm_id, guest_api_pb2.SystemInfo, timeout_seconds)

    @Unary
    def gpu_info(
        self: _Caller, vm_id: str, *, max_age_seconds: float | None = None, timeout_seconds: float | None = None
    ) -> Ask[guest_api_pb2.GpuInfoResponse]:
        """GPUs. With `max_age_seconds` (rounded down, as RFC 9111 counts whole seconds) an older sample is not answered."""
        metadata = _no_older_than(max_age_seconds)
        return _proxied(self, "GpuInfo", vm_id, guest_api_pb2.GpuInfoResponse, timeout_seconds, metadata=metadata)

    @Unary
    def network_info(self: _Caller, vm_id: str, *, timeout_seconds: float | None = None) -> Ask[guest_api_pb2.NetworkInformation]:
        """Name servers, gateways, interfaces, WireGuard."""
        return _proxied(self, "NetworkInfo", vm_id, guest_api_pb2.NetworkInformation, timeout_seconds)

    @Unary
    def list_containers(
        self: _Caller, vm_id: str, *, timeout_seconds: float | None = None
    ) -> Ask[guest_api_pb2.ListContainersResponse]:
        """Containers, running or not."""
        return _proxied(self, "ListContainers", vm_id, guest_api_pb2.ListContainersResponse, timeout_seconds)

    @Unary
    def shutdown(self: _Caller, vm_id: str, *, timeout_seconds: float | None = None) -> Ask[Empty]:
        """Power the guest off; it answers first."""
        return _proxied(self, "Shutdown", vm_id, Empty, timeout_seconds)

    @Many
    def list_guests(
        self: _Caller,
        *,
        ids: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        page_size: int = 0,
        timeout_seconds: float | None = None,
    ) -> Pages[fleet_pb2.ListGuestsResponse, fleet_pb2.Guest]:
        """The guests of the host in id order. Pages are fetched as they are needed; the timeout bounds each one."""
        selector = _selector(ids, labels)

        def page(token: str) -> Ask[fleet_pb2.ListGuestsResponse]:
            request = fleet_pb2.ListGuestsRequest(page_size=page_size, page_token=token, selector=selector)
            return _of_fleet(self, "ListGuests", request, fleet_pb2.ListGuestsResponse, timeout_seconds)

        return Pages(page, lambda reply: reply.guests, lambda reply: reply.next_page_token)

    @Many
    def collect_gpu_info(
        self: _Caller,
        *,
        ids: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        max_age_seconds: float | None = None,
        timeout_seconds: float | None = None,
    ) -> Stream[fleet_pb2.CollectGpuInfoResponse, fleet_pb2.GuestGpuInfo]:
        """GpuInfo of every selected guest once, as the answers come; a guest that fails is an entry with a status.

        `max_age_seconds` as for gpu_info.
        """
        request = fleet_pb2.CollectGpuInfoRequest(selector=_selector(ids, labels))
        metadata = _no_older_than(max_age_seconds)
        ask = _of_fleet(self, "CollectGpuInfo", request, fleet_pb2.CollectGpuInfoResponse, timeout_seconds, metadata=metadata)
        return Stream(ask, lambda reply: reply.guests)

    @Many
    def watch_gpu_info(
        self: _Caller,
        *,
        ids: Iterable[str] = (),
        labels: Mapping[str, str] | None = None,
        interval_seconds: float | None = None,
        max_age_seconds: float | None = None,
        timeout_seconds: float | None = None,
    ) -> Stream[fleet_pb2.WatchGpuInfoResponse, fleet_pb2.GuestGpuInfo]:
        """GpuInfo of every selected guest, again every interval, until it is closed or `timeout_seconds` have passed.

        The proxy does not ask a guest whose last answer is at most `max_age_seconds` old.
        """
        interval = None
        if interval_seconds is not None:
            interval = Duration()
            interval.FromNanoseconds(round(checked_seconds("interval_seconds", interval_seconds) * 1e9))
        request = fleet_pb2.WatchGpuInfoRequest(selector=_selector(ids, labels), interval=interval)
        until = None if timeout_seconds is None else checked_seconds("timeout_seconds", timeout_seconds)
        return Stream(
            Ask(
                f"{_FLEET}WatchGpuInfo",
                request,
                fleet_pb2.WatchGpuInfoResponse,
                "WatchGpuInfo",
                until,
                _no_older_than(max_age_seconds),
            ),
            lambda reply: reply.guests,
        )


def _of_guest(
    client: _Caller, method: str, reply: type[ReplyT], timeout: float | None, metadata: tuple[tuple[str, str], ...] = ()
) -> Ask[ReplyT]:
    return Ask(f"{_GUEST}{method}", Empty(), reply, method, _bound(client, method, timeout), metadata)


def _proxied(
    client: _Caller,
    method: str,
    vm_id: str,
    reply: type[ReplyT],
    timeout: float | None,
    *,
    metadata: tuple[tuple[str, str], ...] = (),
) -> Ask[ReplyT]:
    request = guest_api_pb2.Id(id=vm_id)
    about = f"{method} of {vm_id[:_SHOWN_ID_CHARACTERS]!a}"
    return Ask(f"{_PROXIED}{method}", request, reply, about, _bound(client, method, timeout), metadata)


def _of_fleet(
    client: _Caller,
    method: str,
    request: Message,
    reply: type[ReplyT],
    timeout: float | None,
    *,
    metadata: tuple[tuple[str, str], ...] = (),
) -> Ask[ReplyT]:
    return Ask(f"{_FLEET}{method}", request, reply, method, _bound(client, method, timeout), metadata)


def _bound(client: _Caller, method: str, timeout: float | None) -> float:
    if timeout is not None:
        return checked_seconds("timeout_seconds", timeout)
    if client.default_timeout_seconds is not None:
        return client.default_timeout_seconds
    return bound_seconds(method)


def checked_seconds(name: str, seconds: float) -> float:
    """`seconds` if a wait can last that long; raises ValueError naming the argument."""
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError(f"{name} must be a finite number over 0, not {seconds}")
    return seconds


def _no_older_than(seconds: float | None) -> tuple[tuple[str, str], ...]:
    if seconds is None:
        return ()
    if not (math.isfinite(seconds) and seconds >= 0):
        raise ValueError(f"max_age_seconds must be a finite number, 0 or more, not {seconds}")
    return (("cache-control", f"max-age={math.floor(seconds)}"),)


def _selector(ids: Iterable[str], labels: Mapping[str, str] | None) -> fleet_pb2.GuestSelector | None:
    chosen = [ids] if isinstance(ids, str) else list(ids)
    return fleet_pb2.GuestSelector(ids=chosen, labels=labels or {}) if chosen or labels else None
