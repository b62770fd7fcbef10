"""vsock as a guest has it: device, transport, this machine's own CID, and whether the configured listeners fit it and are held.

Nobody in the guest can ask a listener that lets in the host alone, so whether the port is held is what can be seen from here: it is
bound for an instant, not listened on, and let go. The proxy's own doctor on the host says who answers.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from guest_service.config import grpc_addresses
from guest_service.doctor.machine import UNIT, Guest
from guest_transport.addresses import VSOCK_CID_ANY, VSOCK_CID_HOST, VSOCK_CIDS, VsockAddress
from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.findings import Finding, note, ok, wrong
from guest_transport.sockets.vsock import read_cid

_MODULES = "modprobe vmw_vsock_virtio_transport (QEMU, Firecracker, Cloud Hypervisor), and give the VM a vsock device"


@dataclass(frozen=True, slots=True)
class VsockReading:
    """`cid`: this machine's, None while no transport gives it one, or why the device cannot be asked. `has_loopback`: vsock:local."""

    cid: int | OSError | None
    has_loopback: bool


async def examine_cid(guest: Guest) -> Sequence[Finding]:
    """The CID, and each vsock address of grpc.listen."""
    listeners = [address for address in grpc_addresses(guest.config) if isinstance(address, VsockAddress)]
    reading = await in_thread(lambda: read_vsock(guest.dev, guest.sysfs))
    if not listeners:
        return [judge_unused(reading)]
    found = judge_own(reading)
    for address in listeners:
        fits = judge_listener(address, reading)
        found += fits or [judge_bind(address, await in_thread(partial(try_bind, address)))]
    return found


def read_vsock(dev: Path, sysfs: Path) -> VsockReading:
    """What device and modules say. Blocks."""
    try:
        cid: int | OSError | None = read_cid(dev / "vsock")
    except OSError as error:
        cid = error
    return VsockReading(cid, (sysfs / "module/vsock_loopback").exists())


def judge_unused(reading: VsockReading) -> Finding:
    """No vsock address is configured."""
    if isinstance(reading.cid, int) and reading.cid > VSOCK_CID_HOST:
        return note(
            f"this machine's CID is {reading.cid}, and no vsock address is in grpc.listen",
            'listen on "vsock:any:8000" for the host',
        )
    return note("no vsock address is in grpc.listen")


def judge_own(reading: VsockReading) -> list[Finding]:
    """This machine's own CID."""
    match reading.cid:
        case FileNotFoundError():
            return [wrong("/dev/vsock is not there: the kernel module vsock is not loaded", _MODULES)]
        case OSError() as error:
            return [note(f"/dev/vsock cannot be asked for the CID: {error.strerror}", "run this as root")]
        case None:
            return [wrong("vsock has no transport: this machine has no CID", _MODULES)]
        case int(cid) if cid == VSOCK_CID_HOST:
            return [note("this machine's CID is 2: it is a host, and its guests would reach it, not a host above it")]
    return [ok(f"this machine's CID is {reading.cid}")]


def judge_listener(address: VsockAddress, reading: VsockReading) -> list[Finding]:
    """What is wrong with the configured CID; empty when it fits."""
    own = reading.cid
    if address.cid == VSOCK_CID_ANY or (isinstance(own, int) and address.cid == own):
        return []
    if address.cid == VSOCK_CIDS["local"]:
        if reading.has_loopback:
            return []
        return [
            wrong(f"{address}: needs the kernel module vsock_loopback", f"modprobe vsock_loopback, or vsock:any:{address.port}")
        ]
    known = f"this machine's is {own}" if isinstance(own, int) else "this machine has none"
    return [wrong(f"{address}: the CID is not this machine's ({known})", f"use vsock:any:{address.port}")]


def try_bind(address: VsockAddress) -> OSError | None:
    """Why `address` cannot be bound; None when it could. Holds it for an instant."""
    try:
        with socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM) as probe:
            probe.bind((address.cid, address.port))
    except OSError as error:
        return error
    return None


def judge_bind(address: VsockAddress, refusal: OSError | None) -> Finding:
    """A port in use is good: the doctor is run while the server runs."""
    if refusal is None:
        return wrong(f"{address}: nobody listens", f"systemctl start {UNIT}; journalctl -u {UNIT} says why it ended")
    match refusal.errno:
        case errno.EADDRINUSE:
            return ok(f"{address}: somebody listens; the host alone can ask who (vmm-proxy doctor)")
        case errno.EACCES | errno.EPERM:
            return note(f"{address}: this user may not find out whether somebody listens", "run this as root")
        case errno.EAFNOSUPPORT:
            return wrong(f"{address}: this kernel has no vsock", _MODULES)
    return wrong(f"{address}: {refusal.strerror}", "see cid; vsock:any fits every machine")
