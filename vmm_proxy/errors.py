"""How a call through the proxy fails, and how that failure ends an rpc or stands in a fleet's reply.

    CallError           code, bounded text, and when to come back
    ├── NotSentError    the guest has not seen the call, or may see it again
    └── LostError       the guest may have seen the call

Below every room of the proxy, because each of them can refuse. What gRPC itself says of a guest is translated in upstream.grpc_errors.
"""

from __future__ import annotations

from typing import Any, NoReturn, Self

import grpc
from google.protobuf import any_pb2, duration_pb2
from google.rpc import error_details_pb2, status_pb2

from guest_transport.abort import abort

# The contract's bound of a guest's own text.
TEXT_LIMIT_BYTES = 1024
STATUS_DETAILS = "grpc-status-details-bin"

Trailers = tuple[tuple[str, str], ...]


class CallError(Exception):
    """A proxied call fails with `code` and `text`.

    `retry_after_seconds` says when it is worth trying again; `answered` whether the guest said something, were it nonsense,
    and `wire_bytes` how long the message was that is refused here.
    """

    def __init__(
        self,
        code: grpc.StatusCode,
        text: str,
        *,
        trailers: Trailers = (),
        retry_after_seconds: float | None = None,
        answered: bool = False,
        wire_bytes: int = 0,
    ) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.trailers = trailers
        self.retry_after_seconds = retry_after_seconds
        self.answered = answered
        self.wire_bytes = wire_bytes

    def as_value(self) -> Self:
        """This failure, to be kept: without its traceback, its cause and what it was raised in.

        Their frames hold the call, the channel to the guest with its connection, and mostly this failure itself: a cycle, which only a full
        collection of garbage finds, and those are rare here (vmm_proxy.garbage).
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


class NotSentError(CallError):
    """The connection takes no calls any more: the guest has not seen this one, or it only reads and may be made again at once."""


class LostError(CallError):
    """The connection ended before the guest's answer was whole; the guest may have seen the call."""


def not_known(guest_id: str) -> CallError:
    """There is no such guest, or none for this caller: nobody can tell the two apart."""
    return CallError(grpc.StatusCode.NOT_FOUND, f"guest {guest_id}: not known to this proxy")


def plain(text: str, limit_bytes: int = TEXT_LIMIT_BYTES) -> str:
    """`text` on one line without control characters, at most `limit_bytes` of UTF-8."""
    line = "".join(c if c.isprintable() else " " for c in text[:limit_bytes])
    return line.encode("utf-8", "replace")[:limit_bytes].decode("utf-8", "ignore")


def rpc_status(error: CallError) -> status_pb2.Status:
    """`error` as google.rpc.Status."""
    status = status_pb2.Status(code=error.code.value[0], message=error.text)
    if error.retry_after_seconds is not None:
        delay = duration_pb2.Duration()
        delay.FromMilliseconds(round(error.retry_after_seconds * 1000))
        detail = any_pb2.Any()
        detail.Pack(error_details_pb2.RetryInfo(retry_delay=delay))
        status.details.append(detail)
    return status


# A servicer context is generic in its messages, which do not matter here.
async def refuse(context: grpc.aio.ServicerContext[Any, Any], error: CallError) -> NoReturn:
    """End the rpc with `error`, which whoever calls this still holds."""
    error.as_value()
    trailers: tuple[tuple[str, str | bytes], ...] = error.trailers
    if error.retry_after_seconds is not None:
        trailers = (*trailers, (STATUS_DETAILS, rpc_status(error).SerializeToString()))
    await abort(context, error.code, error.text, trailers)
