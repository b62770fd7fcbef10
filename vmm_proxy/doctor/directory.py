"""Which guests the proxy would know: entries that are refused, addresses that are there twice, and what libvirt and KubeVirt tell."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence

from guest_transport.addresses import HvsockAddress, UnixAddress
from guest_transport.doctor.checks import in_thread
from guest_transport.doctor.findings import Finding, note, ok, wrong
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.doctor.known_guests import FoundReading
from vmm_proxy.doctor.machine import Host

# More ids in one line are read by nobody.
_IDS_SHOWN = 8


async def examine_directory(host: Host) -> Sequence[Finding]:
    """Each entry that is refused, and addresses that are one socket under two names."""
    known = await host.known.get()
    resolved = await in_thread(lambda: {entry.id: _resolved(entry) for entry in known.guests if entry.running})
    return judge_directory(known.guests, known.refused, resolved)


def _resolved(entry: GuestEntry) -> str:
    """Where a socket's address leads once links are followed; empty for an address that is no path."""
    match entry.address:
        case UnixAddress(path=path):
            return os.path.realpath(path)
        case HvsockAddress(path=path, port=port):
            return f"{os.path.realpath(path)}:{port}"
    return ""


def judge_directory(guests: Sequence[GuestEntry], refused: Sequence[str], resolved: dict[str, str]) -> list[Finding]:
    """`resolved`: where the running guests' sockets really are, by id."""
    found = [wrong(f"refused: {reason}", "correct or remove the entry; the folder is read again by itself") for reason in refused]
    holders = defaultdict[str, list[str]](list)
    for guest_id, place in resolved.items():
        if place:
            holders[place].append(guest_id)
    found += [
        wrong(f"guests {_some(ids)} lead to one socket, {place}", "give each its own: one VM would answer for the other")
        for place, ids in holders.items()
        if len(ids) > 1
    ]
    running = sum(entry.running for entry in guests)
    if not guests and not refused:
        return [
            note("no guests are known", "add [[guest]], a file in directory.dir, libvirt.uri or kubevirt.node: docs/running.md")
        ]
    return found or [ok(f"{len(guests)} guest{'' if len(guests) == 1 else 's'}, {running} running")]


def _some(ids: Sequence[str]) -> str:
    shown = " and ".join(ids[:_IDS_SHOWN])
    return f"{shown} and {len(ids) - _IDS_SHOWN} more" if len(ids) > _IDS_SHOWN else shown


async def examine_libvirt(host: Host) -> Sequence[Finding]:
    """Whether libvirt is reached, and which domains are refused."""
    return judge_libvirt((await host.known.get()).libvirt)


def judge_libvirt(reading: FoundReading | None) -> list[Finding]:
    """None: not followed."""
    if reading is None:
        return [note("not followed: libvirt.uri is not set")]
    if reading.problem:
        return [wrong(reading.problem, "virsh -r list as the proxy's user shows the same; docs/libvirt.md")]
    found = [wrong(reason, "correct the domain's XML (virsh edit); docs/libvirt.md") for reason in reading.refused]
    found += [note(f"domain {uuid}: an entry that was written down comes first") for uuid in reading.written_down]
    return [*found, ok(f"libvirt answers: {reading.count} running domain{'' if reading.count == 1 else 's'}")]


async def examine_kubevirt(host: Host) -> Sequence[Finding]:
    """Whether the API server is reached, and which instances of this node are refused."""
    return judge_kubevirt((await host.known.get()).kubevirt)


def judge_kubevirt(reading: FoundReading | None) -> list[Finding]:
    """None: not followed."""
    if reading is None:
        return [note("not followed: kubevirt.node is not set")]
    if reading.problem:
        return [wrong(reading.problem, "kubectl auth can-i watch virtualmachineinstances.kubevirt.io; docs/kubevirt.md")]
    found = [wrong(reason, "see the instance: kubectl get vmi -o yaml; docs/kubevirt.md") for reason in reading.refused]
    found += [note(f"instance {known}: an entry that was written down comes first") for known in reading.written_down]
    instances = f"{reading.count} instance{'' if reading.count == 1 else 's'}"
    return [*found, ok(f"the API server answers: {instances} on this node, with a vsock device or without")]
