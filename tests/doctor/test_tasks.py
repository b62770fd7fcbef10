"""Which limit on tasks is the nearest, from trees as the kernel lays them out and from this machine's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from guest_transport.doctor.findings import Verdict
from guest_transport.doctor.tasks import judge_task_limits, read_task_limits


class Place:
    """A tree of control groups and a /proc."""

    def __init__(self, folder: Path) -> None:
        self.cgroups, self.procfs = folder / "cgroup", folder / "proc"
        (self.procfs / "self").mkdir(parents=True)
        (self.procfs / "sys/kernel").mkdir(parents=True)
        self.machine(threads_max=96000, used=200)

    def machine(self, *, threads_max: int, used: int) -> None:
        (self.procfs / "sys/kernel/threads-max").write_text(f"{threads_max}\n")
        (self.procfs / "sys/kernel/pid_max").write_text("4194304\n")
        (self.procfs / "loadavg").write_text(f"0.00 0.01 0.05 1/{used} 4242\n")

    def group(self, path: str, used: int, limit: str) -> None:
        folder = self.cgroups / path
        folder.mkdir(parents=True)
        (folder / "pids.current").write_text(f"{used}\n")
        (folder / "pids.max").write_text(f"{limit}\n")

    def verdict(self) -> tuple[Verdict, str]:
        (found,) = judge_task_limits(read_task_limits("guest-service", self.cgroups, self.procfs))
        return found.verdict, found.seen


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.parametrize("tree", ["", "pids/", "unified/"])
def test_a_unit_near_its_limit_is_wrong_and_the_file_is_named(place: Place, tree: str) -> None:
    place.group(f"{tree}system.slice/guest-service.service", 95, "100")
    verdict, seen = place.verdict()
    assert verdict is Verdict.WRONG
    assert "95 of 100 tasks" in seen
    assert "guest-service.service/pids.max" in seen


def test_a_unit_far_from_its_limit_is_right(place: Place) -> None:
    place.group("system.slice/guest-service.service", 12, "9000")
    assert place.verdict()[0] is Verdict.OK


def test_a_group_above_it_counts_and_one_without_a_limit_does_not(place: Place) -> None:
    place.group("system.slice/guest-service.service", 12, "max")
    (place.cgroups / "system.slice/pids.current").write_text("50\n")
    (place.cgroups / "system.slice/pids.max").write_text("52\n")
    assert place.verdict()[0] is Verdict.WRONG


def test_in_a_container_it_is_the_group_of_whoever_asks(place: Place) -> None:
    (place.procfs / "self/cgroup").write_text("0::/machine/one\n")
    place.group("machine/one", 63, "64")
    assert place.verdict()[0] is Verdict.WRONG


def test_the_machines_own_limit_counts_too(place: Place) -> None:
    place.machine(threads_max=210, used=200)
    assert place.verdict()[0] is Verdict.WRONG


def test_where_nothing_can_be_read_that_is_said_and_nothing_is_wrong(tmp_path: Path) -> None:
    (found,) = judge_task_limits(read_task_limits("guest-service", tmp_path / "absent", tmp_path / "absent"))
    assert found.verdict is Verdict.NOTE


def test_this_machine_says_of_itself_how_many_tasks_it_has() -> None:
    limits = read_task_limits("guest-service")
    threads = next(each for each in limits if each.file.name == "threads-max")
    assert threads.limit > threads.used >= len(os.listdir("/proc/self/task"))
