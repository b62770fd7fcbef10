"""Texts of /proc as kernels write them, and as they must never be believed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_service.host_facts import procfs

MEMINFO = """MemTotal:       24684084 kB
MemFree:        19263636 kB
MemAvailable:   23495648 kB
Buffers:           72280 kB
SwapTotal:       2097148 kB
SwapFree:        2097100 kB
HugePages_Total:       0
"""


def test_memory_is_in_bytes() -> None:
    memory = procfs.parse_meminfo(MEMINFO)
    assert memory == procfs.Memory(
        total=24684084 * 1024,
        available=23495648 * 1024,
        free=19263636 * 1024,
        swap_total=2097148 * 1024,
        swap_free=2097100 * 1024,
    )


def test_the_largest_memory_that_fits_64_bits_is_exact_and_one_more_is_refused() -> None:
    fits = (2**64 - 1) // 1024
    assert procfs.parse_meminfo(MEMINFO.replace("24684084", str(fits))).total == fits * 1024
    with pytest.raises(ValueError, match="does not fit"):
        procfs.parse_meminfo(MEMINFO.replace("24684084", str(fits + 1)))


@pytest.mark.parametrize("gone", ["MemTotal", "MemAvailable", "MemFree", "SwapTotal", "SwapFree"])
def test_a_missing_line_of_meminfo_is_a_failure_and_not_a_zero(gone: str) -> None:
    with pytest.raises(ValueError, match=gone):
        procfs.parse_meminfo("\n".join(line for line in MEMINFO.splitlines() if not line.startswith(gone)))


def test_more_free_than_total_is_a_failure() -> None:
    with pytest.raises(ValueError, match="more is free"):
        procfs.parse_meminfo(MEMINFO.replace("SwapFree:        2097100", "SwapFree:        2097149"))


@pytest.mark.parametrize(
    ("text", "loads"),
    [
        ("0.29 0.57 1.13 1/234 5678\n", (29, 57, 113)),
        ("0.00 12.34 123.99 1/1 1\n", (0, 1234, 12399)),
        ("42949672.95 0.1234 0.00 1/1 1\n", (4294967295, 12, 0)),
    ],
)
def test_load_is_truncated_to_hundredths_exactly(text: str, loads: tuple[int, int, int]) -> None:
    assert procfs.parse_loadavg(text) == loads


@given(st.tuples(*[st.integers(0, 2**32 - 1)] * 3))
def test_every_load_of_two_digits_survives_exactly(loads: tuple[int, int, int]) -> None:
    text = " ".join(f"{load // 100}.{load % 100:02d}" for load in loads)
    assert procfs.parse_loadavg(f"{text} 1/2 3\n") == loads


@pytest.mark.parametrize("text", ["", "nan nan nan 1/1 1", "-0.10 0.00 0.00 1/1 1", "0.1 0.2 0.3 1/1 1"])
def test_a_load_that_is_not_as_documented_is_a_failure(text: str) -> None:
    with pytest.raises(ValueError, match="loadavg"):
        procfs.parse_loadavg(text)


def test_uptime_is_whole_seconds() -> None:
    assert procfs.parse_uptime("90061.99 1234.00\n") == 90061
    with pytest.raises(ValueError, match="uptime"):
        procfs.parse_uptime("soon\n")


def test_ticks_have_the_names_of_their_columns_and_what_guests_ran_is_left_in_user() -> None:
    stat = "cpu  10 2 3 400 5 6 7 8 9 1\ncpu0 10 2 3 400 5 6 7 8 9 1\n"
    told = {"user": 10, "nice": 2, "system": 3, "idle": 400, "iowait": 5, "irq": 6, "softirq": 7, "steal": 8}
    assert procfs.parse_cpu_ticks(stat) == told
    assert procfs.parse_cpu_ticks("cpu 1 2 3 4\n") == {"user": 1, "nice": 2, "system": 3, "idle": 4}, "a kernel of long ago"


def test_processors_are_counted_from_their_lines_even_with_gaps() -> None:
    assert procfs.parse_online_cpus("cpu  1 2 3\ncpu0 1 2 3\ncpu2 1 2 3\nintr 5\n") == 2
    with pytest.raises(ValueError, match="no cpu"):
        procfs.parse_online_cpus("cpu  1 2 3\n")


@pytest.mark.parametrize(
    ("cpuinfo", "model"),
    [
        ("processor\t: 0\nmodel\t\t: 143\nmodel name\t: Intel(R)  Xeon(R) Platinum 8480C\n\nprocessor: 1\nmodel name: other\n",
         "Intel(R) Xeon(R) Platinum 8480C"),
        ("processor\t: 0\nBogoMIPS\t: 2000\nCPU implementer\t: 0x41\nCPU part\t: 0xd4f\n", "ARM implementer 0x41 part 0xd4f"),
        ("processor\t: 0\ncpu\t\t: POWER9 (raw), altivec supported\n", "POWER9 (raw), altivec supported"),
        ("flags: fpu\n", ""),
        ("model name\t:\n", ""),
    ],
)  # fmt: skip
def test_the_cpu_model_is_one_stable_string(cpuinfo: str, model: str) -> None:
    assert procfs.parse_cpu_model(cpuinfo) == model


@pytest.mark.parametrize(
    ("text", "name_and_version"),
    [
        ('PRETTY_NAME="Debian GNU/Linux 12"\nNAME="Debian GNU/Linux"\nVERSION_ID="12"\n', ("Debian GNU/Linux", "12")),
        ("# NAME=no\nNAME=Arch\\ Linux\n", ("Arch Linux", "")),
        ("", ("Linux", "")),
        ('NAME="unbalanced\nVERSION_ID=7\n', ("Linux", "7")),
    ],
)
def test_os_release_is_read_as_its_manual_says(text: str, name_and_version: tuple[str, str]) -> None:
    assert procfs.parse_os_release(text) == name_and_version


def test_mount_points_with_spaces_are_found_and_the_last_mount_on_a_place_wins() -> None:
    text = "proc /proc proc rw 0 0\n/dev/vdb /my\\040data ext4 rw 0 0\n/dev/vdc /my\\040data xfs rw 0 0\ntank/a\\134b /srv zfs rw 0 0\n"
    assert procfs.parse_mounts(text) == {"/proc": "proc", "/my data": "/dev/vdc", "/srv": "tank/a\\b"}


NET_DEV = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:    3193      29    0    0    0     0          0         0     3193      29    0    0    0     0       0          0
  eth0:18446744073709551615 1 2 0 0 0 0 0 2292748 4 5 0 0 0 0 0
eth0:1: 7 0 0 0 0 0 0 0 8 0 0 0 0 0 0 0
"""


def test_counters_of_64_bits_are_exact_and_names_may_touch_them() -> None:
    counters = procfs.parse_net_dev(NET_DEV)
    assert counters["eth0"] == (2**64 - 1, 2292748, 2, 5)
    assert counters["eth0:1"] == (7, 8, 0, 0)


@pytest.mark.parametrize("line", ["eth0: 1 2 3", "nonsense", "eth0: x 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0"])
def test_a_line_of_counters_that_is_not_as_documented_is_a_failure(line: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 -- which of the two texts it is does not matter
        procfs.parse_net_dev("a\nb\n" + line + "\n")


@given(st.text())
@pytest.mark.parametrize(
    "parse",
    [
        procfs.parse_meminfo,
        procfs.parse_loadavg,
        procfs.parse_uptime,
        procfs.parse_online_cpus,
        procfs.parse_cpu_ticks,
        procfs.parse_cpu_model,
        procfs.parse_os_release,
        procfs.parse_mounts,
        procfs.parse_net_dev,
    ],
)
def test_any_text_is_a_value_or_a_failure_and_nothing_else(parse: Callable[[str], object], text: str) -> None:
    with contextlib.suppress(ValueError):
        assert parse(text) is not None
