"""The addresses that a server is to listen on: who may open the socket, whether anybody answers, and whether it is the right one.

A server that does not run is wrong here: whoever runs a doctor wants to know why nobody is reached. Asking is a real call of the caller's
choice, so another program behind the port is told from ours. Rejected: binding the port to see whether it is free (for a moment the server
that starts just then could not).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import grpc

from guest_transport.addresses import Address, TcpAddress, UnixAddress
from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.files import FileFacts, read_facts
from guest_transport.doctor.findings import Finding, note, ok, wrong
from guest_transport.doctor.holders import path_holders, port_holders
from guest_transport.options import channel_options
from guest_transport.relay.dial import dial_target
from guest_transport.sockets import unix

# A server of this machine accepts at once and answers in milliseconds; below the check's own bound, so that the reason is told.
KNOCK_SECONDS = 2.0
ANSWER_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Served:
    """What is to listen: its name in words, its systemd unit, and a call that tells who answers (raises grpc.aio.AioRpcError)."""

    what: str
    unit: str
    ask: Callable[[grpc.aio.Channel], Awaitable[str]]

    @property
    def start_it(self) -> str:
        """What to do when it does not run."""
        return f"systemctl start {self.unit}; journalctl -u {self.unit} says why it ended"


async def connected(address: UnixAddress | TcpAddress) -> socket.socket:
    """A non-blocking socket connected to `address`; raises OSError. The caller bounds the wait, also that for a name server."""
    if isinstance(address, UnixAddress):
        return await unix.connect(address.path)
    # Not the loop's own getaddrinfo, whose thread would hold up the end of the doctor.
    connection = await in_thread(lambda: socket.create_connection((address.host, address.port), KNOCK_SECONDS))
    connection.setblocking(False)
    return connection


async def knock(address: UnixAddress | TcpAddress) -> OSError | None:
    """Why nobody takes a connection at `address`; None when somebody does. Closes the connection without a byte."""
    try:
        async with asyncio.timeout(KNOCK_SECONDS):
            (await connected(address)).close()
    except TimeoutError:
        return TimeoutError(errno.ETIMEDOUT, f"nobody takes the connection within {KNOCK_SECONDS:g} s")
    except OSError as error:
        return error
    return None


@contextlib.asynccontextmanager
async def plain_channel(address: Address) -> AsyncIterator[grpc.aio.Channel]:
    """A channel without TLS, as every part of the product opens it."""
    async with dial_target(address) as target:
        channel = grpc.aio.insecure_channel(target.grpc_target, options=channel_options(address))
        try:
            yield channel
        finally:
            await channel.close()


async def examine_listener(address: UnixAddress | TcpAddress, served: Served) -> list[Finding]:
    """Mode of a Unix socket, who is there, and whether it is what should be."""
    if isinstance(address, TcpAddress) and address.port == 0:
        return [note(f"{address}: the port is chosen at the start, so it is not looked at")]
    found: list[Finding] = []
    if isinstance(address, UnixAddress):
        found += judge_socket(address, *await in_thread(lambda: (read_facts(Path(address.path)), folder_of(address))))
    refusal = await knock(address)
    if refusal is not None:
        return [*found, judge_refusal(address, refusal, served.start_it)]
    return [*found, await _ask(address, served)]


async def _ask(address: UnixAddress | TcpAddress, served: Served) -> Finding:
    try:
        async with plain_channel(address) as channel, asyncio.timeout(ANSWER_SECONDS):
            who = await served.ask(channel)
    except TimeoutError:
        reason = f"it does not answer within {ANSWER_SECONDS:g} s"
    except grpc.aio.AioRpcError as error:
        reason = say_status(error)
    else:
        return ok(f"{address}: {who}")
    return judge_stranger(str(address), await holders_of(address), reason, served.what)


def say_status(error: grpc.aio.AioRpcError) -> str:
    """What a call ended with, in few words; the other side's own are bounded."""
    words = error.code().name.lower().replace("_", " ")
    return f"{words}: {(error.details() or '').strip()[:200]}"


async def holders_of(address: UnixAddress | TcpAddress) -> str:
    """Who holds `address`, in words."""
    return await in_thread(lambda: path_holders(address.path) if isinstance(address, UnixAddress) else port_holders(address.port))


def judge_stranger(where: str, holders: str, reason: str, what: str) -> Finding:
    """Somebody took the connection, and it is not what it should be, or is stuck."""
    return wrong(
        f"{where}: held by {holders or 'somebody'}, which does not answer as the {what}: {reason}",
        "stop that program or choose another address; restart it if it is ours",
    )


def judge_refusal(address: UnixAddress | TcpAddress, refusal: OSError, start_it: str) -> Finding:
    """Nobody took the connection."""
    words = refusal.strerror or str(refusal)
    match address, refusal.errno:
        case UnixAddress(), errno.ENOENT:
            return wrong(f"{address}: no socket is there: it does not run, or listens elsewhere", start_it)
        case UnixAddress(), errno.ECONNREFUSED:
            return wrong(f"{address}: the socket was left by a server that is gone", f"{start_it}; the start replaces the socket")
        case UnixAddress(), errno.EACCES | errno.EPERM:
            return wrong(
                f"{address}: this user may not open it: {words}", "run this as root, or as a member of the socket's group"
            )
        case TcpAddress(), errno.ECONNREFUSED:
            return wrong(f"{address}: nobody listens, and the port is free", start_it)
    return wrong(f"{address}: {words}", start_it)


def folder_of(address: UnixAddress) -> FileFacts | OSError:
    """The facts of the folder that the socket lies in. Blocks."""
    return read_facts(Path(address.path).parent)


def judge_socket(address: UnixAddress, there: FileFacts | OSError, folder: FileFacts | OSError) -> list[Finding]:
    """Who can open the socket, and who could replace it; what is not there is judged by the knock."""
    found: list[Finding] = []
    if isinstance(folder, FileFacts) and folder.mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
        found.append(wrong(f"{address}: anybody can replace it: {folder.path} is {folder.owners}", f"chmod o-w {folder.path}"))
    if isinstance(there, OSError):
        return found
    if not there.is_socket:
        return [*found, wrong(f"{address}: what lies there is no socket", "move it away, or choose another path")]
    if there.mode & stat.S_IRWXO:
        found.append(
            wrong(f"{address}: everybody may open it: {there.owners}", f"restart the server, or chmod 0660 {address.path}")
        )
    else:
        found.append(ok(f"{address}: {there.owners}"))
    return found
