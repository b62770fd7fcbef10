"""The signs of trouble with a card: one row for each rule, with how bad it is, what to do, and who says so.

A rule reads Facts, the few plain values that it depends on, and nothing else: what needs memory, such as the XIDs from before a reset,
is left out of the message by the agent. docs/cards.md shows these rows. Rejected: a score (nobody can act on 73), and thresholds in
configuration (two proxies would disagree about one card).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from guest_api import guest_api_pb2

XidCount = guest_api_pb2.XidCount

# An XID counts against a card until the card was reset, or for a day: by then its damage has shown, and the count stays as history.
XID_COUNTS_MS = 24 * 60 * 60 * 1000

# NVML's bits of clocks_event_reasons (nvml.h, nvmlClocksEventReasons).
HW_SLOWDOWN, HW_THERMAL_SLOWDOWN, HW_POWER_BRAKE = 0x8, 0x40, 0x80
# NVML_GPU_FABRIC_STATE_COMPLETED; its status is 0 for success.
FABRIC_COMPLETED = 3

# NVIDIA, "Xid Errors", catalog of Ampere and newer (docs.nvidia.com/deploy/xid-errors): the action that it names for each.
RESET_XIDS = frozenset({46, 48, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158})
REBOOT_XIDS = frozenset({79, 151})
# Memory that was repaired or is wearing out, and an error that was kept to one application: the card works and wants attention.
ATTENTION_XIDS = frozenset({63, 74, 92, 94})
ALL_XIDS = RESET_XIDS | REBOOT_XIDS | ATTENTION_XIDS
# Recovery actions of field 230 (nvml.h, nvmlDeviceGpuRecoveryAction_t) that the card cannot work without; 6 and 7 are of newer drivers.
NEEDED_ACTIONS = {1: "reset the GPU", 2: "reboot the machine", 6: "recovery action 6", 7: "recovery action 7"}
WISHED_ACTIONS = {3: "drain peer-to-peer traffic", 4: "drain, then reset the GPU"}

RESET = (
    "Stop the work on the card and reset it: nvidia-smi --gpu-reset in the VM where that is allowed, else stop and start the VM."
)
RESTART = "Stop and start the VM. If it comes back, the host must look at the card and its slot."
REPLACE = "Take the card out of use and report it to the vendor: only the host can replace it."
LOOK = "Keep an eye on it; the card works."


class Level(IntEnum):
    """How bad it is; a larger number is worse."""

    OK = 0
    UNKNOWN = 1
    DEGRADED = 2
    FAILED = 3

    @property
    def word(self) -> str:
        """As it is shown."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason against a card: a code for scripts and metrics, words for people, and what to do."""

    code: str
    level: Level
    words: str
    action: str


class Facts(NamedTuple):
    """What the rules read of a card; None for a value that is unset and would count against a card as 0."""

    row_remap_pending: bool
    row_remap_failed: bool
    retired_pages_pending: bool
    ecc_uncorrected_volatile: int
    clocks_event_reasons: int
    fabric_state: int
    fabric_status: int
    recovery_action: int
    # No value of the card is known, and its errors say why.
    silent: bool
    # Values other than the base ones that could not be read.
    unread: bool
    asked: bool
    # Of ALL_XIDS, those that still count, in order.
    xids: tuple[int, ...]
    pcie_width: int | None
    nvlinks_active: int | None
    # The most of this guest's cards.
    widest_link: int
    most_nvlinks: int
    persistence_off: bool
    cc_enabled: bool


# Words for what a rule found, or None where it does not apply.
Finding = Callable[[Facts], str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: when it applies, how bad that is, what to do, and who says so."""

    code: str
    level: Level
    find: Finding
    action: str
    source: str


def _flag(name: str, words: str) -> Finding:
    return lambda facts: words if getattr(facts, name) else None


def _gives_nothing(facts: Facts) -> str | None:
    return "the driver gives no value of the card" if facts.silent else None


def _xids(chosen: frozenset[int], words: str) -> Finding:
    return lambda facts: xids_in_words([number for number in facts.xids if number in chosen], words)


def recent(xids: Iterable[XidCount], chosen: frozenset[int]) -> list[int]:
    """Those of `chosen` that still count against a card, in order; one of unknown age does."""
    numbers = {
        entry.xid
        for entry in xids
        if entry.xid in chosen
        and not entry.nvswitch
        and entry.count
        and not (entry.HasField("last_age_ms") and entry.last_age_ms > XID_COUNTS_MS)
    }
    return sorted(numbers)


def xids_in_words(numbers: list[int], words: str) -> str | None:
    """ "XID 48, 95: WORDS", or None without one."""
    return f"XID {', '.join(map(str, numbers))}: {words}" if numbers else None


def _fabric(facts: Facts) -> str | None:
    if facts.fabric_state == FABRIC_COMPLETED and facts.fabric_status:
        return f"the card did not join the NVLink fabric (status {facts.fabric_status})"
    return None


def _needed_action(facts: Facts) -> str | None:
    words = NEEDED_ACTIONS.get(facts.recovery_action)
    return f"the driver asks to {words}" if words else None


def _wished_action(facts: Facts) -> str | None:
    action = facts.recovery_action
    if not action or action in NEEDED_ACTIONS:
        return None
    return f"the driver asks to {WISHED_ACTIONS.get(action, f'take recovery action {action}')}"


def _uncorrected(facts: Facts) -> str | None:
    count = facts.ecc_uncorrected_volatile
    return f"{count} uncorrected memory errors since the driver was loaded" if count else None


def _clocks(bits: int, words: str) -> Finding:
    return lambda facts: words if facts.clocks_event_reasons & bits else None


def _narrow_link(facts: Facts) -> str | None:
    if facts.pcie_width is not None and facts.pcie_width < facts.widest_link:
        return f"PCIe link of {facts.pcie_width} lanes, others of this guest have {facts.widest_link}"
    return None


def _few_nvlinks(facts: Facts) -> str | None:
    if facts.nvlinks_active is not None and facts.nvlinks_active < facts.most_nvlinks:
        return f"{facts.nvlinks_active} NVLinks are up, others of this guest have {facts.most_nvlinks}"
    return None


def _forgets_itself(facts: Facts) -> str | None:
    return "persistence mode is off with confidential computing on" if facts.persistence_off and facts.cc_enabled else None


_NVML, _CATALOG = "nvml.h", "NVIDIA, Xid Errors, catalog"
_REMAPPING = "NVIDIA, GPU Memory Error Management"

RULES: tuple[Rule, ...] = (
    Rule("lost", Level.FAILED, _gives_nothing, RESTART, f"{_NVML}: NVML_ERROR_GPU_IS_LOST and what else ends every question"),
    Rule("xid_reboot", Level.FAILED, _xids(REBOOT_XIDS, "needs a new start"), RESTART, f"{_CATALOG}: RESTART_BM, RESTART_VM"),
    Rule("xid_reset", Level.FAILED, _xids(RESET_XIDS, "needs a reset of the card"), RESET, f"{_CATALOG}: RESET_GPU"),
    Rule("row_remap_failed", Level.FAILED, _flag("row_remap_failed", "a memory row could not be remapped"), REPLACE, _REMAPPING),
    Rule("recovery_action", Level.FAILED, _needed_action, RESET, f"{_NVML}: nvmlDeviceGpuRecoveryAction_t"),
    Rule("fabric", Level.FAILED, _fabric, "The host's fabric manager must run; then reset the card.", f"{_NVML}: nvmlGpuFabricInfo"),
    Rule("row_remap_pending", Level.DEGRADED, _flag("row_remap_pending", "a memory row waits to be remapped"), RESET, _REMAPPING),
    Rule(
        "retired_pages_pending", Level.DEGRADED, _flag("retired_pages_pending", "a memory page waits to be retired"), RESET,
        "NVIDIA, Dynamic Page Retirement",
    ),
    Rule("ecc_uncorrected", Level.DEGRADED, _uncorrected, "Restart what ran on the card; reset it when convenient.", _REMAPPING),
    Rule("xid_attention", Level.DEGRADED, _xids(ATTENTION_XIDS, "needs attention"), LOOK, f"{_CATALOG}: RESTART_APP, IGNORE"),
    Rule("recovery_wish", Level.DEGRADED, _wished_action, RESET, f"{_NVML}: nvmlDeviceGpuRecoveryAction_t"),
    Rule(
        "power_brake", Level.DEGRADED, _clocks(HW_POWER_BRAKE, "the power brake holds the clocks down"),
        "The host must look at its power supplies.", f"{_NVML}: nvmlClocksEventReasonHwPowerBrakeSlowdown",
    ),
    Rule(
        "hardware_slowdown", Level.DEGRADED,
        _clocks(HW_SLOWDOWN | HW_THERMAL_SLOWDOWN, "the hardware holds the clocks down (heat or power)"),
        "The host must look at its cooling and power.", f"{_NVML}: nvmlClocksEventReasonHwSlowdown, HwThermalSlowdown",
    ),
    Rule(
        "pcie_width", Level.DEGRADED, _narrow_link, "Reset the card; if it stays, the host must look at the slot.",
        f"{_NVML}: nvmlDeviceGetCurrPcieLinkWidth",
    ),
    Rule(
        "nvlinks", Level.DEGRADED, _few_nvlinks, "Reset the card; if it stays, the host must look at its links.",
        f"{_NVML}: nvmlDeviceGetNvLinkState",
    ),
    Rule(
        "persistence_mode", Level.DEGRADED, _forgets_itself,
        "Run nvidia-persistenced in the VM before anything uses the card: without it the card is lost when its last user ends.",
        "NVIDIA, Confidential Computing deployment guide",
    ),
)  # fmt: skip
