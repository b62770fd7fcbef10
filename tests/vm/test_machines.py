"""Virtual machines with real kernels, and a host: the way that calls take in production, AF_VSOCK included."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from guest_api import guest_api_pb2
from tests.boot_gate.conftest import MakeNvml
from tests.nvml_library.fixture import nvml_build, scripted_nvml
from tests.vm.host_proxy import gpu_info, proxy_to
from tests.vm.machine import END_LIMIT_SECONDS, require_parts, virtual_machine
from tests.vm.pci_functions import NVIDIA_CARDS, NVSWITCH, plugged
from tests.vm.vsock_switch import VsockSwitch

__all__ = ["nvml_build", "scripted_nvml"]

pytestmark = [pytest.mark.vm, pytest.mark.timeout(END_LIMIT_SECONDS + 60)]


async def test_a_host_sees_a_guests_cards_without_and_with_a_driver_and_powers_it_off(
    tmp_path: Path, sockets: Path, scripted_nvml: MakeNvml
) -> None:
    kernel = require_parts()
    switch = VsockSwitch(sockets, [42])
    shutil.copytree(scripted_nvml("cards 2\n").path.parent, tmp_path / "results" / "nvml")
    with plugged([*NVIDIA_CARDS, NVSWITCH]) as functions:
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
            answer = await gpu_info(api, machine.story, error="NVIDIA driver is not loaded")
            assert not answer.gpus

            (machine.folder / "load-driver").touch()
            answer = await gpu_info(api, machine.story, error="")
            assert len(answer.gpus) == 2
            assert all(gpu.uuid and gpu.memory_total_bytes for gpu in answer.gpus)

            await api.Shutdown(guest_api_pb2.Id(id="vm"), timeout=30)
            await machine.ends()
            results = machine.left()

    inventory = results["inventory"]
    assert (inventory["total"], inventory["nvidia"]) == (2, 2), "the NVSwitch is no card"
    assert [card["pci_bus_id"] for card in inventory["cards"]] == [card.address for card in NVIDIA_CARDS]
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
