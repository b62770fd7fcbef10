"""The proxy and its doctor as processes, beside an API server: what a caller, a scraper and an operator are told."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import grpc
import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from guest_fleet.v1 import fleet_pb2, fleet_pb2_grpc
from guest_transport.addresses import UnixAddress
from guest_transport.options import channel_options
from tests.doctor.reports import host_doctor
from tests.eventually import eventually
from tests.kubevirt.api_server import ApiServer
from tests.kubevirt.objects import H200, NODE, in_phase, instance
from tests.proxy import processes

pytestmark = pytest.mark.timeout(120)


def written(folder: Path, api: ApiServer, more: str = "") -> Path:
    file = folder / "proxy.toml"
    settings = f"node = 'env:NODE_NAME'\nlabels = ['tenant']\nkubeconfig = '{api.kubeconfig()}'\nport = 9000\n"
    file.write_text(f"[grpc]\nlisten = ['unix:{folder}/p']\n[http]\nlisten = 'unix:{folder}/h'\n[kubevirt]\n{settings}{more}")
    return file


async def test_the_proxy_lists_this_nodes_instances_and_says_when_the_api_server_is_lost(api: ApiServer, sockets: Path) -> None:
    api.put(instance("one", cid=41, gpus=[H200] * 2, labels={"tenant": "blue"}))
    api.put(in_phase(instance("two", cid=42), "Succeeded"))
    config, address = written(sockets, api), UnixAddress(str(sockets / "p"))
    async with (
        processes.serving("--config", str(config), "--http", f"unix:{sockets}/h", env={"NODE_NAME": NODE}) as proxy,
        grpc.aio.insecure_channel(address.grpc_target, options=channel_options(address)) as channel,
    ):
        fleet = fleet_pb2_grpc.FleetServiceStub(channel)

        async def listed() -> list[fleet_pb2.Guest] | None:
            guests = (await fleet.ListGuests(fleet_pb2.ListGuestsRequest(), timeout=20)).guests
            return list(guests) if len(guests) == 2 else None

        one, two = await eventually(listed)
        assert (one.id, one.address) == ("tenant-blue.one", "vsock:41:9000")
        assert dict(one.labels) == {"namespace": "tenant-blue", "name": "one", "tenant": "blue"}
        assert (two.id, two.state) == ("tenant-blue.two", fleet_pb2.GUEST_STATE_STOPPED)
        before = await _samples(sockets / "h")
        assert before["vmm_proxy_directory_source_up", "kubevirt"] == 1
        assert before["vmm_proxy_guest_gpus_given", "tenant-blue.one"] == 2
        api.fault = "reset"
        api.cut()
        line = await proxy.log_line("the last known guests stay")
        assert "instances of the cluster cannot be followed" in line
        after = await _samples(sockets / "h")
        assert after["vmm_proxy_directory_source_up", "kubevirt"] == 0
        assert [guest.id for guest in await eventually(listed)] == [one.id, two.id]
        status, _, _ = await proxy.stop()
        assert status == 0


async def _samples(socket: Path) -> dict[tuple[str, str], float]:
    async with httpx2.AsyncClient(transport=httpx2.AsyncHTTPTransport(uds=str(socket))) as client:
        text = (await client.get("http://localhost/metrics")).text
    return {
        (sample.name, sample.labels.get("source", sample.labels.get("vm_id", ""))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_the_doctor_counts_the_instances_and_names_what_is_refused_or_missing(api: ApiServer, sockets: Path) -> None:
    config = written(sockets, api, "[[guest]]\nid = 'tenant-blue.pinned'\naddress = 'unix:/nowhere'\n")
    for known in (instance("host", cid=2), instance("pinned", cid=43), in_phase(instance("one", cid=41), "Succeeded")):
        api.put(known)
    report = await host_doctor(config, NODE_NAME=NODE)
    assert report.verdicts("kubevirt") == ["wrong", "note", "ok"]
    refused, written_down, answered = (finding["seen"] for finding in report.of("kubevirt"))
    assert "instance tenant-blue.host: CID 2 is no guest's" in refused
    assert "tenant-blue.pinned" in written_down
    assert "3 instances on this node" in answered
    api.allowed["watch"] = set()
    report = await host_doctor(config, NODE_NAME=NODE)
    assert 'cannot watch resource "virtualmachineinstances"' in report.wrong("kubevirt")["seen"]
    api.fault = "silence"
    report = await host_doctor(config, NODE_NAME=NODE)
    assert "has not answered" in report.wrong("kubevirt")["seen"]


async def test_a_proxy_that_is_to_follow_a_cluster_without_its_client_says_what_to_install(tmp_path: Path) -> None:
    config = tmp_path / "proxy.toml"
    config.write_text("[kubevirt]\nnode = 'n'\n")
    # As in a fresh environment: whatever the module's place, this Python does not look there.
    code = (
        "import importlib.util, sys; find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *rest: None if name == 'lightkube' else find(name, *rest)\n"
        f"from vmm_proxy.__main__ import main; sys.argv = ['vmm-proxy', 'check-config', '--config', {str(config)!r}]; main()"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stderr=asyncio.subprocess.PIPE)
    _, stderr = await process.communicate()
    assert process.returncode == 2
    assert b"guestscope[kubevirt]" in stderr
    assert stderr.count(b"\n") == 1


async def test_a_proxy_that_follows_no_cluster_loads_nothing_of_it() -> None:
    code = "import sys, vmm_proxy.app, vmm_proxy.doctor.cli; raise SystemExit(bool({'lightkube', 'httpx2'} & set(sys.modules)))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == 0
