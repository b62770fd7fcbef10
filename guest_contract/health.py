"""A card's verdict from its values: ok, unknown, degraded or failed, with the reasons and what to do about each.

Agent, proxy and client call the same functions on the same message, so that an old agent is judged by a new proxy and nobody has to
agree on a verdict that travels. Each rule is one row of a table with its source. A rule reads one message and nothing else: what needs
memory, such as the XIDs from before a reset, is left out of the message by the agent.

It refuses to guess: a value that is unset speaks neither for nor against a card, and a card of whose health nothing was asked or read is
unknown, never ok. `errors` are counted here and not parsed. Rejected: a score (nobody can act on 73), and thresholds in configuration
(two proxies would disagree about one card).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from guest_api import guest_api_pb2

Card = guest_api_pb2.GpuDevice
Response = guest_api_pb2.GpuInfoResponse
XidCount = guest_api_pb2.XidCount

# An XID speaks against a card until the card was reset, or for a day: what it broke was met by then, and the count stays as history.
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
    """One thing that speaks against a card: a code for scripts and metrics, words for people, and what to do."""

    code: str
    level: Level
    words: str
    action: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is to be said of a card or a guest: the worst level of its reasons, worst first."""

    level: Level
    reasons: tuple[Reason, ...] = ()


# Words for what a rule found, or None where it does not apply.
Finding = Callable[[Card, Response], str | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """One row: when it applies, how bad that is, what to do, and who says so."""

    code: str
    level: Level
    find: Finding
    action: str
    source: str


def _flag(name: str, words: str) -> Finding:
    return lambda card, _: words if getattr(card, name) else None


def _gives_nothing(card: Card, _: Response) -> str | None:
    silent = not (
        card.HasField("utilization_gpu")
        or card.HasField("utilization_memory")
        or card.HasField("memory_total_bytes")
        or card.HasField("memory_used_bytes")
        or card.HasField("memory_free_bytes")
        or card.HasField("temperature_c")
        or card.HasField("power_usage_mw")
    )
    return "the driver gives no value of the card" if silent and card.errors else None


def _xids(chosen: frozenset[int], words: str) -> Finding:
    def find(card: Card, _: Response) -> str | None:
        return xids_in_words(recent(card.xids, chosen), words)

    return find


def recent(xids: Iterable[XidCount], chosen: frozenset[int]) -> list[int]:
    """Those of `chosen` that still speak against a card, in order; one whose age is not known does."""
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


def _fabric(card: Card, _: Response) -> str | None:
    if card.fabric_state == FABRIC_COMPLETED and card.fabric_status:
        return f"the card did not join the NVLink fabric (status {card.fabric_status})"
    return None


def _needed_action(card: Card, _: Response) -> str | None:
    words = NEEDED_ACTIONS.get(card.recovery_action)
    return f"the driver asks to {words}" if words else None


def _wished_action(card: Card, _: Response) -> str | None:
    action = card.recovery_action
    if not action or action in NEEDED_ACTIONS:
        return None
    return f"the driver asks to {WISHED_ACTIONS.get(action, f'take recovery action {action}')}"


def _uncorrected(card: Card, _: Response) -> str | None:
    count = card.ecc_uncorrected_volatile
    return f"{count} uncorrected memory errors since the driver was loaded" if count else None


def _clocks(bits: int, words: str) -> Finding:
    return lambda card, _: words if card.clocks_event_reasons & bits else None


def _narrow_link(card: Card, response: Response) -> str | None:
    widest = max((peer.pcie_width for peer in response.gpus), default=0)
    if card.HasField("pcie_width") and card.pcie_width < widest:
        return f"PCIe link of {card.pcie_width} lanes, others of this guest have {widest}"
    return None


def _few_nvlinks(card: Card, response: Response) -> str | None:
    most = max((peer.nvlinks_active for peer in response.gpus), default=0)
    if card.HasField("nvlinks_active") and card.nvlinks_active < most:
        return f"{card.nvlinks_active} NVLinks are up, others of this guest have {most}"
    return None


def _forgets_itself(card: Card, response: Response) -> str | None:
    off = card.HasField("persistence_mode") and not card.persistence_mode
    return "persistence mode is off with confidential computing on" if off and response.cc_enabled else None


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


def judge_card(card: Card, response: Response) -> Verdict:
    """The verdict on one of the cards of `response`."""
    reasons = [
        Reason(rule.code, rule.level, words, rule.action) for rule in RULES if (words := rule.find(card, response)) is not None
    ]
    if unknown := _not_known(card, response):
        reasons.append(unknown)
    return _verdict(reasons)


def judge_guest(response: Response, cards_given: int | None = None) -> Verdict:
    """The verdict on a guest: the worst of its cards, and what is true of no card that it shows.

    `cards_given` is how many cards the host gave to the guest, where somebody knows.
    """
    reasons = [
        Reason(reason.code, reason.level, f"GPU {card.index}: {reason.words}", reason.action)
        for card in response.gpus
        for reason in judge_card(card, response).reasons
    ]
    reasons.extend(_of_guest(response, cards_given))
    return _verdict(reasons)


def _of_guest(response: Response, cards_given: int | None) -> Iterator[Reason]:
    for numbers, words, action in ((REBOOT_XIDS, "needs a new start", RESTART), (RESET_XIDS, "needs a reset of a card", RESET)):
        if found := xids_in_words(recent(response.unplaced_xids, numbers), words):
            yield Reason("xid_unplaced", Level.FAILED, found, action)
    if response.error:
        yield Reason("unknown", Level.UNKNOWN, response.error, "guest-service doctor, run in the VM, says what to do.")
        return
    shown = len(response.gpus)
    for code, there, whence in (
        ("cards_missing_on_bus", cards_given, "the host gave {}"),
        ("cards_missing", response.pci_devices, "{} are on the PCI bus"),
    ):
        if there is not None and shown < there:
            yield Reason(code, Level.FAILED, f"{shown} cards are seen, {whence.format(there)}", RESTART)


def _not_known(card: Card, response: Response) -> Reason | None:
    if "health" not in response.groups:
        return Reason("not_asked", Level.UNKNOWN, "its health was not asked", "Let the agent ask the group health (gpu.groups).")
    if len(card.errors) > _unset_base_values(card):
        return Reason("unread", Level.UNKNOWN, "some values could not be read", "The card's errors say which, and why.")
    return None


def _unset_base_values(card: Card) -> int:
    """How many entries of `errors` the base values account for: one each for what is unset together."""
    return sum(
        (
            not card.uuid,
            not card.pci_bus_id,
            not (card.HasField("utilization_gpu") and card.HasField("utilization_memory")),
            not (
                card.HasField("memory_total_bytes") and card.HasField("memory_used_bytes") and card.HasField("memory_free_bytes")
            ),
            not card.HasField("temperature_c"),
            not card.HasField("power_usage_mw"),
        )
    )


def _verdict(reasons: list[Reason]) -> Verdict:
    worst_first = tuple(sorted(reasons, key=lambda reason: -reason.level))
    return Verdict(worst_first[0].level if worst_first else Level.OK, worst_first)
