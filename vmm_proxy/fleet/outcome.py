"""What one guest said to a fleet's GpuInfo, or why it said nothing: data in either case, never the failure of the whole reply."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from guest_api import guest_api_pb2
from guest_contract.methods import proxied_methods
from guest_fleet.v1 import fleet_pb2
from vmm_proxy.errors import CallError, rpc_status
from vmm_proxy.upstream.passed_metadata import Metadata
from vmm_proxy.upstream.pool import Pool, Require
from vmm_proxy.upstream.question import Question
from vmm_proxy.upstream.shared_call import Answer, Outcome

log = logging.getLogger(__name__)

# An entry beside the answer or the failure's text: the id (128 bytes), two times, a status with its RetryInfo, and their tags.
ENTRY_BYTES = 384
# An answer up to this is not measured; 8 cards take 1.6 KB.
MEASURED_BYTES = 4096

GPU_INFO = next(method for method in proxied_methods() if method.name == "GpuInfo")


@dataclass(frozen=True, slots=True)
class GuestOutcome:
    """One guest's answer or failure; `received_at` in epoch seconds, `took_seconds` as the proxy waited.

    `generation` is the asked entry's (vmm_proxy.directory.directory): the outcome of another one may not be sent. 0 where no VM was asked,
    and the failure is the proxy's own word.
    """

    guest_id: str
    outcome: Outcome
    received_at: float
    took_seconds: float
    generation: int = 0

    @property
    def wire_bytes(self) -> int:
        """What it weighs while it waits to be sent."""
        return self.outcome.wire_bytes if isinstance(self.outcome, Answer) else len(self.outcome.text)

    @property
    def message_bytes(self) -> int:
        """At most what it takes in a message."""
        size = self.wire_bytes
        if isinstance(self.outcome, CallError):
            return size + ENTRY_BYTES
        # Encoded anew an answer may grow: an int32 that was sent in five bytes takes ten. A usual answer is not worth measuring.
        exact = size > MEASURED_BYTES
        return (self.outcome.message.ByteSize() if exact else 2 * size) + ENTRY_BYTES

    def failed_instead(self, error: CallError) -> GuestOutcome:
        """The same moment, with `error` for an outcome."""
        return GuestOutcome(self.guest_id, error, self.received_at, self.took_seconds, self.generation)

    def write_to(self, entry: fleet_pb2.GuestGpuInfo) -> None:
        """Fill the empty `entry`, in place: a message that is put into another one is copied, cards and all."""
        entry.guest_id = self.guest_id
        # By hand: what protobuf's own conversions check takes 5 us a guest.
        entry.received_at.seconds, milliseconds = divmod(round(self.received_at * 1000), 1000)
        entry.received_at.nanos = milliseconds * 1_000_000
        entry.took.seconds, microseconds = divmod(round(self.took_seconds * 1_000_000), 1_000_000)
        entry.took.nanos = microseconds * 1000
        if isinstance(self.outcome, CallError):
            entry.status.CopyFrom(rpc_status(self.outcome))
        else:
            entry.gpu_info.MergeFrom(_gpu_info(self.outcome))
            # Also an empty answer ("no GPU") is an answer.
            entry.gpu_info.SetInParent()


def _gpu_info(answer: Answer) -> guest_api_pb2.GpuInfoResponse:
    if not isinstance(answer.message, guest_api_pb2.GpuInfoResponse):
        raise TypeError(f"GpuInfo was answered with {type(answer.message).__name__}")
    return answer.message


def ask_gpu_info(
    pool: Pool,
    guest_id: str,
    metadata: Metadata,
    deadline: float,
    wall_clock: Callable[[], float],
    *,
    told: Callable[[GuestOutcome], None],
    require: Require | None = None,
) -> Question | None:
    """Ask one guest until `deadline` (loop time), for whom `require` lets, and tell `told` once; None where it was told already."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    generation = 0

    def tell(outcome: Outcome) -> None:
        received_at = outcome.received_at if isinstance(outcome, Answer) else None
        told(GuestOutcome(guest_id, outcome, received_at or wall_clock(), loop.time() - started, generation))

    try:
        upstream = pool.upstream(guest_id, require)
        generation = upstream.generation
        if kept := upstream.kept(GPU_INFO, metadata):
            tell(kept)
            return None
        return upstream.ask(GPU_INFO, metadata, deadline, tell, for_fleet=True)
    except CallError as error:
        failure = error.as_value()
    except Exception:
        log.exception("asking guest %s failed in the proxy itself", guest_id)
        failure = CallError(grpc.StatusCode.INTERNAL, f"guest {guest_id}: a fault of the proxy; its log says more")
    tell(failure)
    return None
