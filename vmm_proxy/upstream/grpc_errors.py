"""The one place where gRPC's failures towards a guest become the statuses of the contract.

gRPC's own words name socket paths and host addresses, and mix what the guest said with what this side noticed. So nothing of
them is passed on: a failure that this side noticed is said in words of ours, and only a status that the guest itself sent keeps
its text, bounded and without control characters. Rejected: telling the two apart by the debug string (grpcio 1.85 gives both
the same one); the words below are C-core's and a test with a raw peer holds each of them. A guest that imitates them changes
nothing but the status of its own call.
"""

from __future__ import annotations

import re

import grpc

from vmm_proxy.errors import CallError, Trailers, plain

# C-core's words for what it noticed itself (grpcio 1.85); everything else was sent by the guest.
_NEVER_CONNECTED = ("failed to connect to all addresses", "errors resolving ")
_NOT_GRPC = "Received http2 header with status: "
# Of a deadline that passed before a connection stood, or while the call waited for its turn on one (a peer that allows no streams).
_NO_CONNECTION_IN_TIME = "Deadline Exceeded"
_NOTICED = (
    "Stream removed (",
    _NO_CONNECTION_IN_TIME,
    "Decompressed message larger than max",
    "No status received",
    _NOT_GRPC,
    *_NEVER_CONNECTED,
)
# Of a connection that was accepted and ended, before or after HTTP/2 began on it.
_LOST = ("Socket closed", "Connection reset by peer", "Broken pipe")
_CONNECT_REASONS = (
    ("Connection refused", "connection refused"),
    ("No such file or directory", "its socket does not exist"),
    ("Permission denied", "the proxy may not open its socket"),
    ("timed out", "it does not answer the connection"),
    ("No route to host", "no route to it"),
    ("Network is unreachable", "no route to it"),
    ("errors resolving", "its host name is not known"),
    # BoringSSL's words (grpcio 1.85), see tests/pins/test_guest_tls.py.
    ("CERTIFICATE_VERIFY_FAILED", "TLS: its certificate is of no authority that is believed here, or has expired"),
    ("Hostname Verification Check failed", "TLS: its certificate is for another name"),
    ("WRONG_VERSION_NUMBER", "TLS: it does not speak it"),
    ("Trying to connect an http1.x server", "it speaks HTTP/1.1 (dstack's own agent? Its address begins with dstack+ then)"),
    # A TLS server that meets a plain caller, or one without a certificate, says nothing and hangs up.
    ("Socket closed", "it closes the connection at once (over TCP: is TLS the same on both sides?)"),
)


def never_connected(error: grpc.aio.AioRpcError) -> bool:
    """Whether the call failed before a connection stood, so that the guest cannot have seen it."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and (error.details() or "").startswith(_NEVER_CONNECTED)


def handshake_timed_out(error: grpc.aio.AioRpcError) -> bool:
    """Whether something accepted the connection, or swallowed it, and then stayed silent."""
    return never_connected(error) and "timed out" in (error.details() or "")


def connection_lost(error: grpc.aio.AioRpcError) -> bool:
    """Whether a connection that the guest had accepted ended before its answer was whole."""
    details = error.details() or ""
    return error.code() is grpc.StatusCode.UNAVAILABLE and noticed_here(error) and any(sign in details for sign in _LOST)


def noticed_here(error: grpc.aio.AioRpcError) -> bool:
    """Whether the failure was noticed by this side, and not sent by the guest as its answer."""
    return (error.details() or "").startswith(_NOTICED)


def from_guest(
    guest_id: str, error: grpc.aio.AioRpcError, trailers: Trailers, *, waited_seconds: float, refusal: str = ""
) -> CallError:
    """What the caller is told of `error`, which ended a call to `guest_id` after `waited_seconds`.

    `refusal` is what this process itself knows of a connection that did not come to be.
    """
    details = error.details() or ""
    if not noticed_here(error):
        text = f"guest {guest_id}: {plain(details) or 'no reason given'}"
        # To the caller CANCELLED means that it cancelled the call itself.
        cancelled = error.code() is grpc.StatusCode.CANCELLED
        return CallError(grpc.StatusCode.UNAVAILABLE if cancelled else error.code(), text, trailers=trailers, answered=True)
    if details.startswith(_NEVER_CONNECTED):
        return unreachable(guest_id, refusal, details)
    code, cause = _noticed(error.code(), details, waited_seconds)
    silent = code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    return CallError(code, f"guest {guest_id}: {cause}", answered=not silent)


def unreachable(guest_id: str, refusal: str, details: str = "") -> CallError:
    """No connection came to be: `refusal` is what this process saw itself, `details` are gRPC's words, used where it saw nothing."""
    # What a relay saw is told in the same words, and as it is where it says more than the bare error.
    told = (words for sign, words in _CONNECT_REASONS if (sign == refusal if refusal else sign in details))
    cause = f"unreachable: {next(told, refusal or 'no connection')}"
    return CallError(grpc.StatusCode.UNAVAILABLE, f"guest {guest_id}: {cause}")


def _noticed(code: grpc.StatusCode, details: str, waited_seconds: float) -> tuple[grpc.StatusCode, str]:
    if details.startswith(_NOT_GRPC):
        kept = code if code is grpc.StatusCode.UNAVAILABLE else grpc.StatusCode.INTERNAL
        return kept, f"it answered with HTTP status {plain(details.removeprefix(_NOT_GRPC), 8)}, not with gRPC"
    if reset := re.search(r"Received RST_STREAM with error code (\d+)", details):
        return grpc.StatusCode.UNAVAILABLE, f"it broke off the call (HTTP/2 error {reset.group(1)})"
    match code:
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return code, f"no answer within {waited_seconds:.2f} s"
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return code, "its reply is over the size limit"
        case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
            return grpc.StatusCode.UNAVAILABLE, "the connection was lost during the call"
    return grpc.StatusCode.INTERNAL, "its reply is not valid gRPC"
