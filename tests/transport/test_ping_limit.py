"""How often a client may ping, as docs/client.md says it: one that pings faster is cut off, and told why."""

from __future__ import annotations

import socket
import struct
from pathlib import Path

import grpc
import pytest

from guest_transport.options import KEEPALIVE_SECONDS, server_options

PAGE = Path(__file__).resolve().parents[2] / "docs/client.md"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS, PING, GOAWAY, ACK = 4, 6, 7, 1
ENHANCE_YOUR_CALM = 0xB


def frame(kind: int, payload: bytes = b"", flags: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + bytes(4) + payload


def received(connection: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = connection.recv(length - len(data))
        assert part, "ended without GOAWAY"
        data += part
    return data


def test_the_third_ping_that_comes_too_soon_ends_the_connection_and_the_page_says_so(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    sockets = tmp_path_factory.mktemp("s")
    server = grpc.server(None, options=server_options())  # type: ignore[arg-type] # no call is made, so nobody serves one
    server.add_insecure_port(f"unix:{sockets}/s")
    server.start()
    acknowledged = 0
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(20)
            connection.connect(f"{sockets}/s")
            connection.sendall(PREFACE + frame(SETTINGS) + frame(SETTINGS, flags=ACK))
            # One that may be sent, and three that come too soon.
            connection.sendall(frame(PING, bytes(8)) * 4)
            while True:
                head = received(connection, 9)
                payload = received(connection, int.from_bytes(head[:3], "big"))
                acknowledged += head[3] == PING and head[4] == ACK
                if head[3] == GOAWAY:
                    break
    finally:
        server.stop(0).wait()
    assert (struct.unpack(">I", payload[4:8])[0], payload[8:]) == (ENHANCE_YOUR_CALM, b"too_many_pings")
    page = PAGE.read_text(encoding="utf-8")
    least = dict(server_options())["grpc.http2.min_ping_interval_without_data_ms"]
    assert f"no closer than {int(least) // 1000} s apart" in page
    assert f"our clients send one every {KEEPALIVE_SECONDS} s" in page
    assert f"`grpc.keepalive_time_ms` of at least {least}" in page


def test_pings_as_far_apart_as_ours_are_allowed() -> None:
    least = dict(server_options())["grpc.http2.min_ping_interval_without_data_ms"]
    assert isinstance(least, int)
    assert least <= KEEPALIVE_SECONDS * 1000
