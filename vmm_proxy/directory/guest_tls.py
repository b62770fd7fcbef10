"""TLS towards a guest at HOST:PORT: whom the proxy believes, what it shows, and under which name the guest must answer.

The files are read anew for each line, so that a renewed certificate is used at the next one (SIGHUP dials all of them anew).
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import grpc

from guest_transport.addresses import Address, TcpAddress
from guest_transport.errors import SettingsError
from guest_transport.tls import ClientTls
from vmm_proxy.errors import CallError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GuestTls:
    """`name` is what the guest's certificate must say; empty for the host of its address."""

    files: ClientTls
    name: str = ""

    def name_for(self, address: Address) -> str:
        """The name to look for in the certificate of the guest at `address`."""
        return self.name or (address.host if isinstance(address, TcpAddress) else "")


def tls_for(address: Address, own: GuestTls | None, usual: GuestTls | None) -> GuestTls | None:
    """The TLS of a guest at `address`: its own, or the usual one where the network lies in between."""
    if own is not None or not isinstance(address, TcpAddress) or address.loopback:
        return own
    return usual


@dataclass(frozen=True, slots=True)
class Secured:
    """What a channel needs to speak TLS with one guest."""

    credentials: grpc.ChannelCredentials
    # What its certificate must say.
    name: str


async def secure(guest_id: str, address: Address, tls: GuestTls) -> Secured:
    """From the files as they are now; raises CallError UNAVAILABLE."""
    try:
        return Secured(await asyncio.to_thread(tls.files.credentials), tls.name_for(address))
    except SettingsError as error:
        log.warning("guest %s: cannot be dialled: %s", guest_id, error)
        text = f"guest {guest_id}: the proxy's certificates for it cannot be used; its log says more"
        raise CallError(grpc.StatusCode.UNAVAILABLE, text) from error
