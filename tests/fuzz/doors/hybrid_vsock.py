"""The hybrid-vsock handshake: what a VMM may answer, cut anywhere, and what it is told.

Input: the port in decimal, a newline, then the answer in pieces, each a length byte and that many bytes; a length 0 is a pause.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from pathlib import Path

from hypothesis import strategies as st

from guest_transport.addresses import HvsockAddress
from guest_transport.sockets import hvsock
from tests.fuzz.door import Door, one_line
from tests.transport.vmm import says, vmm

PATIENCE_SECONDS = 20
# The product's words and 64 bytes of the VMM's, of which escape() may make four characters each and repr() one more for each backslash.
MESSAGE_LIMIT = 500
_OK = re.compile(rb"OK [0-9]{1,10}\n")


def check(data: bytes) -> None:
    """The VMM sees one whole line; after OK not one byte is lost or added; any other answer is a refusal in one line."""
    number, _, rest = data.partition(b"\n")
    port = 1 + int.from_bytes(number[-4:]) % 0xFFFFFFFE
    pieces = _pieces(rest)
    asyncio.run(_dial(port, pieces))


def _pieces(rest: bytes) -> list[bytes]:
    pieces = []
    while rest:
        size, rest = rest[0], rest[1:]
        pieces.append(rest[:size])
        rest = rest[size:]
    return pieces


async def _dial(port: int, pieces: list[bytes]) -> None:
    said = b"".join(pieces)
    opened = _OK.match(said)
    with tempfile.TemporaryDirectory(prefix="gs") as folder:
        async with vmm(Path(folder) / "v", says(*filter(None, pieces), then_close=True)) as host:
            try:
                connection = await asyncio.wait_for(hvsock.connect(HvsockAddress(f"{folder}/v", port)), PATIENCE_SECONDS)
            except hvsock.HandshakeError as error:
                one_line(str(error), MESSAGE_LIMIT)
                assert opened is None, f"refused {said!r}: {error}"
            else:
                with connection:
                    assert opened is not None, f"taken for opened: {said!r}"
                    assert await asyncio.wait_for(_all(connection), PATIENCE_SECONDS) == said[opened.end() :]
            assert host.lines == [b"CONNECT %d\n" % port], host.lines


async def _all(connection: object) -> bytes:
    import socket

    assert isinstance(connection, socket.socket)
    data = b""
    while piece := await asyncio.get_running_loop().sock_recv(connection, 65536):
        data += piece
    return data


_ANSWERS = st.one_of(
    st.builds(lambda n, after: b"OK %d\n" % n + after, st.integers(0, 10**11), st.binary(max_size=100)),
    st.sampled_from(
        [b"", b"OK", b"OK \n", b"OK 5\r\n", b"ok 5\n", b"OK 5 \n", b" OK 5\n", b"\n", b"OK -1\n", b"OK 5" * 30, b"\x1b[2J\n"]
    ),
    st.binary(max_size=80),
)


@st.composite
def _inputs(draw: st.DrawFn) -> bytes:
    answer = draw(_ANSWERS)
    cuts = sorted(draw(st.lists(st.integers(0, len(answer)), max_size=3)))
    ends = [*cuts, len(answer)]
    pieces = [answer[at:end] for at, end in zip([0, *cuts], ends, strict=True)]
    return draw(st.binary(max_size=4)).replace(b"\n", b"n") + b"\n" + b"".join(bytes([len(piece)]) + piece for piece in pieces)


HYBRID_VSOCK = Door(
    "hybrid-vsock",
    check,
    _inputs(),
    words=(b"\x05OK 5\n", b"\x01O\x01K\x03 5\n", b"\x00", b"\n", b"\x04OK \n", b"\r\n", b"CONNECT 1\n"),
    examples=25,
)
