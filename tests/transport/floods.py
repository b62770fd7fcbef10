"""Floods of HTTP/2 frames by hand, as fast as a socket takes them: each is bounded by a count of calls."""

from __future__ import annotations

import contextlib
import itertools
import select
import socket
import ssl
from collections.abc import Callable, Iterator

import hpack

from guest_transport.addresses import TcpAddress, UnixAddress, parse_address

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RST_STREAM, _SETTINGS = 0, 1, 3, 4
_END_HEADERS = 4
_CANCEL = (8).to_bytes(4)
_AT_ONCE = 100


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


def _headers(path: str) -> Callable[[], bytes]:
    fields = [(":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"), ("te", "trailers")]
    encoder = hpack.Encoder()
    # The first call teaches the server its headers; each later one is the same few indices, and is made once: it costs its sender little.
    first, later = (encoder.encode([*fields, ("content-type", "application/grpc")]) for _ in range(2))
    blocks = itertools.chain([first], itertools.repeat(later))
    return lambda: next(blocks)


def resets(path: str) -> Callable[[int], bytes]:
    """Calls of `path` that are begun and reset at once."""
    headers = _headers(path)
    return lambda stream: _frame(_HEADERS, _END_HEADERS, stream, headers()) + _frame(_RST_STREAM, 0, stream, _CANCEL)


def headers_alone(path: str) -> Callable[[int], bytes]:
    """Calls of `path` whose request never comes."""
    headers = _headers(path)
    return lambda stream: _frame(_HEADERS, _END_HEADERS, stream, headers())


def huge_message(path: str) -> Callable[[int], bytes]:
    """Calls of `path` that announce 4 GiB and send 15 KiB of them."""
    headers = _headers(path)
    part = b"\0\xff\xff\xff\xff" + b"z" * 15_000
    return lambda stream: _frame(_HEADERS, _END_HEADERS, stream, headers()) + _frame(_DATA, 0, stream, part)


def flood(target: str, call: Callable[[int], bytes], calls: int, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """Sends `calls` of `call` on one connection and drops what comes back; yields how many were sent, and ends when it is closed."""
    match parse_address(target):
        case UnixAddress(path):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(path)
        case TcpAddress(host, port):
            connection = socket.create_connection((host, port))
            if tls:
                connection = tls.wrap_socket(connection, server_hostname=host)
        case address:
            raise ValueError(f"{address}: not an address of a flood")
    with connection, contextlib.suppress(ConnectionError):
        connection.setblocking(False)
        _send(connection, _PREFACE + _frame(_SETTINGS, 0, 0))
        for first in range(0, calls, _AT_ONCE):
            _send(connection, b"".join(call(2 * number + 1) for number in range(first, first + _AT_ONCE)))
            yield first + _AT_ONCE


def _send(connection: socket.socket, data: bytes) -> None:
    """Send all of `data`, and take what comes meanwhile: a server that cannot write reads nothing either."""
    while data:
        readable, writable, _ = select.select([connection], [connection], [], 20)
        if not readable and not writable:
            raise ConnectionError("the server reads nothing")
        # TLS may have half a record, or need the other direction first.
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if readable and not connection.recv(65536):
                raise ConnectionError("closed")
        with contextlib.suppress(ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if writable:
                data = data[connection.send(data) :]
