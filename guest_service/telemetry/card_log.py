"""Says in the log, once, when a card becomes lost, and once when it is there again; each sample says it in the card's errors.

Without persistence mode a confidential VM can lose a card to its own first client: when the last client of a driver in CC mode ends, the
card is torn down until its next reset. Each sample is a client, so the line names the mode. It refuses to touch a sample. Rejected: a line
for each sample that finds it lost (a line every few seconds), and one of the log's repeated lines (they would go on for days).
"""

from __future__ import annotations

import logging

from guest_api import guest_api_pb2

log = logging.getLogger(__name__)

CC_ADVICE = (
    "; confidential computing is on: with persistence mode off the driver gives a card up when its last user ends, until its "
    "reset. Run nvidia-persistenced before anything that uses the GPUs"
)
# NVML_ERROR_GPU_IS_LOST and NVML_ERROR_RESET_REQUIRED in the collector's words (collector/failure.py).
LOST_WORDS = ("(15)", "(16)")


class CardLog:
    """Which cards were lost in the last sample, by index."""

    def __init__(self) -> None:
        self._lost: frozenset[int] = frozenset()

    def look(self, reply: guest_api_pb2.GpuInfoResponse) -> None:
        """Compare a sample with the one before it."""
        lost = {card.index: words for card in reply.gpus if (words := _why_lost(card))}
        for card in reply.gpus:
            name = f"{card.index} ({card.pci_bus_id or 'address unknown'})"
            if card.index in lost and card.index not in self._lost:
                persistent = any(each.persistence_mode for each in reply.gpus)
                advice = CC_ADVICE if reply.cc_enabled and not persistent else ""
                log.warning("GPU %s is lost: %s%s", name, lost[card.index], advice)
            elif card.index in self._lost and card.index not in lost:
                log.info("GPU %s is there again", name)
        self._lost = frozenset(lost)


def _why_lost(card: guest_api_pb2.GpuDevice) -> str:
    """The first entry that says so, empty when none does."""
    return next((entry for entry in card.errors if entry.startswith("device:") or entry.endswith(LOST_WORDS)), "")
