"""What the ways to guests need on this host: socket files that are there and open, and the kernel's parts of vsock."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from guest_transport.addresses import VSOCK_CIDS, HvsockAddress, UnixAddress, VsockAddress
from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.files import FileFacts, may, read_facts, this_user
from guest_transport.doctor.findings import Finding, note, ok, wrong
from vmm_proxy.doctor.machine import Host


async def examine_sockets(host: Host) -> Sequence[Finding]:
    """The socket files of guests at hvsock: and unix: addresses."""
    known = await host.known.get()
    paths = {
        entry.id: Path(entry.address.path)
        for entry in known.guests
        if entry.running and isinstance(entry.address, UnixAddress | HvsockAddress)
    }
    if not paths:
        return [note("no running guest is at a socket file")]
    files = await in_thread(lambda: {guest_id: (read_facts(path), may(path, os.W_OK)) for guest_id, path in paths.items()})
    found = [finding for guest_id, path in paths.items() for finding in judge_guest_socket(guest_id, path, *files[guest_id])]
    return found or [ok(f"{len(paths)} socket file{'' if len(paths) == 1 else 's'} of guests there and open to {this_user()}")]


def judge_guest_socket(guest_id: str, path: Path, facts: FileFacts | OSError, usable: bool) -> list[Finding]:
    """What is wrong with the file; empty when nothing is."""
    if isinstance(facts, PermissionError):
        return [
            wrong(
                f"guest {guest_id}: {path}: {this_user()} may not look there",
                "SupplementaryGroups= of the unit, with the VMM's group",
            )
        ]
    if isinstance(facts, OSError):
        return [
            wrong(f"guest {guest_id}: {path}: {facts.strerror}", 'start the VM, correct the address, or set state = "stopped"')
        ]
    if not facts.is_socket:
        return [wrong(f"guest {guest_id}: {path} is no socket", "name the Unix socket of the VM's vsock device")]
    if not usable:
        words = f"guest {guest_id}: {path}: {this_user()} may not connect: {facts.owners}"
        return [wrong(words, "SupplementaryGroups= of the unit, with the VMM's group")]
    return []


@dataclass(frozen=True, slots=True)
class VsockReading:
    """Whether this kernel makes vsock sockets (None: it does), and which of its parts are there."""

    refusal: OSError | None
    has_vhost: bool
    has_loopback: bool


async def examine_vsock(host: Host) -> Sequence[Finding]:
    """The kernel's side of guests at vsock: addresses."""
    known = await host.known.get()
    cids = {entry.address.cid for entry in known.guests if entry.running and isinstance(entry.address, VsockAddress)}
    if not cids and host.config.libvirt.uri is None and host.config.kubevirt.node is None:
        return [note("no running guest is at a vsock address")]
    return judge_vsock(await in_thread(lambda: read_vsock(host.dev, host.sysfs)), cids)


def read_vsock(dev: Path, sysfs: Path) -> VsockReading:
    """What the kernel has. A part that is built in has no folder under module/, so vhost's device counts as well. Blocks."""
    refusal = None
    try:
        socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM).close()
    except OSError as error:
        refusal = error
    has_vhost = (dev / "vhost-vsock").exists() or (sysfs / "module/vhost_vsock").exists()
    return VsockReading(refusal, has_vhost, (sysfs / "module/vsock_loopback").exists())


def judge_vsock(reading: VsockReading, cids: set[int]) -> list[Finding]:
    """Whether guests with `cids` can be reached at all; none of them: libvirt or KubeVirt may tell of some."""
    if reading.refusal is not None:
        return [wrong(f"this kernel has no vsock: {reading.refusal.strerror}", "modprobe vhost_vsock")]
    local = VSOCK_CIDS["local"]
    found = []
    if not reading.has_vhost and (not cids or cids - {local}):
        found.append(wrong("vhost_vsock is not loaded: no VM of this host can be reached over vsock", "modprobe vhost_vsock"))
    if local in cids and not reading.has_loopback:
        found.append(wrong("vsock_loopback is not loaded, and a guest is at vsock:local", "modprobe vsock_loopback"))
    return found or [ok("the kernel has what vsock guests need")]
