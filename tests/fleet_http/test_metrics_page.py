"""/metrics of the proxy: every guest as it was last known, with the proxy's labels, whatever single guests do."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import replace

import grpc
import pytest

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_api.guest_api_pb2 import Container, GpuInfoResponse, ListContainersResponse, SystemInfo
from guest_metrics import groups, table
from guest_metrics.exposition import Format
from guest_transport.addresses import UnixAddress
from tests.eventually import eventually, turns
from tests.fleet_http.fleet import ALL_SILENT, Answers, Fleet, running_fleet
from tests.http.guests import h200s, system_info
from tests.http.web import get
from tests.metrics.readers import Labels, at, needs_promtool, promtool_complaints, read
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.directory.sources import SourceState
from vmm_proxy.metrics import guest_answers
from vmm_proxy.metrics.guest_answers import LOOK_AGAIN_SECONDS
from vmm_proxy.metrics.guest_series import KeptLines
from vmm_proxy.metrics.last_answers import KEEP_SECONDS
from vmm_proxy.metrics.page import GROUP_KEPT_SECONDS
from vmm_proxy.policy.access import AccessRules

BOUND_SECONDS = 20
Samples = dict[tuple[str, Labels], float]


async def page(fleet: Fleet, path: str = "/metrics", *, timeout: float = 3) -> Samples:
    """The page's samples, in the way Prometheus asks for them."""
    headers = {"X-Prometheus-Scrape-Timeout-Seconds": str(timeout), "Accept": "application/openmetrics-text;version=1.0.0"}
    answer = await get(fleet.address, path, headers=headers)
    assert answer.status == 200, answer.text
    return read(answer.body, Format.OPENMETRICS)


def later(fleet: Fleet, seconds: float) -> None:
    """Let the clock of GuestAnswers go on."""
    clock = fleet.pages.guest_answers.clock
    fleet.pages.guest_answers.clock = lambda: clock() + seconds


async def next_page(fleet: Fleet) -> Samples:
    """A page after the moment in which two scrapes share a look."""
    later(fleet, LOOK_AGAIN_SECONDS)
    return await page(fleet)


def of_guest(samples: Samples, guest_id: str) -> set[str]:
    return {name for name, labels in samples if ("vm_id", guest_id) in labels}


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


async def settled(fleet: Fleet) -> None:
    """Return once no guest is being looked at."""
    guest_answers = fleet.pages.guest_answers
    await eventually(lambda: not guest_answers.looking)


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


async def containers_known(fleet: Fleet) -> None:
    await eventually(lambda: all(guest.containers.tried for guest in fleet.pages.guest_answers.guests()))


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


def sick() -> GpuInfoResponse:
    reply = h200s(2)
    reply.groups.append("health")
    reply.gpus[0].row_remap_pending = True
    return reply


def names(samples: Samples) -> set[str]:
    return {name for name, _ in samples}


@pytest.mark.parametrize("of", ["/metrics?", "/metrics?vm_id=vm-a&"])
async def test_the_groups_that_are_chosen_are_on_the_page_and_no_others(of: str) -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=sick()))
        usual = names(await page(fleet, of))
        health = names(await page(fleet, f"{of}group=health"))
        both = names(await page(fleet, f"{of}group=health&group=base"))
    assert {"dstack_gpu_health", "dstack_gpu_row_remap_pending"} <= health
    of_health = {family.name for family in table.of_groups({"health"})}
    assert health == usual & of_health
    assert {"dstack_gpu_temperature_celsius", "dstack_guest_cpus", "vmm_proxy_guest_up"} <= both - of_health
    assert both & of_health == health


async def test_a_fleet_is_shown_without_the_groups_that_few_look_at() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=sick()))
        shown = names(await page(fleet))
    assert shown <= {family.name for family in table.of_groups({"base", "identity", "health"})} | {
        family.name for family in table.PROXY_FAMILIES
    } | {"vmm_proxy_call_duration_seconds_bucket", "vmm_proxy_call_duration_seconds_sum", "vmm_proxy_call_duration_seconds_count"}


@pytest.mark.parametrize("of", ["/metrics?", "/metrics?vm_id=vm-a&"])
async def test_an_unknown_group_is_refused_before_a_guest_is_asked(of: str) -> None:
    async with running_fleet() as fleet:
        answers = await fleet.add("vm-a", Answers(gpus=sick()))
        answer = await get(fleet.address, f"{of}group=health&group=power")
        assert (answer.status, answer.text) == (400, f"group: known are {', '.join(groups.KNOWN)}\n")
        assert answers.asked == {}


async def test_pages_of_several_choices_share_their_lines_and_a_choice_of_long_ago_is_kept_no_more() -> None:
    async with running_fleet() as fleet:
        await fleet.add("vm-a", Answers(gpus=sick()))
        await page(fleet, "/metrics?group=base")
        [known] = fleet.pages.guest_answers.guests()
        first = known.lines
        assert isinstance(first, KeptLines)
        assert first.groups == {"base"}
        await page(fleet, "/metrics?group=health")
        await page(fleet, "/metrics?group=base")
        both = known.lines
        assert isinstance(both, KeptLines)
        assert both.groups == {"base", "health"}
        # Within the life of an answer, twice: health was chosen too long ago after the second.
        for _ in range(2):
            later(fleet, GROUP_KEPT_SECONDS * 0.6)
            await page(fleet, "/metrics?group=base")
        last = known.lines
        assert isinstance(last, KeptLines)
        assert last.groups == {"base"}
        assert "dstack_gpu_health" not in last.gpus.form.heads
