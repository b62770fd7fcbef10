"""Which metadata travels between caller and guest: two short allow-lists, nothing else.

A caller's credentials must never reach a guest, and nothing that a guest sends beside its reply may steer a client. Rejected: a
deny-list, which is wrong the day a new header is invented.
"""

from __future__ import annotations

from collections.abc import Iterable

import grpc

from vmm_proxy.errors import CallError, Trailers, plain

# Towards the guest: how old a sample may be, and what ties log lines and traces of one request together.
TO_GUEST = frozenset({"cache-control", "traceparent", "x-request-id"})
# Of those, what an answer depends on. Callers that differ in the others share a call, and the guest hears of the first one's.
DECIDING = frozenset({"cache-control"})
REQUEST_ID = "x-request-id"
# Towards the caller: the guest may name the request in its own log.
TO_CALLER = frozenset({REQUEST_ID})
# In place of the id that came with the call: each of those who share its outcome gets its own.
OWN_ID = ""
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
        if not (value.isascii() and value.isprintable()):
            # gRPC's callers cannot send it, those of HTTP can.
            raise CallError(grpc.StatusCode.INVALID_ARGUMENT, f"metadata {key}: only printable ASCII is allowed")
    return passed


def deciding(metadata: Metadata) -> Metadata:
    """What of `metadata` the guest's answer depends on: calls that agree in it are identical."""
    return tuple((key, value) for key, value in metadata if key in DECIDING) if metadata else ()


def to_caller(trailers: Iterable[tuple[str, str | bytes]] | None, sent: Metadata = ()) -> Trailers:
    """What of a guest's `trailers` travels, bounded; everything else is dropped without a word.

    The call went out with `sent`; an id that the guest sends back is OWN_ID until it is known to whom it goes (with_own_id).
    """
    own = {value for key, value in sent if key == REQUEST_ID}
    passed = [
        (key, plain(value, VALUE_LIMIT_BYTES)) for key, value in trailers or () if key in TO_CALLER and isinstance(value, str)
    ]
    ids = ((key, OWN_ID if value in own else value) for key, value in passed if value and value.isascii())
    return tuple(ids)[:ENTRIES_LIMIT]


def with_own_id(trailers: Trailers, metadata: Metadata) -> Trailers:
    """`trailers` for the caller who sent `metadata`: where the guest sent the id of a shared call back, it is this caller's, or none."""
    own = next((value for key, value in metadata if key == REQUEST_ID), "")
    ids = ((key, own if value == OWN_ID else value) for key, value in trailers)
    return tuple((key, value) for key, value in ids if value)
