"""/metrics of the proxy: every guest as it was last known, with the proxy's labels, whatever single guests do."""

from __future__ import annotations

import asyncio
import socket
import time

import grpc
import pytest

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_api.guest_api_pb2 import Container, GpuInfoResponse, ListContainersResponse
from guest_transport.addresses import UnixAddress
from tests.eventually import turns
from tests.fleet_http.fleet import ALL_SILENT, Answers, running_fleet
from tests.fleet_http.scraping import BOUND_SECONDS, containers_known, later, next_page, of_guest, page, settled
from tests.http.guests import h200s, system_info
from tests.http.web import get
from tests.metrics.readers import at, needs_promtool, promtool_complaints
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.directory.sources import SourceState
from vmm_proxy.metrics import guest_answers
from vmm_proxy.metrics.guest_answers import LOOK_AGAIN_SECONDS
from vmm_proxy.metrics.last_answers import KEEP_SECONDS
from vmm_proxy.policy.access import AccessRules


async def test_a_silent_guest_is_marked_down_and_the_others_are_there_within_the_scrapers_time() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=h200s(1)))
        await fleet.add("vm-b", Answers(gpus=h200s(2)))
        await fleet.add("vm-silent", Answers(silent=set(ALL_SILENT)))
        started = time.monotonic()
        samples = await page(fleet, timeout=2)
        assert time.monotonic() - started < 2
        assert samples[at("vmm_proxy_guest_up", vm_id="vm-a")] == 1
        assert samples[at("vmm_proxy_guest_up", vm_id="vm-silent")] == 0
        assert of_guest(samples, "vm-silent") == {"vmm_proxy_guest_up"}
        assert len([1 for name, _ in samples if name == "dstack_gpu_temperature_celsius"]) == 3
        # It was waited for once; from now on it costs nobody anything.
        later(fleet, LOOK_AGAIN_SECONDS)
        started = time.monotonic()
        assert (await page(fleet, timeout=10))[at("vmm_proxy_guest_up", vm_id="vm-silent")] == 0
        assert time.monotonic() - started < 1


async def test_a_guest_that_accepts_and_never_speaks_is_marked_down_too() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=h200s(1)))
        with socket.socket(socket.AF_UNIX) as deaf:
            deaf.bind(str(fleet.folder / "deaf"))
            deaf.listen()
            fleet.directory.add(GuestEntry("vm-deaf", UnixAddress(deaf.getsockname())))
            samples = await page(fleet, timeout=1.5)
        assert samples[at("vmm_proxy_guest_up", vm_id="vm-deaf")] == 0
        assert samples[at("vmm_proxy_guest_up", vm_id="vm-a")] == 1


async def test_each_scrape_has_what_a_prompt_guest_says_now(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a machine that has other work, a guest that answers at once may take longer than 100 ms.
    monkeypatch.setattr(guest_answers, "PROMPT_SECONDS", float(BOUND_SECONDS))
    async with running_fleet() as fleet:
        answers = await fleet.add("vm-a", Answers(gpus=h200s(1)))
        await page(fleet)
        for degrees in (50, 60, 0):
            answers.gpus.gpus[0].temperature_c = degrees
            samples = await next_page(fleet)
            [(_, value)] = [item for item in samples.items() if item[0][0] == "dstack_gpu_temperature_celsius"]
            assert value == degrees


async def test_scrapers_that_come_together_share_one_look() -> None:
    async with running_fleet() as fleet:
        answers = await fleet.add("vm-a", Answers(gpus=h200s(1)))
        pages = await asyncio.gather(*(page(fleet) for _ in range(8)))
        assert all(of_guest(one, "vm-a") == of_guest(pages[0], "vm-a") for one in pages)
        assert answers.asked == {"GpuInfo": 1, "SysInfo": 1, "ListContainers": 1}


async def test_nobody_is_asked_while_nobody_looks() -> None:
    async with running_fleet() as fleet:
        answers = await fleet.add("vm-a")
        assert (await get(fleet.address, "/sd")).status == 200
        assert (await get(fleet.address, "/healthz")).status == 200
        assert answers.asked == {}


async def test_the_last_answer_outlives_its_guest_for_a_while_with_its_age() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=h200s(1)))
        await page(fleet)
        await fleet.stop("vm-a")
        later(fleet, 100)
        await page(fleet)
        await settled(fleet)
        samples = await page(fleet)
        assert samples[at("vmm_proxy_guest_up", vm_id="vm-a")] == 0
        assert 100 <= samples[at("vmm_proxy_guest_answer_age_seconds", vm_id="vm-a")] < 110
        assert 101.2 <= samples[at("dstack_gpu_sample_age_seconds", vm_id="vm-a")] < 111.3
        assert "dstack_gpu_temperature_celsius" in of_guest(samples, "vm-a")
        later(fleet, KEEP_SECONDS)
        samples = await page(fleet)
        assert of_guest(samples, "vm-a") == {"vmm_proxy_guest_up", "vmm_proxy_guest_answer_age_seconds"}
        await fleet.start("vm-a")
        async with asyncio.timeout(BOUND_SECONDS):
            while (await next_page(fleet))[at("vmm_proxy_guest_up", vm_id="vm-a")] == 0:
                await settled(fleet)


async def test_a_guest_behind_a_reused_address_inherits_nothing() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=h200s(1)))
        await page(fleet)
        fleet.directory.replace(GuestEntry("vm-a", UnixAddress("/nowhere")))
        samples = await page(fleet)
        assert of_guest(samples, "vm-a") == {"vmm_proxy_guest_up"}
        assert samples[at("vmm_proxy_guest_up", vm_id="vm-a")] == 0


async def test_a_stopped_or_removed_guest_has_no_series() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=h200s(1)))
        await fleet.add("vm-b", Answers(gpus=h200s(1)))
        await page(fleet)
        entry = fleet.directory.get("vm-a")
        assert entry is not None
        fleet.directory.replace(GuestEntry("vm-a", entry.address, running=False))
        fleet.directory.remove("vm-b")
        samples = await page(fleet)
        assert of_guest(samples, "vm-a") == of_guest(samples, "vm-b") == set()
        assert samples[at("vmm_proxy_directory_entries", state="stopped")] == 1
        assert samples[at("vmm_proxy_directory_entries", state="running")] == 0


async def test_calls_are_counted_by_method_and_status_and_refusals_by_reason() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a")
        fleet.sources = {"folder": SourceState(readable=True, refused=3), "libvirt": SourceState(readable=False, refused=0)}
        async with grpc.aio.insecure_channel(
            f"unix:{fleet.folder}/proxy", options=[("grpc.default_authority", "localhost")]
        ) as channel:
            api = guest_api_pb2_grpc.ProxiedGuestApiStub(channel)
            await api.GpuInfo(guest_api_pb2.Id(id="vm-a"))
            for guest_id in ("nobody", "a/b"):
                with pytest.raises(grpc.aio.AioRpcError):
                    await api.SysInfo(guest_api_pb2.Id(id=guest_id))
        samples = await page(fleet)
        assert samples[at("vmm_proxy_calls_total", method="GpuInfo", code="OK")] == 1
        assert samples[at("vmm_proxy_calls_total", method="SysInfo", code="NOT_FOUND")] == 1
        assert samples[at("vmm_proxy_rejected_total", reason="unknown_guest")] == 1
        assert samples[at("vmm_proxy_rejected_total", reason="invalid")] == 1
        assert samples[at("vmm_proxy_call_duration_seconds_count", method="GpuInfo")] == 1
        assert samples[at("vmm_proxy_call_duration_seconds_bucket", method="GpuInfo", le="20.0")] == 1
        assert samples[at("vmm_proxy_calls_in_flight")] == 0
        assert samples[at("vmm_proxy_redials_total")] == 0
        assert samples[at("vmm_proxy_directory_refused", source="folder")] == 3
        assert samples[at("vmm_proxy_directory_refused", source="libvirt")] == 0
        assert samples[at("vmm_proxy_directory_source_up", source="folder")] == 1
        assert samples[at("vmm_proxy_directory_source_up", source="libvirt")] == 0
        assert at("process_resident_memory_bytes") in samples


async def test_a_call_that_the_policy_refuses_is_counted_as_refused() -> None:
    nobody = AccessRules(own_uid=-1, own_gid=-1, loopback=None)
    async with running_fleet(access=nobody) as fleet:
        async with grpc.aio.insecure_channel(
            f"unix:{fleet.folder}/proxy", options=[("grpc.default_authority", "localhost")]
        ) as channel:
            api = guest_api_pb2_grpc.ProxiedGuestApiStub(channel)
            with pytest.raises(grpc.aio.AioRpcError):
                await api.GpuInfo(guest_api_pb2.Id(id="vm-a"), metadata=(("authorization", f"Bearer {'x' * 40}"),))
        samples = await page(fleet)
        assert samples[at("vmm_proxy_calls_total", method="GpuInfo", code="UNAUTHENTICATED")] == 1
        assert samples[at("vmm_proxy_rejected_total", reason="credentials")] == 1


async def test_one_guest_alone_is_the_same_samples_as_on_the_fleets_page() -> None:
    async with running_fleet(labels={"rack": "vm_rack"}) as fleet:
        await fleet.add("vm-a", Answers(gpus=h200s(2), system=system_info()), labels={"rack": "r7"})
        other = await fleet.add("vm-b")
        alone = await page(fleet, "/metrics?vm_id=vm-a")
        assert other.asked == {}
        assert {("vm_id", "vm-a"), ("vm_rack", "r7")} <= frozenset.intersection(*(labels for _, labels in alone))
        fleets = {sample: value for sample, value in (await page(fleet)).items() if ("vm_id", "vm-a") in sample[1]}
        aging = {name for name, _ in alone if name.endswith("age_seconds")}
        assert {sample: value for sample, value in alone.items() if sample[0] not in aging} == {
            sample: value for sample, value in fleets.items() if sample[0] not in aging
        }
        bare = await page(fleet, "/metrics?vm_id=vm-a&labels=target")
        assert {name for name, _ in bare} == {name for name, _ in alone}
        assert not any(label.startswith("vm_") for _, labels in bare for label, _ in labels)


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("vm_id=nobody", 404, "no running guest has this id"),
        ("vm_id=../../etc/x", 400, "vm_id: must be"),
        ("vm_id=", 400, "vm_id: must be"),
        ("vm_id=a&vm_id=b", 400, "vm_id: may stand once"),
        ("vm-id=a", 400, "allowed parameters"),
        ("labels=target", 400, "only with vm_id"),
        ("vm_id=a&labels=x", 400, "only target"),
    ],
)
async def test_a_query_that_means_nothing_is_refused_with_what_is_allowed(query: str, status: int, words: str) -> None:
    async with running_fleet() as fleet:
        answer = await get(fleet.address, f"/metrics?{query}")
        assert answer.status == status
        assert words in answer.text
        assert "etc" not in answer.text


@needs_promtool
async def test_promtool_has_no_complaint_about_the_fleets_page() -> None:
    async with running_fleet(labels={"rack": "vm_rack"}) as fleet:
        containers = ListContainersResponse(containers=[Container(id="2" * 64, names=["/x"], image="y", state="running")])
        await fleet.add(
            "vm-a",
            Answers(gpus=h200s(8), system=system_info(), containers=containers),
            labels={"rack": 'a"b\\c'},
            gpus=("3b:00.0",) * 8,
        )
        await fleet.add("vm-none")
        await fleet.add("vm-no-driver", Answers(gpus=GpuInfoResponse(error="NVIDIA driver is not loaded")))
        fleet.add_dead("vm-dead")
        await page(fleet)
        await containers_known(fleet)
        whole = await get(fleet.address, "/metrics", headers={"Accept-Encoding": "gzip"})
        assert whole.headers["content-encoding"] == "gzip"
        assert promtool_complaints(whole.text.encode()) == ""
        assert "dstack_guest_container_info" in whole.text
        assert "vmm_proxy_guest_gpu_info" in whole.text
        assert promtool_complaints((await get(fleet.address, "/metrics?vm_id=vm-a")).body) == ""


async def test_a_page_of_many_guests_is_whole_and_the_loop_goes_on_meanwhile() -> None:
    async with running_fleet() as fleet:
        # Seven answer; the others' answers are put in, so that the page is a big one.
        for number in range(300):
            fleet.directory.add(GuestEntry(f"vm-{number:03d}", UnixAddress(f"/nowhere/{number}")))
        now = fleet.pages.guest_answers.clock()
        for known in fleet.pages.guest_answers.guests():
            known.gpus.answer, known.gpus.received_at, known.asked_at, known.look_seconds = h200s(8), now, now + 3600, 0.0
        taken = 0

        async def count() -> None:
            nonlocal taken
            while True:
                await turns()
                taken += 1

        counting = asyncio.create_task(count())
        samples = await page(fleet)
        counting.cancel()
        assert sum(name == "dstack_gpu_temperature_celsius" for name, _ in samples) == 2400
        assert taken > 50
