"""A fleet of one guest whose methods are called over HTTP, and requests byte by byte."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc

from guest_api import guest_api_pb2
from tests.fleet_http.fleet import Answers, Context, Fleet, running_fleet
from tests.http.web import BOUND_SECONDS, Answer, close, connect, read_answer
from tests.policy.callers import rules, secret, token
from vmm_proxy.policy.roles import Role

CARDS = guest_api_pb2.GpuInfoResponse(
    gpus=[guest_api_pb2.GpuDevice(uuid="GPU-1", utilization_gpu=0, memory_total_bytes=2**63 + 1, errors=["power: \x1b\r\n<b>"])],
    sample_age_ms=7,
    pci_devices=1,
)
RULES = rules(
    tokens=(
        token("viewer", Role.VIEWER),
        token("operator", Role.OPERATOR),
        token("blue", Role.VIEWER, {"tenant": "blue"}),
    )
)


class Guest(Answers):
    """A guest whose methods can be made to fail."""

    failure: tuple[grpc.StatusCode, str] | None = None
    shutdowns = 0

    async def GpuInfo(self, request: Any, context: Context) -> guest_api_pb2.GpuInfoResponse:
        if self.failure:
            await context.abort(*self.failure)
        context.set_trailing_metadata(
            [(key, value) for key, value in context.invocation_metadata() or () if key == "x-request-id"]
        )
        return await super().GpuInfo(request, context)

    async def Shutdown(self, request: Any, context: Context) -> Any:
        self.shutdowns += 1
        return await super().Shutdown(request, context)


@asynccontextmanager
async def fleet_of(guest: Guest, *, loopback: Role | None = Role.VIEWER, **setup: Any) -> AsyncIterator[Fleet]:
    setup.setdefault("access", rules(tokens=RULES.tokens, loopback=loopback))
    async with running_fleet(guest_api=True, **setup) as fleet:
        await fleet.add("vm-a", guest, labels={"tenant": "red"})
        yield fleet


async def send(fleet: Fleet, raw: bytes) -> Answer:
    """The answer to bytes as they are."""
    async with asyncio.timeout(BOUND_SECONDS):
        reader, writer = await connect(fleet.address)
        try:
            writer.write(raw)
            return await read_answer(reader)
        finally:
            await close(writer)


async def post(fleet: Fleet, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answer:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return await send(fleet, "\r\n".join([*lines, "", ""]).encode("latin-1") + body)


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret(name)}"}


ID = guest_api_pb2.Id(id="vm-a").SerializeToString()
JSON = {"Content-Type": "application/json"}
