"""The checks of the boot gate, in their order, each with its verdict and the hash of what it was decided on.

The first check that does not hold ends the run: its reason is the one reason, and the checks behind it stay `not_reached`. Nothing that
changes the machine happens before the last check. Rejected: running all checks for a fuller report; a refused machine should not be
handed to more foreign code than it took to refuse it.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from guest_service.boot_gate import claims, nvml_witness
from guest_service.boot_gate.bounded_process import Finished
from guest_service.boot_gate.errors import GateStopError, RefusalError, UnreadableError
from guest_service.boot_gate.evidence_file import EvidenceFile
from guest_service.boot_gate.policy import Policy
from guest_service.boot_gate.strict_json import canonical, parse_strict, sha256
from guest_service.boot_gate.verifier import NONCE_BYTES, Verifier
from guest_service.inventory import NVIDIA, Inventory, InventoryError


class Verdict(StrEnum):
    """What became of one check."""

    PASS = "pass"  # noqa: S105 - a verdict, not a password
    REFUSED = "refused"
    # The policy does not ask for it, or there is no card to ask it of.
    NOT_NEEDED = "not_needed"
    # An earlier check ended the run.
    NOT_REACHED = "not_reached"


# The order is part of the product: no foreign program runs before the bus is known, nothing is set before everything holds.
CHECKS = ("inventory", "vendors", "expected_gpus", "verifier", "claims", "nvml_count", "cc_mode", "devtools", "ready_state")


@dataclass(frozen=True, slots=True)
class Check:
    """One check: what was found or why it was refused, and the SHA-256 of the evidence, None where none was looked at."""

    name: str
    verdict: Verdict
    detail: str = ""
    evidence_sha256: str | None = None


@dataclass(frozen=True, slots=True)
class GateResult:
    """All checks in their order, and the evidence that their hashes are of (the verifier's is in the evidence file)."""

    checks: tuple[Check, ...]
    nonce: str | None
    inventory: dict[str, object] | None
    nvml: dict[str, object] | None
    nvml_when_ready: dict[str, object] | None

    @property
    def passed(self) -> bool:
        """Every check held or was not needed."""
        return all(check.verdict in {Verdict.PASS, Verdict.NOT_NEEDED} for check in self.checks)

    @property
    def reason(self) -> str:
        """The one reason for a refusal; empty after a pass."""
        return next((check.detail for check in self.checks if check.verdict is Verdict.REFUSED), "")


class NvmlQuestions(Protocol):
    """What the gate asks NVML; nvml_witness.NvmlWitness answers. Both return one line of JSON or raise UnreadableError."""

    def state(self) -> bytes:
        """The state of every card."""

    def set_ready(self) -> bytes:
        """Let the GPUs take work; the state read back afterwards."""


class BootGate:
    """One gate: a policy, and the three witnesses that it is held against."""

    def __init__(
        self,
        policy: Policy,
        *,
        read_inventory: Callable[[], Inventory],
        verify: Verifier,
        nvml: NvmlQuestions,
        evidence: EvidenceFile,
        nonce: Callable[[], bytes] = lambda: secrets.token_bytes(NONCE_BYTES),
    ) -> None:
        self._policy = policy
        self._read_inventory = read_inventory
        self._verify = verify
        self._nvml = nvml
        self._evidence = evidence
        self._nonce = nonce

    def run(self, *, set_ready: bool) -> GateResult:
        """Run the checks up to the first that does not hold; with `set_ready`, a pass ends with the GPUs taking work."""
        record = _Record()
        with contextlib.suppress(GateStopError):
            inventory = self._look_at_the_bus(record)
            if self._policy.attest_gpu and inventory.nvidia:
                self._attest(record, inventory.nvidia)
                self._ask_nvml(record, inventory.nvidia)
                if set_ready:
                    self._set_ready(record, inventory.nvidia)
            record.complete = True
        return record.result()

    def _look_at_the_bus(self, record: _Record) -> Inventory:
        with record.check("inventory") as check:
            self._evidence.forget()
            try:
                inventory = self._read_inventory()
            except InventoryError as error:
                raise UnreadableError(f"PCI inventory: {error}") from error
            record.inventory = json.loads(inventory.to_json())
            check.judged_on(record.inventory)
            check.detail = f"PCI bus: {inventory.counts}"
        if self._policy.attest_gpu:
            with record.check("vendors") as check:
                check.judged_on(record.inventory)
                if strangers := [card.pci_bus_id for card in inventory.cards if card.vendor != NVIDIA]:
                    raise RefusalError(f"PCI inventory: {', '.join(strangers[:4])}: not an NVIDIA GPU, and nothing can attest it")
        if self._policy.expected_gpus is not None:
            with record.check("expected_gpus") as check:
                check.judged_on(record.inventory)
                if inventory.nvidia != self._policy.expected_gpus:
                    wanted = self._policy.expected_gpus
                    raise RefusalError(
                        f"PCI inventory: {inventory.nvidia} NVIDIA GPUs, and the policy expects {wanted} (expected_gpus)"
                    )
        return inventory

    def _attest(self, record: _Record, cards: int) -> None:
        with record.check("verifier") as check:
            record.nonce = self._nonce().hex()
            finished = self._verify(record.nonce)
            check.evidence_sha256 = sha256(finished.stdout)
            self._evidence.keep(finished.stdout)
            check.detail = finished.ending()
            answer = _answer(finished)
        with record.check("claims") as check:
            check.evidence_sha256 = sha256(finished.stdout)
            claims.judge_claims(claims.parse_claims(answer.claims), nonce=record.nonce, cards=cards, policy=self._policy)
            check.detail = f"{cards} cards attested"

    def _ask_nvml(self, record: _Record, cards: int) -> None:
        with record.check("nvml_count") as check:
            record.nvml = parse_strict(self._nvml.state(), nvml_witness.WHAT)
            check.judged_on(record.nvml)
            state = nvml_witness.parse_state(record.nvml)
            nvml_witness.judge_count(state, cards)
        with record.check("cc_mode") as check:
            check.judged_on(record.nvml)
            nvml_witness.judge_cc_mode(state)
        with record.check("devtools") as check:
            check.judged_on(record.nvml)
            nvml_witness.judge_devtools(state, self._policy)

    def _set_ready(self, record: _Record, cards: int) -> None:
        with record.check("ready_state") as check:
            record.nvml_when_ready = parse_strict(self._nvml.set_ready(), nvml_witness.WHAT)
            check.judged_on(record.nvml_when_ready)
            state = nvml_witness.parse_state(record.nvml_when_ready)
            nvml_witness.judge_ready(state)
            # It may have changed while the ready state was being set, and nothing looks again after this.
            nvml_witness.judge_count(state, cards)
            nvml_witness.judge_cc_mode(state)
            nvml_witness.judge_devtools(state, self._policy)


def _answer(finished: Finished) -> claims.Answer:
    """The answer of a verifier that says it succeeded, in both of its ways; raises GateStopError."""
    try:
        answer = claims.parse_answer(finished.stdout)
    except UnreadableError as error:
        raise error if finished.status == 0 else RefusalError(f"verifier: {finished.ending()}") from error
    if answer.result_code != 0:
        raise RefusalError(f"verifier: result code {answer.result_code} {answer.message[:200]!r}")
    if finished.status != 0:
        raise RefusalError(f"verifier: says it succeeded, and {finished.ending()}")
    return answer


class _OpenCheck:
    """A check that is being decided."""

    def __init__(self) -> None:
        self.detail = ""
        self.evidence_sha256: str | None = None

    def judged_on(self, tree: object) -> None:
        self.evidence_sha256 = sha256(canonical(tree))


class _Record:
    """What one run has found so far."""

    def __init__(self) -> None:
        self.complete = False
        self.nonce: str | None = None
        self.inventory: dict[str, object] | None = None
        self.nvml: dict[str, object] | None = None
        self.nvml_when_ready: dict[str, object] | None = None
        self._checks: dict[str, Check] = {}

    @contextlib.contextmanager
    def check(self, name: str) -> Iterator[_OpenCheck]:
        """Decide one check: refused with the reason of the GateStopError that leaves the block (and goes on up), else passed."""
        check = _OpenCheck()
        try:
            yield check
        except GateStopError as stop:
            self._checks[name] = Check(name, Verdict.REFUSED, str(stop), check.evidence_sha256)
            raise
        self._checks[name] = Check(name, Verdict.PASS, check.detail, check.evidence_sha256)

    def result(self) -> GateResult:
        # A check that was passed over on the way to a later one was not asked for; behind the one that stopped the run nothing was decided.
        end = len(CHECKS) if self.complete else max(map(CHECKS.index, self._checks), default=-1) + 1
        left = [Verdict.NOT_NEEDED if place < end else Verdict.NOT_REACHED for place in range(len(CHECKS))]
        checks = tuple(self._checks.get(name, Check(name, verdict)) for name, verdict in zip(CHECKS, left, strict=True))
        return GateResult(checks, self.nonce, self.inventory, self.nvml, self.nvml_when_ready)
