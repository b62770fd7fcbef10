"""Simulated samples, through the same collector process and with the same judgement as real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guest_service.collector import sample as sampling
from guest_service.collector.command import collector_command
from guest_service.collector.parts import Whole
from guest_service.simulator import load_rack
from guest_service.simulator.driver import SimulatedDriver
from guest_service.simulator.rack import parse_rack
from tests.collector.process import TIMEOUT_SECONDS, run


def simulated(name: str | Path) -> dict[str, Any]:  # Any: a JSON tree
    """One sample of a rack, from a real collector process."""
    collected = run(collector_command(simulate=str(name)))
    assert (collected.status, collected.stderr) == (0, "")
    return collected.sample


@pytest.fixture
def rack(tmp_path: Path) -> Path:
    """Where a test writes its rack."""
    return tmp_path / "lab.toml"


def test_the_h200_is_the_measured_card() -> None:
    sample = simulated("h200")
    (card,) = sample["gpus"]
    assert (card["memory_total_bytes"], card["power_usage_mw"], card["errors"]) == (150754820096, 79700, [])
    assert card["uuid"].startswith("GPU-")
    assert card["pci_bus_id"] == "00000000:01:00.0"
    assert (sample["cc_enabled"], sample["cc_ready"], sample["cc_devtools"], sample["error"]) == (True, True, False, "")


def test_eight_cards_are_complete_and_different() -> None:
    sample = simulated("h200x8")
    assert len({card["uuid"] for card in sample["gpus"]}) == len({card["pci_bus_id"] for card in sample["gpus"]}) == 8
    assert all(None not in card.values() and card["errors"] == [] for card in sample["gpus"])


def test_a_rack_without_cards_is_none_and_one_without_a_driver_is_unknown() -> None:
    assert simulated("none") == Whole().tree
    assert simulated("no-driver") == {
        **Whole().tree,
        "error": "NVML cannot start: Driver Not Loaded (9): load the kernel module nvidia",
    }


def test_the_public_command_simulates_too() -> None:
    by_hand = run([sys.executable, "-m", "guest_service", "gpu-info", "--simulate", "h200"])
    assert by_hand.sample == simulated("h200")


def test_a_relative_rack_is_found_from_another_folder(rack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rack.write_text("[[card]]\n")
    monkeypatch.chdir(rack.parent)
    command = collector_command(simulate=rack.name)
    monkeypatch.chdir("/")
    assert len(run(command).sample["gpus"]) == 1


def test_a_rack_with_a_wrong_key_exits_2_and_prints_nothing(rack: Path) -> None:
    rack.write_text("[[card]]\nspeed = 3\n")
    refused = run(collector_command(simulate=str(rack)))
    assert (refused.status, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"guest-service gpu-info: rack {rack}: card 0: speed: unknown key")


def test_every_failure_of_a_card_shows_as_the_real_one_would(rack: Path) -> None:
    fields = ("uuid", "pci_bus_id", "utilization", "memory", "temperature", "power")
    rack.write_text(
        "[[card]]\n[card.fail]\ndevice = 15\n[[card]]\n[card.fail]\n" + "\n".join(f"{field} = 999" for field in fields)
    )
    lost, failing = simulated(rack)["gpus"]
    assert lost["errors"] == ["device: GPU is lost (15)"]
    assert failing["errors"] == [f"{field}: Unknown Error (999)" for field in fields]
    assert (failing["uuid"], failing["pci_bus_id"], failing["power_usage_mw"]) == ("", "", None)


def test_what_a_rack_leaves_out_is_unset_with_an_entry_and_not_zero(rack: Path) -> None:
    rack.write_text("[[card]]\n")
    sample = simulated(rack)
    (card,) = sample["gpus"]
    assert card["errors"] == [f"{field}: Not Supported (3)" for field in ("utilization", "memory", "temperature", "power")]
    assert (card["temperature_c"], sample["cc_enabled"], sample["cc_ready"]) == (None, None, None)


def test_a_failing_init_says_what_a_real_one_says(rack: Path) -> None:
    rack.write_text("fail_init = 18\n[[card]]\n")
    assert simulated(rack)["error"].startswith("NVML cannot start: Driver/library version mismatch (18): ")


def test_a_hung_card_hangs_the_collector_until_it_is_killed(rack: Path) -> None:
    rack.write_text('[[card]]\n[card.fail]\nmemory = "hang"\n')
    with subprocess.Popen(collector_command(simulate=str(rack)), stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        # Only when the kernel says that it sleeps is the kill a test of the hang: a sample that does not hang never sleeps.
        while process.poll() is None and _state(process.pid) != "S":
            os.sched_yield()
        assert process.poll() is None
        process.terminate()
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert (process.returncode, out, err) == (-15, b"", b"")


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class Time:
    """A clock that moves when somebody sleeps, and when told."""

    def __init__(self) -> None:
        self.seconds = 1000.0
        self.slept: list[float] = []

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.seconds += seconds


def take(name: str, time: Time) -> dict[str, Any]:
    whole = Whole()
    sampling.take_sample(SimulatedDriver(load_rack(name), time.now, time.sleep), whole, pytest.fail)
    return whole.tree


def test_init_takes_as_long_as_the_rack_says() -> None:
    time = Time()
    rack = parse_rack(b"init_seconds = 8\n[[card]]\n", "slow")
    sampling.take_sample(SimulatedDriver(rack, time.now, time.sleep), Whole(), pytest.fail)
    assert time.slept == [8.0]


def test_without_jitter_nothing_moves() -> None:
    time = Time()
    first = take("h200", time)
    time.seconds += 13
    assert take("h200", time) == first


def test_with_jitter_load_heat_memory_and_power_move_and_names_stay() -> None:
    time = Time()
    first = take("h200x8", time)
    time.seconds += 13
    second = take("h200x8", time)
    for key in ("utilization_gpu", "memory_used_bytes", "temperature_c", "power_usage_mw"):
        assert [card[key] for card in first["gpus"]] != [card[key] for card in second["gpus"]]
    for key in ("uuid", "pci_bus_id", "memory_total_bytes"):
        assert [card[key] for card in first["gpus"]] == [card[key] for card in second["gpus"]]
    assert first["gpus"][5] == second["gpus"][5]  # the card that says jitter = false


@given(st.floats(0, 1e9))
def test_moving_values_are_possible_at_any_time_and_the_same_for_any_reader(seconds: float) -> None:
    time = Time()
    time.seconds = seconds
    sample = take("h200x8", time)
    assert sample == take("h200x8", time)
    for card in sample["gpus"]:
        assert card["errors"] == []
        assert 0 <= card["memory_used_bytes"] <= card["memory_total_bytes"] - card["memory_free_bytes"]


def test_a_card_that_is_not_listed_is_on_the_bus_and_in_no_sample(rack: Path) -> None:
    rack.write_text('[[card]]\nuuid = "GPU-a"\n[[card]]\nuuid = "GPU-b"\nlisted = false\n')
    assert [card["uuid"] for card in simulated(rack)["gpus"]] == ["GPU-a"]
    assert [card.listed for card in load_rack(str(rack)).cards] == [True, False]
