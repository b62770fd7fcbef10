"""SystemInfo from real and made machines; disks that hang, are missing, or are many."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from guest_service.host_facts.disks import DiskSizes, FileSystemSize
from guest_service.host_facts.errors import FactError, PartLog
from guest_service.host_facts.system import SystemFacts
from tests.eventually import eventually, turns
from tests.host_facts.machine import make_procfs


def size(blocks: int = 100, free: int = 40, unit: int = 4096) -> FileSystemSize:
    return SimpleNamespace(f_frsize=unit, f_blocks=blocks, f_bavail=free)


class HangingDisks:
    """statvfs that never returns for some paths until they are let go; counts who is inside."""

    def __init__(self, *hanging: str) -> None:
        self.hanging = set(hanging)
        self.inside: list[str] = []
        self.asked: list[str] = []
        self._released = threading.Condition()

    def __call__(self, path: str) -> FileSystemSize:
        self.asked.append(path)
        with self._released:
            if path in self.hanging:
                self.inside.append(path)
                self._released.wait_for(lambda: path not in self.hanging)
                self.inside.remove(path)
        return size()

    def release(self) -> None:
        with self._released:
            self.hanging.clear()
            self._released.notify_all()


@contextmanager
def hanging_disks(*paths: str) -> Iterator[HangingDisks]:
    disks = HangingDisks(*paths)
    try:
        yield disks
    finally:
        disks.release()


def disk_sizes(tmp_path: Path, statvfs: HangingDisks, *paths: str) -> DiskSizes:
    mounts = "".join(f"dev{path} {path} ext4 rw 0 0\n" for path in paths)
    procfs = make_procfs(tmp_path, self_mounts=mounts)
    return DiskSizes(paths, procfs=procfs, part_log=PartLog(), statvfs=statvfs, patience_seconds=0.02)


async def test_this_machine_is_what_psutil_says_it_is() -> None:
    info = await SystemFacts().read()
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    assert (info.total_memory, info.total_swap, info.used_swap) == (memory.total, swap.total, swap.used)
    assert abs(info.available_memory - memory.available) < memory.total // 10
    assert info.used_memory == info.total_memory - info.available_memory
    assert info.num_cpus == psutil.cpu_count()
    assert info.kernel_version == os.uname().release
    assert info.cpu_model
    assert abs(info.loadavg_one - psutil.getloadavg()[0] * 100) < 200
    (root,) = info.disks
    usage = psutil.disk_usage("/")
    assert (root.mount_point, root.total_size) == ("/", usage.total)
    assert abs(root.free_size - usage.free) < usage.total // 10


async def test_an_os_release_that_cannot_be_read_leaves_its_names_empty_and_the_rest_whole(tmp_path: Path) -> None:
    looping, pipe = tmp_path / "looping", tmp_path / "pipe"
    # A folder of mode 0 would do, were the tests not run as root, too: is_file() raises for a name that is too long as for that.
    too_long = tmp_path / ("x" * 300)
    looping.symlink_to(looping)
    os.mkfifo(pipe)
    facts = SystemFacts(procfs=make_procfs(tmp_path / "proc"), os_release=[too_long, looping, pipe])
    info = await facts.read()
    assert (info.os_name, info.os_version, info.num_cpus) == ("Linux", "", 2)


async def test_every_field_comes_from_the_given_roots(tmp_path: Path) -> None:
    release = tmp_path / "os-release"
    release.write_text('NAME="Test OS"\nVERSION_ID=7\n')
    facts = SystemFacts(procfs=make_procfs(tmp_path / "proc"), os_release=[tmp_path / "absent", release])
    info = await facts.read()
    assert (info.os_name, info.os_version, info.kernel_version, info.cpu_model) == ("Test OS", "7", "6.1.0-test", "Test CPU")
    memory = (info.total_memory, info.available_memory, info.used_memory, info.free_memory)
    assert memory == (1000 * 1024, 400 * 1024, 600 * 1024, 300 * 1024)
    assert (info.total_swap, info.used_swap, info.free_swap) == (50 * 1024, 30 * 1024, 20 * 1024)
    assert (info.num_cpus, info.uptime) == (2, 90061)
    assert (info.loadavg_one, info.loadavg_five, info.loadavg_fifteen) == (29, 100, 1234)
    assert [disk.name for disk in info.disks] == ["/dev/vda"]


@pytest.mark.parametrize(
    ("file", "part"),
    [
        ("meminfo", "memory"),
        ("loadavg", "load"),
        ("uptime", "uptime"),
        ("stat", "processors"),
        ("sys_kernel_osrelease", "kernel"),
        ("cpuinfo", "processor"),
    ],
)
@pytest.mark.parametrize("text", ["", "\0"], ids=["missing", "nonsense"])
async def test_a_part_that_cannot_be_read_is_named_and_never_zero(tmp_path: Path, file: str, part: str, text: str) -> None:
    if text and part in {"kernel", "processor"}:
        text = ""  # Any text is a name.
    with pytest.raises(FactError) as refused:
        await SystemFacts(procfs=make_procfs(tmp_path, **{file: text})).read()
    assert refused.value.part == part


async def test_a_disk_without_anything_mounted_is_left_out_instead_of_showing_the_disk_below_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    facts = SystemFacts(procfs=make_procfs(tmp_path), data_disks=["/", "/var/lib/tenant"])
    for _ in range(3):
        assert [disk.mount_point for disk in (await facts.read()).disks] == ["/"]
    assert [record.message for record in caplog.records] == ["disk /var/lib/tenant: nothing is mounted there"]


async def test_disks_come_in_order_of_their_mount_points(tmp_path: Path) -> None:
    with hanging_disks() as statvfs:
        disks = disk_sizes(tmp_path, statvfs, "/z", "/", "/ab", "/z")
        assert [disk.mount_point for disk in await disks.read()] == ["/", "/ab", "/z"]


async def test_256_disks_are_read_by_one_thread(tmp_path: Path) -> None:
    paths = [f"/d{number:03}" for number in range(256)]
    before = threading.active_count()
    most = before
    with hanging_disks() as statvfs:

        def counting(path: str) -> FileSystemSize:
            nonlocal most
            most = max(most, threading.active_count())
            return statvfs(path)

        mounts = "".join(f"dev{path} {path} ext4 rw 0 0\n" for path in paths)
        disks = DiskSizes(paths, procfs=make_procfs(tmp_path, self_mounts=mounts), part_log=PartLog(), statvfs=counting)
        found = await disks.read()
    assert [disk.mount_point for disk in found] == paths
    assert {disk.name for disk in found} == {f"dev{path}" for path in paths}
    assert most <= before + 2  # The mounts' thread may be about to end.


async def test_a_disk_of_the_largest_size_is_exact_and_a_larger_one_is_left_out(tmp_path: Path) -> None:
    sizes = {"/fits": size(2**64 - 1, 2**64 - 1, 1), "/larger": size(2**63, 1, 2)}
    mounts = "".join(f"dev {path} ext4 rw 0 0\n" for path in sizes)
    procfs = make_procfs(tmp_path, self_mounts=mounts)
    (disk,) = await DiskSizes(sizes, procfs=procfs, part_log=PartLog(), statvfs=sizes.__getitem__).read()
    assert (disk.mount_point, disk.total_size, disk.free_size) == ("/fits", 2**64 - 1, 2**64 - 1)


async def test_a_disk_that_hangs_hides_no_other_and_holds_one_thread_however_often_it_is_asked(tmp_path: Path) -> None:
    with hanging_disks("/b") as statvfs:
        disks = disk_sizes(tmp_path, statvfs, "/a", "/b", "/c")
        for _ in range(20):
            assert [disk.mount_point for disk in await disks.read()] == ["/a", "/c"]
        assert statvfs.inside == ["/b"]
        assert statvfs.asked.count("/b") == 1


async def test_two_callers_at_once_leave_one_stuck_thread(tmp_path: Path) -> None:
    with hanging_disks("/b") as statvfs:
        disks = disk_sizes(tmp_path, statvfs, "/a", "/b")
        answers = await asyncio.gather(*(disks.read() for _ in range(8)))
        assert all([disk.mount_point for disk in answer] == ["/a"] for answer in answers)
        assert statvfs.asked.count("/b") == 1


async def test_a_disk_that_answers_again_is_shown_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with hanging_disks("/a") as statvfs:
        disks = disk_sizes(tmp_path, statvfs, "/a", "/b")
        assert [disk.mount_point for disk in await disks.read()] == ["/b"]
        statvfs.release()

        async def both() -> bool:
            return [disk.mount_point for disk in await disks.read()] == ["/a", "/b"]

        await eventually(both)
    assert [record.message for record in caplog.records] == [
        "disk /a: the file system does not answer",
        "disk /a: works again",
    ]


async def test_a_caller_that_gives_up_does_not_take_the_reading_from_another(tmp_path: Path) -> None:
    with hanging_disks("/b") as statvfs:
        disks = disk_sizes(tmp_path, statvfs, "/a", "/b")
        impatient, patient = asyncio.create_task(disks.read()), asyncio.create_task(disks.read())
        await turns()
        impatient.cancel()
        assert [disk.mount_point for disk in await patient] == ["/a"]
    with pytest.raises(asyncio.CancelledError):
        await impatient


async def test_a_mount_table_that_cannot_be_read_hides_the_disks_and_not_the_rest(tmp_path: Path) -> None:
    info = await SystemFacts(procfs=make_procfs(tmp_path, self_mounts="")).read()
    assert list(info.disks) == []
    assert info.total_memory == 1000 * 1024


async def test_processor_time_is_in_seconds_and_traffic_of_bridges_is_left_out(tmp_path: Path) -> None:
    stat = "cpu  150 2 3 4 5 6 7 8\ncpu0 1 2 3\n"
    info = await SystemFacts(procfs=make_procfs(tmp_path, stat=stat)).read()
    assert {each.mode: each.seconds for each in info.cpu_times}["user"] == 150 / os.sysconf("SC_CLK_TCK")
    [eth0] = info.network
    told = (eth0.interface, eth0.received_bytes, eth0.receive_errors, eth0.transmitted_bytes, eth0.transmit_errors)
    assert told == ("eth0", 1, 2, 3, 4)


async def test_a_machine_without_networks_has_its_other_facts_and_says_so_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    facts = SystemFacts(procfs=make_procfs(tmp_path, net_dev=""))
    for _ in range(2):
        info = await facts.read()
    assert (len(info.network), info.total_memory) == (0, 1000 * 1024)
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith("interfaces: net/dev: No such file or directory")
