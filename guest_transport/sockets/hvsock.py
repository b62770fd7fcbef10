"""Opens a port of a guest behind hybrid vsock, as Firecracker and Cloud Hypervisor speak it on a Unix socket of the host.

The host connects, writes `CONNECT <port>\\n` and gets `OK <number>\\n` once the guest has accepted; from then on the bytes are the guest's.
Both VMMs read the line as it comes and keep a half line's connection open, so the whole line is written in one piece at the moment of
connecting: whoever is cancelled has sent a whole line or nothing. Source: Firecracker docs/vsock.md, Cloud Hypervisor docs/vsock.md.
"""

from __future__ import annotations

import asyncio
import re
import socket

from guest_transport.addresses import HvsockAddress
from guest_transport.process.logs import escape
from guest_transport.sockets import unix

# "OK 4294967295\n" has 14 bytes; a refusal in words may be longer, and is quoted up to here.
ANSWER_LIMIT_BYTES = 64
_OK = re.compile(rb"OK [0-9]{1,10}\n")


class HandshakeError(OSError):
    """The VMM did not open the port; the message is one line."""


async def connect(address: HvsockAddress) -> socket.socket:
    """A non-blocking socket whose next byte is the guest's; raises OSError. The caller bounds the wait."""
    connection = await unix.connect(address.path)
    try:
        # No await since connect(2), and a new socket's buffer takes a line whole: nobody sees half of it.
        connection.send(b"CONNECT %d\n" % address.port)
        await _read_answer(connection)
    except BaseException:
        connection.close()
        raise
    return connection


async def _read_answer(connection: socket.socket) -> None:
    """Take the answer's line off `connection`, and not one byte more: what follows is the guest's."""
    answer = b""
    while not answer.endswith(b"\n"):
        await _readable(connection)
        try:
            waiting = connection.recv(ANSWER_LIMIT_BYTES - len(answer), socket.MSG_PEEK)
        except BlockingIOError:
            continue
        if not waiting:
            raise HandshakeError(
                f"the VMM closed the connection{_quoted(answer)}; nothing listens on the guest's port, or it is not up"
            )
        line, newline, _ = waiting.partition(b"\n")
        answer += connection.recv(len(line + newline))
        if len(answer) >= ANSWER_LIMIT_BYTES and not newline:
            break
    if not _OK.fullmatch(answer):
        raise HandshakeError(f"the VMM refused{_quoted(answer)}")


def _quoted(answer: bytes) -> str:
    return f" after {escape(answer.decode('utf-8', 'replace'))!r}" if answer else ""


async def _readable(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def on_readable() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(connection.fileno(), on_readable)
    try:
        await ready
    finally:
        loop.remove_reader(connection.fileno())
