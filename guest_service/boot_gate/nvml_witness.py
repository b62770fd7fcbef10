"""What NVML says about confidential computing, asked in a process of its own, and whether that is enough.

An NVML call cannot be cancelled, so the gate never makes one itself: guest_service.collector.confidential does, and is killed when it is
late. Here its one line is read and judged; whatever it does not know is a refusal. Rejected: the agent's telemetry sample, which answers
"unknown" where a gate must stop, and does not say how much of a card's memory is protected.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from guest_service.boot_gate.bounded_process import run_bounded
from guest_service.boot_gate.errors import RefusalError, UnreadableError
from guest_service.boot_gate.policy import Policy
from guest_service.boot_gate.strict_json import kind

WHAT = "NVML"
# Eight cards without persistence mode were reported to take 8 s to initialise; a gate that runs once per boot can wait seven times that.
NVML_SECONDS = 60.0
# 1024 cards take about 120 KiB.
ANSWER_LIMIT_BYTES = 1024 * 1024

# nvml.h: NVML_CC_SYSTEM_FEATURE_DISABLED, _ENABLED, NVML_CC_SYSTEM_ENVIRONMENT_PROD, NVML_CC_SYSTEM_DEVTOOLS_MODE_OFF/ON,
# NVML_CC_ACCEPTING_CLIENT_REQUESTS_TRUE.
FEATURE_DISABLED, FEATURE_ENABLED = 0, 1
# What the process that asks fills in before it asks.
UNWRITTEN = 0xFFFFFFFF
ENVIRONMENT_PRODUCTION = 2
DEVTOOLS_OFF, DEVTOOLS_ON = 0, 1
READY = 1


@dataclass(frozen=True, slots=True)
class CardState:
    """One card as NVML counts it. `protected_bytes` is its memory that only the confidential VM can read; none outside CC mode."""

    index: int
    pci_bus_id: str
    protected_bytes: int | None
    error: str


@dataclass(frozen=True, slots=True)
class ConfidentialState:
    """NVML's numbers as they are (nvml.h), None for what it would not say."""

    environment: int | None
    feature: int | None
    devtools: int | None
    ready: int | None
    cards: tuple[CardState, ...]


class NvmlWitness:
    """Asks NVML (or a simulated rack) through one short-lived process per question."""

    def __init__(self, *, nvml_library: Path | None = None, simulate: str | None = None, seconds: float = NVML_SECONDS) -> None:
        self._options: list[str] = []
        if nvml_library is not None:
            self._options += ["--nvml-library", str(nvml_library)]
        if simulate is not None:
            self._options += ["--simulate", simulate]
        self._seconds = seconds

    def state(self) -> bytes:
        """One line with the state of every card; raises UnreadableError."""
        return self._ask("read")

    def set_ready(self) -> bytes:
        """Let the GPUs take work, and return the state read back afterwards; raises UnreadableError."""
        return self._ask("set-ready")

    def _ask(self, action: str) -> bytes:
        argv = [sys.executable, "-I", "-m", "guest_service.collector.confidential", action, *self._options]
        finished = run_bounded(argv, what=WHAT, seconds=self._seconds, stdout_limit_bytes=ANSWER_LIMIT_BYTES)
        if finished.status != 0:
            raise UnreadableError(f"{WHAT}: the process that asks it {finished.ending()}")
        return finished.stdout


def parse_state(tree: dict[str, object]) -> ConfidentialState:
    """The state in one answer of guest_service.collector.confidential; raises UnreadableError, also with NVML's own error."""
    error = tree.get("error")
    if not isinstance(error, str):
        raise UnreadableError(f"{WHAT}: error: a string is needed, and it is {kind(error)}")
    if error:
        raise UnreadableError(f"{WHAT}: {error}")
    cards = tree.get("cards")
    if not isinstance(cards, list):
        raise UnreadableError(f"{WHAT}: cards: a list is needed, and it is {kind(cards)}")
    return ConfidentialState(
        environment=_number(tree, "environment"),
        feature=_number(tree, "feature"),
        devtools=_number(tree, "devtools"),
        ready=_number(tree, "ready"),
        cards=tuple(_card(card) for card in cards),
    )


def _card(card: object) -> CardState:
    if not isinstance(card, dict):
        raise UnreadableError(f"{WHAT}: cards: an object is needed, and one is {kind(card)}")
    index, pci_bus_id, error = _number(card, "index"), card.get("pci_bus_id"), card.get("error")
    if index is None or not isinstance(pci_bus_id, str) or not isinstance(error, str):
        raise UnreadableError(f"{WHAT}: cards: index, pci_bus_id and error are needed of every card")
    return CardState(index, pci_bus_id, _number(card, "protected_bytes"), error)


def _number(tree: dict[str, object], key: str) -> int | None:
    value = tree.get(key, "")
    if value is None or type(value) is int:
        return value
    raise UnreadableError(f"{WHAT}: {key}: a whole number or null is needed")


def judge_count(state: ConfidentialState, cards: int) -> None:
    """NVML sees as many cards as the PCI bus; raises RefusalError."""
    if len(state.cards) != cards:
        raise RefusalError(
            f"{WHAT}: sees {len(state.cards)} cards, and {cards} are on the PCI bus: a card has no driver or fell off the bus"
        )


def judge_cc_mode(state: ConfidentialState) -> None:
    """Confidential computing is on, for real, on every card; raises RefusalError."""
    if state.feature != FEATURE_ENABLED:
        raise RefusalError(f"{WHAT}: {_say_feature(state.feature)}")
    if state.environment != ENVIRONMENT_PRODUCTION:
        raise RefusalError(
            f"{WHAT}: the confidential-computing environment is {_say(state.environment)}, not production ({ENVIRONMENT_PRODUCTION})"
        )
    for card in state.cards:
        where = f"{WHAT}: card {card.index} ({card.pci_bus_id or 'address unknown'})"
        if card.error:
            raise RefusalError(f"{where}: {card.error}")
        if card.protected_bytes is None or card.protected_bytes <= 0:
            raise RefusalError(f"{where}: is not in CC mode: protected memory is {_say(card.protected_bytes)}")


def judge_devtools(state: ConfidentialState, policy: Policy) -> None:
    """DevTools mode is off, or on where the policy allows it; raises RefusalError."""
    if state.devtools not in ({DEVTOOLS_OFF, DEVTOOLS_ON} if policy.allow_devtools else {DEVTOOLS_OFF}):
        words = "on (allow_devtools lets it pass)" if state.devtools == DEVTOOLS_ON else _say(state.devtools)
        raise RefusalError(f"{WHAT}: DevTools mode is {words}")


def judge_ready(state: ConfidentialState) -> None:
    """The GPUs say that they take work; raises RefusalError."""
    if state.ready != READY:
        raise RefusalError(f"{WHAT}: the ready state was set, and reads back as {_say(state.ready)}")


def _say_feature(feature: int | None) -> str:
    if feature == FEATURE_DISABLED:
        return "confidential computing is off; set CC mode on the host"
    if feature is None or feature == UNWRITTEN:
        return "confidential computing is unknown: the driver wrote no mode; a driver and an NVML of one version are needed"
    return f"the cards are in mode {feature}, which is not the confidential computing of a VM ({FEATURE_ENABLED}); set CC mode on the host"


def _say(value: int | None) -> str:
    return "unknown" if value is None or value == UNWRITTEN else str(value)
