"""The one door where gRPC's failures towards a guest become the statuses of the contract.

    CallError    how a proxied call fails: code, bounded text, and when to come back

gRPC's own words name socket paths and host addresses, and mix what the guest said with what this side noticed. So nothing of
them is passed on: a failure that this side noticed is said in words of ours, and only a status that the guest itself sent keeps
its text, bounded and without control characters. Rejected: telling the two apart by the debug string (grpcio 1.85 gives both
the same one); the words below are C-core's and a test with a raw peer holds each of them. A guest that imitates them changes
nothing but the status of its own call.
"""

from __future__ import annotations

import re
from typing import Self

import grpc

# The contract's bound of a guest's own text.
TEXT_LIMIT_BYTES = 1024
# C-core's words for what it noticed itself (grpcio 1.85); everything else was sent by the guest.
_NEVER_CONNECTED = ("failed to connect to all addresses", "errors resolving ")
_NOT_GRPC = "Received http2 header with status: "
# Of a deadline that passed before a connection stood, or while the call waited for its turn on one (a peer that allows no streams).
_NO_CONNECTION_IN_TIME = "Deadline Exceeded"
_NOTICED = ("Stream removed (", _NO_CONNECTION_IN_TIME, "Decompressed message larger than max", _NOT_GRPC, *_NEVER_CONNECTED)
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
    # A TLS server that meets a plain caller, or one without a certificate, says nothing and hangs up.
    ("Socket closed", "it closes the connection at once (over TCP: is TLS the same on both sides?)"),
)

Trailers = tuple[tuple[str, str], ...]


class CallError(Exception):
    """A proxied call fails with `code` and `text`.

    `retry_after_seconds` says when it is worth trying again; `answered` whether the guest said something, were it nonsense.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        text: str,
        *,
        trailers: Trailers = (),
        retry_after_seconds: float | None = None,
        answered: bool = False,
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.trailers = trailers
        self.retry_after_seconds = retry_after_seconds
        self.answered = answered

    def as_value(self) -> Self:
        """This failure, to be kept: without its traceback, its cause and what it was raised in.

        Their frames hold the call, the line to the guest with its connection, and mostly this failure itself: a cycle, which is only found
        by a full collection of garbage, and those are rare here (vmm_proxy.garbage).
        """
        self.__traceback__ = self.__cause__ = self.__context__ = None
        return self

    def again(self) -> CallError:
        """The same failure for one more caller: a raised exception gathers tracebacks and is not shared."""
        return CallError(
            self.code,
            self.text,
            trailers=self.trailers,
            retry_after_seconds=self.retry_after_seconds,
            answered=self.answered,
        )


def not_known(guest_id: str) -> CallError:
    """There is no such guest, or none for this caller: nobody can tell the two apart."""
    return CallError(grpc.StatusCode.NOT_FOUND, f"guest {guest_id}: not known to this proxy")


def plain(text: str, limit_bytes: int = TEXT_LIMIT_BYTES) -> str:
    """`text` on one line without control characters, at most `limit_bytes` of UTF-8."""
    line = "".join(c if c.isprintable() else " " for c in text[:limit_bytes])
    return line.encode("utf-8", "replace")[:limit_bytes].decode("utf-8", "ignore")


def never_connected(error: grpc.aio.AioRpcError) -> bool:
    """Whether the call failed before a connection stood, so that the guest cannot have seen it."""
    return error.code() is grpc.StatusCode.UNAVAILABLE and (error.details() or "").startswith(_NEVER_CONNECTED)


def handshake_timed_out(error: grpc.aio.AioRpcError) -> bool:
    """Whether something accepted the connection, or swallowed it, and then stayed silent."""
    return never_connected(error) and "timed out" in (error.details() or "")


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
        return CallError(error.code(), text, trailers=trailers, answered=True)
    if details.startswith(_NEVER_CONNECTED):
        # What a relay saw is told in the same words, and as it is where it says more than the bare error.
        told = (words for sign, words in _CONNECT_REASONS if (sign == refusal if refusal else sign in details))
        cause = f"unreachable: {next(told, refusal or 'no connection')}"
        return CallError(grpc.StatusCode.UNAVAILABLE, f"guest {guest_id}: {cause}")
    code, cause = _noticed(error.code(), details, waited_seconds)
    silent = code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED}
    return CallError(code, f"guest {guest_id}: {cause}", answered=not silent)


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
