from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "deploy/systemd"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
# What the packages promise; the boot gate runs once and has no promise of its own, but no reason to be worse than the agent.
EXPOSURE_LIMITS = {"guest-service.service": 3.0, "guest-service-boot-gate.service": 3.0, "vmm-proxy.service": 2.0}

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="systemd-analyze is missing: apt-get install systemd"
)


def lines_of(unit: str) -> list[str]:
    return [line.strip() for line in (UNITS / unit).read_text(encoding="utf-8").splitlines() if line.strip()]


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units as a package installs them, with programs that exist on this machine."""
    for unit in UNITS.iterdir():
        text = unit.read_text(encoding="utf-8")
        (tmp_path / unit.name).write_text(re.sub(r"/usr/bin/(guest-service|vmm-proxy)\b", "/bin/true", text), encoding="utf-8")
    return tmp_path


@needs_systemd
def test_systemd_has_nothing_to_say_about_any_unit(installed: Path) -> None:
    # It exits 0 on keys that it does not know, so any word of it counts.
    found = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *sorted(map(str, installed.iterdir()))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "", "")


@needs_systemd
def test_systemd_does_say_something_about_a_key_that_it_does_not_know(installed: Path) -> None:
    broken = installed / "vmm-proxy.service"
    broken.write_text(broken.read_text(encoding="utf-8").replace("NoNewPrivileges=yes", "NoNewPriviliges=yes"), encoding="utf-8")
    found = subprocess.run(["systemd-analyze", "verify", "--man=no", str(broken)], capture_output=True, text=True, check=False)
    assert "NoNewPriviliges" in found.stderr


@needs_systemd
@pytest.mark.parametrize("unit", SERVICES)
def test_a_service_is_exposed_no_more_than_promised(unit: str, installed: Path) -> None:
    tenths = round(EXPOSURE_LIMITS[unit] * 10)
    found = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", f"--threshold={tenths}", str(installed / unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stdout


def test_the_agent_reaches_nvidias_device_files_also_when_the_driver_is_loaded_after_it() -> None:
    # A name instead of the number is resolved through /proc/devices when the unit starts, and never again.
    for unit in ("guest-service.service", "guest-service-boot-gate.service"):
        assert "DeviceAllow=char-195 rw" in lines_of(unit)
        assert "PrivateDevices=yes" not in lines_of(unit)


def test_agent_and_gate_begin_behind_nvidias_persistence_daemon_and_want_it() -> None:
    # Each sample is a user of the card that ends; with confidential computing and nobody else there, the card would be lost with the first.
    for unit in ("guest-service.service", "guest-service-boot-gate.service"):
        for key in ("Wants=", "After="):
            named = " ".join(line.removeprefix(key) for line in lines_of(unit) if line.startswith(key))
            assert "nvidia-persistenced.service" in named.split()


def test_the_boot_gate_has_no_condition_that_would_count_as_a_pass() -> None:
    assert not [line for line in lines_of("guest-service-boot-gate.service") if line.startswith("Condition")]


def test_the_boot_gate_is_given_longer_than_its_own_bounds() -> None:
    from guest_service.boot_gate.nvml_witness import NVML_SECONDS
    from guest_service.boot_gate.verifier import VERIFIER_SECONDS

    (line,) = [line for line in lines_of("guest-service-boot-gate.service") if line.startswith("TimeoutStartSec=")]
    assert int(line.partition("=")[2]) > VERIFIER_SECONDS + 2 * NVML_SECONDS


def test_the_proxy_sees_the_uid_of_its_callers() -> None:
    assert "PrivateUsers=yes" not in lines_of("vmm-proxy.service")


def test_every_service_that_has_a_watchdog_says_when_it_is_ready() -> None:
    for unit in SERVICES:
        lines = lines_of(unit)
        if any(line.startswith("WatchdogSec=") for line in lines):
            assert "Type=notify" in lines
            assert "NotifyAccess=main" in lines


def test_only_a_service_that_takes_sighup_is_sent_one() -> None:
    # To a program that does not handle it, SIGHUP is the end.
    root = UNITS.parents[1]
    for unit, program in (("guest-service.service", "guest_service"), ("vmm-proxy.service", "vmm_proxy")):
        sources = [path.read_text(encoding="utf-8") for path in (root / program).rglob("*.py") if path.parent.name != "boot_gate"]
        handled = any(word in source for source in sources for word in ("SIGHUP", "reloaded_on_hangup"))
        sent = any(line.startswith("ExecReload=") for line in lines_of(unit))
        assert handled or not sent, f"{unit} reloads by a signal that {program} does not take"


def test_a_secret_that_was_not_given_does_not_keep_the_proxy_from_starting() -> None:
    # With a path after the name systemd refuses to start the unit without the file; a bare name is looked up in the credential stores.
    wanted = [line.partition("=")[2] for line in lines_of("vmm-proxy.service") if line.startswith("LoadCredential=")]
    assert "vmm-proxy.tokens" in wanted
    assert "vmm-proxy.tls-key" in wanted
    assert not [name for name in wanted if ":" in name]
