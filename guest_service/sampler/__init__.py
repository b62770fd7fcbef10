"""Takes one GPU sample by running the collector in a process of its own, and ends that process whatever it does.

An NVML call cannot be cancelled, a process can: that is why the sampler exists and why it refuses to import pynvml. Rejected: a resident
collector (it would hold the device files open and a wedged driver would wedge it for good) and a thread (nothing can end it).
"""

from guest_service.sampler.outcome import Outcome, OutcomeKind
from guest_service.sampler.sampler import Sampler

__all__ = ["Outcome", "OutcomeKind", "Sampler"]
