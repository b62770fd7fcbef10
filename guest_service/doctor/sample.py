"""One sample, taken by the agent's own collector under the agent's own bounds, against what the bus shows."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from guest_api import guest_api_pb2
from guest_contract.health import Level, judge_card
from guest_contract.pci_address import PciAddress
from guest_service.collector.command import collector_command
from guest_service.config import process_names_root
from guest_service.doctor.cards import cards_for_nvml
from guest_service.doctor.machine import Guest
from guest_service.inventory import Card
from guest_service.sampler import Outcome, OutcomeKind, Sampler
from guest_service.sampler.sampler import TIMEOUT_SECONDS
from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.findings import Finding, note, ok, wrong

# Of a card's errors; the sample itself has them all: guest-service gpu-info.
_ERRORS_SHOWN = 3
# Starting the process and ending one that hangs (Sampler.close); the sample's own bound is added to it.
ROOM_SECONDS = 5.0
# A sample of one card takes 0.1 s; one that needs this part of its time will miss it on a busy day.
_SLOW = 0.5
_KEEP_STARTED = "keep the driver started (persistence mode: run nvidia-persistenced)"
_ADVICE = {
    OutcomeKind.DRIVER_ERROR: "do what it says; the next sample sees it, no restart is needed",
    OutcomeKind.TIMEOUT: (
        f"the driver hangs (dmesg in this guest says more), or its start takes longer, as with many cards: {_KEEP_STARTED}, "
        "or raise gpu.sample_timeout_seconds"
    ),
    OutcomeKind.CRASH: "guest-service gpu-info shows it; the driver's library ends the process, or it lacks memory",
}


def bound_seconds(guest: Guest) -> float:
    """What the check may take."""
    return guest.config.gpu.sample_timeout_seconds + ROOM_SECONDS


async def examine_sample(guest: Guest) -> Sequence[Finding]:
    """Take one, where the agent would."""
    cards = await cards_for_nvml(guest)
    if isinstance(cards, str):
        return [note(cards)]
    facts = guest.facts()
    if not await in_thread(facts.driver_loaded):
        return [note("not taken: the kernel module is not loaded (see driver)")]
    gpu = guest.config.gpu
    library = None if gpu.nvml_library is None else Path(gpu.nvml_library)
    names = process_names_root(guest.config)
    command = collector_command(
        nvml_library=library, simulate=gpu.simulate, groups=gpu.groups, process_names=names, parent=os.getpid()
    )
    sampler = Sampler(command, timeout_seconds=gpu.sample_timeout_seconds)
    try:
        outcome = await sampler.sample()
    finally:
        await sampler.close()
    return judge_sample(outcome, cards, gpu.sample_timeout_seconds)


def judge_sample(outcome: Outcome, cards: Sequence[Card], timeout_seconds: float = TIMEOUT_SECONDS) -> list[Finding]:
    """A sample without errors, of every card on the bus, from healthy GPUs that take work, and well within its time."""
    reply = outcome.reply
    if outcome.failed:
        return [wrong(reply.error, _ADVICE.get(outcome.kind, "guest-service gpu-info shows what the collector prints"))]
    found = [*_judge_count(reply, cards), *_judge_devices(reply), *_judge_health(reply), *_judge_confidential(reply)]
    found += _judge_duration(outcome, timeout_seconds)
    return found or [ok(f"{_count(len(reply.gpus))} in {outcome.took_seconds:.2f} s; {_confidential(reply)}")]


def _judge_count(reply: guest_api_pb2.GpuInfoResponse, cards: Sequence[Card]) -> list[Finding]:
    if len(reply.gpus) == len(cards):
        return []
    if len(reply.gpus) > len(cards):
        return [note(f"NVML counts {_count(len(reply.gpus))}, and {len(cards)} are on the bus")]
    shown = {PciAddress.parse(device.pci_bus_id) for device in reply.gpus}
    missing = [card.pci_bus_id for card in cards if PciAddress.parse(card.pci_bus_id) not in shown]
    return [
        wrong(
            f"NVML sees {len(reply.gpus)} of {_count(len(cards))} on the bus; not {', '.join(missing)}",
            "the driver did not take it or lost it: dmesg (Xid); then a reboot of the VM, or a reset of the card on the host",
        )
    ]


def _judge_devices(reply: guest_api_pb2.GpuInfoResponse) -> list[Finding]:
    found = []
    for device in reply.gpus:
        if not device.errors:
            continue
        where = f"card {device.index} ({device.pci_bus_id or 'address unknown'})"
        more = f" and {len(device.errors) - _ERRORS_SHOWN} more" if len(device.errors) > _ERRORS_SHOWN else ""
        words = f"{where}: {'; '.join(device.errors[:_ERRORS_SHOWN])}{more}"
        lost = any(error.startswith("device:") or "did not answer" in error for error in device.errors)
        advice = "dmesg (Xid) says what happened to it; reset it or reboot the VM"
        if reply.cc_enabled:
            advice += f"; from then on {_KEEP_STARTED}, or it is lost when its first user ends"
        found.append(wrong(words, advice) if lost else note(words))
    return found


def _judge_health(reply: guest_api_pb2.GpuInfoResponse) -> list[Finding]:
    """What speaks against a card by its values; that it gives none at all is said of its errors."""
    return [
        wrong(f"card {device.index} ({device.pci_bus_id}): {reason.words}", reason.action.rstrip("."))
        for device in reply.gpus
        for reason in judge_card(device, reply).reasons
        if reason.level in {Level.DEGRADED, Level.FAILED} and reason.code != "lost"
    ]


def _judge_duration(outcome: Outcome, timeout_seconds: float) -> list[Finding]:
    if outcome.took_seconds < timeout_seconds * _SLOW:
        return []
    seen = f"the sample took {outcome.took_seconds:.1f} s of the {timeout_seconds:g} s that gpu.sample_timeout_seconds allows"
    return [wrong(seen, f"{_KEEP_STARTED}: then the driver is not started anew for each sample; else raise the key")]


def _judge_confidential(reply: guest_api_pb2.GpuInfoResponse) -> list[Finding]:
    devtools = note(
        "DevTools mode is on: debuggers and profilers see into the GPUs", "turn it off on the host, unless this VM is for that"
    )
    found = [devtools] if reply.cc_devtools else []
    if not (reply.cc_enabled and reply.HasField("cc_ready") and not reply.cc_ready):
        return found
    return [
        *found,
        wrong(
            "confidential computing is on, and the GPUs take no work: the ready state is not set",
            "guest-service boot-gate --set-ready once they are attested",
        ),
    ]


def _confidential(reply: guest_api_pb2.GpuInfoResponse) -> str:
    if not reply.HasField("cc_enabled"):
        return "confidential computing unknown"
    if not reply.cc_enabled:
        return "confidential computing off"
    return f"confidential computing on, {'ready' if reply.cc_ready else 'ready state unknown'}"


def _count(cards: int) -> str:
    return f"{cards} card{'' if cards == 1 else 's'}"
