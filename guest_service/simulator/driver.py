"""Answers as NVML would, from a rack: same questions, same failures, and a wait or a hang where the rack says so.

It stands where nvml.Nvml stands, in the collector process, so that a hung simulated card must be killed like a real one. Moving values are
a function of the clock alone: two processes at the same moment see the same rack.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from guest_service.collector import plausible
from guest_service.collector.failure import NOT_SUPPORTED, NvmlFailure, SampleFailure, cannot_start
from guest_service.simulator.rack import Rack, RackCard

# Waves of different length, so that load, heat and power do not move in step; the shortest is several scrapes long.
LOAD_PERIOD_SECONDS = 97.0
HEAT_PERIOD_SECONDS = 61.0
# How far a moving value goes from the rack's own.
UTILIZATION_SWING_PERCENT = 12
MEMORY_SWING_SHARE = 0.02
TEMPERATURE_SWING_C = 4
POWER_SWING_SHARE = 0.15
HANG_SECONDS = 3600.0
ENVIRONMENT_PRODUCTION = 2  # NVML_CC_SYSTEM_ENVIRONMENT_PROD
# Stands for the memory of a card whose rack does not say how much it has; no card with confidential computing has less.
UNSAID_MEMORY_BYTES = 1024**3


def _boottime() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SimulatedDriver:
    """The driver of one rack; `now` and `sleep` are the clock it lives by."""

    def __init__(self, rack: Rack, now: Callable[[], float] = _boottime, sleep: Callable[[float], None] = time.sleep) -> None:
        self._rack = rack
        self._cards = tuple(card for card in rack.cards if card.listed)
        self._now = now
        self._sleep = sleep

    def start(self) -> None:
        """Take as long as the rack says; raises SampleFailure where its init fails."""
        if self._rack.init_seconds:
            self._sleep(self._rack.init_seconds)
        if self._rack.fail_init is not None:
            raise SampleFailure(cannot_start(NvmlFailure(self._rack.fail_init)))

    def device_count(self) -> int:
        """Number of cards that the driver lists."""
        return len(self._cards)

    def device(self, index: int) -> int:
        """The card's place among those that are listed stands for its handle."""
        self._card(index, "device")
        return index

    def uuid(self, device: int) -> str:
        """As in the rack."""
        return self._card(device, "uuid").uuid

    def pci_bus_id(self, device: int) -> str:
        """As in the rack."""
        return self._card(device, "pci_bus_id").pci_bus_id

    def utilization(self, device: int) -> tuple[int, int]:
        """GPU and memory, percent."""
        card = self._card(device, "utilization")
        gpu, memory = _supported(card.utilization_gpu), _supported(card.utilization_memory)
        step = round(UTILIZATION_SWING_PERCENT * self._wave(device, LOAD_PERIOD_SECONDS))
        return _within(gpu + step, plausible.PERCENT_LIMIT), _within(memory + step // 2, plausible.PERCENT_LIMIT)

    def memory(self, device: int) -> tuple[int, int, int]:
        """Total, used, free bytes; what is neither used nor free stays the same."""
        card = self._card(device, "memory")
        total, used, free = map(_supported, (card.memory_total_bytes, card.memory_used_bytes, card.memory_free_bytes))
        step = round(MEMORY_SWING_SHARE * total * self._wave(device, LOAD_PERIOD_SECONDS))
        moved = _within(used + step, used + free)
        return total, moved, used + free - moved

    def temperature(self, device: int) -> int:
        """Degrees Celsius."""
        celsius = _supported(self._card(device, "temperature").temperature_c)
        step = round(TEMPERATURE_SWING_C * self._wave(device, HEAT_PERIOD_SECONDS))
        return _within(celsius + step, plausible.TEMPERATURE_LIMIT_C)

    def power(self, device: int) -> int:
        """Milliwatts."""
        milliwatts = _supported(self._card(device, "power").power_usage_mw)
        step = round(POWER_SWING_SHARE * milliwatts * self._wave(device, LOAD_PERIOD_SECONDS))
        return _within(milliwatts + step, plausible.POWER_LIMIT_MW)

    def power_limit(self, device: int) -> int:  # noqa: ARG002 (the question has a device, a rack no limits)
        """Not in a rack."""
        raise NvmlFailure(NOT_SUPPORTED)

    def cc_ready(self) -> bool:
        """As in the rack."""
        return bool(_supported(self._rack.cc_ready))

    def cc_settings(self) -> tuple[int, int, int]:
        """Environment, feature, DevTools mode: a rack is production where it has confidential computing, with DevTools where it says so."""
        environment = ENVIRONMENT_PRODUCTION if _supported(self._rack.cc_enabled) else 0
        return environment, int(bool(self._rack.cc_enabled)), int(self._rack.cc_devtools)

    def protected_bytes(self, device: int) -> int:
        """All memory of a card with confidential computing on; a rack without memory figures still has some."""
        card = self._card(device, "memory")
        return (card.memory_total_bytes or UNSAID_MEMORY_BYTES) if _supported(self._rack.cc_enabled) else 0

    def set_cc_ready(self) -> None:
        """The rack of this process accepts work from now on; its file stays as it is."""
        self._rack = replace(self._rack, cc_ready=True)

    def _card(self, index: int, question: str) -> RackCard:
        card = self._cards[index]
        failure = card.fail.get(question)
        if failure == "hang":
            while True:
                self._sleep(HANG_SECONDS)
        if failure is not None:
            raise NvmlFailure(int(failure))
        return card

    def _wave(self, index: int, period_seconds: float) -> float:
        """From -1 to 1, each card at its own place; 0 for a card that does not move."""
        if not self._cards[index].jitter:
            return 0.0
        return math.sin(math.tau * (self._now() / period_seconds + index / 7))


def _supported(value: int | None) -> int:
    if value is None:
        raise NvmlFailure(NOT_SUPPORTED)
    return value


def _within(value: int, most: int) -> int:
    return max(0, min(value, most))
