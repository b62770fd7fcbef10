"""A fleet of guests behind a fake proxy, and both kinds of client asked in the same words."""

from __future__ import annotations

import asyncio
import inspect
import os
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest

from guest_api import guest_api_pb2
from guest_client.async_client import AsyncGuestClient, AsyncProxyClient
from guest_client.sync_client import GuestClient, ProxyClient
from tests.client.fake_proxy import Fleet, Guest, serve

# Any: a test asks any method of any client, and gets any message.
Ask = Callable[..., Awaitable[Any]]


@pytest.fixture(autouse=True)
def config_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Where guestctl's file of contexts would be: whoever runs the tests may have one, and it is not read."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config/guestctl/config.toml"


@pytest.fixture
def socket_folder() -> Iterator[Path]:
    """A folder with a short name: a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        yield Path(folder)


@pytest.fixture
def fleet() -> Fleet:
    card = guest_api_pb2.GpuDevice(index=0, uuid="GPU-1", pci_bus_id="00000000:3B:00.0", utilization_gpu=0)
    sample = guest_api_pb2.GpuInfoResponse(gpus=[card], sample_age_ms=9_000, cc_enabled=False)
    return Fleet({"vm1": Guest(sample, {"rack": "a"}), "vm2": Guest(labels={"rack": "b"})})


@pytest.fixture
def dead(fleet: Fleet) -> str:
    """One of three guests does not answer, one has no GPU."""
    fleet.guests["vm0"] = Guest(refuses_with=(grpc.StatusCode.UNAVAILABLE, "guest vm0: unreachable"), labels={"rack": "a"})
    return "vm0"


@pytest.fixture
def address(fleet: Fleet, socket_folder: Path) -> Iterator[str]:
    where = f"unix:{socket_folder}/proxy"
    server, pool, _ = serve(fleet, where)
    yield where
    server.stop(None).wait()
    pool.shutdown()


@pytest.fixture
def asks_the_proxy(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    """guestctl has the fake proxy from its environment, and nothing else from there."""
    for name in [name for name in os.environ if name.startswith("GUESTCTL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("GUESTCTL_PROXY", address)


@pytest.fixture(params=["sync", "async"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """`await ask(address, lambda client: client.info("vm1"))`, with a client of either kind; items are gathered into a list."""

    def blocking(address: str, question: Callable[[Any], Any], *, guest: bool, **options: Any) -> Any:
        kind = GuestClient if guest else ProxyClient
        with kind(address, **options) as client:
            answer = question(client)
            return list(answer) if inspect.isgenerator(answer) else answer

    async def asked(address: str, question: Callable[[Any], Any], *, guest: bool = False, **options: Any) -> Any:
        if request.param == "sync":
            return await asyncio.to_thread(blocking, address, question, guest=guest, **options)
        kind = AsyncGuestClient if guest else AsyncProxyClient
        async with kind(address, **options) as client:
            answer = question(client)
            return [item async for item in answer] if inspect.isasyncgen(answer) else await answer

    return asked


@pytest.fixture
def silent(socket_folder: Path) -> Iterator[tuple[str, threading.Event]]:
    """A server that never answers; the event is set when a call has arrived."""
    arrived, release = threading.Event(), threading.Event()

    def wait(request: bytes, context: Any) -> bytes:
        arrived.set()
        release.wait(30)
        return b""

    class Silent(grpc.GenericRpcHandler):
        def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
            return grpc.unary_unary_rpc_method_handler(wait)

    pool = futures.ThreadPoolExecutor(1)
    server = grpc.server(pool, handlers=[Silent()])
    server.add_insecure_port(f"unix:{socket_folder}/silent")
    server.start()
    yield f"unix:{socket_folder}/silent", arrived
    release.set()
    server.stop(None).wait()
    pool.shutdown()
