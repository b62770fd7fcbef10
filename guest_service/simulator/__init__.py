"""Simulated cards, a feature of the product: a guest without a GPU shows what one with GPUs would, through the same process and JSON.

A rack is a TOML file (rack.py says its keys) or one of the built-in ones; driver.py answers from it as NVML would.
"""

from __future__ import annotations

from guest_service.simulator.rack import BUILT_IN_RACKS, Rack, RackCard, load_rack
from guest_service.simulator.table import RackError

__all__ = ["BUILT_IN_RACKS", "Rack", "RackCard", "RackError", "load_rack"]
