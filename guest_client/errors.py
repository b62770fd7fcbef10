"""What a call can end with, as one tree, and the one door where grpc's exceptions become it.

    ClientError
    ├── InvalidAddressError     a text that is no address, or one that cannot be dialled from here
    ├── CredentialsError        files that cannot be used for TLS, or a token that would travel in the clear
    ├── ClientClosedError       a call on a client that was closed
    └── CallError               the call failed; code, reason, method and address tell the rest
        ├── InvalidRequestError     INVALID_ARGUMENT: an id or a selector that is none
        ├── GuestNotFoundError      NOT_FOUND: the proxy knows no such guest
        ├── GuestNotReadyError      FAILED_PRECONDITION: the guest is stopped, or is another VM than the pinned one
        ├── AccessDeniedError       PERMISSION_DENIED, UNAUTHENTICATED
        ├── UnavailableError        UNAVAILABLE: proxy or guest not reachable, the connection was lost, or the server gave the call up
        ├── DeadlineError           DEADLINE_EXCEEDED: no answer within the call's bound
        ├── LimitError              RESOURCE_EXHAUSTED: too many calls, or a reply over the size limit
        ├── NotOfferedError         UNIMPLEMENTED: this server does not offer the method
        └── BadReplyError           INTERNAL, DATA_LOSS: a reply that does not decode, or a bug of the server

Any other status is a plain CallError. A caller's own mistake (a negative timeout) is a ValueError before anything is sent. Text of a server
is bounded, and its control characters are escaped, because a guest chooses parts of it and it ends up on terminals. Rejected: letting
grpc.RpcError through, whose class tells no status and whose text names the target twice.
"""

from __future__ import annotations

import re
from typing import Final

import grpc

from guest_transport.process.logs import escape

# The proxy bounds a guest's text to 1 KiB; the same holds for what comes from a guest directly.
REASON_LIMIT_CHARACTERS = 1024
# grpcio 1.85 puts the target twice before the one thing that matters, the system's word after the last colon.
_CONNECT_FAILED = re.compile(r"failed to connect to all addresses; last error: (?P<all>.*: (?P<last>[^:]*))", re.DOTALL)
# How it begins where a host has no address; what follows is the resolver's own matter.
_NO_SUCH_HOST = "errors resolving "
# What that text holds when TLS refused (1.85 with BoringSSL; all were seen, see tests/client/test_tls.py); the word after the last colon is
# "OK" then.
_TLS_REFUSALS = {
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is of no authority that is believed here, or has expired",
    "Hostname Verification Check failed": "the server's certificate is for another name",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS",
    "handshake failed": "the handshake failed",
}

# What gRPC says where the deadline ran out here; a server's own words say more.
_OWN_DEADLINE: Final = re.compile(r"(Stream removed \()?Deadline Exceeded\)?")


class ClientError(Exception):
    """Anything that this package raises for what is not the caller's mistake."""


class InvalidAddressError(ClientError):
    """The text is no address, or an address of a kind that cannot be dialled; the message says what is allowed."""


class CredentialsError(ClientError):
    """Certificates, keys or a token that cannot be used for this address; the message names the file or what to do."""


class ClientClosedError(ClientError):
    """The client was closed, and a closed client stays closed."""


class CallError(ClientError):
    """A call that failed. `reason` is the server's text, escaped and bounded; `method` is `GpuInfo` or `GpuInfo of vm1`."""

    def __init__(self, code: grpc.StatusCode, reason: str, *, method: str, address: str) -> None:
        super().__init__(code, reason, method, address)
        self.code = code
        self.reason = reason
        self.method = method
        self.address = address

    def __str__(self) -> str:
        words = self.code.name.lower().replace("_", " ")
        return f"{self.method} at {self.address}: {words}{f': {self.reason}' if self.reason else ''}"


class InvalidRequestError(CallError):
    """INVALID_ARGUMENT."""


class GuestNotFoundError(CallError):
    """NOT_FOUND."""


class GuestNotReadyError(CallError):
    """FAILED_PRECONDITION."""


class AccessDeniedError(CallError):
    """PERMISSION_DENIED or UNAUTHENTICATED."""


class UnavailableError(CallError):
    """UNAVAILABLE."""


class DeadlineError(CallError):
    """DEADLINE_EXCEEDED."""


class LimitError(CallError):
    """RESOURCE_EXHAUSTED."""


class NotOfferedError(CallError):
    """UNIMPLEMENTED."""


class BadReplyError(CallError):
    """INTERNAL or DATA_LOSS."""


_BY_CODE: Final[dict[grpc.StatusCode, type[CallError]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequestError,
    grpc.StatusCode.NOT_FOUND: GuestNotFoundError,
    grpc.StatusCode.FAILED_PRECONDITION: GuestNotReadyError,
    grpc.StatusCode.PERMISSION_DENIED: AccessDeniedError,
    grpc.StatusCode.UNAUTHENTICATED: AccessDeniedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: LimitError,
    grpc.StatusCode.UNIMPLEMENTED: NotOfferedError,
    grpc.StatusCode.INTERNAL: BadReplyError,
    grpc.StatusCode.DATA_LOSS: BadReplyError,
}


def call_error(error: grpc.RpcError, *, method: str, address: str, refusal: str | None = None) -> CallError:
    """The CallError that grpc's `error`, of a synchronous or an asynchronous call, stands for; raise it `from` that error.

    `refusal` is why the relay of the address, if it has one, was last not let through: gRPC sees a closed socket and knows no reason.
    """
    # Both kinds of grpc's errors are calls too and tell their status; the stubs' RpcError alone promises none.
    code = error.code() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else grpc.StatusCode.UNKNOWN
    details = error.details() if isinstance(error, grpc.Call | grpc.aio.AioRpcError) else ""
    if refusal and code is grpc.StatusCode.UNAVAILABLE:
        details = f"cannot connect: {refusal}"
    return failure(code, details or "", method=method, address=address)


def failure(code: grpc.StatusCode, details: str, *, method: str, address: str) -> CallError:
    """The error of `code`'s class with `details` made safe to show."""
    if code is grpc.StatusCode.CANCELLED:
        # Whoever cancels a call here gets asyncio's own exception: this one the server sent, or its connection is gone.
        code = grpc.StatusCode.UNAVAILABLE
    connecting = _CONNECT_FAILED.fullmatch(details)
    reason = f"cannot connect: {_why(connecting['all'], connecting['last'])}" if connecting else details
    if code is grpc.StatusCode.UNAVAILABLE and details.startswith(_NO_SUCH_HOST):
        reason = "cannot connect: the host name is not known"
    if code is grpc.StatusCode.DEADLINE_EXCEEDED and _OWN_DEADLINE.fullmatch(details):
        reason = "no answer came within this call's time"
    if len(reason) > REASON_LIMIT_CHARACTERS:
        reason = reason[:REASON_LIMIT_CHARACTERS] + "…"
    return _BY_CODE.get(code, CallError)(code, escape(reason), method=method, address=address)


def _why(everything: str, last: str) -> str:
    """Why no connection came about, out of gRPC's words."""
    return next((f"TLS: {meaning}" for sign, meaning in _TLS_REFUSALS.items() if sign in everything), last)
