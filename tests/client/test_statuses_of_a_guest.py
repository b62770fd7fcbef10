"""Statuses that a guest sends to a client that asks it directly, by raw HTTP/2: each is an error of the client's own tree."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc
import pytest

from guest_client import AsyncGuestClient, GuestClient, errors
from tests.proxy.raw_guest import raw_guest

CODES = {str(code.value[0]): code for code in grpc.StatusCode if code is not grpc.StatusCode.OK}
# What is no status of gRPC, and what its clients make of it.
NO_CODES = {"17": grpc.StatusCode.UNKNOWN, "99999": grpc.StatusCode.UNKNOWN, "-1": grpc.StatusCode.INTERNAL}
Asked = Callable[[str], Awaitable[object]]


async def by_async_client(address: str) -> object:
    async with AsyncGuestClient(address) as client:
        return await client.gpu_info()


async def by_sync_client(address: str) -> object:
    def asked() -> object:
        with GuestClient(address) as client:
            return client.gpu_info()

    return await asyncio.to_thread(asked)


@pytest.mark.parametrize("ask", [by_async_client, by_sync_client])
@pytest.mark.parametrize("status", [*CODES, *NO_CODES])
async def test_a_status_of_a_guest_is_a_call_error_and_never_the_cancellation_of_the_caller(
    tmp_path: Path, ask: Asked, status: str
) -> None:
    async with raw_guest(str(tmp_path / "g"), lambda stream: stream.fail(status, "Locally cancelled by application!")) as guest:
        with pytest.raises(errors.CallError) as caught:
            await ask(guest.address)
    wanted = (CODES | NO_CODES)[status]
    if wanted is grpc.StatusCode.CANCELLED:
        assert isinstance(caught.value, errors.UnavailableError)
        wanted = grpc.StatusCode.UNAVAILABLE
    assert caught.value.code is wanted
