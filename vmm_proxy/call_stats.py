"""Counts the calls of ProxiedGuestApi: in progress, answered by status, how long they took, and which were refused before a guest was
asked.

Rejected: a gRPC interceptor (a coroutine more for each call, and it cannot tell a guest's status from the proxy's own).
"""

from __future__ import annotations

import bisect
import time
from collections import Counter
from types import TracebackType
from typing import Self

import grpc

from guest_transport.server.grpc_server import CONNECTIONS, NO_REQUEST
from vmm_proxy.errors import CallError

# A guest on the same host answers in a few milliseconds; the product's own bound is 20 s.
DURATION_BOUNDS_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0)

# Why the proxy itself refuses a call, by the status that says so.
_REASONS = {
    grpc.StatusCode.INVALID_ARGUMENT: "invalid",
    grpc.StatusCode.NOT_FOUND: "unknown_guest",
    grpc.StatusCode.FAILED_PRECONDITION: "stopped",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "limit",
    grpc.StatusCode.PERMISSION_DENIED: "role",
    grpc.StatusCode.UNAUTHENTICATED: "credentials",
}


class CallCounts:
    """The counts since the proxy started."""

    def __init__(self) -> None:
        self.in_flight = 0
        # By method and name of the status.
        self.answered: Counter[tuple[str, str]] = Counter()
        self.rejected: Counter[str] = Counter(dict.fromkeys((*_REASONS.values(), NO_REQUEST, CONNECTIONS), 0))
        # By method: calls per bucket, one more than there are bounds, and the seconds of all together.
        self.buckets: dict[str, list[int]] = {}
        self.seconds: dict[str, float] = {}

    def refused(self, path: str, error: CallError) -> None:
        """A call of any service that was refused by the interceptor: `path` is its method's."""
        self.answered[path.rpartition("/")[2], error.code.name] += 1
        self.note_refusal(error)

    def note_refusal(self, error: CallError) -> None:
        """Count `error` if the proxy itself refused the call with it."""
        if not error.answered and (reason := _REASONS.get(error.code)):
            self.rejected[reason] += 1

    def refused_by_server(self, reason: str) -> None:
        """A call, or a connection, that the server itself did not take."""
        self.rejected[reason] += 1

    def call(self, method: str) -> CountedCall:
        """Counts the call that is answered inside this context; one that ends without an outcome was cancelled by its caller."""
        return CountedCall(self, method)


class CountedCall:
    """One call; tell it how it ended."""

    __slots__ = ("_code", "_counts", "_method", "_started")

    def __init__(self, counts: CallCounts, method: str) -> None:
        self._counts = counts
        self._method = method
        self._code = grpc.StatusCode.CANCELLED
        self._started = 0.0

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._counts.in_flight += 1
        return self

    def succeeded(self) -> None:
        """It was answered with a reply."""
        self._code = grpc.StatusCode.OK

    def failed(self, error: CallError) -> None:
        """It was answered with `error`."""
        self._code = error.code
        self._counts.note_refusal(error)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        counts, method = self._counts, self._method
        seconds = time.monotonic() - self._started
        counts.in_flight -= 1
        counts.answered[method, self._code.name] += 1
        counts.seconds[method] = counts.seconds.get(method, 0.0) + seconds
        if (buckets := counts.buckets.get(method)) is None:
            buckets = counts.buckets[method] = [0] * (len(DURATION_BOUNDS_SECONDS) + 1)
        buckets[bisect.bisect_left(DURATION_BOUNDS_SECONDS, seconds)] += 1
