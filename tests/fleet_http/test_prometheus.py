"""Debian's Prometheus scrapes a fleet: as one page, and guest by guest as /sd says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guest_transport.addresses import UnixAddress
from tests.fleet_http.fleet import Answers, running_fleet
from tests.http.guests import h200s
from tests.http.test_prometheus import PROMETHEUS, prometheus
from tests.http.web import close, connect, get, read_answer
from vmm_proxy.directory.directory import GuestEntry

needs_prometheus = pytest.mark.skipif(PROMETHEUS is None, reason="missing: prometheus (Debian package prometheus)")

FLEET = """
global: {{scrape_interval: 1s, scrape_timeout: 900ms}}
scrape_configs:
  - job_name: fleet
    static_configs: [{{targets: ["{target}"]}}]
"""
BY_GUEST = """
global: {{scrape_interval: 1s, scrape_timeout: 900ms}}
scrape_configs:
  - job_name: guests
    http_sd_configs: [{{url: "http://{target}/sd", refresh_interval: 1s}}]
    relabel_configs: [{{source_labels: [__meta_vmm_proxy_label_tenant], target_label: tenant}}]
"""


@needs_prometheus
@pytest.mark.timeout(120)
async def test_prometheus_scrapes_the_fleets_page_and_answers_queries_by_vm_id(tmp_path: Path) -> None:
    async with running_fleet(labels={"rack": "vm_rack"}) as fleet:
        hostile = h200s(2)
        hostile.gpus[0].uuid = 'x",vm_id="vm-b'
        await fleet.add("vm-a", Answers(gpus=hostile), labels={"rack": "r7"}, gpus=("0000:3b:00.0", "0000:3c:00.0"))
        await fleet.add("vm-b", labels={"rack": "r8"})
        fleet.add_dead("vm-dead")
        async with prometheus(fleet.address, tmp_path, FLEET) as server:
            await server.scraped(2)
            assert (await server.target())["lastError"] == ""
            assert await server.value('vmm_proxy_guest_up{vm_id="vm-a",vm_rack="r7"}') == 1
            assert await server.value('vmm_proxy_guest_up{vm_id="vm-dead"}') == 0
            assert await server.value("count by (vm_id) (dstack_gpu_temperature_celsius)") == 2
            joined = "dstack_gpu_temperature_celsius * on (vm_id, uuid) group_left (host_pci_bus_id) vmm_proxy_guest_gpu_info"
            hosts = {dict(labels)["host_pci_bus_id"] for labels in await server.query(joined)}
            assert hosts == {"0000:3b:00.0", "0000:3c:00.0"}
            fleet.guests["vm-a"].gpus.gpus[1].temperature_c = 91
            await server.scraped(2)
            assert await server.value("max(dstack_gpu_temperature_celsius)") == 91


@needs_prometheus
@pytest.mark.timeout(120)
async def test_prometheus_finds_guests_through_sd_and_scrapes_each(tmp_path: Path) -> None:
    async with running_fleet(labels={"rack": "vm_rack"}) as fleet:
        await fleet.add("vm-a", Answers(gpus=h200s(2)), labels={"rack": "r7", "tenant": "blue"})
        await fleet.add("vm-b", labels={"rack": "r8"})
        async with prometheus(fleet.address, tmp_path, BY_GUEST) as server:
            await server.shows("count(up == 1)", 2)
            assert await server.value('up{vm_id="vm-a",vm_rack="r7",tenant="blue"}') == 1
            await server.shows('count(dstack_gpu_temperature_celsius{vm_id="vm-a",vm_rack="r7"})', 2)
            assert await server.value("count({exported_vm_id=~'.+'})") is None
            assert all(target["lastError"] == "" for target in await server.targets())
            await fleet.add("vm-c", labels={"rack": "r9"})
            await server.shows('up{vm_id="vm-c"}', 1)


async def test_sd_lists_running_guests_with_their_labels_and_asks_none() -> None:
    async with running_fleet(labels={"rack": "vm_rack"}) as fleet:
        answers = await fleet.add("vm-a", labels={"rack": "r7", "k8s.io/node": "n1"})
        fleet.directory.add(GuestEntry("vm-stopped", UnixAddress("/nowhere"), running=False))
        answer = await get(fleet.address, "/sd")
        assert answer.headers["content-type"] == "application/json"
        assert json.loads(answer.text) == [
            {
                # The client says in its Host header that it found us as "localhost".
                "targets": ["localhost"],
                "labels": {
                    "vm_id": "vm-a", "vm_rack": "r7", "__metrics_path__": "/metrics", "__param_vm_id": "vm-a", "__param_labels": "target",
                    "__meta_vmm_proxy_label_rack": "r7", "__meta_vmm_proxy_label_k8s_io_node": "n1",
                },
            }
        ]  # fmt: skip
        assert answers.asked == {}


@pytest.mark.parametrize("host", ["", 'a"b', "a/b", "[::1", "x" * 300, "evil.example", "localhost:1, evil.example"])
async def test_a_host_that_is_not_this_one_never_becomes_a_target(host: str) -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a")
        reader, writer = await connect(fleet.address)
        writer.write(f"GET /sd HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        answer = await read_answer(reader)
        await close(writer)
        assert answer.status == 421


async def test_where_the_operator_says_the_proxy_is_found_there() -> None:
    async with running_fleet(target="proxy.example:9880") as fleet:
        await fleet.add("vm-a")
        assert json.loads((await get(fleet.address, "/sd")).text)[0]["targets"] == ["proxy.example:9880"]


FLEET_PATHS = ["/", "/events", "/metrics", "/metrics?vm_id=vm-a", "/sd", "/assets/look.css", "/healthz", "/readyz", "/nothing"]


@pytest.mark.parametrize("path", FLEET_PATHS)
async def test_no_page_of_the_fleet_is_for_another_name(path: str) -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a")
        for method in ("GET", "POST"):
            answer = await get(fleet.address, path, method=method, host="evil.example")
            assert answer.status == 421
            assert "vm-a" not in answer.text
