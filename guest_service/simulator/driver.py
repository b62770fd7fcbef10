"""Answers as NVML would, from a rack: same questions, same failures, and a wait or a hang where the rack says so.

It takes the place of nvml.Nvml in the collector process, so that a hung simulated card must be killed like a real one. Moving values are
a function of the clock alone: two processes at the same moment see the same rack.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace

from guest_contract.card_fields import FIELDS, QUESTIONS
from guest_contract.card_row import Value
from guest_service.collector.failure import NOT_SUPPORTED, NvmlFailure, SampleFailure, cannot_start
from guest_service.simulator.rack import Rack, RackCard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

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
    """The driver of one rack; `now` and `sleep` are the clock it lives by, `calls` is called before each question.

    Without `process_names` the names of processes that the rack has are not told, as a machine's are not.
    """

    def __init__(
        self,
        rack: Rack,
        now: Callable[[], float] = _boottime,
        sleep: Callable[[float], None] = time.sleep,
        calls: Callable[[str], object] = lambda _: None,
        *,
        process_names: bool = False,
    ) -> None:
        self._rack = rack
        self._about_to = calls
        self._untold = () if process_names else ("name",)
        self._cards = tuple(card for card in rack.cards if card.listed)
        self._now = now
        self._sleep = sleep

    def start(self) -> None:
        """Take as long as the rack says; raises SampleFailure where its init fails."""
        self._about_to("nvmlInit_v2")
        if self._rack.init_seconds:
            self._sleep(self._rack.init_seconds)
        if self._rack.fail_init is not None:
            raise SampleFailure(cannot_start(NvmlFailure(self._rack.fail_init)))

    def device_count(self) -> int:
        """Number of cards that the driver lists."""
        return len(self._cards)

    def device(self, index: int) -> int:
        """The handle of a card: its place in the list."""
        self._card(index, "device")
        return index

    def uuid(self, device: int) -> str:
        """As in the rack."""
        return self._card(device, "uuid").uuid

    def pci_bus_id(self, device: int) -> str:
        """As in the rack."""
        return self._card(device, "pci_bus_id").pci_bus_id

    def ask(self, question: str, device: int) -> tuple[Any, ...]:
        """The question's fields as in the rack, moved where they move."""
        card = self._card(device, question)
        values = {name: _supported(card.values.get(name)) for name in QUESTIONS[question]}
        if card.jitter:
            self._move(question, device, values)
        return tuple(values.values())

    def _move(self, question: str, device: int, values: dict[str, Any]) -> None:
        """Let the values of a question go up and down around the rack's own; what is neither used nor free memory stays the same."""
        load, heat = self._wave(device, LOAD_PERIOD_SECONDS), self._wave(device, HEAT_PERIOD_SECONDS)
        match question:
            case "utilization":
                step = round(UTILIZATION_SWING_PERCENT * load)
                _shift(values, utilization_gpu=step, utilization_memory=step // 2)
            case "memory":
                used, free = values["memory_used_bytes"], values["memory_free_bytes"]
                step = max(-used, min(round(MEMORY_SWING_SHARE * values["memory_total_bytes"] * load), free))
                values.update(memory_used_bytes=used + step, memory_free_bytes=free - step)
            case "temperature":
                _shift(values, temperature_c=round(TEMPERATURE_SWING_C * heat))
            case "energy_mj":
                # As if the machine had drawn the rack's own power since it booted.
                power = self._cards[device].values.get("power_usage_mw")
                values["energy_mj"] += round(power * self._now()) if isinstance(power, int) else 0
            case "power":
                _shift(values, power_usage_mw=round(POWER_SWING_SHARE * values["power_usage_mw"] * load))

    def ask_list(self, question: str, device: int) -> tuple[list[dict[str, Any]], str]:
        """The question's entries as in the rack."""
        entries = self._card(device, question).lists.get(question, ())
        return [{name: value for name, value in entry.items() if name not in self._untold} for entry in entries], ""

    def power_limit(self, device: int) -> int:
        """As in the rack, also where the group's question is to fail there: the judgement of power is no question of its own."""
        return int(_supported(self._cards[device].values.get("power_limit_mw")))

    def cc_ready(self) -> bool:
        """As in the rack."""
        return bool(_supported(self._rack.cc_ready))

    def driver_version(self) -> str:
        """As in the rack, and the next two."""
        return str(_supported(self._rack.driver_version))

    def cuda_driver_version(self) -> str:
        """The newest CUDA that the driver supports."""
        return str(_supported(self._rack.cuda_driver_version))

    def nvml_version(self) -> str:
        """The library's own version."""
        return str(_supported(self._rack.nvml_version))

    def cc_settings(self) -> tuple[int, int, int, int | None]:
        """Environment, feature, DevTools mode: a rack is production where it has confidential computing, with DevTools where it says so."""
        environment = ENVIRONMENT_PRODUCTION if _supported(self._rack.cc_enabled) else 0
        return environment, int(bool(self._rack.cc_enabled)), int(self._rack.cc_devtools), self._rack.cc_multi_gpu_mode

    def protected_bytes(self, device: int) -> int:
        """All memory of a card with confidential computing on; a rack without memory figures still has some."""
        card = self._card(device, "memory")
        total = card.values.get("memory_total_bytes")
        return (total if isinstance(total, int) else UNSAID_MEMORY_BYTES) if _supported(self._rack.cc_enabled) else 0

    def set_cc_ready(self) -> None:
        """The rack of this process accepts work from now on; its file stays as it is."""
        self._rack = replace(self._rack, cc_ready=True)

    def _card(self, index: int, question: str) -> RackCard:
        self._about_to("a simulated call")
        card = self._cards[index]
        failure = card.fail.get(question)
        if failure == "hang":
            while True:
                self._sleep(HANG_SECONDS)
        if failure is not None:
            raise NvmlFailure(int(failure))
        return card

    def _wave(self, index: int, period_seconds: float) -> float:
        """From -1 to 1, each card at its own place."""
        return math.sin(math.tau * (self._now() / period_seconds + index / 7))


def _supported(value: Value) -> Any:  # Any: a number, a flag or a text, as the row says
    if value is None:
        raise NvmlFailure(NOT_SUPPORTED)
    return value


def _shift(values: dict[str, Any], **steps: int) -> None:
    """Move values by so much, within their plausible ranges."""
    for name, step in steps.items():
        values[name] = max(FIELDS[name].least, min(values[name] + step, FIELDS[name].most))
