"""The methods of the contract and their bounds, read from its service descriptors, so that there is no second list to keep.

The proxy forwards a method that is added to GuestApi and ProxiedGuestApi without a new line of code. Rejected: the generated servicer,
which wants one hand-written method per rpc, and passing bytes through unread, which would let a guest's malformed reply reach
every client.
"""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf import descriptor_pb2, message_factory
from google.protobuf.descriptor import MethodDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from guest_api import guest_api_pb2

GUEST_SERVICE = guest_api_pb2.DESCRIPTOR.services_by_name["GuestApi"]
PROXIED_SERVICE = guest_api_pb2.DESCRIPTOR.services_by_name["ProxiedGuestApi"]

# The product's own bound of a call whose caller set none (contract, "Metadata and status"). GpuInfo is shorter than a usual 15
# s scrape interval may wait, but longer than the 10 s that a guest gives its collector.
BOUND_SECONDS = 20.0
GPU_INFO_BOUND_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Method:
    """One rpc as the proxy sees it."""

    name: str
    # What gRPC calls on the guest: /guest_api.GuestApi/GpuInfo.
    guest_path: str
    reply: type[Message]
    bound_seconds: float
    # Whether the contract marks it NO_SIDE_EFFECTS: identical calls may share one, and it may be sent again.
    only_reads: bool


def bound_seconds(method: str) -> float:
    """The product's own bound of a call of `method`, for a caller who sets none."""
    return GPU_INFO_BOUND_SECONDS if method == "GpuInfo" else BOUND_SECONDS


def proxied_methods(guest: ServiceDescriptor = GUEST_SERVICE, proxied: ServiceDescriptor = PROXIED_SERVICE) -> tuple[Method, ...]:
    """Every method of `proxied` with its twin in `guest`; raises ValueError where the contract has no such twin."""
    return tuple(_with_twin(method, guest) for method in proxied.methods)


def _with_twin(proxied: MethodDescriptor, guest: ServiceDescriptor) -> Method:
    twin = guest.methods_by_name.get(proxied.name)
    if twin is None or twin.output_type.full_name != proxied.output_type.full_name:
        raise ValueError(f"{proxied.full_name} has no twin with the same reply in {guest.full_name}")
    level = proxied.GetOptions().idempotency_level
    return Method(
        name=proxied.name,
        guest_path=f"/{guest.full_name}/{twin.name}",
        reply=message_factory.GetMessageClass(twin.output_type),
        bound_seconds=bound_seconds(proxied.name),
        only_reads=level == descriptor_pb2.MethodOptions.NO_SIDE_EFFECTS,
    )
