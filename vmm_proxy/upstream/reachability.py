"""Whether a guest is reachable, by what the calls to it say: one definition for ListGuests, vmm_proxy_guest_up, the page and the doctor.

A guest that says anything is reachable, were it an error. It is unreachable once a call stays unanswered and nothing else was answered
since that call began: one hung method of an agent that answers all others is no guest that is gone, however the two calls end. A call that
never left the proxy (a limit, a caller that allowed no time) says nothing. It outlives the guest's channel; nothing is asked here.
Rejected: the last outcome alone (of two calls at once the slower one decided), and a rule of its own for each page (list and metric then
contradict each other in the same minute).
"""

from __future__ import annotations

import enum
import logging
from dataclasses import dataclass

from guest_api import guest_api_pb2
from guest_contract import card_values
from guest_transport.process.repeated_lines import about
from vmm_proxy.errors import CallError, plain
from vmm_proxy.upstream.shared_call import Answer, Outcome

log = logging.getLogger(__name__)

# A version is some ten characters; a guest chooses it.
VERSION_LIMIT_BYTES = 64


def answered(outcome: Outcome) -> bool:
    """Whether the guest said something, were it an error."""
    return isinstance(outcome, Answer) or outcome.answered


class ReachabilityState(enum.Enum):
    """What the calls to a guest say."""

    UNKNOWN = "unknown"
    SERVING = "serving"
    UNREACHABLE = "unreachable"


@dataclass(slots=True)
class Reachability:
    """The last known of a guest: whether it is reachable, when it was last tried and last answered (epoch seconds)."""

    state: ReachabilityState = ReachabilityState.UNKNOWN
    # Why it is unreachable; empty while it is not.
    reason: str = ""
    # How many calls it answered: a call that notes this when it begins knows at its end whether another one was answered meanwhile.
    answers: int = 0
    answered_at: float | None = None
    tried_at: float | None = None
    agent_version: str = ""
    # Whether Info was asked for on the proxy's own account.
    info_asked: bool = False
    # Cards by the driver and on the PCI bus, by the last answer about GPUs; None is unknown.
    gpus: int | None = None
    pci_devices: int | None = None

    def note(self, guest_id: str, outcome: Outcome, now: float, *, answers_before: int) -> None:
        """A call that began when there were `answers_before` ended with `outcome` at `now` (epoch seconds).

        A guest that comes or goes is one line in the log.
        """
        self.tried_at = now
        if answered(outcome):
            self.answered_at = now
            self.answers += 1
        elif self.answers != answers_before:
            return
        state = ReachabilityState.SERVING if answered(outcome) else ReachabilityState.UNREACHABLE
        self.reason = outcome.text if isinstance(outcome, CallError) and not outcome.answered else ""
        if state is not self.state:
            if isinstance(outcome, CallError) and not outcome.answered:
                log.warning("%s", outcome.text, extra=about(guest_id))
            else:
                log.info("guest %s: answers", guest_id)
            self.state = state
        message = outcome.message if isinstance(outcome, Answer) else None
        if isinstance(message, guest_api_pb2.GuestInfo):
            self.agent_version = plain(message.version, VERSION_LIMIT_BYTES)
        if isinstance(message, guest_api_pb2.GpuInfoResponse):
            self._note_cards(guest_id, message)

    def _note_cards(self, guest_id: str, message: guest_api_pb2.GpuInfoResponse) -> None:
        again = len(card_values.repeated(message.gpus))
        if again:
            log.warning(
                "guest %s: %d of its cards have the UUID or PCI address of another; they are not counted", guest_id, again
            )
        self.gpus = None if message.error else len(message.gpus) - again
        self.pci_devices = card_values.pci_devices(message)
