"""The table itself: names that people's dashboards rely on, and rules that every family keeps."""

from __future__ import annotations

import pytest

from guest_metrics import table
from guest_metrics.table import Family, Kind

CARD = ("index", "uuid", "pci_bus_id")
DISK = ("name", "mount_point")
# Names and labels that are promised; they may be added to and never change.
PROMISED: dict[str, tuple[str, ...]] = {
    "dstack_guest_info": ("os_name", "os_version", "kernel_version", "cpu_model"),
    "dstack_guest_cpus": (),
    "dstack_guest_memory_total_bytes": (),
    "dstack_guest_memory_available_bytes": (),
    "dstack_guest_memory_used_bytes": (),
    "dstack_guest_memory_free_bytes": (),
    "dstack_guest_swap_total_bytes": (),
    "dstack_guest_swap_used_bytes": (),
    "dstack_guest_swap_free_bytes": (),
    "dstack_guest_uptime_seconds": (),
    "dstack_guest_load1": (),
    "dstack_guest_load5": (),
    "dstack_guest_load15": (),
    "dstack_guest_disk_total_bytes": DISK,
    "dstack_guest_disk_free_bytes": DISK,
    "dstack_guest_disk_used_bytes": DISK,
    "dstack_guest_disk_used_ratio": DISK,
    "dstack_guest_container_info": ("id", "name", "image", "state"),
    "dstack_gpu_nvml_up": (),
    "dstack_gpu_sample_age_seconds": (),
    "dstack_gpu_cc_enabled": (),
    "dstack_gpu_cc_ready": (),
    "dstack_gpu_cc_devtools": (),
    "dstack_gpu_utilization_percent": CARD,
    "dstack_gpu_memory_utilization_percent": CARD,
    "dstack_gpu_memory_total_bytes": CARD,
    "dstack_gpu_memory_used_bytes": CARD,
    "dstack_gpu_memory_free_bytes": CARD,
    "dstack_gpu_temperature_celsius": CARD,
    "dstack_gpu_power_usage_milliwatts": CARD,
    "dstack_gpu_query_errors": CARD,
    "dstack_gpu_health": CARD,
    "dstack_gpu_health_reason": (*CARD, "reason"),
    "dstack_gpu_xid_errors_total": (*CARD, "xid"),
    "dstack_gpu_xid_last_timestamp_seconds": (*CARD, "xid"),
    "dstack_gpu_pci_devices": (),
    "dstack_gpu_nvml_devices": (),
    "dstack_gpu_samples_total": ("outcome",),
    "dstack_gpu_sample_duration_seconds": (),
    "vmm_proxy_guest_up": (),
    "vmm_proxy_guest_gpus_given": (),
    "vmm_proxy_guest_answer_age_seconds": (),
    "vmm_proxy_calls_total": ("method", "code"),
    "vmm_proxy_guest_gpu_info": (*CARD, "host_pci_bus_id"),
}


@pytest.mark.parametrize("name", PROMISED)
def test_a_promised_name_has_its_promised_labels(name: str) -> None:
    [family] = [family for family in table.ALL if family.name == name]
    assert family.labels == PROMISED[name]


def test_no_family_stands_twice_in_either_format() -> None:
    for names in ([family.name for family in table.ALL], [family.openmetrics_name for family in table.ALL]):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("family", table.ALL, ids=lambda family: family.name)
def test_a_family_keeps_the_rules_of_both_formats(family: Family) -> None:
    assert family.help.endswith(".")
    assert not set(family.help) & set('\\\n"')
    assert len(set(family.labels)) == len(family.labels)
    assert family.name.endswith("_total") == (family.kind is Kind.COUNTER)
    assert family.name.endswith("_info") == (family.kind is Kind.INFO)
    assert not family.openmetrics_name.endswith(("_bucket", "_sum", "_count", "_created"))


@pytest.mark.parametrize("family", table.ALL, ids=lambda family: family.name)
def test_no_family_has_a_label_that_a_proxy_puts_in_front(family: Family) -> None:
    assert not any(label.startswith("vm_") or label == "le" for label in family.labels)


def test_the_agent_and_the_proxy_fill_no_family_twice() -> None:
    groups = (
        table.GUEST_FAMILIES,
        table.GPU_FAMILIES,
        table.AGENT_FAMILIES,
        table.PROXY_FAMILIES,
        table.PROCESS_FAMILIES,
    )
    assert sum(len(group) for group in groups) == len(table.ALL)
    named = {value for value in vars(table).values() if isinstance(value, Family)}
    assert named | set(table.CARD_FAMILIES.values()) == set(table.ALL)
