"""A machine as samples: its processors, memory, disks, interfaces and containers, and nothing that cannot be."""

from __future__ import annotations

from guest_api.guest_api_pb2 import (
    Container,
    CpuTime,
    DiskInfo,
    InterfaceTraffic,
    SystemInfo,
)
from guest_contract.system_values import INTERFACES_LIMIT
from guest_metrics import guest
from guest_metrics.exposition import Format, Lines, page
from tests.metrics.readers import Labels, at, read

U32, U64 = 2**32 - 1, 2**64 - 1


def guest_samples(info: SystemInfo) -> dict[tuple[str, Labels], float]:
    lines = Lines()
    guest.add_system(lines, info)
    return read(page([lines.fragment()], Format.OPENMETRICS), Format.OPENMETRICS)


def test_system_facts_are_all_there_in_base_units() -> None:
    samples = guest_samples(
        SystemInfo(
            os_name="Debian", os_version="12", kernel_version="6.1", cpu_model="Xeon", num_cpus=64, total_memory=10,
            available_memory=7, used_memory=3, free_memory=5, total_swap=4, used_swap=1, free_swap=3, uptime=61,
            loadavg_one=40, loadavg_five=100, loadavg_fifteen=1234,
            disks=[DiskInfo(name="/dev/vda1", mount_point="/", total_size=200, free_size=150)],
        )
    )  # fmt: skip
    disk = {"name": "/dev/vda1", "mount_point": "/"}
    assert samples == {
        at("dstack_guest_info", os_name="Debian", os_version="12", kernel_version="6.1", cpu_model="Xeon"): 1,
        at("dstack_guest_cpus"): 64,
        at("dstack_guest_memory_total_bytes"): 10,
        at("dstack_guest_memory_available_bytes"): 7,
        at("dstack_guest_memory_used_bytes"): 3,
        at("dstack_guest_memory_free_bytes"): 5,
        at("dstack_guest_swap_total_bytes"): 4,
        at("dstack_guest_swap_used_bytes"): 1,
        at("dstack_guest_swap_free_bytes"): 3,
        at("dstack_guest_uptime_seconds"): 61,
        at("dstack_guest_load1"): 0.4,
        at("dstack_guest_load5"): 1,
        at("dstack_guest_load15"): 12.34,
        at("dstack_guest_disk_total_bytes", **disk): 200,
        at("dstack_guest_disk_free_bytes", **disk): 150,
        at("dstack_guest_disk_used_bytes", **disk): 50,
        at("dstack_guest_disk_used_ratio", **disk): 0.25,
    }


def test_a_part_of_memory_over_the_total_and_a_total_that_no_machine_has_are_no_samples() -> None:
    info = SystemInfo(
        total_memory=10, available_memory=11, used_memory=U64, free_memory=5, total_swap=U64, used_swap=1, free_swap=1
    )
    names = {name for name, _ in guest_samples(info)}
    there = {name for name in names if "_memory_" in name or "_swap_" in name}
    assert there == {"dstack_guest_memory_total_bytes", "dstack_guest_memory_free_bytes"}


def test_a_disk_with_more_free_than_it_has_is_not_used_negatively_and_an_empty_one_has_no_ratio() -> None:
    samples = guest_samples(SystemInfo(disks=[DiskInfo(name="a", total_size=1, free_size=2), DiskInfo(name="b")]))
    used = {dict(labels)["name"]: value for (name, labels), value in samples.items() if name == "dstack_guest_disk_used_bytes"}
    assert used == {"b": 0}
    assert not any(name == "dstack_guest_disk_used_ratio" for name, _ in samples)


def test_256_disks_and_two_of_one_name_are_all_on_the_page_once() -> None:
    disks = [DiskInfo(name=f"/dev/vd{n}", mount_point=f"/mnt/{n}", total_size=n) for n in range(256)]
    samples = guest_samples(SystemInfo(disks=[*disks, disks[0]]))
    assert sum(1 for name, _ in samples if name == "dstack_guest_disk_total_bytes") == 256


def test_containers_are_named_by_themselves_and_not_by_another_ones_link_to_them() -> None:
    lines = Lines()
    guest.add_containers(
        lines,
        [
            Container(id="0123456789abcdef", names=["/web/db", "/db"], image="postgres:17", state="running"),
            Container(id="fedcba9876543210", names=["/web/cache"], image="redis", state="exited"),
            Container(id="00"),
        ],
    )
    samples = read(page([lines.fragment()], Format.TEXT), Format.TEXT)
    name = "dstack_guest_container_info"
    assert samples == {
        at(name, id="0123456789ab", name="db", image="postgres:17", state="running"): 1,
        at(name, id="fedcba987654", name="web/cache", image="redis", state="exited"): 1,
        at(name, id="00", name="", image="", state=""): 1,
    }


def test_processor_time_and_traffic_are_counters_by_mode_and_interface() -> None:
    info = SystemInfo(
        cpu_times=[CpuTime(mode="user", seconds=1.25), CpuTime(mode="idle", seconds=1e9)],
        network=[InterfaceTraffic(interface="eth0", received_bytes=U64, transmitted_bytes=2, receive_errors=3)],
    )
    samples = guest_samples(info)
    assert samples[at("dstack_guest_cpu_seconds_total", mode="user")] == 1.25
    assert samples[at("dstack_guest_cpu_seconds_total", mode="idle")] == 1e9
    assert samples[at("dstack_guest_network_receive_bytes_total", interface="eth0")] == float(U64)
    assert samples[at("dstack_guest_network_transmit_errors_total", interface="eth0")] == 0


def test_no_impossible_time_and_no_crowd_of_interfaces_becomes_a_series() -> None:
    times = [CpuTime(mode=str(seconds), seconds=seconds) for seconds in (float("nan"), float("inf"), -1.0, 1e300, 2.0)]
    crowd = [InterfaceTraffic(interface=f"eth{number}") for number in range(5_000)]
    samples = guest_samples(SystemInfo(cpu_times=[CpuTime(mode="m" * 10_000), *times], network=crowd))
    assert [dict(labels)["mode"] for name, labels in samples if name == "dstack_guest_cpu_seconds_total"] == ["2.0"]
    assert [name for name, _ in samples].count("dstack_guest_network_receive_bytes_total") == INTERFACES_LIMIT
