"""What is told of the doctors: docs/doctor.md has each check, --help and completion know the door."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from guest_service.doctor.checks import CHECKS as GUEST_CHECKS
from guest_transport.doctor.checks import Check
from vmm_proxy.doctor.checks import CHECKS as HOST_CHECKS

PAGE = Path(__file__).parents[2] / "docs/doctor.md"


@pytest.mark.parametrize(("heading", "checks"), [("In the guest", GUEST_CHECKS), ("On the host", HOST_CHECKS)])
def test_the_page_has_each_check_in_the_order_of_the_report_and_no_other(heading: str, checks: tuple[Check[Any], ...]) -> None:
    section = PAGE.read_text(encoding="utf-8").partition(f"## {heading}\n")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z-]+)` \| (.+) \|$", section, re.MULTILINE) == [(check.name, check.looks_at) for check in checks]
    assert len({check.name for check in checks}) == len(checks)


@pytest.mark.parametrize(
    ("module", "variable"), [("guest_service", "_GUEST_SERVICE_COMPLETE"), ("vmm_proxy", "_VMM_PROXY_COMPLETE")]
)
def test_help_and_completion_know_the_doctor(module: str, variable: str) -> None:
    def run(*arguments: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=50,
            env={**os.environ, **env},
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    program = module.replace("_", "-")
    assert "  doctor " in run("--help")
    assert "Exit status: 0 nothing is wrong, 1 something is, 2 misuse." in run("doctor", "--help")
    assert f"_{variable.strip('_').lower()}" in run(**{variable: "bash_source"}).replace("_completion", "_complete")
    assert "doctor" in run(**{variable: "bash_complete", "COMP_WORDS": f"{program} do", "COMP_CWORD": "1"})
    assert "--config" in run(**{variable: "bash_complete", "COMP_WORDS": f"{program} doctor --c", "COMP_CWORD": "2"})


@pytest.mark.parametrize("call", ["from guest_service.cli import main as run", "from vmm_proxy.cli import run"])
def test_help_of_the_doctor_needs_neither_grpc_nor_a_configuration(call: str) -> None:
    absent = "for name in ('grpc', 'google.protobuf', 'docker'): sys.modules[name] = None"
    program = f"import sys\n{absent}\n{call}\nsys.exit(run(['doctor', '--help']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=50)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Check what can be wrong" in done.stdout
