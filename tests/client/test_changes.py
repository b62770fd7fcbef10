"""What `watch` calls a change."""

from __future__ import annotations

from google.rpc import code_pb2, status_pb2

from guest_api import guest_api_pb2
from guest_client.guestctl.fleet.changes import Changes
from guest_fleet.v1 import fleet_pb2
from tests.guest_contract.test_health import healthy, xid

GpuDevice = guest_api_pb2.GpuDevice
GpuInfo = guest_api_pb2.GpuInfoResponse


def _outcome(answer: GpuInfo | None, at_seconds: int = 1_800_000_000) -> fleet_pb2.GuestGpuInfo:
    if answer is None:
        status = status_pb2.Status(code=code_pb2.DEADLINE_EXCEEDED, message="guest vm1: no answer in time")
        outcome = fleet_pb2.GuestGpuInfo(guest_id="vm1", status=status)
    else:
        outcome = fleet_pb2.GuestGpuInfo(guest_id="vm1", gpu_info=answer)
    outcome.received_at.seconds = at_seconds
    return outcome


def _said(changes: Changes, answer: GpuInfo | None) -> list[str]:
    return [str(line).partition(" ")[2] for line in changes.lines(_outcome(answer))]


def test_a_time_stands_in_front_of_each_line() -> None:
    changes = Changes()
    assert [str(line) for line in changes.lines(_outcome(None))] == ["08:00:00Z vm1: deadline exceeded: no answer in time"]
    absurd = [str(line) for line in changes.lines(_outcome(GpuInfo(), 2**60))]
    assert absurd == [f"{2**60} s after 1970 vm1: no NVIDIA GPU"]


def test_only_what_differs_is_told_and_the_old_value_with_it() -> None:
    changes = Changes()
    card = GpuDevice(index=2, uuid="GPU-x", utilization_gpu=5, temperature_c=40)
    assert _said(changes, GpuInfo(gpus=[card], sample_age_ms=1)) == [
        "vm1: 1 GPU, CC enabled unknown, CC ready unknown",
        "vm1 GPU 2: GPU-x, GPU 5 %, temperature 40 °C",
    ]
    assert _said(changes, GpuInfo(gpus=[card], sample_age_ms=5000)) == []
    hotter = GpuDevice(index=2, uuid="GPU-x", utilization_gpu=5, temperature_c=60)
    assert _said(changes, GpuInfo(gpus=[hotter], sample_age_ms=1)) == ["vm1 GPU 2: temperature 60 °C (was 40 °C)"]
    assert _said(changes, GpuInfo(gpus=[hotter], cc_ready=False)) == ["vm1: 1 GPU, CC enabled unknown, CC ready false"]
    opened = GpuInfo(gpus=[hotter], cc_ready=False, cc_devtools=True)
    assert _said(changes, opened) == ["vm1: 1 GPU, CC enabled unknown, CC ready false, CC DevTools on"]


def test_a_reading_that_is_lost_is_a_dash_and_its_error_is_told_once() -> None:
    changes = Changes()
    _said(changes, GpuInfo(gpus=[GpuDevice(index=0, power_usage_mw=1000)]))
    lost = GpuInfo(gpus=[GpuDevice(index=0, errors=["power: not supported"])])
    assert _said(changes, lost) == [
        "vm1 GPU 0: power – (was 1.0 W), health failed (was –)",  # noqa: RUF001 - a dash
        "vm1 GPU 0: failed: the driver gives no value of the card",
        "vm1 GPU 0: power: not supported",
    ]
    assert _said(changes, lost) == []


def test_a_guest_that_dies_and_comes_back_is_told_in_full_again() -> None:
    changes = Changes()
    answer = GpuInfo(gpus=[GpuDevice(index=0, utilization_gpu=1)])
    first = _said(changes, answer)
    assert _said(changes, None) == ["vm1: deadline exceeded: no answer in time"]
    assert _said(changes, None) == []
    assert _said(changes, answer) == first


def test_a_card_that_is_gone_is_told() -> None:
    changes = Changes()
    two = GpuInfo(gpus=[GpuDevice(index=0), GpuDevice(index=1)])
    _said(changes, two)
    assert _said(changes, GpuInfo(gpus=[GpuDevice(index=0)])) == [
        "vm1: 1 GPU, CC enabled unknown, CC ready unknown",
        "vm1 GPU 1: is no longer there",
    ]
    assert _said(changes, GpuInfo(error="no driver")) == ["vm1: GPUs unknown: no driver"]


def test_a_card_that_becomes_sick_is_told_once_with_why() -> None:
    changes = Changes()
    _said(changes, GpuInfo(gpus=[healthy()], groups=["health"]))
    sick = healthy()
    sick.xids.append(xid(79, age_ms=1000))
    assert _said(changes, GpuInfo(gpus=[sick], groups=["health"])) == [
        "vm1 GPU 0: health failed (was ok)",
        "vm1 GPU 0: failed: XID 79: needs a new start",
    ]
    sick.xids[0].last_age_ms = 6000
    outcome = _outcome(GpuInfo(gpus=[sick], groups=["health"]))
    assert not changes.lines(outcome)
    sick.xids[0].last_age_ms = 11_000
    assert not changes.differs(_outcome(GpuInfo(gpus=[sick], groups=["health"]))), "an age that grows is no change"


def test_errors_and_texts_of_a_hostile_guest_are_few_and_short_lines() -> None:
    changes = Changes()
    long = "y" * 100_000
    card = GpuDevice(index=0, uuid=long, pci_bus_id=long, errors=[f"{number} {long}" for number in range(100)])
    lines = _said(changes, GpuInfo(gpus=[card])) + _said(changes, GpuInfo(error=long))
    assert len(lines) < 15
    assert max(map(len, lines)) < 500


def test_an_age_and_the_moment_of_an_answer_are_no_change() -> None:
    changes = Changes()
    assert changes.differs(_outcome(GpuInfo(sample_age_ms=1), 1))
    later = _outcome(GpuInfo(sample_age_ms=2), 2)
    later.took.seconds = 1
    assert not changes.differs(later)
    assert changes.differs(_outcome(GpuInfo(sample_age_ms=3, error="x"), 3))
    assert changes.differs(_outcome(None, 4))
    assert not changes.differs(_outcome(None, 5))
