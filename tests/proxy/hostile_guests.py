"""What a hostile guest may answer, each kind with the codes that its caller may get for it.

None of them is UNKNOWN: whatever a guest does short of sending that status itself has a name. OK stands only where the bytes are a valid
message of any contract (protobuf takes a wrong wire type for an unknown field and keeps it).
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Callable
from dataclasses import dataclass, field

import grpc
from h2.errors import ErrorCodes
from h2.settings import SettingCodes

from tests.proxy.raw_guest import Behaviour, Stream, frame

Code = grpc.StatusCode
OK = Code.OK
BROKEN = frozenset({Code.INTERNAL})
TOO_BIG = frozenset({Code.RESOURCE_EXHAUSTED})
SILENT = frozenset({Code.DEADLINE_EXCEEDED})
LOST = frozenset({Code.UNAVAILABLE})
# So long may one byte after the other take; every caller's deadline is nearer.
BYTE_SECONDS = 0.05


@dataclass(frozen=True)
class Kind:
    """One way to be hostile."""

    answer: Behaviour
    codes: frozenset[grpc.StatusCode]
    settings: dict[SettingCodes, int] = field(default_factory=dict)


def message(wire: bytes, codes: frozenset[grpc.StatusCode]) -> Kind:
    """Answers `wire` as its message, with status 0."""
    return Kind(lambda stream: stream.answer(wire), codes)


def data(*chunks: bytes, codes: frozenset[grpc.StatusCode], headers: list[tuple[str, str]] | None = None) -> Kind:
    """Sends headers, `chunks` and status 0."""

    async def answer(stream: Stream) -> None:
        await stream.head(headers)
        for chunk in chunks:
            await stream.data(chunk)
        await stream.trailers()

    return Kind(answer, codes)


def status(code: str, text: str, codes: frozenset[grpc.StatusCode], extra: list[tuple[str, str]] | None = None) -> Kind:
    return Kind(lambda stream: stream.fail(code, text, extra), codes)


def http(status: str, content_type: str, codes: frozenset[grpc.StatusCode], body: bytes = b"<h1>no</h1>") -> Kind:
    async def page(stream: Stream) -> None:
        await stream.send_headers([(":status", status), ("content-type", content_type)])
        await stream.data(body, end=True)

    return Kind(page, codes)


def after(part: Callable[[Stream], object], *, reply: bytes = b"", head: bool = True) -> Behaviour:
    """Sends headers and `reply`, then does `part`."""

    async def answer(stream: Stream) -> None:
        if head:
            await stream.head()
        if reply:
            await stream.data(reply)
        done = part(stream)
        if asyncio.iscoroutine(done):
            await done

    return answer


async def silence(stream: Stream) -> None:
    await stream.reset.wait()


async def drip(stream: Stream) -> None:
    """A valid reply, one byte at a time, for longer than anybody waits."""
    await stream.head()
    for byte in frame(b"\xfa\x3f\x7f" + bytes(127)):
        await stream.data(bytes([byte]))
        try:
            await asyncio.wait_for(stream.reset.wait(), BYTE_SECONDS)
        except TimeoutError:
            continue
        return


async def go_away(stream: Stream) -> None:
    stream.connection.h2.close_connection(ErrorCodes.ENHANCE_YOUR_CALM, additional_data=b"\x1b[2Jtoo_many_pings")
    await stream.connection.flush()
    stream.connection.writer.close()


async def garbage(stream: Stream) -> None:
    stream.connection.writer.write(b"\xff" * 200)
    await stream.connection.writer.drain()


async def frame_beyond_the_limit(stream: Stream) -> None:
    # A DATA frame of 16 MiB less one, over every limit that was announced.
    stream.connection.writer.write(b"\xff\xff\xff\x00\x00" + stream.number.to_bytes(4, "big") + bytes(100))
    await stream.connection.writer.drain()


async def pushes(stream: Stream) -> None:
    # PUSH_PROMISE, which no gRPC client allows; an empty block of headers.
    stream.connection.writer.write(b"\x00\x00\x04\x05\x04" + stream.number.to_bytes(4, "big") + (2).to_bytes(4, "big"))
    await stream.connection.writer.drain()


async def headers_without_end(stream: Stream) -> None:
    # HEADERS without END_HEADERS, and no CONTINUATION ever.
    stream.connection.writer.write(b"\x00\x00\x01\x01\x00" + stream.number.to_bytes(4, "big") + b"\x88")
    await stream.connection.writer.drain()
    await stream.reset.wait()


async def floods_with_settings(stream: Stream) -> None:
    # In one piece: asyncio of Python 3.12 adds up its whole buffer at each write, which would make this guest slow and not hostile.
    stream.connection.writer.write(b"\x00\x00\x00\x04\x00\x00\x00\x00\x00" * 5000)
    await stream.connection.writer.drain()
    await stream.answer(b"")


async def answers_twice(stream: Stream) -> None:
    await stream.head()
    await stream.data(frame(b"") + frame(b""))
    await stream.trailers()


EMPTY_ENTRIES = b"\x0a\x00" * 500_000
BIG = frame(bytes(2**20 + 1))
BOMB = frame(gzip.compress(bytes(8 * 2**20)), flag=1)
GZIP = [("grpc-encoding", "gzip")]

HOSTILE: dict[str, Kind] = {
    # Messages that are none, or too much.
    "noise": message(b"\xff" * 64, BROKEN),
    "every field as another wire type": message(
        b"".join(bytes([number << 3 | kind]) + rest for number in range(1, 15) for kind, rest in ((0, b"\x01"), (1, bytes(8)))),
        frozenset({OK, *BROKEN}),
    ),
    "field number 0": message(b"\x02\x01x", BROKEN),
    "a varint that never ends": message(b"\x08" + b"\xff" * 11, BROKEN),
    "a length beyond the end": message(b"\xfa\x3f\xff\xff\xff\xff\x07", BROKEN),
    "groups in groups, deep": message(b"\x9b\x3f" * 300 + b"\x9c\x3f" * 300, BROKEN),
    "a group that does not end": message(b"\x9b\x3f", BROKEN),
    "half a million entries": message(EMPTY_ENTRIES, TOO_BIG),
    "half a million unknown fields": message(b"\xf8\x3e\x01" * 300_000, TOO_BIG),
    "more than a mebibyte": data(BIG, codes=TOO_BIG),
    "a frame that promises 4 GiB": data(frame(b"", length=2**32 - 1) + bytes(1000), codes=TOO_BIG),
    "a bomb": data(BOMB, headers=GZIP, codes=TOO_BIG),
    # Frames that are none.
    "an unknown frame flag": data(frame(b"", flag=0xAF), codes=BROKEN),
    "compressed, and it says by nothing": data(frame(gzip.compress(b""), flag=1), codes=BROKEN),
    "compressed, and it is not": data(frame(b"not gzip", flag=1), headers=GZIP, codes=BROKEN),
    "compressed by what nobody knows": data(
        frame(b"x", flag=1), headers=[("grpc-encoding", "brotli")], codes=frozenset({*BROKEN, Code.UNIMPLEMENTED})
    ),
    "a frame cut off": data(frame(bytes(10), length=100), codes=BROKEN),
    "no message": data(codes=BROKEN),
    # The first call hangs: gRPC holds its end back until the second message is read. The next ones are read to their end.
    "two messages": Kind(answers_twice, frozenset({*SILENT, *BROKEN})),
    "two messages, and no end": Kind(after(silence, reply=frame(b"") * 2), frozenset({*SILENT, *BROKEN})),
    "trailers without a status": Kind(
        after(lambda stream: stream.send_headers([("x", "y")], end=True), reply=frame(b"")), BROKEN
    ),
    "cancelled by the guest": status("1", "Locally cancelled by application!", LOST),
    # Slow, or for ever.
    "silence": Kind(silence, SILENT),
    "headers, then silence": Kind(after(silence), SILENT),
    "a message, then silence": Kind(after(silence, reply=frame(b"")), SILENT),
    "one byte at a time": Kind(drip, SILENT),
    "no streams allowed": Kind(silence, SILENT, {SettingCodes.MAX_CONCURRENT_STREAMS: 0}),
    "no window": Kind(silence, SILENT, {SettingCodes.INITIAL_WINDOW_SIZE: 0}),
    "headers that go on": Kind(headers_without_end, frozenset({*SILENT, *BROKEN, *LOST})),
    # Ends that are none.
    "reset at once": Kind(after(lambda stream: stream.break_off(ErrorCodes.REFUSED_STREAM), head=False), LOST),
    "reset after the headers": Kind(after(lambda stream: stream.break_off(ErrorCodes.NO_ERROR)), LOST),
    "reset in a message": Kind(
        after(lambda stream: stream.break_off(ErrorCodes.INTERNAL_ERROR), reply=frame(bytes(9), length=99)), LOST
    ),
    "closed at once": Kind(after(lambda stream: stream.connection.writer.close(), head=False), LOST),
    "closed in a message": Kind(after(lambda stream: stream.connection.writer.close(), reply=frame(bytes(9), length=99)), LOST),
    "goes away": Kind(go_away, LOST),
    "garbage on the connection": Kind(garbage, frozenset({*LOST, *BROKEN})),
    "a frame beyond the limit": Kind(frame_beyond_the_limit, frozenset({*LOST, *BROKEN})),
    "a push promise": Kind(pushes, frozenset({*LOST, *BROKEN, *SILENT})),
    "a flood of settings": Kind(floods_with_settings, frozenset({OK, *LOST})),
    "ends without trailers": Kind(after(lambda stream: stream.data(frame(b""), end=True)), BROKEN),
    # Statuses and metadata.
    "a web page": http("200", "text/html", frozenset({*BROKEN, *LOST})),
    "not found, in HTTP": http("404", "application/grpc", BROKEN, b""),
    "a redirect": http("302", "text/html", BROKEN, b""),
    "unauthorized, in HTTP": http("401", "text/html", BROKEN, b""),
    "overloaded, in HTTP": http("503", "text/html", LOST, b""),
    "a teapot": http("418", "text/html", BROKEN, b""),
    "words of our own library": status("14", "failed to connect to all addresses; last error: /etc/shadow", LOST),
    "words of a deadline": status("4", "Deadline Exceeded", SILENT),
    "text that is not UTF-8": status("5", "%ff%fe%00%zz%", frozenset({Code.NOT_FOUND})),
    "text that would be markup and more": status(
        "9", "%1b[2J%0d%0aset-cookie:a=b<script>%e2%80%ae", frozenset({Code.FAILED_PRECONDITION})
    ),
    "forged trailers": status(
        "7",
        "no",
        frozenset({Code.PERMISSION_DENIED}),
        [
            ("authorization", "Bearer x"),
            ("set-cookie", "a=b"),
            ("grpc-status-details-bin", "////"),
            ("grpc-retry-pushback-ms", "1"),
            ("vm_id", "healthy"),
            ("x-request-id", "r7"),
            ("x-request-id", "\t"),
        ],
    ),
    "trailers without end": status("5", "x", TOO_BIG, [("x-request-id", "y" * 60_000)]),
}
