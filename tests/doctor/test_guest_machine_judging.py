"""What `guest-service doctor` makes of the machine around the cards: vsock address, clock, name, the gate's policy, kernel log."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from guest_service.boot_gate.policy import Policy
from guest_service.config import GuestConfig
from guest_service.doctor import cid, facts, kernel_log
from guest_service.doctor.machine import Guest
from guest_transport.addresses import VsockAddress, parse_address
from guest_transport.doctor.clock import ClockReading, judge_clock, read_clock
from guest_transport.doctor.findings import Verdict
from tests.doctor.reports import words


@pytest.mark.parametrize(
    ("own", "verdict", "word"),
    [
        (7, Verdict.OK, "7"),
        (2, Verdict.NOTE, "host"),
        (None, Verdict.WRONG, "no transport"),
        (FileNotFoundError(errno.ENOENT, "gone"), Verdict.WRONG, "not loaded"),
        (PermissionError(errno.EACCES, "Permission denied"), Verdict.NOTE, "Permission denied"),
    ],
)
def test_this_machines_cid(own: int | OSError | None, verdict: Verdict, word: str) -> None:
    assert word in words(cid.judge_own(cid.VsockReading(own, has_loopback=False)), verdict)


@pytest.mark.parametrize(
    ("address", "own", "loopback", "word"),
    [
        ("vsock:any:8000", 7, False, ""),
        ("vsock:7:8000", 7, False, ""),
        ("vsock:9:8000", 7, False, "use vsock:any:8000"),
        ("vsock:9:8000", None, False, "use vsock:any:8000"),
        ("vsock:local:8000", 7, True, ""),
        ("vsock:local:8000", 7, False, "modprobe vsock_loopback"),
    ],
)
def test_a_configured_cid_must_be_this_machines(address: str, own: int | None, loopback: bool, word: str) -> None:
    parsed = parse_address(address)
    assert isinstance(parsed, VsockAddress)
    found = cid.judge_listener(parsed, cid.VsockReading(own, has_loopback=loopback))
    assert [each.verdict for each in found] == ([Verdict.WRONG] if word else [])
    assert all(word in each.advice for each in found)


def test_a_guest_with_a_cid_and_no_vsock_address_is_told_what_the_host_would_dial() -> None:
    found = cid.judge_unused(cid.VsockReading(7, has_loopback=False))
    assert (found.verdict, "vsock:any:8000" in found.advice) == (Verdict.NOTE, True)
    assert cid.judge_unused(cid.VsockReading(None, has_loopback=False)).advice == ""


def test_a_vsock_port_that_is_held_is_right_and_one_that_is_free_is_not() -> None:
    try:
        held = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        held.bind((0xFFFFFFFF, 0xFFFFFFFF))
    except OSError as error:
        pytest.skip(f"no vsock on this machine: {error.strerror}")
    with held:
        address = VsockAddress(0xFFFFFFFF, held.getsockname()[1])
        held.listen(1)
        assert cid.judge_bind(address, cid.try_bind(address)).verdict is Verdict.OK
    assert cid.judge_bind(address, cid.try_bind(address)).verdict is Verdict.WRONG
    assert cid.try_bind(address) is None, "the try holds nothing"


def test_vsock_devices_that_are_none_are_told_with_the_reason(tmp_path: Path) -> None:
    reading = cid.read_vsock(tmp_path, tmp_path)
    assert isinstance(reading.cid, FileNotFoundError)
    (tmp_path / "vsock").write_text("no device")
    assert isinstance(cid.read_vsock(tmp_path, tmp_path).cid, OSError)


async def _gate(tmp_path: Path, policy: str | None, *, enabled: bool) -> list[tuple[Verdict, str]]:
    file, wanted = tmp_path / "boot-gate.toml", tmp_path / "wanted"
    if policy is not None:
        file.write_text(policy)
    if enabled:
        wanted.symlink_to("/nowhere")
    guest = Guest(GuestConfig(), gate_policy=file, gate_unit_wanted=wanted, environ={"PATH": "/bin:/usr/bin"})
    return [(each.verdict, each.seen) for each in await facts.examine_boot_gate(guest)]


@pytest.mark.parametrize(
    ("policy", "enabled", "verdict", "word"),
    [
        (None, False, Verdict.NOTE, "not set up"),
        (None, True, Verdict.WRONG, "enabled"),
        ('verifier = ["true"]', True, Verdict.OK, "valid"),
        ('verifier = ["absent-verifier"]', True, Verdict.WRONG, "absent-verifier"),
        ('verifier = ["absent-verifier"]', False, Verdict.NOTE, "absent-verifier"),
        ("attest = true", True, Verdict.WRONG, "attest"),
        ('verifier = ["true"]\nallow_debug = true', True, Verdict.NOTE, "allow_debug"),
        ('verifier = ["true"]\nevidence_file = "/absent/e.json"', True, Verdict.WRONG, "/absent"),
    ],
)
async def test_the_policy_of_the_boot_gate(
    tmp_path: Path, policy: str | None, enabled: bool, verdict: Verdict, word: str
) -> None:
    ((found, seen),) = await _gate(tmp_path, policy, enabled=enabled)
    assert (found, word in seen) == (verdict, True), seen


def test_the_strictest_policy_needs_its_verifier_only_where_the_gate_is_enabled() -> None:
    assert facts.judge_policy(Path("/p"), Policy(), None, enabled=False)[0].verdict is Verdict.NOTE
    assert facts.judge_policy(Path("/p"), Policy(attest_gpu=False), None, enabled=True)[0].verdict is Verdict.NOTE


async def test_a_machine_without_an_id_has_no_name_and_no_pin_can_hold_it(tmp_path: Path) -> None:
    (tmp_path / "good").write_text("0123456789abcdef0123456789abcdef\n")
    (tmp_path / "first-boot").write_text("uninitialized\n")
    for name, verdict in (("good", Verdict.OK), ("first-boot", Verdict.NOTE), ("absent", Verdict.NOTE)):
        (found,) = await facts.examine_identity(Guest(GuestConfig(), machine_id=tmp_path / name))
        assert found.verdict is verdict
        assert "0123456789abcdef" not in found.seen, "the machine id itself stays in the machine"


@pytest.mark.parametrize(
    ("seconds", "synchronised", "verdict"),
    [
        (1_800_000_000, True, Verdict.OK),
        (1_800_000_000, False, Verdict.NOTE),
        (1_800_000_000, None, Verdict.NOTE),
        (0, True, Verdict.WRONG),
        (1e13, True, Verdict.WRONG),
        (1e30, True, Verdict.WRONG),
    ],
)
def test_the_wall_clock(seconds: float, synchronised: bool | None, verdict: Verdict) -> None:
    (found,) = judge_clock(ClockReading(seconds, synchronised))
    assert found.verdict is verdict


def test_the_kernel_is_asked_whether_its_clock_is_kept() -> None:
    assert read_clock().synchronised in {True, False, None}
    assert read_clock().realtime_seconds > 1_700_000_000


@pytest.mark.parametrize(
    ("number", "line"),
    [
        (errno.EPERM, "CAP_SYSLOG, and DeviceAllow=/dev/kmsg r"),
        (errno.EACCES, "ProtectKernelLogs=no"),
        (errno.ENXIO, "ProtectKernelLogs=no"),
        (errno.ENOENT, "ProtectKernelLogs=no"),
    ],
)
def test_a_kernel_log_that_cannot_be_read_names_the_line_of_the_unit_that_grants_it(number: int, line: str) -> None:
    path = Path("/dev/kmsg")
    (finding,) = kernel_log.judge_kernel_log(path, OSError(number, os.strerror(number)), "root")
    assert finding.verdict is Verdict.WRONG
    assert os.strerror(number) in finding.seen
    assert line in finding.advice
    unit = (Path(__file__).parents[2] / "deploy/systemd/guest-service.service").read_text()
    assert all(part in unit for part in ("CAP_SYSLOG", "DeviceAllow=/dev/kmsg r\n", "ProtectKernelLogs=no\n"))


def test_a_device_without_records_is_no_kernel_log_and_a_fifo_without_records_is_one(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "kmsg")
    assert kernel_log.try_log(Path("/dev/null")) is not None
    assert kernel_log.try_log(tmp_path / "nothing") is not None
    assert kernel_log.try_log(tmp_path / "kmsg") is None
