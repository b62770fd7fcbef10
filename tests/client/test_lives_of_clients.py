"""How long a call of a client waits, who shares one, and what closing one ends."""

from __future__ import annotations

import asyncio
import gc
import threading
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from guest_client import errors
from guest_client.async_client import AsyncGuestClient, AsyncProxyClient
from guest_client.sync_client import GuestClient, ProxyClient
from guest_transport.options import CLIENT_CALLS
from tests.client.conftest import Ask
from tests.eventually import eventually, eventually_here


async def test_a_guest_that_does_not_answer_ends_with_the_callers_bound(ask: Ask, socket_folder: Path) -> None:
    release = threading.Event()

    class Silent(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
            return grpc.unary_unary_rpc_method_handler(lambda request, context: release.wait(30))

    pool = futures.ThreadPoolExecutor(1)
    server = grpc.server(pool, handlers=[Silent()])
    server.add_insecure_port(f"unix:{socket_folder}/silent")
    server.start()
    with pytest.raises(errors.DeadlineError):
        await ask(f"unix:{socket_folder}/silent", lambda client: client.gpu_info("vm1", timeout_seconds=0.2))
    release.set()
    server.stop(None).wait()
    pool.shutdown()


def test_a_call_waits_for_others_of_its_client_no_longer_than_its_own_time(silent: tuple[str, threading.Event]) -> None:
    address, _ = silent
    with ProxyClient(address) as client, futures.ThreadPoolExecutor(CLIENT_CALLS) as threads:
        held = [threads.submit(client.gpu_info, "vm1", timeout_seconds=300) for _ in range(CLIENT_CALLS)]

        def is_refused() -> bool:
            with pytest.raises(errors.DeadlineError) as refused:
                client.gpu_info("vm1", timeout_seconds=0.1)
            return "as many calls in progress as it may" in str(refused.value)

        # A call that is not refused yet ends with its own time, because the server is silent.
        assert eventually_here(is_refused)
        client.close()
        assert {type(call.exception()) for call in held} <= {errors.CallError, errors.UnavailableError}


async def test_a_call_that_is_awaited_waits_for_others_no_longer_than_its_own_time(silent: tuple[str, threading.Event]) -> None:
    address, _ = silent
    async with AsyncProxyClient(address) as client:
        held = [asyncio.create_task(client.gpu_info("vm1", timeout_seconds=300)) for _ in range(CLIENT_CALLS)]

        async def is_refused() -> bool:
            with pytest.raises(errors.DeadlineError) as refused:
                await client.gpu_info("vm1", timeout_seconds=0.1)
            return "as many calls in progress as it may" in str(refused.value)

        assert await eventually(is_refused)
        for call in held:
            call.cancel()
        await asyncio.gather(*held, return_exceptions=True)


async def test_a_closed_client_stays_closed(address: str) -> None:
    client = AsyncGuestClient(address)
    await client.info()
    await client.close()
    await client.close()
    with pytest.raises(errors.ClientClosedError):
        await client.info()


def test_a_closed_blocking_client_stays_closed(address: str) -> None:
    client = GuestClient(address)
    client.info()
    client.close()
    client.close()
    with pytest.raises(errors.ClientClosedError):
        client.info()


async def test_closing_the_last_client_does_not_end_grpcs_poller(address: str) -> None:
    """grpc.aio would join it in the event loop, up to 0.2 s each time."""
    pollers = set()
    for _ in range(3):
        async with AsyncProxyClient(address) as client:
            await client.info("vm1")
        del client
        gc.collect()
        pollers |= {thread.ident for thread in threading.enumerate() if "_poll_wrapper" in thread.name}
    assert len(pollers) == 1


async def test_many_calls_at_once_share_one_client(address: str) -> None:
    async with AsyncProxyClient(address) as client:
        replies = await asyncio.gather(*(client.info(f"vm{1 + n % 2}") for n in range(50)))
    assert [reply.version for reply in replies] == [f"agent of vm{1 + n % 2}" for n in range(50)]


def test_many_threads_share_one_blocking_client(address: str) -> None:
    with ProxyClient(address) as blocking, futures.ThreadPoolExecutor(8) as threads:
        versions = list(threads.map(lambda n: blocking.info(f"vm{1 + n % 2}").version, range(50)))
    assert versions == [f"agent of vm{1 + n % 2}" for n in range(50)]
