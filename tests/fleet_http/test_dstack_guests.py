"""A fleet in which some guests run dstack's own agent: one page, one list of targets, one table; what such a guest lacks is unknown."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from prometheus_client.parser import text_string_to_metric_families

from guest_api import guest_api_pb2
from guest_transport.addresses import UnixAddress
from tests.fleet_http.fleet import Answers, Fleet, running_fleet
from tests.http.web import get
from tests.proxy.raw_http_guest import RawHttpGuest, always, raw_http_guest
from vmm_proxy.directory.directory import GuestEntry

# As the table shows a verdict that nobody asked for.
NOT_ASKED = "\u2013"
# What dstack's agent tells of a card, and no more.
CARD = guest_api_pb2.GpuDevice(
    uuid="GPU-1", pci_bus_id="00000000:01:00.0", utilization_gpu=0, utilization_memory=0, memory_total_bytes=80, power_usage_mw=5
)
THEIRS = {
    "Info": guest_api_pb2.GuestInfo(version="0.5.4").SerializeToString(),
    "SysInfo": guest_api_pb2.SystemInfo(os_name="dstack", num_cpus=4, total_memory=8).SerializeToString(),
    "GpuInfo": guest_api_pb2.GpuInfoResponse(gpus=[CARD], sample_age_ms=7).SerializeToString(),
    "ListContainers": b"",
}
OURS = Answers(
    gpus=guest_api_pb2.GpuInfoResponse(gpus=[CARD], sample_age_ms=7, pci_devices=1, groups=["health"], cc_enabled=False),
    system=guest_api_pb2.SystemInfo(
        os_name="Debian",
        num_cpus=4,
        total_memory=8,
        cpu_times=[guest_api_pb2.CpuTime(mode="user", seconds=1)],
        network=[guest_api_pb2.InterfaceTraffic(interface="eth0")],
    ),
)


@asynccontextmanager
async def mixed_fleet() -> AsyncIterator[tuple[Fleet, RawHttpGuest]]:
    async with running_fleet() as fleet, raw_http_guest(str(fleet.folder / "dstack"), always(THEIRS)) as guest:
        await fleet.add("vm-ours", OURS)
        fleet.directory.add(GuestEntry("vm-theirs", UnixAddress(guest.path), dstack=True))
        yield fleet, guest


async def test_the_page_has_both_kinds_and_no_number_for_what_dstacks_agent_does_not_tell() -> None:
    async with mixed_fleet() as (fleet, _):
        text = (await get(fleet.address, "/metrics")).body.decode()
    of = {guest: dict[str, float]() for guest in ("vm-ours", "vm-theirs")}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get("vm_id") in of:
                of[sample.labels["vm_id"]][sample.name] = sample.value
    assert of["vm-theirs"]["dstack_gpu_utilization_percent"] == 0
    assert of["vm-theirs"]["vmm_proxy_guest_up"] == 1
    assert {
        "dstack_gpu_cc_enabled",
        "dstack_gpu_pci_devices",
        "dstack_guest_cpu_seconds_total",
        "dstack_guest_network_receive_bytes_total",
    } <= set(of["vm-ours"]) - set(of["vm-theirs"])
    # Its cards have no verdict, and that is said.
    assert "dstack_gpu_health_reason" in of["vm-theirs"]
    assert set(of["vm-theirs"]) - set(of["vm-ours"]) <= {"dstack_gpu_health_reason"}


async def test_both_kinds_are_targets_of_discovery() -> None:
    async with mixed_fleet() as (fleet, _):
        groups = json.loads((await get(fleet.address, "/sd")).body)
    assert [group["labels"]["vm_id"] for group in groups] == ["vm-ours", "vm-theirs"]


async def test_a_guest_that_is_not_there_is_down_on_the_page_like_every_other() -> None:
    async with mixed_fleet() as (fleet, _):
        fleet.directory.add(GuestEntry("vm-gone", UnixAddress(str(fleet.folder / "gone")), dstack=True))
        text = (await get(fleet.address, "/metrics")).body.decode()
    assert 'vmm_proxy_guest_up{vm_id="vm-gone"} 0' in text
    assert 'vmm_proxy_guest_up{vm_id="vm-theirs"} 1' in text


async def test_top_shows_the_cards_of_both_kinds() -> None:
    async with mixed_fleet() as (fleet, _):
        top = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "guest_client.guestctl", "top", "--count", "1", "--proxy", f"unix:{fleet.folder}/proxy"),
            stdout=asyncio.subprocess.PIPE,
        )
        said, _ = await top.communicate()
    rows = [line.split()[:3] for line in said.decode().splitlines() if line.startswith("vm-")]
    assert rows == [["vm-ours", "0", "ok"], ["vm-theirs", "0", NOT_ASKED]]
