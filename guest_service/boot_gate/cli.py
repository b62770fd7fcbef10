"""The command `guest-service boot-gate`.

Exit status: 0 the gate is open, 1 refused with the one reason on stderr, 2 misuse (flags, policy, rack). Anything that goes wrong on the
way, our own faults and a report that cannot be written included, is a refusal: the command fails closed.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from guest_service.boot_gate.errors import GateStopError
from guest_service.boot_gate.evidence_file import EvidenceFile
from guest_service.boot_gate.gate import BootGate
from guest_service.boot_gate.nvml_witness import NvmlWitness
from guest_service.boot_gate.policy import read_policy
from guest_service.boot_gate.report import as_json, as_text, one_line
from guest_service.boot_gate.verifier import verifier_of
from guest_service.inventory import Inventory, read_inventory, simulated_inventory
from guest_service.simulator import Rack, RackError, load_rack
from guest_transport.errors import SettingsError

SYSFS_ROOT = Path("/sys")
_PATH = click.Path(path_type=Path)
REFUSED, MISUSE = 1, 2


class StoppedError(GateStopError):
    """The run was ended by a signal; the gate stays shut."""


@click.command("boot-gate", short_help="Judge the GPUs before secrets are released.")
@click.option("--policy", "policy_file", type=_PATH, metavar="FILE", help="Policy (TOML); without one, the strictest.")
@click.option("--sysfs", type=_PATH, metavar="DIR", help="Root of sysfs (default /sys).")
@click.option(
    "--simulate", metavar="RACK", help="Built-in rack or rack file in place of NVML, and of the PCI bus unless --sysfs is given."
)
@click.option("--nvml-library", type=_PATH, metavar="FILE", help="Load this libnvidia-ml instead of the system's.")
@click.option("--set-ready", is_flag=True, help="After a pass, let the GPUs take work (NVML's ready state).")
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", help="Form of the report (default text).")
def boot_gate(
    policy_file: Path | None, sysfs: Path | None, simulate: str | None, nvml_library: Path | None, *, set_ready: bool, output: str
) -> None:
    """Judge this machine's GPUs before it is given secrets; fails closed.

    Exit status: 0 pass, 1 refused with the reason on stderr, 2 misuse.
    """
    try:
        policy = read_policy(policy_file)
        rack = None if simulate is None else load_rack(simulate)
    except (SettingsError, RackError) as error:
        _leave(MISUSE, str(error))
    if set_ready and not policy.attest_gpu:
        _leave(
            MISUSE,
            f"{policy_file}: attest_gpu: is false, and --set-ready lets GPUs take work that nobody attested; leave one out",
        )
    evidence = EvidenceFile(None if policy.evidence_file is None else Path(policy.evidence_file))
    gate = BootGate(
        policy,
        read_inventory=_inventory_of(sysfs, rack),
        verify=verifier_of(policy.verifier),
        nvml=NvmlWitness(nvml_library=nvml_library, simulate=simulate),
        evidence=evidence,
    )
    try:
        with _stopped_by_signals():
            result = gate.run(set_ready=set_ready)
    except GateStopError as stop:
        _leave(REFUSED, f"boot gate: refused: {stop}")
    except Exception as error:  # noqa: BLE001 - the top of the command: our own fault must not open the gate
        place = traceback.extract_tb(error.__traceback__)[-1]
        fault = f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
        _leave(REFUSED, f"boot gate: refused: fault of the gate itself, please report it: {fault}")
    _print(as_json(result, evidence.path) if output == "json" else as_text(result))
    if not result.passed:
        _leave(REFUSED, f"boot gate: refused: {result.reason}")


def _inventory_of(sysfs: Path | None, rack: Rack | None) -> Callable[[], Inventory]:
    if rack is not None and sysfs is None:
        return lambda: simulated_inventory(card.pci_bus_id for card in rack.cards)
    return lambda: read_inventory(sysfs or SYSFS_ROOT)


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Within it SIGTERM, SIGINT and SIGHUP end the run as a refusal, so that a running verifier is killed on the way out."""

    def stop(number: int, _: FrameType | None) -> None:
        # One is enough: another must not break off the killing of the verifier. (SIG_IGN would complain of one that has come already.)
        for each in before:
            signal.signal(each, _take_no_notice)
        raise StoppedError(f"stopped by {signal.Signals(number).name}")

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _take_no_notice(_number: int, _frame: FrameType | None) -> None:
    pass


def _print(report: str) -> None:
    try:
        sys.stdout.write(report + "\n")
        sys.stdout.flush()
    except OSError as error:
        _leave(REFUSED, f"boot gate: refused: the report cannot be written: {error.strerror}")


def _leave(status: int, reason: str) -> NoReturn:
    sys.stderr.write(one_line(reason) + "\n")
    raise SystemExit(status)
