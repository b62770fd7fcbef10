"""A machine that is suspended to RAM and woken: its clock CLOCK_BOOTTIME goes on, and with it the age of what it measured."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.vm.debian_machine import DebianMachine, debian_machine
from tests.vm.machine import END_LIMIT_SECONDS, require_parts
from tests.vm.pci_functions import NVIDIA_CARDS, plugged

pytestmark = [pytest.mark.vm_debian, pytest.mark.timeout(4 * END_LIMIT_SECONDS)]

AGENT = ("guestctl", "gpu", "--guest", "unix:/run/guest-service/guest.sock", "--timeout", "120", "-o", "json")
# The machine's real-time clock has whole seconds; a sample lives 5 s, so that an age of more can have come from sleeping only.
SLEEP_SECONDS = 20.0
CLOCKS = "import time; print(time.clock_gettime(time.CLOCK_BOOTTIME), time.clock_gettime(time.CLOCK_MONOTONIC))"


async def slept(machine: DebianMachine) -> float:
    """How long the machine has been asleep since it booted, by its own clocks (clock_gettime(2))."""
    boottime, monotonic = (await machine.said("python3", "-c", CLOCKS)).split()
    return float(boottime) - float(monotonic)


async def test_the_age_of_a_sample_has_the_sleep_of_its_machine_in_it(debian_image: Path, tmp_path: Path, sockets: Path) -> None:
    with plugged(NVIDIA_CARDS) as cards:
        async with debian_machine(
            require_parts(),
            debian_image,
            tmp_path,
            sockets,
            suspends=True,
            without=["vmm-proxy.service"],
            devices=cards.devices,
            descriptors=cards.descriptors,
        ) as machine:
            await machine.until("guest-service.service", ActiveState="active")
            assert len(json.loads(await machine.said(*AGENT))["gpus"]) == 2
            before = await slept(machine)
            falling_asleep = asyncio.create_task(machine.said("sh", "-c", "echo mem > /sys/power/state"))
            await machine.monitor.tells("SUSPEND")
            # Time itself is the matter here.
            await asyncio.sleep(SLEEP_SECONDS)
            await machine.monitor.does("system_wakeup")
            await machine.monitor.tells("WAKEUP")
            await falling_asleep
            answer = json.loads(await machine.said(*AGENT))
            asleep = await slept(machine) - before

    assert asleep > SLEEP_SECONDS / 2
    assert len(answer["gpus"]) == 2
    assert int(answer["sample_age_ms"]) > asleep * 1000, answer
