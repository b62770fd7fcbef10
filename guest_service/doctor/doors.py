"""Where the agent is to be reached from inside the guest: its gRPC addresses and its page."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc
from google.protobuf import empty_pb2

from guest_api import guest_api_pb2, guest_api_pb2_grpc
from guest_service.config import grpc_addresses, http_address
from guest_service.doctor.machine import UNIT, Guest
from guest_transport.addresses import HvsockAddress, TcpAddress, UnixAddress, VsockAddress
from guest_transport.doctor.findings import Finding, note, wrong
from guest_transport.doctor.listeners import ANSWER_SECONDS, Served, examine_listener
from guest_transport.doctor.pages import examine_pages
from guest_transport.doctor.tls_listener import examine_tls_listener
from guest_transport.tls_settings import TlsSettings

# What an agent says of its version; more is not shown.
_VERSION_LIMIT_CHARACTERS = 64


async def _who(channel: grpc.aio.Channel) -> str:
    info: object = await guest_api_pb2_grpc.GuestApiStub(channel).Info(empty_pb2.Empty(), timeout=ANSWER_SECONDS)
    if not isinstance(info, guest_api_pb2.GuestInfo):
        # grpc.aio 1.85 gives None with status OK for a reply that does not decode.
        return "something whose reply does not decode"
    return (
        f"guest-service {info.version[:_VERSION_LIMIT_CHARACTERS]} answers, instance {info.instance_id.hex() or 'without an id'}"
    )


AGENT = Served("guest agent", UNIT, _who)


async def examine_grpc(guest: Guest) -> Sequence[Finding]:
    """Each address of grpc.listen but those of vsock, which `cid` looks at."""
    asked = []
    found: list[Finding] = []
    for address in grpc_addresses(guest.config):
        match address:
            case UnixAddress() | TcpAddress():
                # Port 0 is chosen at the start; examine_listener says so.
                if isinstance(address, TcpAddress) and address.port and guest.config.tls is not None:
                    asked.append(examine_tls_listener(address, Path(guest.config.tls.certificate), AGENT))
                else:
                    asked.append(examine_listener(address, AGENT))
                found += judge_reach(address, guest.config.tls)
            case HvsockAddress():
                found.append(wrong(f"{address}: hvsock is the host's side", f"use vsock:any:{address.port}"))
            case VsockAddress():
                continue
    answers = await asyncio.gather(*asked)
    return [*(finding for each in answers for finding in each), *found] or [note("vsock addresses only: see cid")]


def judge_reach(address: UnixAddress | TcpAddress, tls: TlsSettings | None) -> list[Finding]:
    """TCP that others reach, where they need no certificate."""
    if not isinstance(address, TcpAddress) or address.loopback or (tls is not None and tls.client_authorities is not None):
        return []
    return [
        note(
            f"{address}: whoever reaches this port reads all of this guest",
            "[tls] with client_authorities lets the proxy alone in; or a firewall, or vsock",
        )
    ]


async def examine_http(guest: Guest) -> Sequence[Finding]:
    """The page and /metrics."""
    found = await examine_pages(http_address(guest.config.http.listen), UNIT)
    if guest.config.http.listen != "off" and not guest.config.http.public_sysinfo:
        found.append(note("/metrics is off", "http.public_sysinfo = true shows it"))
    return found
