"""A proxy with a guest of each of two tenants, and the rules of the tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import grpc

from guest_api import guest_api_pb2
from tests.policy.callers import rules, token
from tests.proxy.raw_guest import RawGuest, Stream, raw_guest
from tests.proxy.running import Proxy, running_proxy
from vmm_proxy.directory.directory import Directory
from vmm_proxy.directory.registered import RegisteredGuests
from vmm_proxy.policy.access import AccessRules
from vmm_proxy.policy.audit_log import Audit
from vmm_proxy.policy.roles import Grant, Role

Metadata = tuple[tuple[str, str], ...]
NOBODY = 65534
BLUE = {"tenant": "blue"}
DENIED, UNKNOWN, NO_CREDENTIALS = (
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.UNAUTHENTICATED,
)
RULES = rules(
    tokens=(
        token("viewer", Role.VIEWER),
        token("operator", Role.OPERATOR),
        token("admin", Role.ADMIN),
        token("blue-viewer", Role.VIEWER, BLUE),
        token("blue-operator", Role.OPERATOR, BLUE),
        token("green-operator", Role.OPERATOR, {"tenant": "green"}),
    ),
    users={NOBODY: (Grant(Role.VIEWER), Grant(Role.OPERATOR, BLUE))},
)


async def no_gpu(stream: Stream) -> None:
    await stream.answer(b"")


@contextlib.asynccontextmanager
async def fleet_of_two(
    folder: Path, access: AccessRules = RULES, audit: Audit | None = None
) -> AsyncIterator[tuple[Proxy, RawGuest, RawGuest]]:
    """A proxy with a guest of the blue tenant and one of the red; other users may look into its folder."""
    folder.chmod(0o755)
    directory = Directory()
    registered = RegisteredGuests(folder / "registered", directory, allow_plaintext=False)
    async with (
        raw_guest(str(folder / "b"), no_gpu) as blue,
        raw_guest(str(folder / "r"), no_gpu) as red,
        running_proxy(folder / "proxy", access=access, audit=audit, directory=directory, registered=registered) as proxy,
    ):
        proxy.add("blue1", blue.address, labels=BLUE)
        proxy.add("red1", red.address, labels={"tenant": "red"})
        yield proxy, blue, red


async def code_of(call: Awaitable[object]) -> grpc.StatusCode:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def asked(proxy: Proxy, method: str, guest_id: str, metadata: Metadata) -> Awaitable[object]:
    call: Awaitable[object] = getattr(proxy.api, method)(guest_api_pb2.Id(id=guest_id), timeout=10, metadata=metadata)
    return call
