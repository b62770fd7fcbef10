"""Which role a method needs follows from the contract; what nobody decided about is nobody's."""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.descriptor import ServiceDescriptor

from vmm_proxy.policy.method_roles import SERVICES, WRITES, is_open, method_roles
from vmm_proxy.policy.roles import Role


def test_every_method_of_the_contract_has_a_role_and_only_shutdown_and_the_directory_need_more_than_looking() -> None:
    needed = method_roles()
    paths = {f"/{service.full_name}/{method.name}" for service in SERVICES for method in service.methods}
    assert paths <= needed.keys()
    assert {path for path in paths if needed[path] is not Role.VIEWER} == WRITES.keys()
    assert [path for path, role in needed.items() if role is Role.OPERATOR] == ["/guest_api.ProxiedGuestApi/Shutdown"]


def _later_service() -> ServiceDescriptor:
    file = descriptor_pb2.FileDescriptorProto(name="later.proto", package="guest_api", dependency=["google/protobuf/empty.proto"])
    service = file.service.add(name="ProxiedGuestApi")
    for name, reads in (("Reboot", False), ("Uptime", True)):
        method = service.method.add(name=name, input_type=".google.protobuf.Empty", output_type=".google.protobuf.Empty")
        if reads:
            method.options.idempotency_level = descriptor_pb2.MethodOptions.NO_SIDE_EFFECTS
    pool = descriptor_pool.DescriptorPool()
    empty = descriptor_pb2.FileDescriptorProto(name="google/protobuf/empty.proto", package="google.protobuf")
    empty.message_type.add(name="Empty")
    pool.Add(empty)
    pool.Add(file)
    return pool.FindServiceByName("guest_api.ProxiedGuestApi")


def test_a_method_of_a_later_contract_is_nobodys_until_it_is_listed_unless_it_only_reads() -> None:
    needed = method_roles([_later_service()])
    assert "/guest_api.ProxiedGuestApi/Reboot" not in needed
    assert needed["/guest_api.ProxiedGuestApi/Uptime"] is Role.VIEWER


def test_a_listed_method_that_only_reads_is_not_lifted_out_of_the_viewers_reach() -> None:
    path = "/guest_api.ProxiedGuestApi/Uptime"
    assert method_roles([_later_service()], {path: Role.ADMIN})[path] is Role.VIEWER


def test_health_alone_is_open_whatever_a_path_looks_like() -> None:
    assert is_open("/grpc.health.v1.Health/Watch")
    for path in ("/grpc.health.v1.Healthy/Check", "grpc.health.v1.Health/Check", "/guest_api.ProxiedGuestApi/Info", "//", ""):
        assert not is_open(path)
