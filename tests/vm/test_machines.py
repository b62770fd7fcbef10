"""Virtual machines with real kernels, and a host: the way that calls take in production, AF_VSOCK included."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options
from tests.boot_gate.conftest import MakeNvml
from tests.nvml_library.fixture import nvml_build, scripted_nvml
from tests.proxy import processes
from tests.vm.machine import END_LIMIT_SECONDS, Machine, require_parts, virtual_machine
from tests.vm.pci_functions import PciFunction, plugged
from tests.vm.vsock_switch import VsockSwitch

__all__ = ["nvml_build", "scripted_nvml"]

pytestmark = [pytest.mark.vm, pytest.mark.timeout(END_LIMIT_SECONDS + 60)]

CARDS = [PciFunction(slot, 0x10DE, 0x2330, 0x030200) for slot in (0x10, 0x11)]
SWITCH = PciFunction(0x12, 0x10DE, 0x22A3, 0x068000)


@pytest.fixture
def sockets() -> Iterator[Path]:
    """Short, for sockets."""
    folder = Path(tempfile.mkdtemp(prefix="vm"))
    yield folder
    shutil.rmtree(folder)


@contextlib.asynccontextmanager
async def proxy_to(guest: str, folder: Path) -> AsyncIterator[guest_api_pb2_grpc.ProxiedGuestApiAsyncStub]:
    """A proxy on this host that knows one guest, `vm`."""
    address = UnixAddress(str(folder / "proxy"))
    async with (
        processes.serving("--grpc", str(address), "--guest", f"vm={guest}"),
        grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel,
    ):
        yield guest_api_pb2_grpc.ProxiedGuestApiStub(channel)


async def gpu_info(
    api: guest_api_pb2_grpc.ProxiedGuestApiAsyncStub, machine: Machine, *, error: str
) -> guest_api_pb2.GpuInfoResponse:
    """The first answer with this `error`; until then the guest may be booting or taking its first sample."""
    last: object = None
    try:
        async with asyncio.timeout(END_LIMIT_SECONDS):
            while True:
                try:
                    last = answer = await api.GpuInfo(guest_api_pb2.Id(id="vm"), timeout=30)
                    if answer.error == error:
                        return answer
                except grpc.aio.AioRpcError as failure:
                    last = failure.details()
                # Nobody outside can be told of a guest's first answer.
                await asyncio.sleep(0.3)
    except TimeoutError:
        raise AssertionError(f"last answer: {last}\n{machine.story()}") from None


async def test_a_host_sees_a_guests_cards_without_and_with_a_driver_and_powers_it_off(
    tmp_path: Path, sockets: Path, scripted_nvml: MakeNvml
) -> None:
    kernel = require_parts()
    switch = VsockSwitch(sockets, [42])
    shutil.copytree(scripted_nvml("cards 2\n").path.parent, tmp_path / "results" / "nvml")
    with plugged([*CARDS, SWITCH]) as functions:
        async with (
            switch.running(),
            virtual_machine(
                kernel,
                tmp_path,
                "tests.vm.inside.gpu_guest",
                modules=["vmw_vsock_virtio_transport"],
                devices=[*switch.devices(42), *functions.devices],
                descriptors=functions.descriptors,
            ) as machine,
            proxy_to(f"hvsock:{switch.socket_of(42)}:8000", sockets) as api,
        ):
            answer = await gpu_info(api, machine, error="NVIDIA driver is not loaded")
            assert not answer.gpus

            (machine.folder / "load-driver").touch()
            answer = await gpu_info(api, machine, error="")
            assert len(answer.gpus) == 2
            assert all(gpu.uuid and gpu.memory_total_bytes for gpu in answer.gpus)

            await api.Shutdown(guest_api_pb2.Id(id="vm"), timeout=30)
            await machine.ends()
            results = machine.left()

    inventory = results["inventory"]
    assert (inventory["total"], inventory["nvidia"]) == (2, 2), "the NVSwitch is no card"
    assert [card["pci_bus_id"] for card in inventory["cards"]] == [card.address for card in CARDS]
    gate = json.loads(results["gate"]["stdout"])
    verdicts = {check["check"]: check["verdict"] for check in gate["checks"]}
    assert (verdicts["inventory"], verdicts["vendors"]) == ("pass", "pass")
    assert (results["gate"]["status"], verdicts["verifier"]) == (1, "refused"), "no verifier is installed in there"


async def test_a_proxy_in_one_machine_asks_an_agent_in_another_which_takes_calls_of_that_cid_alone(
    tmp_path: Path, sockets: Path
) -> None:
    kernel = require_parts()
    switch = VsockSwitch(sockets, [42, 43])
    for name in ("proxy", "guest"):
        (tmp_path / name).mkdir()
    vsock = ["vmw_vsock_virtio_transport"]
    async with (
        switch.running(),
        virtual_machine(
            kernel,
            tmp_path / "guest",
            "tests.vm.inside.neighbour",
            modules=vsock,
            devices=[*switch.devices(43), "-device", "cirrus-vga"],
            cpus=1,
        ) as guest,
        virtual_machine(
            kernel, tmp_path / "proxy", "tests.vm.inside.proxy_machine", modules=vsock, devices=switch.devices(42), cpus=1
        ) as proxy,
    ):
        await guest.leaves()
        (proxy.folder / "neighbour-serves").touch()
        results = await proxy.results()
        refused = guest.log("closed")
        gate = guest.left()["gate"]

    assert results["open"]["status"] == 0, results
    assert len(json.loads(results["open"]["stdout"])["gpus"]) == 1
    assert results["closed"]["status"] != 0
    assert "CID 42" in refused
    assert results["nobody"]["status"] != 0
    assert gate["status"] == 1
    assert "not an NVIDIA GPU" in json.loads(gate["stdout"])["reason"]
