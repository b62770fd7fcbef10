"""What a guest that runs dstack's own agent may say to one call: the head and body of a reply, cut anywhere.

Input: how the bytes come (one at a time, in sevens, or at once), then all that the guest says before it hangs up.
"""

from __future__ import annotations

import asyncio
import socket

from hypothesis import strategies as st

from guest_contract.methods import proxied_methods
from guest_transport.options import REPLY_LIMIT_BYTES
from tests.fuzz.door import Door, one_line
from vmm_proxy.errors import TEXT_LIMIT_BYTES, CallError
from vmm_proxy.upstream.http_call import exchange
from vmm_proxy.upstream.http_connection import HttpConnection

PATIENCE_SECONDS = 20.0
_INFO = next(method for method in proxied_methods() if method.name == "Info")
# A reply is whole before what is behind it comes, or it is not: the one fault that depends on how the bytes come.
_BEHIND = "it sent more than its one reply"


def check(data: bytes) -> None:
    """One outcome, however the bytes come: a body that was said, or a failure in one line."""
    said = data[1:]
    whole = asyncio.run(_ask(said, len(said) or 1))
    piecewise = asyncio.run(_ask(said, (1, 7)[data[0] % 2] if data else 1))
    if isinstance(whole, bytes):
        assert len(whole) <= REPLY_LIMIT_BYTES
        assert b"chunked" in said.lower() or whole in said
    if not (isinstance(whole, str) and whole.endswith(_BEHIND)):
        assert piecewise == whole


async def _ask(said: bytes, size: int) -> bytes | str:
    here, there = socket.socketpair()
    here.setblocking(False)
    there.setblocking(False)
    connection = HttpConnection(here, lambda _: True)
    saying = asyncio.create_task(_say(there, said, size))
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            body, trailers = await exchange(connection, "vm", _INFO, (), asyncio.get_running_loop().time() + PATIENCE_SECONDS)
        assert all(key == "x-request-id" and value.isprintable() for key, value in trailers)
        return body
    except CallError as error:
        one_line(error.text, len("guest vm: ") + TEXT_LIMIT_BYTES)
        return f"{error.code.name} {error.text}"
    finally:
        connection.close()
        await saying


async def _say(there: socket.socket, said: bytes, size: int) -> None:
    loop = asyncio.get_running_loop()
    with there:
        try:
            await loop.sock_recv(there, 65536)
            for at in range(0, len(said), size):
                await loop.sock_sendall(there, said[at : at + size])
        except OSError:
            # It was given up.
            return


_LINES = st.sampled_from(
    [
        b"content-length: 3",
        b"content-length: 0",
        b"Content-Length: 03",
        b"content-length: 3, 3",
        b"content-length: 4",
        b"transfer-encoding: chunked",
        b"transfer-encoding: gzip, chunked",
        b"content-type: application/json",
        b"content-type: text/html",
        b"x-request-id: 7",
        b"connection: close",
        b" folded",
        b"no colon",
        b"a: \x80",
    ]
)
_STATUSES = st.sampled_from(
    [b"HTTP/1.1 200 OK", b"HTTP/1.0 200", b"HTTP/1.1 400 No", b"HTTP/1.1 100 C", b"HTTP/1.1 204 N", b"HTTP/9 2"]
)
_BODIES = st.sampled_from(
    [
        b"abc",
        b"",
        b"3\r\nabc\r\n0\r\n\r\n",
        b"3;x\r\nabc\r\n0\r\na: b\r\n\r\n",
        b'{"error": "no"}',
        b"\n\x02no",
        b"ffffffffffffffffff\r\n",
    ]
)
_REPLIES = st.builds(
    lambda status, lines, body: b"\r\n".join([status, *lines, b"", b""]) + body, _STATUSES, st.lists(_LINES, max_size=4), _BODIES
)

HTTP_REPLY = Door(
    "http-reply",
    check,
    st.builds(lambda how, replies: bytes([how]) + b"".join(replies), st.integers(0, 1), st.lists(_REPLIES, max_size=2)),
    words=(b"\r\n", b"\n", b"\r\n\r\n", b"HTTP/1.1 200 OK\r\n", b"content-length: ", b"0\r\n\r\n", b"\0", b";"),
    examples=40,
)
