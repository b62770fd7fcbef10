"""Messages as samples: absent is not zero, nothing a guest says breaks a page."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guest_api.guest_api_pb2 import (
    DiskInfo,
    GpuDevice,
    GpuInfoResponse,
    SystemInfo,
    XidCount,
)
from guest_contract.card_fields import INSTANCES_LIMIT
from guest_metrics import gpu, guest, table
from guest_metrics.exposition import Format, Lines, page
from tests.guest_contract import test_health as health_examples
from tests.metrics.readers import Labels, at, needs_promtool, promtool_complaints, read

NOW = 1_800_000_000.0
U32, U64 = 2**32 - 1, 2**64 - 1


def gpu_samples(reply: GpuInfoResponse) -> dict[tuple[str, Labels], float]:
    lines = Lines()
    gpu.add_gpus(lines, reply)
    gpu.add_xid_times(lines, gpu.xid_ages(lines, reply), NOW)
    return read(page([lines.fragment()], Format.OPENMETRICS), Format.OPENMETRICS)


def test_a_guest_without_a_gpu_is_up_and_has_no_series_of_a_card() -> None:
    assert gpu_samples(GpuInfoResponse()) == {at("dstack_gpu_nvml_up"): 1, at("dstack_gpu_nvml_devices"): 0}


def test_an_error_is_down_and_tells_neither_a_card_count_nor_a_cc_state() -> None:
    reply = GpuInfoResponse(error="NVIDIA driver is not loaded", sample_age_ms=60000)
    assert gpu_samples(reply) == {at("dstack_gpu_nvml_up"): 0, at("dstack_gpu_sample_age_seconds"): 60.0}


def test_a_measured_zero_is_a_sample_and_an_unset_value_is_none() -> None:
    reply = GpuInfoResponse(cc_enabled=False, sample_age_ms=0)
    reply.gpus.add(index=0, uuid="GPU-0", pci_bus_id="00000000:01:00.0", utilization_gpu=0, memory_used_bytes=0)
    reply.gpus[0].errors.extend(["temperature: not supported", "power: not supported"])
    card = {"index": "0", "uuid": "GPU-0", "pci_bus_id": "00000000:01:00.0"}
    assert gpu_samples(reply) == {
        at("dstack_gpu_nvml_up"): 1,
        at("dstack_gpu_nvml_devices"): 1,
        at("dstack_gpu_sample_age_seconds"): 0,
        at("dstack_gpu_cc_enabled"): 0,
        at("dstack_gpu_utilization_percent", **card): 0,
        at("dstack_gpu_memory_used_bytes", **card): 0,
        at("dstack_gpu_query_errors", **card): 2,
        at("dstack_gpu_health_reason", **card, reason="not_asked"): 1,
    }


def test_a_verdict_is_a_number_with_its_reasons_and_unknown_is_no_number() -> None:
    lost, slow, fine = health_examples.healthy(0), health_examples.healthy(1), health_examples.healthy(2)
    health_examples.TROUBLE["xid_reset"](lost)
    health_examples.TROUBLE["row_remap_pending"](lost)
    health_examples.TROUBLE["power_brake"](slow)
    reply = health_examples.answer(lost, slow, fine)
    samples = gpu_samples(reply)

    def of(name: str) -> dict[tuple[str, str], float]:
        found = {labels: value for (each, labels), value in samples.items() if each == f"dstack_gpu_{name}"}
        return {(dict(labels)["index"], dict(labels).get("reason", "")): value for labels, value in found.items()}

    assert of("health") == {("0", ""): 2, ("1", ""): 1, ("2", ""): 0}
    assert of("health_reason") == {("0", "xid_reset"): 1, ("0", "row_remap_pending"): 1, ("1", "power_brake"): 1}
    del reply.groups[:]
    samples = gpu_samples(reply)
    assert of("health") == {("0", ""): 2, ("1", ""): 1}
    assert of("health_reason")["2", "not_asked"] == 1


def test_xids_are_counted_by_number_with_the_time_of_the_last_and_by_address_where_no_card_is_shown() -> None:
    reply = GpuInfoResponse(gpus=[health_examples.healthy(0)])
    reply.gpus[0].xids.extend(
        [XidCount(xid=79, count=U64, last_age_ms=2000), XidCount(xid=31, count=2), XidCount(xid=79, count=9)]
    )
    reply.unplaced_xids.extend(
        [XidCount(xid=48, count=1, last_age_ms=0, pci_bus_id="00000000:99:00.0"), XidCount(xid=24007, count=3, nvswitch=True)]
    )
    samples = gpu_samples(reply)
    card = {"index": "0", "uuid": "GPU-0", "pci_bus_id": "00000000:00:00.0"}
    nowhere = {"index": "", "uuid": "", "pci_bus_id": "00000000:99:00.0"}
    assert {key: value for key, value in samples.items() if key[0].startswith("dstack_gpu_xid")} == {
        at("dstack_gpu_xid_errors_total", **card, xid="79"): float(U64),
        at("dstack_gpu_xid_errors_total", **card, xid="31"): 2,
        at("dstack_gpu_xid_errors_total", **nowhere, xid="48"): 1,
        at("dstack_gpu_xid_last_timestamp_seconds", **card, xid="79"): NOW - 2,
        at("dstack_gpu_xid_last_timestamp_seconds", **nowhere, xid="48"): NOW,
    }


def test_ten_thousand_xids_of_a_hostile_guest_are_a_bounded_number_of_series() -> None:
    reply = GpuInfoResponse(error="wedged")
    reply.unplaced_xids.extend(XidCount(xid=number, count=U64, last_age_ms=U64, pci_bus_id='"}\n#') for number in range(10_000))
    names = [name for name, _ in gpu_samples(reply)]
    assert names.count("dstack_gpu_xid_errors_total") == gpu.XIDS_LIMIT
    assert "dstack_gpu_xid_last_timestamp_seconds" not in names, "584 million years ago is no time"


def test_five_thousand_instances_of_a_hostile_guest_are_a_bounded_number_of_series() -> None:
    reply = GpuInfoResponse()
    card = reply.gpus.add(uuid="GPU-0")
    for number in range(5_000):
        card.mig_instances.add(gpu_instance=number, profile='"}\n#' * 1000, memory_total_bytes=U64, memory_used_bytes=1)
    assert "dstack_gpu_mig_memory_total_bytes" not in {name for name, _ in gpu_samples(reply)}
    for each in card.mig_instances:
        each.memory_total_bytes = 2
    samples = gpu_samples(reply)
    assert [name for name, _ in samples].count("dstack_gpu_mig_memory_used_bytes") == INSTANCES_LIMIT
    assert all(dict(labels)["profile"] == "" for name, labels in samples if name.startswith("dstack_gpu_mig_memory"))


def test_a_divided_card_has_the_memory_of_each_instance_and_its_own() -> None:
    reply = GpuInfoResponse()
    card = reply.gpus.add(index=0, uuid="GPU-0", mig_enabled=True, memory_used_bytes=9, memory_total_bytes=18)
    card.mig_instances.add(gpu_instance=7, compute_instance=0, profile="1g.18gb", memory_total_bytes=4, memory_used_bytes=0)
    card.mig_instances.add(gpu_instance=9, memory_total_bytes=4)
    samples = gpu_samples(reply)
    of = {"index": "0", "uuid": "GPU-0", "pci_bus_id": ""}
    whole, bare = (
        {"gpu_instance": "7", "compute_instance": "0", "profile": "1g.18gb"},
        {"gpu_instance": "9", "compute_instance": "", "profile": ""},
    )
    assert samples[at("dstack_gpu_mig_memory_used_bytes", **of, **whole)] == 0
    assert samples[at("dstack_gpu_mig_memory_total_bytes", **of, **bare)] == 4
    assert at("dstack_gpu_mig_memory_used_bytes", **of, **bare) not in samples
    assert (samples[at("dstack_gpu_mig_enabled", **of)], samples[at("dstack_gpu_memory_used_bytes", **of)]) == (1, 9)


def test_every_value_of_a_card_has_its_family() -> None:
    reply = GpuInfoResponse(cc_enabled=True, cc_ready=True, cc_devtools=True, pci_devices=2, sample_age_ms=1500)
    reply.gpus.add(
        index=3, uuid="GPU-3", pci_bus_id="0001:02:00.0", utilization_gpu=1, utilization_memory=2, memory_total_bytes=9,
        memory_used_bytes=4, memory_free_bytes=5, temperature_c=6, power_usage_mw=70123,
    )  # fmt: skip
    samples = gpu_samples(reply)
    card = {"index": "3", "uuid": "GPU-3", "pci_bus_id": "0001:02:00.0"}
    names = (
        "utilization_percent", "memory_utilization_percent", "memory_total_bytes", "memory_used_bytes", "memory_free_bytes",
        "temperature_celsius", "power_usage_milliwatts", "query_errors",
    )  # fmt: skip
    assert [samples[at(f"dstack_gpu_{name}", **card)] for name in names] == [1, 2, 9, 4, 5, 6, 70123, 0]
    assert samples[at("dstack_gpu_sample_age_seconds")] == 1.5
    assert samples[at("dstack_gpu_cc_ready")] == 1
    assert samples[at("dstack_gpu_cc_devtools")] == 1
    assert samples[at("dstack_gpu_pci_devices")] == 2


def test_eight_lost_cards_are_eight_cards_with_errors_and_not_idle_ones() -> None:
    reply = GpuInfoResponse(sample_age_ms=1)
    for index in range(8):
        reply.gpus.add(index=index, pci_bus_id=f"00000000:0{index}:00.0", errors=["device: GPU is lost"])
    samples = gpu_samples(reply)
    assert sum(1 for name, _ in samples if name == "dstack_gpu_query_errors") == 8
    assert not any(name == "dstack_gpu_utilization_percent" for name, _ in samples)


def test_cards_that_a_guest_gives_equal_labels_count_once_and_the_page_stays_valid() -> None:
    reply = GpuInfoResponse()
    for power in (1, 2):
        reply.gpus.add(index=0, uuid="same", pci_bus_id="same", power_usage_mw=power)
    assert gpu_samples(reply)[at("dstack_gpu_power_usage_milliwatts", index="0", uuid="same", pci_bus_id="same")] == 1


def test_every_integer_of_a_message_stands_with_every_digit() -> None:
    reply = GpuInfoResponse(sample_age_ms=U64)
    most = 2**56
    reply.gpus.add(index=U32, memory_total_bytes=most, memory_used_bytes=most - 1, memory_free_bytes=1, power_usage_mw=4_999_999)
    lines = Lines()
    gpu.add_gpus(lines, reply)
    guest.add_system(
        lines, SystemInfo(total_memory=most, uptime=U64, loadavg_one=U32, disks=[DiskInfo(total_size=U64, free_size=1)])
    )
    body = page([lines.fragment()], Format.TEXT).decode()
    assert body.count(f" {U64}\n") == 2
    assert body.count(f" {most}\n") == 2
    assert f" {most - 1}\n" in body
    assert " 4999999\n" in body
    assert f" {U64 - 1}\n" in body
    assert "dstack_gpu_sample_age_seconds 18446744073709551.615\n" in body
    assert "dstack_guest_load1 42949672.95\n" in body


def whole_page(form: Format) -> bytes:
    """A page with every family of the table on it, told apart for two guests."""
    lines = Lines({"vm_id": "vm-1"})
    for family in table.ALL:
        values = [f"{label} {family.name}" for label in family.labels]
        if family is table.PROXY_CALL_DURATION:
            lines.add_histogram(family, (0.005, 0.1, 2.5), (1, 2, 3, 4), 5.5, values)
        else:
            lines.add(family, 1, *values)
    return page([lines.fragment()], form)


@pytest.mark.parametrize("form", Format)
def test_the_official_parser_reads_every_family_of_the_table(form: Format) -> None:
    names = {name for name, _ in read(whole_page(form), form)}
    assert {family.name for family in table.ALL} <= names | {table.PROXY_CALL_DURATION.name}


@needs_promtool
def test_promtool_has_no_complaint_about_any_family() -> None:
    assert promtool_complaints(whole_page(Format.TEXT)) == ""


_text = st.text(st.characters(exclude_categories=["Cs"]))
_device = st.builds(
    GpuDevice,
    index=st.integers(0, 3),
    uuid=_text,
    pci_bus_id=_text,
    utilization_gpu=st.none() | st.integers(0, U32),
    memory_total_bytes=st.none() | st.integers(0, U64),
    errors=st.lists(_text, max_size=3),
)
replies = st.builds(
    GpuInfoResponse,
    gpus=st.lists(_device, max_size=4),
    error=_text,
    cc_ready=st.none() | st.booleans(),
    cc_devtools=st.none() | st.booleans(),
    sample_age_ms=st.none() | st.integers(0, U64),
)


@settings(max_examples=50)
@given(reply=replies)
def test_no_reply_of_a_guest_makes_a_page_that_the_official_parser_refuses(reply: GpuInfoResponse) -> None:
    assert at("dstack_gpu_nvml_up") in gpu_samples(reply)


def test_a_first_sample_that_is_still_taken_has_no_line_in_either_way_of_writing() -> None:
    reply = GpuInfoResponse(error="the first GPU sample is still being taken", first_sample_pending=True)
    lines = Lines()
    gpu.add_gpus(lines, reply)
    assert lines.fragment().lines == {}
    assert gpu.read_gpus(reply)[1] == []
