"""A guest's last answer to GpuInfo, for callers who say how old one may be (`cache-control: max-age=N`).

Its true age is that of its sample when it came and the time since then, by a clock that also runs while the host sleeps. It is an answer of
one connection: once that has ended, nobody knows who is at the guest's address now, and the guest is asked. An answer that was given before
the first sample ended, or that is large, is not kept. Rejected: keeping encoded bytes (the ages inside grow), and the pages' last answers,
which outlive a guest that is gone on purpose.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

from guest_api.guest_api_pb2 import GpuInfoResponse
from guest_contract.cache_control import CacheControlError, parse_max_age
from guest_transport.process.clock import Clock, boottime
from vmm_proxy.upstream.passed_metadata import Metadata
from vmm_proxy.upstream.shared_call import Answer

# Eight cards with every value take 8 KB, and a thousand guests have one each.
KEPT_BYTES = 64 * 1024
# RFC 9111, section 5.1.
AGE = "age"


class Channel(Protocol):
    """What an answer came over (channel.py)."""

    @property
    def dials(self) -> int:
        """How often the guest was dialled."""

    @property
    def spent(self) -> bool:
        """Whether it has ended for good."""

    @property
    def connected(self) -> bool:
        """Whether it stands right now."""


class LastAnswer:
    """The last answer of one guest, if it can be given to somebody else; `wall_clock` tells epoch seconds."""

    METHOD = "GpuInfo"

    def __init__(self, wall_clock: Callable[[], float], clock: Clock = boottime) -> None:
        self._wall_clock = wall_clock
        self._clock = clock
        self._message: GpuInfoResponse | None = None
        self._channel: Channel | None = None
        self._dials = self._wire_bytes = 0
        self._kept_at = self._received_at = 0.0

    def keep(self, answer: Answer, channel: Channel) -> None:
        """This came over `channel` just now."""
        message = answer.message
        if not isinstance(message, GpuInfoResponse) or message.first_sample_pending or answer.wire_bytes > KEPT_BYTES:
            self.forget()
            return
        self._message, self._channel, self._dials, self._wire_bytes = message, channel, channel.dials, answer.wire_bytes
        self._kept_at, self._received_at = self._clock(), self._wall_clock()

    def forget(self) -> None:
        """There is none: the guest became unreachable."""
        self._message = self._channel = None

    def young_enough(self, metadata: Metadata, channel: Channel | None) -> Answer | None:
        """The answer with its ages of now, if the cache-control of `metadata` takes it and the connection that it came by still stands.

        `channel` is the guest's now. What cannot be read as a max-age is the guest's to refuse.
        """
        message = self._message
        if message is None or channel is None or channel is not self._channel:
            return None
        if channel.spent or channel.dials != self._dials or not channel.connected:
            return None
        try:
            max_age = parse_max_age(value for key, value in metadata if key == "cache-control")
        except CacheControlError:
            return None
        if max_age is None:
            return None
        kept_ms = max(0, round((self._clock() - self._kept_at) * 1000))
        age_ms = message.sample_age_ms + kept_ms
        if age_ms > max_age * 1000:
            return None
        return Answer(_grown(message, kept_ms), ((AGE, str(math.ceil(age_ms / 1000))),), self._wire_bytes, self._received_at)


def _grown(message: GpuInfoResponse, by_ms: int) -> GpuInfoResponse:
    """A copy in which every age that is there has grown."""
    copy = GpuInfoResponse()
    copy.CopyFrom(message)
    if copy.HasField("sample_age_ms"):
        copy.sample_age_ms = _sum(copy.sample_age_ms, by_ms)
    for xids in (copy.unplaced_xids, *(gpu.xids for gpu in copy.gpus)):
        for xid in xids:
            if xid.HasField("last_age_ms"):
                xid.last_age_ms = _sum(xid.last_age_ms, by_ms)
    return copy


def _sum(age_ms: int, more_ms: int) -> int:
    """A guest may claim the age of the universe, and the field holds no more."""
    return min(age_ms + more_ms, 2**64 - 1)
