"""One question about confidential computing, asked of NVML in a process of its own: `read` the state, or `set-ready` and read it back.

The boot gate asks; it cannot make these calls itself, because an NVML call cannot be cancelled. The answer is NVML's own numbers, judged by
nobody here; null is what NVML would not say. One line of JSON on stdout, exit 0 whenever there is an answer (an error of NVML's included),
2 for arguments or a rack that are refused. Rejected: adding this to the GPU sample, which is taken all the time and must stay fast.

    {"error": "", "environment": 2, "feature": 1, "devtools": 0, "ready": 1,
     "cards": [{"index": 0, "pci_bus_id": "00000000:01:00.0", "protected_bytes": 150754820096, "error": ""}]}

A card's own CC mode is its protected memory: the driver counts a card's memory as protected in CC mode only, and NVML has no other
per-card answer (nvmlDeviceGetConfComputeMemSizeInfo; zero is what nvidia-smi shows of machines with CC off).
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, Protocol

from guest_service.collector.binding import binding_file, load_binding
from guest_service.collector.failure import NvmlFailure, SampleFailure, bounded
from guest_service.collector.line import Output, complain, to_json
from guest_service.collector.loaded_library import DEFAULT_LIBRARY, Library
from guest_service.collector.nvml import Nvml
from guest_service.collector.sample import CARDS_LIMIT
from guest_service.simulator.driver import SimulatedDriver
from guest_service.simulator.rack import load_rack
from guest_service.simulator.table import RackError

WRONG_USE = 2

# One JSON object of the answer; its values are numbers, texts, null and such objects.
Answer = dict[str, Any]


class Driver(Protocol):
    """What is asked of NVML or of a rack; nvml.Nvml documents each question."""

    def start(self) -> None: ...  # noqa: D102
    def device_count(self) -> int: ...  # noqa: D102
    def device(self, index: int) -> Any: ...  # noqa: D102
    def pci_bus_id(self, device: Any) -> str: ...  # noqa: D102
    def protected_bytes(self, device: Any) -> int: ...  # noqa: D102
    def cc_settings(self) -> tuple[int, int, int, int | None]: ...  # noqa: D102
    def cc_ready(self) -> bool: ...  # noqa: D102
    def set_cc_ready(self) -> None: ...  # noqa: D102


def main(argv: list[str]) -> int:
    """Answer the question in `argv`; returns the exit status."""
    parser = argparse.ArgumentParser(prog="guest_service.collector.confidential", allow_abbrev=False)
    parser.add_argument("action", choices=["read", "set-ready"])
    parser.add_argument("--nvml-library", metavar="FILE", default=DEFAULT_LIBRARY)
    parser.add_argument("--simulate", metavar="RACK")
    options = parser.parse_args(argv)
    # Before any library is loaded: NVIDIA's stub library prints on stdout.
    output = Output()
    set_ready = options.action == "set-ready"
    if options.simulate is not None:
        try:
            rack = load_rack(options.simulate)
        except RackError as error:
            complain(str(error))
            return WRONG_USE
        return output.write(to_json(answer(SimulatedDriver(rack), set_ready=set_ready)))
    library = Library(options.nvml_library)
    library.initialize()
    try:
        found = answer(Nvml(library, load_binding(binding_file(sys.path))), set_ready=set_ready)
    except SampleFailure as failure:
        found = failed(failure)
    status = output.write(to_json(found))
    library.shutdown()
    return status


def failed(reason: Exception) -> Answer:
    """The answer of which nothing is known."""
    return {"error": bounded(str(reason)), "environment": None, "feature": None, "devtools": None, "ready": None, "cards": []}


def answer(driver: Driver, *, set_ready: bool) -> Answer:
    """The state of `driver`, after letting the GPUs accept work where that is asked."""
    try:
        driver.start()
        if set_ready:
            driver.set_cc_ready()
        count = driver.device_count()
    except (SampleFailure, NvmlFailure) as failure:
        return failed(failure)
    if count > CARDS_LIMIT:
        return failed(SampleFailure(f"NVML says that there are {count} cards, which no machine has"))
    return {"error": "", **_settings(driver), "ready": _ready(driver), "cards": [_card(driver, index) for index in range(count)]}


def _settings(driver: Driver) -> Answer:
    try:
        environment, feature, devtools, _ = driver.cc_settings()
    except NvmlFailure as failure:
        complain(f"confidential-computing settings: {failure}")
        return {"environment": None, "feature": None, "devtools": None}
    return {"environment": environment, "feature": feature, "devtools": devtools}


def _ready(driver: Driver) -> int | None:
    try:
        return int(driver.cc_ready())
    except NvmlFailure as failure:
        complain(f"ready state: {failure}")
        return None


def _card(driver: Driver, index: int) -> Answer:
    card: Answer = {"index": index, "pci_bus_id": "", "protected_bytes": None, "error": ""}
    try:
        handle = driver.device(index)
        card["pci_bus_id"] = driver.pci_bus_id(handle)
        card["protected_bytes"] = driver.protected_bytes(handle)
    except NvmlFailure as failure:
        card["error"] = bounded(str(failure))
    return card


if __name__ == "__main__":
    # Not the interpreter's own end: the driver's library is still loaded, and its destructors are not ours to run.
    sys.stderr.flush()
    os._exit(main(sys.argv[1:]))
