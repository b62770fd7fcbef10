"""What the last calls to a guest say of its reach. It is data that outlives the guest's line, for the fleet's list and figures; nothing is
asked here, and nothing decided by it."""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass

from guest_api import guest_api_pb2
from guest_contract import card_values
from guest_transport.process.repeated_lines import about
from vmm_proxy.errors import CallError, plain
from vmm_proxy.upstream.single_flight import Answer, Outcome

log = logging.getLogger(__name__)

# A version is some ten characters; a guest chooses it.
VERSION_LIMIT_BYTES = 64


class Reach(enum.Enum):
    """What the last call to a guest says."""

    UNKNOWN = "unknown"
    SERVING = "serving"
    UNREACHABLE = "unreachable"


@dataclass(slots=True)
class Contact:
    """The last known of a guest: whether the last call reached it, when it was last tried and last answered (epoch seconds)."""

    reach: Reach = Reach.UNKNOWN
    answered_at: float | None = None
    tried_at: float | None = None
    agent_version: str = ""
    # Whether Info was asked for on the proxy's own account.
    looked: bool = False
    # Cards by the driver and on the PCI bus, by the last answer about GPUs; None is unknown.
    gpus: int | None = None
    pci_devices: int | None = None

    def note(self, guest_id: str, outcome: Outcome, now: float) -> None:
        """A call ended with `outcome` at `now` (epoch seconds); a guest that comes or goes is one line in the log."""
        answered = isinstance(outcome, Answer) or outcome.answered
        self.tried_at = now
        if answered:
            self.answered_at = now
        reach = Reach.SERVING if answered else Reach.UNREACHABLE
        if reach is not self.reach:
            if isinstance(outcome, CallError) and not answered:
                log.warning("%s", outcome.text, extra=about(guest_id))
            else:
                log.info("guest %s: answers", guest_id)
            self.reach = reach
        message = outcome.message if isinstance(outcome, Answer) else None
        if isinstance(message, guest_api_pb2.GuestInfo):
            self.agent_version = plain(message.version, VERSION_LIMIT_BYTES)
        if isinstance(message, guest_api_pb2.GpuInfoResponse):
            self.gpus = None if message.error else len(message.gpus)
            self.pci_devices = card_values.pci_devices(message)
