"""What stands in a guest's lines beside its own values: the proxy's labels, its containers, and what the host gave to it."""

from __future__ import annotations

from dataclasses import replace

from guest_api.guest_api_pb2 import Container, GpuInfoResponse, ListContainersResponse, SystemInfo
from tests.fleet_http.fleet import ALL_SILENT, Answers, running_fleet
from tests.fleet_http.scraping import containers_known, of_guest, page
from tests.http.guests import h200s
from tests.metrics.readers import at


async def test_two_guests_that_say_the_same_are_told_apart_by_id() -> None:
    async with running_fleet() as fleet:
        for guest_id in ("vm-a", "vm-b"):
            await fleet.add(guest_id, Answers(gpus=h200s(1), system=SystemInfo(os_name="same")))
        samples = await page(fleet)
        assert of_guest(samples, "vm-a") == of_guest(samples, "vm-b") != set()


async def test_a_guest_sets_none_of_the_proxys_labels() -> None:
    forged = 'x",vm_id="vm-b",vm_rack="stolen'
    async with running_fleet(labels={"rack": "vm_rack"}) as fleet:
        reply = h200s(2)
        reply.gpus[0].uuid = forged
        reply.gpus[1].uuid = '\n# TYPE vmm_proxy_guest_up gauge\nvmm_proxy_guest_up{vm_id="vm-b"} 0\n'
        containers = ListContainersResponse(
            containers=[Container(id="1" * 64, names=[f"/{forged}"], image=forged, state="running")]
        )
        await fleet.add(
            "vm-evil", Answers(gpus=reply, system=SystemInfo(os_name=forged), containers=containers), labels={"rack": "r1"}
        )
        await fleet.add("vm-b", labels={"rack": "r2"})
        await page(fleet)
        await containers_known(fleet)
        samples = await page(fleet)
        assert samples[at("vmm_proxy_guest_up", vm_id="vm-b", vm_rack="r2")] == 1
        for name, labels in samples:
            own = dict(labels)
            if name.startswith(("dstack_", "vmm_proxy_guest_")):
                assert (own["vm_id"], own["vm_rack"]) in {("vm-evil", "r1"), ("vm-b", "r2")}
        assert any(name == "dstack_guest_container_info" and ("image", forged) in labels for name, labels in samples)


async def test_containers_can_be_left_out_and_are_then_not_asked_for() -> None:
    async with running_fleet(containers=False) as fleet:
        answers = await fleet.add("vm-a")
        await page(fleet)
        assert "ListContainers" not in answers.asked


async def test_an_answer_that_would_crowd_out_the_others_is_left_off() -> None:
    huge = GpuInfoResponse()
    for index in range(300):
        huge.gpus.add(index=index, uuid="u" * 400, temperature_c=1)
    async with running_fleet() as fleet:
        await fleet.add("vm-huge", Answers(gpus=huge, silent={"SysInfo"}))
        await fleet.add("vm-a", Answers(gpus=h200s(1)))
        samples = await page(fleet, timeout=1)
        # It answered: it is reachable, in the list of guests too.
        assert samples[at("vmm_proxy_guest_up", vm_id="vm-huge")] == 1
        assert of_guest(samples, "vm-huge") == {"vmm_proxy_guest_up"}
        assert samples[at("vmm_proxy_guest_up", vm_id="vm-a")] == 1


async def test_cards_are_joined_with_their_addresses_on_the_host() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=h200s(2)), gpus=("0000:3b:00.0", "0000:3c:00.0"))
        await fleet.add("vm-fewer", Answers(gpus=h200s(1)), gpus=("0000:5b:00.0", "0000:5c:00.0"))
        samples = await page(fleet)
        joins = [dict(labels) for name, labels in samples if name == "vmm_proxy_guest_gpu_info"]
        assert {(join["vm_id"], join["pci_bus_id"], join["host_pci_bus_id"]) for join in joins} == {
            ("vm-a", "00000000:01:00.0", "0000:3b:00.0"),
            ("vm-a", "00000000:02:00.0", "0000:3c:00.0"),
        }
        assert all(set(join) == {"vm_id", "index", "uuid", "pci_bus_id", "host_pci_bus_id"} for join in joins)


async def test_what_the_host_gave_is_said_of_a_guest_that_answers_and_of_one_that_does_not() -> None:
    async with running_fleet() as fleet:
        four = tuple(f"0000:3b:00.{number}" for number in range(4))
        await fleet.add("vm-fewer", Answers(gpus=h200s(3)), gpus=four)
        await fleet.add("vm-silent", Answers(silent=set(ALL_SILENT)), gpus=four)
        await fleet.add("vm-none")
        samples = await page(fleet, timeout=1)
        given = {
            dict(labels)["vm_id"]: value for (name, labels), value in samples.items() if name == "vmm_proxy_guest_gpus_given"
        }
        assert given == {"vm-fewer": 4, "vm-silent": 4}
        assert samples[at("dstack_gpu_nvml_devices", vm_id="vm-fewer")] == 3
        one = await page(fleet, "/metrics?vm_id=vm-fewer")
        assert one[at("vmm_proxy_guest_gpus_given", vm_id="vm-fewer")] == 4
        missed = "A card is missing: 4 given by the host, 3 seen by the driver"
        assert missed in (fleet.pages.view.rows("vm-fewer") or "")
        fleet.directory.replace(replace(fleet.directory.known("vm-fewer"), gpus=four[:3]))
        assert (await page(fleet))[at("vmm_proxy_guest_gpus_given", vm_id="vm-fewer")] == 3
        assert missed not in (fleet.pages.view.rows("vm-fewer") or "")
