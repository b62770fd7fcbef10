"""What NVIDIA's verifier says about the cards, and whether that is enough.

The shape was seen on an H100 with nvattest in September 2026. Keys that are not named here are let through: the verifier adds some with
every release. A key that is named and missing, or of another type, is a refusal, and so is a value that merely means the same ("Success",
1 for true): whoever writes it is not the verifier that this was made for. Rejected: taking the verifier's exit status for its verdict.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import TypeVar

from guest_service.boot_gate.errors import RefusalError, UnreadableError
from guest_service.boot_gate.policy import Policy
from guest_service.boot_gate.strict_json import kind, parse_strict

WHAT = "verifier"

# NVIDIA's two words for `dbgstat`; only the first passes unless the policy allows debugging.
DEBUG_DISABLED = "disabled"
DEBUG_ENABLED = "enabled"

T = TypeVar("T", str, bool, int)


@dataclass(frozen=True, slots=True)
class Claim:
    """What is claimed of one card."""

    device_type: str
    nonce: str
    nonce_match: bool
    measurements: str
    secure_boot: bool
    debug_status: str
    # The card's own identity where the verifier gives it; None where it does not.
    ueid: str | None


@dataclass(frozen=True, slots=True)
class Answer:
    """The verifier's answer: its result code, 0 for success, its own words for it, and the claims, not yet read."""

    result_code: int
    message: str
    claims: object


def parse_answer(data: bytes) -> Answer:
    """The answer in the verifier's output; raises UnreadableError."""
    tree = parse_strict(data, WHAT)
    message = tree.get("result_message")
    return Answer(_field(tree, "result_code", int, WHAT), message if isinstance(message, str) else "", tree.get("claims"))


def parse_claims(claims: object) -> tuple[Claim, ...]:
    """The claims of an answer; raises UnreadableError, naming the claim and the key."""
    if not isinstance(claims, list):
        raise UnreadableError(
            f"{WHAT}: claims: a list is needed, and it is {'missing or null' if claims is None else kind(claims)}"
        )
    return tuple(_claim(claim, f"{WHAT}: claim {number}") for number, claim in enumerate(claims))


def _claim(claim: object, where: str) -> Claim:
    if not isinstance(claim, dict):
        raise UnreadableError(f"{where}: an object is needed, and it is {kind(claim)}")
    return Claim(
        device_type=_field(claim, "x-nvidia-device-type", str, where),
        nonce=_field(claim, "eat_nonce", str, where),
        nonce_match=_field(claim, "x-nvidia-gpu-attestation-report-nonce-match", bool, where),
        measurements=_field(claim, "measres", str, where),
        secure_boot=_field(claim, "secboot", bool, where),
        debug_status=_field(claim, "dbgstat", str, where),
        ueid=_field(claim, "ueid", str, where) if "ueid" in claim else None,
    )


def _field(tree: dict[str, object], key: str, wanted: type[T], where: str) -> T:
    if key not in tree:
        raise UnreadableError(f"{where}: {key} is missing")
    value = tree[key]
    # Exactly this type: bool is an int to isinstance, and `true` is no result code.
    if type(value) is not wanted:
        raise UnreadableError(f"{where}: {key} is {kind(value)}, not {_NAMES[wanted]}")
    return value


_NAMES: dict[type, str] = {str: "a string", bool: "a boolean", int: "a whole number"}


def judge_claims(claims: tuple[Claim, ...], *, nonce: str, cards: int, policy: Policy) -> None:
    """Hold the claims against the nonce that was sent, the cards on the bus and the policy; raises RefusalError."""
    if len(claims) != cards:
        raise RefusalError(f"{WHAT}: claims for {len(claims)} cards, and {cards} on the PCI bus")
    for number, claim in enumerate(claims):
        if fault := _fault(claim, nonce, policy):
            raise RefusalError(f"{WHAT}: claim {number}: {fault}")
    named = [claim.ueid for claim in claims if claim.ueid is not None]
    if len(set(named)) != len(named):
        raise RefusalError(f"{WHAT}: two claims are of one card (same ueid), so another card has none")


def _fault(claim: Claim, nonce: str, policy: Policy) -> str | None:
    """What is wrong with `claim`, or None."""
    if claim.device_type != "gpu":
        return f"x-nvidia-device-type is {claim.device_type[:40]!r}, not 'gpu'"
    if not hmac.compare_digest(claim.nonce.encode("utf-8", "surrogatepass"), nonce.encode("ascii")):
        return "eat_nonce is not the nonce of this run: the evidence is old or of somebody else"
    if not claim.nonce_match:
        return "the card's report was made with another nonce"
    if claim.measurements != "success":
        return f"measres is {claim.measurements[:40]!r}, not 'success': the card's firmware is not what NVIDIA published"
    if not claim.secure_boot and not policy.allow_insecure_boot:
        return "secboot is false (allow_insecure_boot lets it pass)"
    if claim.debug_status not in ({DEBUG_DISABLED, DEBUG_ENABLED} if policy.allow_debug else {DEBUG_DISABLED}):
        return f"dbgstat is {claim.debug_status[:40]!r}, not 'disabled'{'' if policy.allow_debug else ' (allow_debug lets enabled pass)'}"
    return None
