"""A guest from pytest-grpc's fixtures (its real server, on a Unix socket), and a real `vmm-proxy` process in front of it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.empty_pb2 import Empty

from guest_api import guest_api_pb2
from tests.round_trip.newer import Newer, compile_newer
from tests.round_trip.processes import running

METHODS = {method.name: method.output_type.full_name for method in guest_api_pb2.DESCRIPTOR.services_by_name["GuestApi"].methods}
VM_ID = "vm-1.a:b_c"


class ScriptedGuest:
    """Answers each method with the message that the test gave it last, and counts the calls."""

    def __init__(self) -> None:
        self.replies: dict[str, bytes] = {}
        self.calls: list[str] = []


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A folder with a short name: a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gs-") as name:
        yield Path(name)


@pytest.fixture(scope="module")
def newer(folder: Path) -> Newer:
    return compile_newer(folder / "newer")


@pytest.fixture(scope="module")
def grpc_addr(folder: Path) -> str:
    return f"unix:{folder}/guest"


@pytest.fixture(scope="module")
def grpc_servicer() -> ScriptedGuest:
    return ScriptedGuest()


@pytest.fixture(scope="module")
def reply_kind() -> Callable[[str], Any]:
    """The class of a reply, by its full name, in the contract that the guest is built with: the present one."""
    return lambda name: Empty if name == Empty.DESCRIPTOR.full_name else getattr(guest_api_pb2, name.rpartition(".")[2])


@pytest.fixture(scope="module")
def grpc_add_to_server(reply_kind: Callable[[str], Any]) -> Callable[[ScriptedGuest, grpc.Server], None]:
    """Adds GuestApi, built with the guest's own contract: a reply is decoded to its message and encoded by it."""

    def handler(guest: ScriptedGuest, method: str, kind: Any) -> grpc.RpcMethodHandler[Any, Any]:
        def answer(request: Empty, context: grpc.ServicerContext) -> Any:
            guest.calls.append(method)
            return kind.FromString(guest.replies.get(method, b""))

        return grpc.unary_unary_rpc_method_handler(answer, Empty.FromString, kind.SerializeToString)

    def add(guest: ScriptedGuest, server: grpc.Server) -> None:
        handlers = {method: handler(guest, method, reply_kind(reply)) for method, reply in METHODS.items()}
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("guest_api.GuestApi", handlers)])

    return add


@pytest.fixture(scope="module")
def proxy_contract() -> Path | None:
    """The folder of the contract that the proxy is built with; None is the present one."""
    return None


@pytest.fixture(scope="module")
def proxy(folder: Path, grpc_server: grpc.Server, grpc_addr: str, proxy_contract: Path | None) -> Iterator[str]:
    """The address of a `vmm-proxy` process that knows the guest as VM_ID."""
    address = f"unix:{folder}/proxy"
    command = ["vmm-proxy", "serve", "--grpc", address, "--http", "off", "--guest", f"{VM_ID}={grpc_addr}"]
    with running(command, address, contract=proxy_contract):
        yield address
