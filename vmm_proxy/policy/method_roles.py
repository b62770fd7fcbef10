"""Which role each method needs, read from the contract's service descriptors.

Every method that the contract marks NO_SIDE_EFFECTS is for viewers. Every other one stands in WRITES by its full path, or
nobody may call it: a method that is added to the contract is thus refused until somebody has decided about it. Rejected: a list
of all methods (a second list to keep), and a default role for those that are not listed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import ServiceDescriptor
from grpc_health.v1 import health_pb2

from guest_api import guest_api_pb2
from guest_fleet.v1 import fleet_pb2
from guest_transport.server import reflection
from vmm_proxy.policy.roles import Role

WRITES: Mapping[str, Role] = {
    "/guest_api.ProxiedGuestApi/Shutdown": Role.OPERATOR,
    "/guest_fleet.v1.DirectoryService/RegisterGuest": Role.ADMIN,
    "/guest_fleet.v1.DirectoryService/UpdateGuest": Role.ADMIN,
    "/guest_fleet.v1.DirectoryService/DeregisterGuest": Role.ADMIN,
}
SERVICES = (
    guest_api_pb2.DESCRIPTOR.services_by_name["ProxiedGuestApi"],
    fleet_pb2.DESCRIPTOR.services_by_name["FleetService"],
    fleet_pb2.DESCRIPTOR.services_by_name["DirectoryService"],
)
# Says nothing but whether the proxy serves, and whoever watches over the proxy has no credentials.
OPEN_SERVICES = frozenset({health_pb2.DESCRIPTOR.services_by_name["Health"].full_name})
# Not in our descriptors; reads only.
REFLECTION = f"/{reflection.SERVICE_NAME}/ServerReflectionInfo"


def method_roles(services: Iterable[ServiceDescriptor] = SERVICES, writes: Mapping[str, Role] = WRITES) -> dict[str, Role]:
    """The role that each method needs, by path; a method that is missing is nobody's."""
    needed = {REFLECTION: Role.VIEWER}
    for service in services:
        for method in service.methods:
            path = f"/{service.full_name}/{method.name}"
            if method.GetOptions().idempotency_level == descriptor_pb2.MethodOptions.NO_SIDE_EFFECTS:
                needed[path] = Role.VIEWER
            elif path in writes:
                needed[path] = writes[path]
    return needed


def is_open(path: str) -> bool:
    """Whether the method at `path` is for everybody."""
    return path[1:].partition("/")[0] in OPEN_SERVICES
