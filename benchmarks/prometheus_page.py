"""The fleet's page as prometheus_client makes it from the same answers, and what both must have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from guest_api.guest_api_pb2 import SystemInfo
from guest_contract.card_fields import OF_GUEST, ROWS
from guest_contract.card_row import INFO, Field, Metric
from guest_contract.health import Level, judge_cards
from guest_metrics import table
from guest_metrics.table import Family
from vmm_proxy.pages.parts import PageParts

SYSTEM = {
    table.GUEST_CPUS: "num_cpus", table.GUEST_MEMORY_TOTAL: "total_memory", table.GUEST_MEMORY_AVAILABLE: "available_memory",
    table.GUEST_MEMORY_USED: "used_memory", table.GUEST_MEMORY_FREE: "free_memory", table.GUEST_SWAP_TOTAL: "total_swap",
    table.GUEST_SWAP_USED: "used_swap", table.GUEST_SWAP_FREE: "free_swap", table.GUEST_UPTIME: "uptime",
}  # fmt: skip
LOADS = {table.GUEST_LOAD1: "loadavg_one", table.GUEST_LOAD5: "loadavg_five", table.GUEST_LOAD15: "loadavg_fifteen"}


INFOS: dict[Family, list[str]] = {}
for each in (*ROWS, *OF_GUEST):
    if each.metric and each.metric.kind == INFO:
        INFOS.setdefault(table.CARD_FAMILIES[each.name], []).append(each.name)


def add_value(family: GaugeMetricFamily, labels: list[str], metric: Metric, row: Field, value: int) -> None:
    """The samples of one value."""
    labels = [*labels, *(text for _, text in metric.labels)]
    if not metric.each:
        family.add_metric(labels, value * metric.times / metric.per)
    for number, word in (row.names or {}).items():
        family.add_metric([*labels, word], int(value == number))
    for bit, word in (row.bits or {}).items():
        family.add_metric([*labels, word], int(value & bit != 0))


class FromMessages(Collector):
    """The same samples from the same answers, as prometheus_client's documentation says to write a custom collector."""

    def __init__(self, parts: PageParts, groups: frozenset[str]) -> None:
        self._board = parts.guest_answers
        self._groups = groups
        self._rows = [row for row in ROWS if row.group in groups and row.metric]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        made = {family: GaugeMetricFamily(family.name, family.help, labels=("vm_id", *family.labels)) for family in table.ALL}
        now, of_guest = self._board.clock(), {row.name for row in OF_GUEST}
        for guest in self._board.guests():
            reply, info, vm = guest.gpus.answer, guest.system.answer, [guest.id]
            assert reply is not None
            assert info is not None
            made[table.PROXY_GUEST_UP].add_metric(vm, 1)
            made[table.PROXY_GUEST_ANSWER_AGE].add_metric(vm, now - guest.gpus.received_at)
            made[table.GPU_SAMPLE_AGE].add_metric(vm, reply.sample_age_ms / 1000 + now - guest.gpus.received_at)
            made[table.GPU_NVML_UP].add_metric(vm, 0 if reply.error else 1)
            made[table.GPU_NVML_DEVICES].add_metric(vm, len(reply.gpus))
            made[table.GPU_CC_ENABLED].add_metric(vm, int(reply.cc_enabled))
            made[table.GPU_CC_READY].add_metric(vm, int(reply.cc_ready))
            for device in reply.gpus:
                labels = [guest.id, str(device.index), device.uuid, device.pci_bus_id]
                for row in self._rows:
                    if row.metric and row.metric.kind != INFO and device.HasField(cast("Any", row.name)):
                        add_value(made[table.CARD_FAMILIES[row.name]], labels, row.metric, row, getattr(device, row.name))
                for info_family, fields in INFOS.items():
                    if info_family.group in self._groups:
                        made[info_family].add_metric(
                            [*labels, *(getattr(reply if field in of_guest else device, field) for field in fields)], 1
                        )
                made[table.GPU_QUERY_ERRORS].add_metric(labels, len(device.errors))
            for device, verdict in zip(reply.gpus, judge_cards(reply), strict=True):
                labels = [guest.id, str(device.index), device.uuid, device.pci_bus_id]
                made[table.GPU_HEALTH].add_metric(labels, {Level.OK: 0, Level.DEGRADED: 1, Level.FAILED: 2}[verdict.level])
                for reason in verdict.reasons:
                    made[table.GPU_HEALTH_REASON].add_metric([*labels, reason.code], 1)
            self._add_system(made, info, guest.id)
        return [made[family] for family in table.of_groups(self._groups) if made[family].samples]

    def _add_system(self, made: dict[Family, GaugeMetricFamily], info: SystemInfo, vm_id: str) -> None:
        labels = [vm_id, info.os_name, info.os_version, info.kernel_version, info.cpu_model]
        made[table.GUEST_INFO].add_metric(labels, 1)
        for family, field in SYSTEM.items():
            made[family].add_metric([vm_id], getattr(info, field))
        for family, field in LOADS.items():
            made[family].add_metric([vm_id], getattr(info, field) / 100)
        for disk in info.disks:
            labels = [vm_id, disk.name, disk.mount_point]
            used = disk.total_size - disk.free_size
            made[table.GUEST_DISK_TOTAL].add_metric(labels, disk.total_size)
            made[table.GUEST_DISK_FREE].add_metric(labels, disk.free_size)
            made[table.GUEST_DISK_USED].add_metric(labels, used)
            made[table.GUEST_DISK_USED_RATIO].add_metric(labels, used / disk.total_size)


def guest_samples(page: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """The samples about guests, the proxy's own left out; ages left out too, for they grow between two pages."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
        if "vm_id" in sample.labels and not sample.name.endswith("_age_seconds")
    }
