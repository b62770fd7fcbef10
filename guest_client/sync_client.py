"""Blocking clients of a guest's agent and of the VMM proxy, over one channel each that connects with the first call.

A client may be used by several threads at once. It never retries: only its caller knows whether Shutdown may run twice.
The methods stand in guest_client.methods, inherited because a descriptor needs a class to stand in.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Generator, Iterator, Sequence
from types import TracebackType
from typing import Self

import grpc

from guest_client.credentials import authorization, channel_credentials
from guest_client.dialing import BlockingDialTarget, dialled
from guest_client.errors import CallError, ClientClosedError, call_error
from guest_client.methods import GuestMethods, ProxyMethods, checked_seconds
from guest_client.prepared_call import (
    Ask,
    Items,
    ItemT,
    Pages,
    ReplyT,
    Stream,
    SyncCaller,
    checked,
    following_token,
    waited_too_long,
)
from guest_transport.addresses import Address
from guest_transport.options import CLIENT_CALLS, CLIENT_REPLY_LIMIT_BYTES, channel_options
from guest_transport.tls import ClientTls


class SyncChannelCaller(SyncCaller):
    """Makes prepared calls on a channel to `address`; `with` closes it, and so does close().

    `timeout_seconds` is what a call may take when it names no bound itself. `metadata` goes with every call, and so does
    `token`, as `authorization: Bearer`. With `tls` the channel is TLS, with the files as they are when it opens. Raises
    InvalidAddressError when `address` is none, CredentialsError for a token or TLS that does not fit it.
    """

    def __init__(
        self,
        address: str | Address,
        *,
        timeout_seconds: float | None = None,
        tls: ClientTls | None = None,
        token: str | None = None,
        metadata: Sequence[tuple[str, str]] = (),
    ) -> None:
        self.address = dialled(address)
        self.default_timeout_seconds = None if timeout_seconds is None else checked_seconds("timeout_seconds", timeout_seconds)
        self._tls = tls
        self._metadata = authorization(self.address, tls, token) + tuple(metadata)
        self._target: BlockingDialTarget | None = None
        self._channel: grpc.Channel | None = None
        self._closed = False
        self._opening = threading.Lock()
        self._calls = threading.Semaphore(CLIENT_CALLS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the channel; calls in flight are cancelled. May be called again."""
        with self._opening:
            self._closed = True
            channel, self._channel = self._channel, None
            target, self._target = self._target, None
        if channel is not None:
            channel.close()
        if target is not None:
            target.close()

    def call(self, ask: Ask[ReplyT]) -> ReplyT:
        """Make one call; raises a CallError, or ClientClosedError after close()."""
        with self._place(ask) as seconds:
            method = self._open().unary_unary(
                ask.path,
                request_serializer=type(ask.request).SerializeToString,
                response_deserializer=ask.reply.FromString,
            )
            try:
                reply = method(ask.request, timeout=seconds, metadata=self._metadata + ask.metadata)
            except grpc.RpcError as error:
                raise self._call_error(error, ask) from error
        return checked(ask, reply, self.address)

    @contextlib.contextmanager
    def _place(self, ask: Ask[ReplyT]) -> Iterator[float | None]:
        """A place among the calls in progress, and what is left of the call's time when it has one."""
        deadline = None if ask.timeout_seconds is None else time.monotonic() + ask.timeout_seconds
        # threading waits no longer than TIMEOUT_MAX, some 292 years.
        seconds = None if ask.timeout_seconds is None else min(ask.timeout_seconds, threading.TIMEOUT_MAX)
        if not self._calls.acquire(timeout=seconds):
            raise waited_too_long(ask, self.address)
        try:
            yield None if deadline is None else deadline - time.monotonic()
        finally:
            self._calls.release()

    def iterate(self, items: Items[ItemT]) -> Generator[ItemT, None, None]:
        """Yield the items of a stream or of all pages; closing the generator cancels the call."""
        return self._stream(items) if isinstance(items, Stream) else self._pages(items)

    def _stream(self, items: Stream[ReplyT, ItemT]) -> Generator[ItemT, None, None]:
        ask = items.ask
        method = self._open().unary_stream(
            ask.path,
            request_serializer=type(ask.request).SerializeToString,
            response_deserializer=ask.reply.FromString,
        )
        call = method(ask.request, timeout=ask.timeout_seconds, metadata=self._metadata + ask.metadata)
        try:
            for reply in call:
                yield from items.items(checked(ask, reply, self.address))
        except grpc.RpcError as error:
            raise self._call_error(error, ask) from error
        finally:
            call.cancel()

    def _pages(self, pages: Pages[ReplyT, ItemT]) -> Generator[ItemT, None, None]:
        token = ""
        while True:
            reply = self.call(pages.ask(token))
            yield from pages.items(reply)
            token = following_token(pages, reply, token, self.address)
            if not token:
                return

    def _open(self) -> grpc.Channel:
        with self._opening:
            if self._closed:
                raise ClientClosedError(f"the client of {self.address} is closed")
            if self._channel is None:
                credentials = channel_credentials(self._tls) if self._tls is not None else None
                options = channel_options(self.address, reply_limit_bytes=CLIENT_REPLY_LIMIT_BYTES)
                self._target = BlockingDialTarget(self.address)
                if credentials is None:
                    self._channel = grpc.insecure_channel(self._target.grpc_target, options=options)
                else:
                    self._channel = grpc.secure_channel(self._target.grpc_target, credentials, options=options)
            return self._channel

    def _call_error(self, error: grpc.RpcError, ask: Ask[ReplyT]) -> CallError:
        target = self._target
        refusal = target.last_refusal if target is not None else None
        return call_error(error, method=ask.about, address=str(self.address), refusal=refusal)


class GuestClient(GuestMethods, SyncChannelCaller):
    """One guest's agent, asked directly."""


class ProxyClient(ProxyMethods, SyncChannelCaller):
    """All guests of a host, asked through its VMM proxy."""
