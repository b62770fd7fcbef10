"""Which metadata travels between caller and guest: two short allow-lists, nothing else.

A caller's credentials must never reach a guest, and nothing that a guest sends beside its reply may steer a client. Rejected: a
deny-list, which is wrong the day a new header is invented.
"""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from vmm_proxy.statuses import CallError, Trailers, plain

# Towards the guest: how old a sample may be, and what ties log lines and traces of one request together.
TO_GUEST = frozenset({"cache-control", "traceparent", "x-request-id"})
# Towards the caller: the guest may name the request in its own log.
TO_CALLER = frozenset({"x-request-id"})
# A traceparent takes 55; longer values of the others are no honest use.
VALUE_LIMIT_BYTES = 256
# One of each and a repeated one; keeps what one caller can make a guest parse small.
ENTRIES_LIMIT = 8

Metadata = tuple[tuple[str, str], ...]


def to_guest(metadata: Iterable[tuple[str, str | bytes]] | None) -> Metadata:
    """What of the caller's `metadata` travels; raises CallError INVALID_ARGUMENT where a listed entry is too long or comes too often."""
    passed = tuple((key, value) for key, value in metadata or () if key in TO_GUEST and isinstance(value, str))
    if not passed:
        return ()
    if len(passed) > ENTRIES_LIMIT:
        raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"metadata: at most {ENTRIES_LIMIT} entries travel to a guest")
    for key, value in passed:
        if len(value) > VALUE_LIMIT_BYTES:
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"metadata {key}: at most {VALUE_LIMIT_BYTES} bytes are allowed")
    return passed


def to_caller(trailers: Iterable[tuple[str, str | bytes]] | None) -> Trailers:
    """What of a guest's `trailers` travels, bounded; everything else is dropped without a word."""
    passed = [
        (key, plain(value, VALUE_LIMIT_BYTES)) for key, value in trailers or () if key in TO_CALLER and isinstance(value, str)
    ]
    return tuple((key, value) for key, value in passed if value.isascii())[:ENTRIES_LIMIT]
