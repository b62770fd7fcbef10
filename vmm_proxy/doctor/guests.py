"""Every running guest, asked who it is and how its cards are: all at once, each within its own bound, over the proxy's own kind of channel.

Info and GpuInfo are the calls that are made; they change nothing in a guest. The answer is hostile like any other: its size and shape are
checked by the proxy's own rules, and its text is escaped by the report. A pin is judged here, so that the operator sees what was shown
instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import resource
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from guest_api import guest_api_pb2
from guest_contract import health
from guest_contract.methods import proxied_methods
from guest_transport.addresses import VSOCK_CIDS, Address, HvsockAddress, TcpAddress, UnixAddress, VsockAddress
from guest_transport.doctor.findings import Finding, note, ok, wrong
from vmm_proxy.directory.directory import GuestEntry
from vmm_proxy.directory.guest_tls import GuestTls, secure, tls_for
from vmm_proxy.doctor.machine import Host
from vmm_proxy.errors import CallError
from vmm_proxy.upstream.call import ask
from vmm_proxy.upstream.channel import Channel
from vmm_proxy.upstream.http_channel import HttpChannel, refuse_tls
from vmm_proxy.upstream.reachability import answered
from vmm_proxy.upstream.unasked_bytes import UnaskedBytes

# A guest answers Info from memory; two handshakes of 2.5 s and some is what the proxy itself waits for one that swallows connections.
GUEST_SECONDS = 6.0
_VERSION_LIMIT_CHARACTERS = 64
_ERROR_LIMIT_CHARACTERS = 300
_METHODS = {method.name: method for method in proxied_methods()}
INSIDE = "guest-service doctor in the guest says more"
REACHED = f"it is reached and does not say who it is: does guest-service answer there, and not another program? {INSIDE}"
_REACHED_DSTACK = "it is reached and does not say who it is: does dstack's own agent answer there, and not another program?"


@dataclass(frozen=True, slots=True)
class GuestReading:
    """What came of asking: who it says it is, or why not; and its cards, None where it gave no answer about them.

    `reached` is as everywhere in the proxy: it said something, were it an error.
    """

    entry: GuestEntry
    version: str = ""
    instance_id: bytes = b""
    failure: str = ""
    gpus: guest_api_pb2.GpuInfoResponse | None = None
    reached: bool = False


async def examine_guests(host: Host) -> Sequence[Finding]:
    """Ask all of them."""
    known = await host.known.get()
    _allow_many_descriptors()
    running = [entry for entry in known.guests if entry.running]
    readings = await asyncio.gather(*(ask_guest(entry, known.usual_tls, known.tls_refused) for entry in running))
    stopped = [note(f"guest {entry.id}: stopped, so it is not asked") for entry in known.guests if not entry.running]
    cards = [finding for reading in readings for finding in judge_cards(reading)]
    found = [*(judge_guest(reading) for reading in readings), *judge_twins(readings), *cards, *stopped]
    return found or [note("no guests to ask")]


async def ask_guest(entry: GuestEntry, usual_tls: GuestTls | None, tls_refused: str = "") -> GuestReading:
    """Who answers at the entry's address; raises nothing but cancellation."""
    tls = tls_for(entry.address, entry.tls, usual_tls)
    if tls is None and tls_refused and isinstance(entry.address, TcpAddress) and not entry.address.loopback:
        return GuestReading(entry, failure=f"guest {entry.id}: not asked: its TLS files are refused (see tls)")
    try:
        channel = await _channel(entry, tls)
    except CallError as error:
        return GuestReading(entry, failure=error.text)
    try:
        return await _read(channel, entry)
    except CallError as error:
        return GuestReading(entry, failure=error.text, reached=answered(error))
    finally:
        await channel.close()


async def _channel(entry: GuestEntry, tls: GuestTls | None) -> Channel | HttpChannel:
    unasked = UnaskedBytes(entry.id, time.monotonic)
    if entry.dstack:
        if tls is not None:
            raise refuse_tls(entry.id)
        return HttpChannel(entry.id, entry.address, unasked)
    secured = await secure(entry.id, entry.address, tls) if tls is not None else None
    return Channel(entry.id, entry.address, unasked, secured=secured)


async def _ask(channel: Channel | HttpChannel, guest_id: str, method: str, until: float) -> Message:
    if isinstance(channel, Channel):
        return (await ask(channel, guest_id, _METHODS[method], (), until)).message
    async with channel.lent(_METHODS[method], until) as connection:
        return (await ask(connection, guest_id, _METHODS[method], (), until)).message


async def _read(channel: Channel | HttpChannel, entry: GuestEntry) -> GuestReading:
    until = asyncio.get_running_loop().time() + GUEST_SECONDS
    info = await _ask(channel, entry.id, "Info", until)
    if not isinstance(info, guest_api_pb2.GuestInfo):
        return GuestReading(entry, failure=f"guest {entry.id}: its reply is no GuestInfo", reached=True)
    gpus = None
    # Another VM in the guest's place is not asked any further. A guest that tells nothing of cards is no fault of the way to it.
    if not entry.instance_id or hmac.compare_digest(entry.instance_id, info.instance_id):
        with contextlib.suppress(CallError):
            told = await _ask(channel, entry.id, "GpuInfo", until)
            gpus = told if isinstance(told, guest_api_pb2.GpuInfoResponse) else None
    return GuestReading(entry, info.version[:_VERSION_LIMIT_CHARACTERS], info.instance_id, gpus=gpus, reached=True)


def judge_cards(reading: GuestReading) -> list[Finding]:
    """What speaks against the guest's cards, by the rules that all go by; nothing while its first sample is taken."""
    if reading.gpus is None or reading.gpus.first_sample_pending:
        return []
    return [
        wrong(f"guest {reading.entry.id}: {reason.words[:_ERROR_LIMIT_CHARACTERS]}", reason.action.rstrip("."))
        for reason in health.judge_guest(reading.gpus, reading.entry.gpus_given).reasons
        if reason.level in {health.Level.DEGRADED, health.Level.FAILED} or reason.code == "unknown"
    ]


def judge_guest(reading: GuestReading) -> Finding:
    """Reached, and the one that the directory means."""
    entry = reading.entry
    if reading.failure:
        advice = _REACHED_DSTACK if entry.dstack else REACHED
        return wrong(f"{reading.failure} ({entry.written_address})", advice if reading.reached else _advice(entry.address))
    shown = reading.instance_id.hex() or "no instance id"
    if entry.instance_id and not hmac.compare_digest(entry.instance_id, reading.instance_id):
        return wrong(
            f"guest {entry.id}: another VM answers at {entry.written_address}: it shows {shown}, and {entry.instance_id.hex()} is pinned",
            "correct the address, or the pin if this guest was made anew; until then the proxy passes nothing on",
        )
    pinned = ", as pinned" if entry.instance_id else ""
    agent = f"{'dstack' if entry.dstack else 'guest-service'} {reading.version or 'of no version'}"
    return ok(f"guest {entry.id}: {agent} at {entry.written_address}, {shown}{pinned}")


def _advice(address: Address) -> str:
    inside = INSIDE
    match address:
        case VsockAddress(cid=cid) if cid == VSOCK_CIDS["local"]:
            return f"does an agent of this machine listen on vsock:any:{address.port}, and is CID 1 in its grpc.vsock_cids?"
        case VsockAddress(cid=cid):
            return f"is a VM with CID {cid} running, and does its agent listen on vsock:any:{address.port}? {inside}"
        case HvsockAddress():
            return f"is the VM running, and does its agent listen on vsock:any:{address.port}? {inside}"
        case UnixAddress():
            return "does an agent listen there, and may this user open the socket?"
    return f"is the port open from here, and TLS the same on both sides? {inside}"


def judge_twins(readings: Sequence[GuestReading]) -> list[Finding]:
    """Guests that show one identity."""
    by_identity = defaultdict[bytes, list[str]](list)
    for reading in readings:
        if reading.instance_id:
            by_identity[reading.instance_id].append(reading.entry.id)
    return [
        note(
            f"guests {', '.join(ids[:8])} show one instance_id: one VM answers for all of them, or they have one /etc/machine-id",
            "give each VM a machine id of its own (systemd-machine-id-setup after removing it), so that pins can tell them apart",
        )
        for ids in by_identity.values()
        if len(ids) > 1
    ]


def _allow_many_descriptors() -> None:
    """A connection per guest, as in serve."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
