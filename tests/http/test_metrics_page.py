"""`/metrics` of a guest: what stands on it, and what it never waits for."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from guest_api.guest_api_pb2 import DiskInfo, GpuInfoResponse
from guest_metrics import groups, table
from guest_metrics.exposition import Format
from guest_metrics.scrape_time import page_seconds
from guest_transport.http.answers import wants_gzip
from tests.http.guests import Bus, Engine, Gpus, Guest, Shown, Stats, containers, h200s, served
from tests.http.web import get
from tests.metrics.readers import at, needs_promtool, promtool_complaints, read


def gpu_guest() -> Guest:
    return Guest(gpus=Gpus(reply=h200s(8), inventory=Bus(8)), engine=Engine(containers=containers(3)))


@pytest.mark.parametrize(("accept", "form"), [("*/*", Format.TEXT), ("application/openmetrics-text", Format.OPENMETRICS)])
async def test_the_page_has_system_cards_containers_and_the_agent_itself(accept: str, form: Format) -> None:
    guest = gpu_guest()
    async with served(guest) as address:
        await get(address, "/metrics")
        await guest.listed()
        answer = await get(address, "/metrics", headers={"Accept": accept})
    assert answer.status == 200
    assert answer.headers["content-type"] == form.value
    samples = read(answer.body, form)
    card = {"index": "7", "uuid": "GPU-00000007-1b2c-3d4e-5f60-718293a4b5c6", "pci_bus_id": "00000000:08:00.0"}
    assert samples[at("dstack_gpu_power_usage_milliwatts", **card)] == 569_700
    assert samples[at("dstack_gpu_nvml_devices")] == samples[at("dstack_gpu_pci_devices")] == 8
    assert samples[at("dstack_gpu_sample_age_seconds")] == 1.234
    assert samples[at("dstack_gpu_samples_total", outcome="timeout")] == 1
    assert samples[at("dstack_gpu_sample_duration_seconds")] == 0.125
    assert samples[at("dstack_gpu_cc_query_errors_total")] == 2
    assert samples[at("dstack_guest_cpus")] == 64
    assert samples[at("dstack_guest_load15")] == 12.34
    assert sum(1 for name, _ in samples if name == "dstack_guest_container_info") == 3
    assert {dict(labels)["version"] for name, labels in samples if name == "guest_service_build_info"} == {"1.2.3"}
    assert samples[at("process_resident_memory_bytes")] > 2**20
    assert [samples[at("guest_service_part_up", part=part)] for part in ("system", "process", "containers")] == [1, 1, 1]


@needs_promtool
@pytest.mark.parametrize("guest", [gpu_guest(), Guest(), Guest(gpus=Gpus(reply=GpuInfoResponse(error="no"), inventory=Bus(1)))])
async def test_promtool_has_no_complaint(guest: Guest) -> None:
    async with served(guest) as address:
        await get(address, "/metrics")
        await guest.listed()
        answer = await get(address, "/metrics")
    assert await asyncio.to_thread(promtool_complaints, answer.body) == ""


async def test_a_guest_without_a_gpu_is_up_with_no_card() -> None:
    async with served(Guest()) as address:
        samples = read((await get(address, "/metrics")).body, Format.TEXT)
    assert samples[at("dstack_gpu_nvml_up")] == 1
    assert samples[at("dstack_gpu_pci_devices")] == 0
    assert not any("uuid" in dict(labels) for _, labels in samples)
    assert not any(name in ("dstack_gpu_cc_enabled", "dstack_gpu_cc_ready", "dstack_gpu_cc_devtools") for name, _ in samples)


async def test_before_the_first_sample_the_page_does_not_say_that_the_gpus_are_down() -> None:
    pending = GpuInfoResponse(error="being taken", first_sample_pending=True)
    gpus = Gpus(reply=pending, ready=False, inventory=Bus(1), stats=Stats({"sample": 0}, None))
    async with served(Guest(gpus=gpus)) as address:
        samples = read((await get(address, "/metrics")).body, Format.TEXT)
    assert at("dstack_gpu_nvml_up") not in samples
    assert samples[at("dstack_gpu_pci_devices")] == 1
    assert at("dstack_gpu_sample_duration_seconds") not in samples
    assert samples[at("dstack_guest_cpus")] == 64


async def test_with_public_sysinfo_off_there_is_no_page_and_no_sample_is_taken() -> None:
    guest = gpu_guest()
    guest.shown = Shown(public_sysinfo=False)
    async with served(guest) as address:
        answer = await get(address, "/metrics")
    assert answer.status == 404
    assert b"public_sysinfo" in answer.body
    assert guest.gpus.callers == []
    assert guest.system.reads == 0


async def test_a_switch_holds_from_the_next_request_on() -> None:
    guest = gpu_guest()
    async with served(guest) as address:
        assert (await get(address, "/metrics")).status == 200
        guest.shown = Shown(public_sysinfo=False)
        assert (await get(address, "/metrics")).status == 404


async def test_with_public_containers_off_no_container_is_named_and_the_engine_is_not_asked() -> None:
    guest = gpu_guest()
    guest.shown = Shown(public_containers=False)
    async with served(guest) as address:
        await get(address, "/metrics")
        answer = await get(address, "/metrics")
    assert b"container" not in answer.body
    assert guest.engine.lists == 0


async def test_a_hanging_engine_delays_nothing_and_the_other_series_are_there() -> None:
    guest = gpu_guest()
    guest.engine.hangs = True
    async with served(guest) as address:
        await get(address, "/metrics")
        started = time.monotonic()
        samples = read((await get(address, "/metrics")).body, Format.TEXT)
        assert time.monotonic() - started < 1
    assert samples[at("dstack_guest_cpus")] == 64
    assert not any(name == "dstack_guest_container_info" for name, _ in samples)
    assert guest.engine.lists == 1


async def test_system_facts_that_hang_end_with_the_scrapers_time_and_are_said_to_be_missing() -> None:
    guest = gpu_guest()
    guest.system.hangs = True
    async with served(guest) as address:
        started = time.monotonic()
        answer = await get(address, "/metrics", headers={"X-Prometheus-Scrape-Timeout-Seconds": "0.2"})
        assert time.monotonic() - started < 1
        await get(address, "/metrics", headers={"X-Prometheus-Scrape-Timeout-Seconds": "0.01"})
    samples = read(answer.body, Format.TEXT)
    assert samples[at("guest_service_part_up", part="system")] == 0
    assert at("dstack_guest_cpus") not in samples
    assert samples[at("dstack_gpu_nvml_up")] == 1
    assert guest.system.reads == 1


async def test_system_facts_that_fail_are_absent_and_not_zero() -> None:
    guest = gpu_guest()
    guest.system.error = OSError(5, "Input/output error")
    async with served(guest) as address:
        samples = read((await get(address, "/metrics")).body, Format.TEXT)
        assert samples[at("guest_service_part_up", part="system")] == 0
        assert at("dstack_guest_memory_total_bytes") not in samples
        guest.system.error = None
        assert at("dstack_guest_memory_total_bytes") in read((await get(address, "/metrics")).body, Format.TEXT)


async def test_a_failing_collector_shows_on_the_page_with_a_growing_age() -> None:
    guest = gpu_guest()
    async with served(guest) as address:
        ages, ups = [], []
        for age_ms in (1_000, 31_000, 61_000):
            guest.gpus.reply = GpuInfoResponse(error="the collector was killed after 10 s", sample_age_ms=age_ms)
            samples = read((await get(address, "/metrics")).body, Format.TEXT)
            ages.append(samples[at("dstack_gpu_sample_age_seconds")])
            ups.append(samples[at("dstack_gpu_nvml_up")])
            assert samples[at("dstack_guest_memory_total_bytes")] > 0
    assert ages == [1, 31, 61]
    assert ups == [0, 0, 0]


async def test_a_card_with_a_hostile_name_leaves_the_other_series_as_they_are() -> None:
    name = 'A"B\\C\nD'
    guest = gpu_guest()
    guest.gpus.reply.gpus[0].uuid = name
    guest.engine.containers[0].names[:] = [f"/{name}"]
    async with served(guest) as address:
        await get(address, "/metrics")
        await guest.listed()
        samples = read((await get(address, "/metrics")).body, Format.TEXT)
    assert samples[at("dstack_gpu_temperature_celsius", index="0", uuid=name, pci_bus_id="00000000:01:00.0")] == 31
    assert sum(1 for sample, _ in samples if sample == "dstack_gpu_temperature_celsius") == 8
    assert name in {dict(labels)["name"] for sample, labels in samples if sample == "dstack_guest_container_info"}


@pytest.mark.parametrize("group", groups.KNOWN)
async def test_a_page_of_one_group_has_its_families_and_no_other(group: str) -> None:
    guest = gpu_guest()
    for device in guest.gpus.reply.gpus:
        device.row_remap_pending = True
    guest.gpus.reply.groups.append("health")
    async with served(guest) as address:
        samples = read((await get(address, f"/metrics?group={group}")).body, Format.TEXT)
        whole = read((await get(address, "/metrics")).body, Format.TEXT)
    of_group = {family.name for family in table.of_groups({group})}
    assert {name for name, _ in samples} == {name for name, _ in whole} & of_group - {"dstack_guest_container_info"}
    assert guest.system.reads == 1 + (group == "base")


async def test_a_page_without_base_takes_no_look_at_the_system_and_groups_may_be_several() -> None:
    guest = gpu_guest()
    async with served(guest) as address:
        health = await get(address, "/metrics?group=health")
        both = await get(address, "/metrics?group=health&group=base&group=health")
    assert guest.system.reads == 1
    assert b"dstack_gpu_nvml_up" not in health.body
    assert b"dstack_gpu_health" in health.body
    assert {b"dstack_gpu_nvml_up", b"dstack_guest_cpus", b"dstack_gpu_health_reason"} <= set(
        re.findall(rb"^\w+", both.body, re.M)
    )


@pytest.mark.parametrize("query", ["group=Health", "group=", "group=health&group=x", "group=health,limits"])
async def test_a_group_that_is_unknown_is_refused_with_those_that_are_known(query: str) -> None:
    async with served(gpu_guest()) as address:
        answer = await get(address, f"/metrics?{query}")
    assert (answer.status, answer.text) == (400, f"group: known are {', '.join(groups.KNOWN)}\n")


async def test_256_disks_are_all_there() -> None:
    guest = Guest()
    guest.system.info.disks.extend(DiskInfo(name=f"/dev/vd{n}", mount_point=f"/mnt/{n:03d}", total_size=n) for n in range(254))
    async with served(guest) as address:
        samples = read((await get(address, "/metrics")).body, Format.TEXT)
    assert sum(1 for name, _ in samples if name == "dstack_guest_disk_total_bytes") == 256


async def test_the_page_is_compressed_only_for_who_asks() -> None:
    async with served(gpu_guest()) as address:
        plain = await get(address, "/metrics")
        packed = await get(address, "/metrics", headers={"Accept-Encoding": "br;q=1.0, gzip;q=0.8"})
        refused = await get(address, "/metrics", headers={"Accept-Encoding": "gzip;q=0"})
    assert "content-encoding" not in plain.headers
    assert "content-encoding" not in refused.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert "accept-encoding" in packed.headers["vary"].lower()
    assert len(packed.body) * 4 < len(plain.body)
    assert read(packed.text.encode(), Format.TEXT).keys() >= {at("dstack_gpu_nvml_up")}


async def test_telemetry_sees_one_caller_for_all_connections_of_a_scraper_and_another_for_a_person() -> None:
    guest = gpu_guest()
    async with served(guest) as address:
        await get(address, "/metrics")
        await get(address, "/metrics")
        await get(address, "/")
    assert guest.gpus.callers == ["http metrics 127.0.0.1", "http metrics 127.0.0.1", "http dashboard 127.0.0.1"]


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 5), ("", 5), ("10", 5), ("5", 4.5), ("1", 0.9), ("0.2", 0.18), ("-1", 5), ("0", 5), ("nan", 5), ("inf", 5), ("soon", 5),
    ],
)  # fmt: skip
def test_the_page_leaves_time_to_send_within_the_scrapers_timeout(header: str | None, seconds: float) -> None:
    assert page_seconds(header) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ("", False), ("gzip", True), ("GZIP", True), ("*", True), ("*;q=0", False), ("gzip;q=0, *", False), ("br", False),
        ("identity;q=1, gzip; q=0.001", True), ("gzip;q=x", False), (",;,", False),
    ],
)  # fmt: skip
def test_gzip_is_sent_to_who_takes_it(header: str, wanted: bool) -> None:
    assert wants_gzip(header) is wanted
