"""`guestctl watch` and `top` about many guests, where no terminal is: what a script reads, line by line."""

from __future__ import annotations

import pytest

from guest_api import guest_api_pb2
from guest_client.guestctl.cli import run
from tests.client.fake_proxy import Fleet, Guest
from tests.client.in_process import csv_rows, json_lines, output_of

GpuDevice = guest_api_pb2.GpuDevice
GpuInfo = guest_api_pb2.GpuInfoResponse

pytestmark = pytest.mark.usefixtures("asks_the_proxy")


def test_watch_tells_a_guest_in_full_once_and_nothing_while_nothing_changes(
    capsys: pytest.CaptureFixture[str], fleet: Fleet
) -> None:
    lines = output_of(capsys, "watch", "--count", "2").splitlines()
    assert [line.partition(" ")[2] for line in lines] == [
        "vm1: 1 GPU, CC enabled false, CC ready unknown",
        "vm1 GPU 0: GPU-1, 00000000:3B:00.0, GPU 0 %",
        "vm2: no NVIDIA GPU",
    ]
    assert fleet.watched_interval_seconds == 5
    output_of(capsys, "watch", "--count", "1", "--interval", "2.5")
    assert fleet.watched_interval_seconds == 2.5


def test_watch_gives_scripts_every_outcome_and_only_changes_when_asked(capsys: pytest.CaptureFixture[str], fleet: Fleet) -> None:
    every = json_lines(output_of(capsys, "watch", "-o", "json", "--count", "7"))
    assert [each["guest_id"] for each in every] == ["vm1", "vm2", "vm1", "vm2", "vm1", "vm2", "vm1"]
    changed = json_lines(output_of(capsys, "watch", "-o", "json", "--changes", "--count", "2"))
    assert [each["guest_id"] for each in changed] == ["vm1", "vm2"]
    rows = csv_rows(output_of(capsys, "watch", "-o", "csv", "--count", "3"))
    assert [row["guest_id"] for row in rows] == ["vm1", "vm2", "vm1"]


@pytest.mark.usefixtures("dead")
def test_top_without_a_terminal_prints_whole_tables(capsys: pytest.CaptureFixture[str], fleet: Fleet) -> None:
    busy = GpuDevice(index=1, utilization_gpu=97, memory_used_bytes=1024, memory_total_bytes=2048, power_usage_mw=1000)
    fleet.guests["vm3"] = Guest(GpuInfo(gpus=[GpuDevice(index=0), busy], sample_age_ms=1000))
    lines = output_of(capsys, "top", "--count", "1").splitlines()
    assert lines[0] == "4 guests, 1 failing; 3 GPUs, at 48 % (2 of 3), 1.00 KB of 2.00 KB (1 of 3), 1.0 W (1 of 3)"
    assert lines[1] == "vm0: unavailable: unreachable"
    assert [line.split()[:2] for line in lines[2:6]] == [["Guest", "GPU"], ["vm3", "1"], ["vm1", "0"], ["vm3", "0"]]
    assert lines[6] == "vm2: no NVIDIA GPU"
    assert [line.split()[:2] for line in output_of(capsys, "top", "--count", "1", "--sort", "guest").splitlines()[3:6]] == [
        ["vm1", "0"],
        ["vm3", "0"],
        ["vm3", "1"],
    ]


@pytest.mark.usefixtures("dead")
def test_top_for_scripts_is_a_line_or_rows_per_interval(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = json_lines(output_of(capsys, "top", "--count", "2", "--interval", "1", "-o", "json"))
    assert [each["guest_id"] for each in first["guests"]] == ["vm0", "vm1", "vm2"]
    assert [each["guest_id"] for each in second["guests"]] == ["vm0", "vm1", "vm2"]
    assert [row["guest_id"] for row in csv_rows(output_of(capsys, "top", "--count", "1", "-o", "csv"))] == ["vm0", "vm1", "vm2"]


def test_fields_of_a_newer_guest_are_named_once_in_a_stream(capsys: pytest.CaptureFixture[str], fleet: Fleet) -> None:
    newer = GpuInfo.FromString(b"\xca\x3e\x01a")  # field 1001, bytes
    fleet.guests = {"vm1": Guest(newer), "vm2": Guest(newer)}
    for command in (["gpu", "--all"], ["watch", "--count", "2"], ["top", "--count", "1"]):
        assert run(command) == 0
        assert capsys.readouterr().err.count("GpuInfoResponse.1001") == 1
