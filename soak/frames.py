"""HTTP/2 frames for attackers, written by hand: what they send no library would.

Source: RFC 9113 (frames), RFC 7541 (header blocks, without Huffman). It knows what an attack needs and nothing more. Rejected: the `h2`
package, which refuses to send most of it, and whose own state would cost the attacker more than the attacked.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 3, 4, 6, 8, 9
END_STREAM, ACK, END_HEADERS = 1, 1, 4
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HEAD_BYTES = 9
# RFC 9113: what every peer takes without being asked, of a frame and of a window.
FRAME_BYTES = 16384
WINDOW_BYTES = 65535
# The first entry of the dynamic table, as an indexed field.
NEWEST = b"\xbe"


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """One frame."""
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def request(path: str, *more: tuple[str, str]) -> bytes:
    """The header block of a gRPC call of `path`; it leaves the dynamic table as it is."""
    fields = [("te", "trailers"), ("content-type", "application/grpc"), *more]
    return (
        b"\x83\x86"
        + _literal(b"\x04", path)
        + _literal(b"\x01", "localhost")
        + b"".join(b"\x00" + _text(name) + _text(value) for name, value in fields)
    )


def remembered(name: str, value: str) -> bytes:
    """A field that the peer puts into its dynamic table."""
    return b"\x40" + _text(name) + _text(value)


def message(body: bytes, length: int | None = None) -> bytes:
    """A gRPC message; `length` may lie."""
    return struct.pack(">BI", 0, len(body) if length is None else length) + body


class Frames:
    """Takes bytes as they come, yields whole frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def take(self, data: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """Kind, flags, stream and payload of each frame that is whole by now."""
        self._rest += data
        while len(self._rest) >= HEAD_BYTES:
            end = HEAD_BYTES + int.from_bytes(self._rest[:3], "big")
            if len(self._rest) < end:
                return
            kind, flags, stream = struct.unpack(">BBI", self._rest[3:HEAD_BYTES])
            payload = bytes(self._rest[HEAD_BYTES:end])
            del self._rest[:end]
            yield kind, flags, stream, payload


def _literal(name_index: bytes, value: str) -> bytes:
    # A literal without indexing, its name from the static table.
    return name_index + _text(value)


def _text(text: str) -> bytes:
    data = text.encode("ascii")
    if len(data) < 0x7F:
        return bytes([len(data)]) + data
    rest, coded = len(data) - 0x7F, b"\x7f"
    while rest >= 0x80:
        coded += bytes([rest & 0x7F | 0x80])
        rest >>= 7
    return coded + bytes([rest]) + data
