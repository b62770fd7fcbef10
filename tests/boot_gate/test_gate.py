"""The gate with witnesses that misbehave in ways that a process cannot be made to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from guest_service.boot_gate.bounded_process import Finished
from guest_service.boot_gate.evidence_file import EvidenceFile
from guest_service.boot_gate.gate import BootGate, GateResult, Verdict
from guest_service.boot_gate.policy import Policy
from guest_service.inventory import Inventory, InventoryError, simulated_inventory
from tests.boot_gate.machine import good_answer
from tests.boot_gate.test_nvml_witness import GOOD_STATE


class Nvml:
    """Answers as one good card does."""

    def state(self) -> bytes:
        return json.dumps(GOOD_STATE).encode()

    def set_ready(self) -> bytes:
        return self.state()


def bus() -> Inventory:
    return simulated_inventory(["0000:01:00.0"])


def run(answer: bytes | None = None, status: int = 0, evidence: Path | None = None, nonce: bytes = bytes(32)) -> GateResult:
    text = json.dumps(good_answer()).encode() if answer is None else answer
    gate = BootGate(
        Policy(),
        read_inventory=bus,
        verify=lambda asked: Finished(status, text.replace(b"NONCE", asked.encode()), b"no card\n"),
        nvml=Nvml(),
        evidence=EvidenceFile(evidence),
        nonce=lambda: nonce,
    )
    return gate.run(set_ready=True)


def test_good_witnesses_open_the_gate() -> None:
    result = run()
    assert (result.passed, result.reason) == (True, "")


def test_the_answer_of_an_earlier_run_does_not_open_it() -> None:
    replayed = json.dumps(good_answer()).encode().replace(b"NONCE", b"00" * 32)
    assert run(replayed).passed
    assert "eat_nonce is not the nonce of this run" in run(replayed, nonce=b"\1" * 32).reason


@pytest.mark.parametrize(
    ("answer", "status", "reason"),
    [
        (None, 1, "verifier: says it succeeded, and exited with status 1: no card"),
        (None, -9, "verifier: says it succeeded, and ended by signal 9: no card"),
        (b"", 3, "verifier: exited with status 3: no card"),
        (b'{"result_code": 12, "result_message": "Nonce\\nmismatch"}', 3, "verifier: result code 12 'Nonce\\nmismatch'"),
        (b'{"result_code": 0}', 0, "verifier: claims: a list is needed, and it is missing or null"),
    ],
)
def test_both_ways_of_the_verifier_to_say_no_are_heard(answer: bytes | None, status: int, reason: str) -> None:
    result = run(answer, status)
    assert (result.passed, result.reason) == (False, reason)


def test_the_evidence_is_there_before_it_is_judged(tmp_path: Path) -> None:
    evidence = tmp_path / "evidence.json"
    assert not run(b"\xff not even text", 1, evidence).passed
    assert evidence.read_bytes() == b"\xff not even text"


def test_a_run_has_one_reason_and_nothing_is_asked_after_it() -> None:
    def no_bus() -> Inventory:
        raise InventoryError("/sys/bus/pci/devices: PCI bus cannot be read: Permission denied")

    def nobody(_: str) -> Finished:
        raise AssertionError("the verifier was run")

    gate = BootGate(Policy(attest_gpu=False), read_inventory=no_bus, verify=nobody, nvml=Nvml(), evidence=EvidenceFile(None))
    verdicts = [check.verdict for check in gate.run(set_ready=False).checks]
    assert verdicts == [Verdict.REFUSED, *[Verdict.NOT_REACHED] * 8]


def test_a_fault_of_the_gate_itself_is_no_verdict() -> None:
    def broken() -> Inventory:
        raise ZeroDivisionError

    gate = BootGate(
        Policy(), read_inventory=broken, verify=lambda _: Finished(0, b"", b""), nvml=Nvml(), evidence=EvidenceFile(None)
    )
    with pytest.raises(ZeroDivisionError):
        gate.run(set_ready=False)
