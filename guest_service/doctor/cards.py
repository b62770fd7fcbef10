"""PCI cards and what the kernel has for them: a driver on each card, the module, and device files that this user may open."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from guest_service.doctor.machine import Guest
from guest_service.inventory import Card, Inventory, InventoryError
from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.files import FileFacts, group_name, may, read_facts, this_user
from guest_transport.doctor.findings import Finding, note, ok, wrong

NO_CARD = "not needed: no NVIDIA card"
SIMULATED = "not looked at: gpu.simulate shows a rack instead of cards"
# Read by this much; `version` of a module is a dozen characters.
_ATTRIBUTE_LIMIT_BYTES = 64


async def examine_pci(guest: Guest) -> Sequence[Finding]:
    """The cards on the bus, and what drives each."""
    try:
        inventory = await in_thread(guest.inventory)
    except InventoryError as error:
        return [wrong(str(error), "run this as root; in a container, mount /sys; host.sysfs_root names another place")]
    simulated = [note(f"a simulated rack, {guest.config.gpu.simulate}: no real card is looked at")]
    return [*(simulated if guest.config.gpu.simulate else ()), *judge_cards(inventory)]


def judge_cards(inventory: Inventory) -> list[Finding]:
    """One finding for each NVIDIA card, and for each entry of the bus that cannot be read."""
    sick = [
        wrong(
            f"{entry.reason}; {'it may be an NVIDIA card' if entry.may_be_nvidia else 'it is no NVIDIA card'}",
            "dmesg says what happened to the device; reset it, or boot the VM anew. The boot gate refuses until it can be read",
        )
        for entry in inventory.unreadable
    ]
    if inventory.hidden and not inventory.nvidia:
        return sick
    return [*sick, *_judge_readable(inventory)]


def _judge_readable(inventory: Inventory) -> list[Finding]:
    if not inventory.nvidia:
        return [
            note(f"no NVIDIA card: nothing to sample ({inventory.counts})", "if the VM was given one, look at the VMM's own list")
        ]
    return [_judge_card(card) for card in inventory.nvidia_cards]


def _judge_card(card: Card) -> Finding:
    if card.driver is None:
        return wrong(f"card {card.pci_bus_id}: no kernel driver", "modprobe nvidia; dmesg says why it does not take the card")
    if card.held_for_others:
        return note(
            f"card {card.pci_bus_id}: held by {card.driver} for another VM, so it is not sampled",
            "nothing, if that is meant; loading the module nvidia does not change it: unbind the card first",
        )
    if card.driver != "nvidia":
        return wrong(
            f"card {card.pci_bus_id}: driven by {card.driver}, not by nvidia", f"blacklist {card.driver}, load nvidia, reboot"
        )
    return ok(f"card {card.pci_bus_id}: driver nvidia")


async def cards_for_nvml(guest: Guest) -> list[Card] | str:
    """The cards that NVML should see; in words why there is nothing to look at."""
    try:
        inventory = await in_thread(guest.inventory)
    except InventoryError:
        return "not looked at: the PCI bus cannot be read (see pci)"
    if inventory.hidden and not inventory.nvidia:
        return "not looked at: whether there is a card is unknown (see pci)"
    if not inventory.nvidia:
        return NO_CARD
    mine = [card for card in inventory.nvidia_cards if not card.held_for_others]
    return mine or "not looked at: every NVIDIA card is held for somebody else (see pci)"


async def examine_driver(guest: Guest) -> Sequence[Finding]:
    """The kernel module."""
    if guest.config.gpu.simulate is not None:
        return [note(SIMULATED)]
    cards = await cards_for_nvml(guest)
    if isinstance(cards, str):
        return [note(cards)]
    return judge_module(await in_thread(lambda: read_module_version(guest.sysfs)))


def read_module_version(sysfs: Path) -> str | OSError:
    """The version of the loaded module nvidia; the reason when it is not loaded. Empty: loaded, and it does not say. Blocks."""
    module = sysfs / "module/nvidia"
    try:
        module.stat()
    except OSError as error:
        return error
    try:
        with (module / "version").open("rb") as file:
            return file.read(_ATTRIBUTE_LIMIT_BYTES).decode("ascii", "replace").strip()
    except OSError:
        return ""


def judge_module(version: str | OSError) -> list[Finding]:
    """Loaded or not."""
    if isinstance(version, FileNotFoundError | NotADirectoryError):
        return [wrong("the kernel module nvidia is not loaded", "modprobe nvidia; no restart of the agent is needed")]
    if isinstance(version, OSError):
        return [
            wrong(
                f"whether the module nvidia is loaded cannot be seen: {version.strerror}", "run this as root, with /sys mounted"
            )
        ]
    return [ok(f"the kernel module nvidia is loaded{f', version {version}' if version else ''}")]


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """A device file of the driver, whether this user may read and write it, and the file's facts."""

    name: str
    facts: FileFacts | OSError
    usable: bool


async def examine_devices(guest: Guest) -> Sequence[Finding]:
    """The device files that NVML opens."""
    if guest.config.gpu.simulate is not None:
        return [note(SIMULATED)]
    cards = await cards_for_nvml(guest)
    if isinstance(cards, str):
        return [note(cards)]
    if isinstance(await in_thread(lambda: read_module_version(guest.sysfs)), OSError):
        return [note("not looked at: the kernel module is not loaded (see driver)")]
    return judge_devices(await in_thread(lambda: read_devices(guest.dev)), len(cards), this_user())


def read_devices(dev: Path) -> list[DeviceFile]:
    """nvidiactl, and nvidia0, nvidia1, … as they are there. Blocks."""
    numbered = sorted((path.name for path in dev.glob("nvidia[0-9]*")), key=lambda name: (len(name), name))
    return [DeviceFile(name, read_facts(dev / name), may(dev / name, os.R_OK | os.W_OK)) for name in ["nvidiactl", *numbered]]


def judge_devices(files: Sequence[DeviceFile], cards: int, user: str) -> list[Finding]:
    """All there, and open to `user`."""
    found: list[Finding] = []
    missing = [file.name for file in files if isinstance(file.facts, OSError)]
    numbered = sum(file.name != "nvidiactl" and not isinstance(file.facts, OSError) for file in files)
    if missing or numbered < cards:
        lacking = ", ".join(
            [*(f"/dev/{name}" for name in missing), *([f"{cards - numbered} of {cards} /dev/nvidia*"] * (numbered < cards))]
        )
        found.append(
            wrong(
                f"device files are missing: {lacking}",
                "start nvidia-persistenced, or run nvidia-modprobe -u -c0; the agent may not make them",
            )
        )
    for file in files:
        if isinstance(file.facts, OSError) or file.usable:
            continue
        found.append(
            wrong(
                f"/dev/{file.name}: {user} may not read and write it: {file.facts.owners}",
                f"add the agent's user to the group {group_name(file.facts.gid)}, or open it: NVreg_DeviceFileMode of the module",
            )
        )
    usable = [file.name for file in files if file.usable]
    return found or [ok(f"{user} may open {', '.join(f'/dev/{name}' for name in usable)}")]
