"""The entry point of `vmm-proxy doctor`. Exit status: 0 nothing is wrong, 1 something is, 2 misuse."""

from __future__ import annotations

from pathlib import Path

from guest_transport.doctor.command import examine
from vmm_proxy.doctor.checks import CHECKS
from vmm_proxy.doctor.machine import find_host


def run_doctor(config: Path | None, output: str) -> int:
    """Examine the host of `config`; returns the exit status."""
    return examine(CHECKS, find_host(config), output=output, refused=lambda host: bool(host.unreadable))
