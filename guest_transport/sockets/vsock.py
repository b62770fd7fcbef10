"""AF_VSOCK sockets: bind with an error that says what to do, connect within a bound.

Kept thin, because many machines have no vsock: what happens to the bytes is the relay's business and tested over Unix sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import struct
from pathlib import Path

from guest_transport.addresses import VSOCK_CID_ANY, VsockAddress
from guest_transport.errors import ListenError
from guest_transport.sockets.unix import LISTEN_BACKLOG

_DEVICE = Path("/dev/vsock")
# linux/vm_sockets.h: the CID of this machine, as the device tells it.
_IOCTL_VM_SOCKETS_GET_LOCAL_CID = 0x7B9
# What connect(2) means here (net/vmw_vsock/af_vsock.c, drivers/vhost/vsock.c), without the CID: callers of the proxy read it.
_MEANS = {
    errno.ENODEV: ": no VM with this CID runs, or the kernel module vhost_vsock is not loaded",
    errno.ECONNRESET: ": nobody in the VM listens on this port for this host",
    errno.ETIMEDOUT: ": no VM with this CID answers",
}


def own_cid() -> int | None:
    """This machine's CID; None when there is no vsock device or it does not say."""
    with contextlib.suppress(OSError):
        return read_cid(_DEVICE)
    return None


def read_cid(device: Path) -> int | None:
    """The CID that the vsock `device` tells, None while no transport gives it one; raises OSError when it cannot be asked."""
    with device.open("rb", buffering=0) as opened:
        (cid,) = struct.unpack("=I", fcntl.ioctl(opened, _IOCTL_VM_SOCKETS_GET_LOCAL_CID, bytes(4)))
    return None if cid == VSOCK_CID_ANY else int(cid)


def listen(address: VsockAddress) -> socket.socket:
    """A non-blocking socket that listens at `address`; raises ListenError."""
    try:
        listener = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    except OSError as error:
        raise ListenError(f"{address}: cannot listen: this kernel has no vsock ({error.strerror}); load its module") from error
    try:
        listener.bind((address.cid, address.port))
        listener.listen(LISTEN_BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(f"{address}: cannot listen: {_reason(address, error)}") from error
    return listener


async def connect(address: VsockAddress) -> socket.socket:
    """A non-blocking socket connected to `address`; raises OSError. The caller bounds the wait."""
    connection = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        await asyncio.get_running_loop().sock_connect(connection, (address.cid, address.port))
    except BaseException as error:
        connection.close()
        if isinstance(error, OSError) and error.errno:
            # asyncio's own words name the CID.
            raise OSError(error.errno, f"{os.strerror(error.errno)}{_MEANS.get(error.errno, '')}") from error
        raise
    return connection


def _reason(address: VsockAddress, error: OSError) -> str:
    match error.errno:
        case errno.EADDRNOTAVAIL:
            own = own_cid()
            known = "this machine has none" if own is None else f"this machine's is {own}"
            return f"the CID is not this machine's ({known}); use vsock:any:{address.port}"
        case errno.EADDRINUSE:
            return f"port {address.port} is taken"
        case errno.EACCES:
            return f"port {address.port} needs CAP_NET_BIND_SERVICE; use one from 1024 up"
    return error.strerror or str(error)
